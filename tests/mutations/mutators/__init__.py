"""Mistakes, one function each: all the places of a subject where it could be made.

A mutator is a function `subject -> mistakes`; its docstring's first line is its name in reports.
"""
