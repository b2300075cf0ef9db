"""Text from files, made safe for a terminal.

Paths and names may hold anything, an escape sequence or a NUL too. Shown raw they could move the
cursor or hide what stands before them; here they show as what they are.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return `text` with each character that does not print as its escape: `\x1b`, `\n`.

    >>> print(printable("a\x1b[31m"), printable("é 層"))
    a\x1b[31m é 層
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def printable_json(text: str) -> str:
    r"""Return JSON with each character that does not print as the escape that JSON has for it.

    >>> print(printable_json('"\u202e\U000e0001"'))
    "\u202e\udb40\udc01"
    """
    lines = text.split("\n")
    if all(line.isprintable() for line in lines):
        return text
    import json

    return "\n".join(
        "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line) for line in lines
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
