"""Locks and diffs of plans: what is kept in a file, and the forms in which changes are told."""
