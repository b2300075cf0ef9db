"""YAML text -> plain data with positions and comments, and back."""
