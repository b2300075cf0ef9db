"""Globs and regexes over paths, in linear time."""
