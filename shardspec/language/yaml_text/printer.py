"""Plain data -> the one YAML text that `shardspec fmt` writes for it.

Deterministic, and a fixed point: read and printed again, the text is the same. Blocks are
indented by two; the small mappings of the language (an axis entry, a short mesh, `policy`)
stand on one line while they fit. Comments stay with their entries. A single value is spelt so
that this reader and YAML 1.1 readers take it for the same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardspec.language.reading import Comments, Data, Route, inner_route
from shardspec.language.yaml_text.comments import Placed, comment_line, place_comments
from shardspec.language.yaml_text.scalars import read_plain

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
