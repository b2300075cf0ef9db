"""Characters that no spec holds: those that YAML does not allow, in the DSL as well.

They steer terminals (an escape in a comment, which `fmt --diff` would print), or are no text.
"""

from __future__ import annotations

import re

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.diagnostics.codes import SYNTAX
from shardspec.diagnostics.diagnostic import point

MOST_FOREIGN = 10

_FOREIGN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def find_foreign_characters(source: SourceFile, language: str = "YAML") -> list[Diagnostic]:
    """Return a finding for each of the first characters that may not stand in a text."""
    return [
        point(
            SYNTAX,
            f"the character U+{ord(match[0]):04X} may not stand in {language}",
            Span(source, *match.span()),
            "not allowed",
            help='delete it, or write it as an escape in double quotes, such as "\\x07"',
        )
        for _, match in zip(range(MOST_FOREIGN), _FOREIGN.finditer(source.text), strict=False)
    ]
