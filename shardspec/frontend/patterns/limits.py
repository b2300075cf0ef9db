"""How long a pattern may be: longer than any that was written by hand."""

#: Characters, of a glob and of a regex.
MAX_LENGTH = 10_000
