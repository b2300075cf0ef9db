"""A file that is to be imported is not what its own tool would read.

The file is cut short, is of another format, or holds a value of the wrong form: a rule of three
parts, say. Nothing is imported from it, and nothing is written. Files are only read: Python and gin
are parsed and never run, so a value that has to be worked out cannot be used.

Bad:
    # rules.py
    RULES = [("embed", "data", "model")]

Good:
    # rules.py
    RULES = [("embed", ("data", "model"))]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import BAD_FOREIGN_FILE as CODE

__all__ = ["CODE"]
