"""Findings. One file each: its page (the docstring), its code, and its check."""
