"""Globs as text, with escapes where a character would mean something else."""

from __future__ import annotations

import re

from shardspec.frontend.grammar.syntax_glob import (
    AnyChar,
    Braces,
    DoubleStar,
    Glob,
    IntRange,
    Literal,
    Part,
    Star,
)


def print_glob(glob: Glob) -> str:
    """Return the text of a glob.

    Invariants:
      round_trip: `parse_glob(print_glob(glob)) == glob`.
    """
    return "".join(_part(part, in_braces=False) for part in glob.parts)


def _part(part: Part, *, in_braces: bool) -> str:
    match part:
        case Literal():
            return re.sub(r"[*?{}\\,]" if in_braces else r"[*?{}\\]", r"\\\g<0>", part.text)
        case Star():
            return "*"
        case DoubleStar():
            return "**"
        case AnyChar():
            return "?"
        case IntRange():
            first, last = (str(i).zfill(part.width) for i in (part.first, part.last))
            return f"{{{first}..{last}}}"
        case Braces():
            inner = (
                "".join(_part(p, in_braces=True) for p in parts) for parts in part.alternatives
            )
            return f"{{{','.join(inner)}}}"
