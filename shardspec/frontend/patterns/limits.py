"""How long a pattern may be: longer than any that was written by hand."""

#: Characters, of a glob and of a regex.
MAX_LENGTH = 10_000

#: Patterns that are kept compiled: those of a file of a megabyte. With room for fewer than a spec
#: has, each would be compiled anew for each array.
KEPT = 16_384
