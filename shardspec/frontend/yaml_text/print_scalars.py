"""A single value -> YAML that this reader and YAML 1.1 readers take for the same value."""

from __future__ import annotations

from shardspec.frontend.reading import Data
from shardspec.frontend.yaml_text.scalars import read_plain

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
