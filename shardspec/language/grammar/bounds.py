"""How much is too much: `2%` of the bytes of all arrays, or a size such as `64 MiB`."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardspec.language.grammar.syntax import SyntaxFault

_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_BOUND = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(%|[KMGT]iB|B)\s*")
_NUMBER = re.compile(
    r"\s*+(-?)(?P<digits>[0-9]++(?:\.[0-9]++)?+)\s*+(?P<unit>(?:.*\S)?)\s*", re.DOTALL
)
_FORMS = "a share of the bytes of all arrays, such as `2%`, or a size, such as `64 MiB`"


class Bound(NamedTuple):
    """`2%` or `64 MiB`.

    Attributes:
      number: in digits, without needless zeros.
      unit: `%`, `B`, `KiB`, `MiB`, `GiB` or `TiB`.
    """

    number: str
    unit: str

    @property
    def max_share(self) -> float | None:
        """Return the share, 0 to 1; None for a size."""
        return float(self.number) / 100 if self.unit == "%" else None

    @property
    def max_bytes(self) -> int | None:
        """Return the size in whole bytes; None for a share."""
        if self.unit == "%":
            return None
        return int(float(self.number) * _BYTES[self.unit])


def parse_bound(text: str) -> Bound | SyntaxFault:
    """Return the bound in `text`.

    >>> parse_bound("2.50%"), parse_bound("64 MiB").max_bytes
    (Bound(number='2.5', unit='%'), 67108864)
    """
    found = _BOUND.fullmatch(text)
    if found is None:
        return _fault(text)
    whole, _, fraction = found[1].partition(".")
    number = ".".join(filter(None, (whole.lstrip("0") or "0", fraction.rstrip("0"))))
    bound = Bound(number, found[2])
    if bound.max_share is not None and bound.max_share > 1:
        message = f"`{number}%` is more than all there is"
        return SyntaxFault(message, found.start(1), found.end(2), "a share is 0% to 100%")
    return bound


def parse_bytes(text: str) -> int | SyntaxFault:
    """Return the bytes of a size such as `1 MiB`; a share is none."""
    bound = parse_bound(text)
    if isinstance(bound, SyntaxFault):
        return bound._replace(help="write a size in B, KiB, MiB, GiB or TiB: `1 MiB`")
    if bound.max_bytes is None:
        message = f"`{print_bound(bound)}` is a share, and this is a size"
        start = len(text) - len(text.lstrip())
        return SyntaxFault(message, start, len(text.rstrip()), "write bytes, such as `1 MiB`")
    return bound.max_bytes


def print_bound(bound: Bound) -> str:
    """Return `2%` or `64 MiB`."""
    return f"{bound.number}{'' if bound.unit == '%' else ' '}{bound.unit}"


def _fault(text: str) -> SyntaxFault:
    """Return what keeps a text from being a bound, and what would work."""
    stripped = text.strip()
    start = len(text) - len(text.lstrip())
    end = start + len(stripped)
    shown = stripped if len(stripped) <= 24 else f"{stripped[:20]}..."
    found = _NUMBER.fullmatch(text)
    if not stripped:
        return SyntaxFault("the amount is missing", start, end, f"write {_FORMS}")
    if found is None or len(found["digits"]) > 15:
        return SyntaxFault(f"`{shown}` is no amount of bytes", start, end, f"write {_FORMS}")
    digits, unit = found["digits"], found["unit"]
    if found[1] == "-":
        return SyntaxFault(f"`{shown}` is less than nothing", start, end, f"write {_FORMS}")
    if not unit:
        return SyntaxFault(f"`{digits}` has no unit", start, end, _number_help(digits))
    help = _unit_help(digits, unit)
    return SyntaxFault(f"`{unit}` is no unit of bytes", *found.span("unit"), help)


def _number_help(digits: str) -> str:
    """Return what a number without a unit may have meant."""
    number = float(digits)
    if number <= 1:
        return f"write `{number * 100:g}%` of the bytes of all arrays, or a size, such as `64 MiB`"
    if number <= 100:
        return f"write `{digits}%` of the bytes of all arrays, or `{digits} MiB` on every device"
    return f"write `{number:.0f} B` on every device, or a share of all arrays, such as `2%`"


def _unit_help(digits: str, unit: str) -> str:
    """Return the unit that was meant, where that is plain."""
    letter = unit[:1].upper()
    known = unit.lower() in {"percent", "byte", "bytes"} or unit[1:].lower() in {"", "b", "ib"}
    meant = {"P": "%", "B": " B", "K": " KiB", "M": " MiB", "G": " GiB", "T": " TiB"}.get(letter)
    if known and meant is not None and (letter != "P" or unit.lower() == "percent"):
        return f"write `{digits}{meant}`; sizes are binary: B, KiB, MiB, GiB, TiB"
    return "units are %, B, KiB, MiB, GiB and TiB"
