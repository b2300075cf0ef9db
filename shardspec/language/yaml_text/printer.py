"""Plain data -> the one YAML text that `shardspec fmt` writes for it.

Deterministic, and a fixed point: read and printed again, the text is the same. Blocks are
indented by two; the small mappings of the language (an axis entry, a short mesh, `policy`)
stand on one line while they fit. Comments stay with their entries. A single value is spelt so
that this reader and YAML 1.1 readers take it for the same value.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from shardspec.diagnostics import Code, Diagnostic, SourceFile, Span, codes, point
from shardspec.language.reading import Comments, Data, Route, inner_route
from shardspec.language.yaml_text.comments import Placed, comment_line, place_comments

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


_INDICATORS = frozenset("-?:,[]{}#&*!|>'\"%@`")
_FLOW_INDICATORS = frozenset(",[]{}:?")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\x00": "\\0"}


def print_scalar(value: Data, *, in_flow: bool = False) -> str:
    r"""Return a value that is no list or mapping as YAML on one line.

    Args:
      in_flow: inside `[...]` or `{...}`, where more words need quotes.

    >>> [print_scalar(v) for v in ("mlp -> model", "no", "8", 8, 1e16, r"{a}\d", None, "")]
    ['mlp -> model', '"no"', '"8"', '8', '1.0e+16', "'{a}\\d'", 'null', '""']
    """
    if isinstance(value, str):
        return print_string(value, in_flow=in_flow)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _print_float(value)
    return str(value)


def print_string(text: str, *, in_flow: bool = False) -> str:
    """Return text plain where that is safe; in single quotes around backslashes, else double."""
    if is_plain(text, in_flow=in_flow):
        return text
    if "\\" in text and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return quote(text)


def quote(text: str) -> str:
    r"""Return text in double quotes, with escapes for all that does not show.

    >>> print(quote('a "b"\n'))
    "a \"b\"\n"
    """
    return '"' + "".join(map(_escape, text)) + '"'


def is_plain(text: str, *, in_flow: bool = False) -> bool:
    """Say whether text without quotes is read as this text by YAML 1.1 and 1.2 alike."""
    return (
        text.isprintable()
        and text == text.strip()
        and read_plain(text) == text
        and text[0] not in _INDICATORS
        and not text.startswith("...")
        and ": " not in text
        and " #" not in text
        and not text.endswith(":")
        and not (in_flow and not _FLOW_INDICATORS.isdisjoint(text))
    )


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _print_float(value: float) -> str:
    """Return a decimal with a point and a signed exponent: YAML 1.1 asks for both."""
    if value != value or abs(value) == float("inf"):
        raise ValueError(f"{value} has no place in a document")
    mantissa, mark, exponent = repr(value).partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    return mantissa + mark + (exponent if exponent[:1] in ("", "-", "+") else f"+{exponent}")


WIDTH = 100
"""Columns that a mapping or list on one line may take."""

LONGEST_KEY = 1000
"""Characters; YAML wants `? KEY` on a line of its own for keys that are longer than 1,024."""

_ONE_LINE: tuple[tuple[str | None, ...], ...] = (
    *(("policy",), ("lints",), ("extends",), ("drop",), ("manifest",), ("axes", None)),
    ("axes", None, "parts"),
    *(("state",), ("coverage",), ("let",), ("step",), ("step", "remat"), ("activations", None)),
)
_SHORT = (("mesh",), ("targets", None, "mesh"))
_SHORT_ENTRIES = 3


def print_yaml(data: Mapping[str, Data], comments: Mapping[Route, Comments] | None = None) -> str:
    """Return the canonical YAML of a document.

    Args:
      comments: by route of the entry, `()` for those at the end. One whose entry is not in
        the data stands at the nearest entry above it.

    Invariants:
      round_trip: reading the text gives equal data and equal comments.
      idempotent: printing what was read gives the same text.
    """
    placed = place_comments(data, comments or {})
    printer = _Printer(placed)
    sections = [list(printer.entry((key,), value, 0)) for key, value in data.items()]
    ending = [comment_line(text) for text in placed.at(()).before]
    lines: list[str] = [] if sections else ["{}"]
    previous = 0
    for key, section in zip(data, sections, strict=True):
        if lines and (previous > 1 or len(section) > 1):
            lines.append("")
        lines += section
        previous = len(section) - len(placed.at((key,)).before)
    if ending:
        lines += ["", *ending]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Printer:
    """Prints entries with the comments that stand at them."""

    placed: Placed

    def entry(self, route: Route, value: Data, indent: int) -> Iterator[str]:
        """Yield the lines of one entry of a list or mapping, its comments first."""
        pad = " " * indent
        for text in self.placed.at(route).before:
            yield (pad + comment_line(text)) if text else ""
        if isinstance(route[-1], int):
            yield from self._item(route, value, indent)
            return
        key = print_string(route[-1])
        head = f"{pad}{key}:"
        if len(key) > LONGEST_KEY:
            yield f"{pad}? {key}"
            head = f"{pad}:"
        yield from self._under(route, head, value, indent)

    def _item(self, route: Route, value: Data, indent: int) -> Iterator[str]:
        """Yield a list item: what is in it starts on the line of its `-`."""
        pad = " " * indent
        if not isinstance(value, (dict, list)) or not value:
            yield from self._under(route, f"{pad}-", value, indent)
            return
        for number, line in enumerate(self._children(route, value, indent + 2)):
            yield f"{pad}- {line[indent + 2 :]}" if number == 0 else line

    def _under(self, route: Route, head: str, value: Data, indent: int) -> Iterator[str]:
        """Yield a value behind its key, or below it."""
        text = self.placed.at(route).trailing
        trailing = f"  {comment_line(text)}" if text else ""
        line = self._one_line(route, value, len(head) + 1)
        if line is not None:
            yield f"{head} {line}{trailing}"
        elif isinstance(value, str):
            yield f"{head} {'|' if value.endswith(chr(10)) else '|-'}{trailing}"
            for row in value.removesuffix("\n").split("\n"):
                yield f"{' ' * (indent + 2)}{row}".rstrip()
        else:
            yield f"{head}{trailing}"
            yield from self._children(route, value, indent + 2)

    def _children(self, route: Route, value: Data, indent: int) -> Iterator[str]:
        steps = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
        for step, child in steps:
            yield from self.entry((*route, step), child, indent)
        for text in self.placed.at(route).after:
            yield (" " * indent + comment_line(text)) if text else ""

    def _one_line(self, route: Route, value: Data, column: int) -> str | None:
        """Return the value as it stands behind its key, or None where it needs lines of its own."""
        if isinstance(value, str):
            return None if _is_block_text(value) else print_string(value)
        if not isinstance(value, (dict, list)):
            return print_scalar(value)
        if not value:
            return "{}" if isinstance(value, dict) else "[]"
        if not _may_be_one_line(route, len(value)) or route in self.placed.commented_below:
            return None
        line = _flow(value)
        return line if line is not None and column + len(line) <= WIDTH else None


def _flow(value: dict[str, Data] | list[Data]) -> str | None:
    """Return a mapping or list of single values as `{...}` or `[...]`."""
    values: Sequence[Data] = list(value.values()) if isinstance(value, dict) else value
    if any(isinstance(one, (dict, list)) for one in values):
        return None
    if isinstance(value, list):
        return f"[{', '.join(print_scalar(one, in_flow=True) for one in value)}]"
    return f"{{{', '.join(_flow_entry(key, one) for key, one in value.items())}}}"


def _flow_entry(key: str, value: Data) -> str:
    shown = print_scalar(value, in_flow=True)
    if key == "doc" and isinstance(value, str) and shown == value:
        shown = quote(value)
    return f"{print_string(key, in_flow=True)}: {shown}"


def _may_be_one_line(route: Route, count: int) -> bool:
    """Say whether the language writes what stands at `route` on one line, if it fits."""
    route = inner_route(route)
    if any(_matches(route, pattern) for pattern in _SHORT):
        return count <= _SHORT_ENTRIES
    return any(_matches(route, pattern) for pattern in _ONE_LINE)


def _matches(route: Route, pattern: tuple[str | None, ...]) -> bool:
    pairs = zip(route, pattern, strict=False)
    return len(route) == len(pattern) and all(part in (None, step) for step, part in pairs)


def _is_block_text(text: str) -> bool:
    """Say whether text of several lines can stand below a `|` as it is."""
    rows = text.removesuffix("\n").split("\n")
    return (
        "\n" in text
        and bool(rows[0])
        and bool(rows[-1])
        and not rows[0].startswith(" ")
        and all(row.isprintable() and row == row.rstrip() for row in rows)
    )
