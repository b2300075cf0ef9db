"""Text in quotes, as expressions and the DSL have it: what stands in it, and how it is spelt."""

from __future__ import annotations

import re

_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
_SPELT = {char: f"\\{escape}" for escape, char in _ESCAPES.items()}
_NEEDS_ESCAPE = re.compile(r'["\\\n\t\r]')


def quoted(text: str) -> str:
    r"""Return `text` in quotes.

    Invariants:
      round_trip: `unquoted(quoted(text)) == text`.

    >>> print(quoted('a "b"'))
    "a \"b\""
    """
    return '"' + _NEEDS_ESCAPE.sub(lambda match: _SPELT[match.group()], text) + '"'


def unquoted(text: str) -> str:
    """Return what stands in quotes; an escape that is none stays as it is."""
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), inner)


def bad_escape(text: str) -> tuple[int, int] | None:
    """Return where an escape stands that means nothing, as offsets into the quoted text."""
    for match in re.finditer(r"\\(.)", text):
        if match[1] not in _ESCAPES:
            return match.span()
    return None
