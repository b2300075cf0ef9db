"""Findings: a module for each check, its page the docstring; texts for what others find."""
