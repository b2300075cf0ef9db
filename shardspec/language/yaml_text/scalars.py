"""What a plain YAML word means, and which characters no spec holds.

A word is a string, unless it is plainly something else. YAML 1.1, which PyYAML and many other tools
read, takes `no` for false, `12:30` for 750 and `010` for 8. Here such a word is a fault: it would
mean one thing to shardspec and another to the next tool that opens the file. Only `true`, `false`,
`null`, `~`, decimal integers and decimal fractions are more than text. `load_as_pyyaml` is the
witness: what PyYAML itself makes of a file.

Characters that YAML does not allow are refused in the DSL as well: they steer terminals (an escape
in a comment, which `fmt --diff` would print), or are no text.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from shardspec.diagnostics import Code, Diagnostic, SourceFile, Span, codes, point
from shardspec.language.reading import Data

LONGEST_NUMBER = 400
"""Characters of the longest number that is read as one."""

SPECIAL_STARTS = frozenset("-+.~0123456789nNtTfFyYoO=<")
"""Every plain word that is not simply text starts with one of these, or is empty."""

_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(
    r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+)"
)

_BOOLEANS = frozenset(("yes", "no", "true", "false", "on", "off"))

#: Words that are neither boolean nor null, and yet no text. Compiled where one may stand.
#: Source: the YAML 1.1 types (yaml.org/type) as PyYAML's resolver writes them.
_YAML_1_1 = "|".join(
    (
        r"(?P<octal_number>[-+]?0[0-7_]+)",
        r"(?P<hexadecimal_number>[-+]?0x[0-9a-fA-F_]+)",
        r"(?P<binary_number>[-+]?0b[01_]+)",
        r"(?P<number_in_base_60>[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)",
        r"(?P<number>[-+]?[1-9][0-9_]*)",
        r"(?P<decimal>(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?)",
        r"(?P<infinity>[-+]?\.(?i:inf))",
        r"(?P<not_a_number>\.(?i:nan))",
        r"(?P<date>[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?(?:[Tt \t][0-9:.Zz+\- \t]*)?)",
        r"(?P<merge_key><<)",
        r"(?P<default_value>=)",
    )
)


class ScalarFault(NamedTuple):
    """A plain word that cannot stand as it is."""

    code: Code
    message: str
    label: str
    help: str


def read_plain(text: str) -> Data | ScalarFault:
    """Return what the plain word `text` means, or why it may not be written plain.

    >>> [read_plain(word) for word in ("mlp", "8", "1.5e3", "true", "~", "y")]
    ['mlp', 8, 1500.0, True, None, 'y']
    >>> read_plain("off").message
    'YAML 1.1 reads `off` as a boolean (false)'
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in SPECIAL_STARTS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) <= LONGEST_NUMBER else _too_big(text)
    if _DECIMAL.fullmatch(text):
        number = float(text) if len(text) <= LONGEST_NUMBER else float("inf")
        return number if abs(number) != float("inf") else _too_big(text)
    return find_trap(text) or text


def find_trap(text: str) -> ScalarFault | None:
    """Return the fault of a plain word that YAML 1.1 takes for something else than text."""
    lowered = text.lower()
    if lowered in _BOOLEANS:
        return _trap(text, "boolean")
    if lowered == "null":
        return _trap(text, "null")
    if not text or text[0].isalpha():
        return None
    found = re.fullmatch(_YAML_1_1, text)
    if found is None or found.lastgroup is None:
        return None
    kind = "number" if found.lastgroup == "decimal" else found.lastgroup.replace("_", " ")
    return _trap(text, kind)


def _trap(text: str, kind: str) -> ScalarFault:
    if kind == "boolean" and text.lower() in _WORDS:
        way_out = f'write `{text.lower()}` for the boolean, or "{text}" for the name'
    elif kind == "null":
        way_out = f'write `null` for no value, or "{text}" for the name'
    else:
        way_out = f'quote it to keep it as text: "{text}"'
    if kind in ("octal number", "hexadecimal number", "binary number", "number"):
        way_out += "; or write the number in plain decimal digits"
    article = "an" if kind[0] in "aeiou" else "a"
    named = kind if kind in ("null", "not a number", "infinity") else f"{article} {kind}"
    message = f"YAML 1.1 reads `{text}` as {named}{_worth(text, kind)}"
    return ScalarFault(codes.YAML_TRAP, message, "not plain text", way_out)


def _worth(text: str, kind: str) -> str:
    """Return the value in parentheses, where it says more than the kind."""
    if kind == "boolean":
        return " (true)" if text.lower() in ("yes", "true", "on") else " (false)"
    digits = text.replace("_", "").lower()
    if len(digits) > 18 or "." in digits:
        return ""
    sign, body = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
    base = {"octal number": 8, "hexadecimal number": 16, "binary number": 2, "number": 10}.get(kind)
    if base is not None:
        with suppress(ValueError):
            return f" ({sign * int(body, base)})"
    if kind == "number in base 60":
        total = 0
        for part in body.split(":"):
            total = total * 60 + int(part)
        return f" ({sign * total})"
    return ""


def _too_big(text: str) -> ScalarFault:
    shown = text if len(text) <= 24 else f"{text[:20]}..."
    message = f"the number `{shown}` is too large to read"
    label = f"{len(text):,} characters"
    return ScalarFault(codes.WRONG_TYPE, message, label, "quote it if it is a name")


MOST_FOREIGN = 10

#: All but what YAML lists: a set without its complement compiles in a tenth of the time.
_FOREIGN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


def find_foreign_characters(source: SourceFile, language: str = "YAML") -> list[Diagnostic]:
    """Return a finding for each of the first characters that may not stand in a text."""
    help = 'delete it, or write it as an escape in double quotes, such as "\\x07"'
    found = []
    for match in islice(_FOREIGN.finditer(source.text), MOST_FOREIGN):
        message = f"the character U+{ord(match[0]):04X} may not stand in {language}"
        place = Span(source, *match.span())
        found.append(point(codes.SYNTAX, message, place, "not allowed", help=help))
    return found


def load_as_pyyaml(text: str) -> Any:
    r"""Return the value of a YAML text; what stands under a tag of its own is None.

    Give it only texts that our own reader takes: it knows no limit of depth.

    >>> load_as_pyyaml("a: [b, null]\nc: !include d.yaml\non: 1\n")
    {'a': ['b', None], 'c': None, True: '1'}
    """
    import yaml

    class Loader(yaml.CSafeLoader):
        """Reads numbers and dates as the text that they are."""

    for kind in ("timestamp", "binary", "int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", lambda loader, node: node.value)
    Loader.add_multi_constructor("", lambda loader, suffix, node: None)
    return yaml.load(text.removeprefix("\ufeff"), Loader)
