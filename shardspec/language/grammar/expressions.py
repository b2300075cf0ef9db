"""The small expressions of the language: text -> node, or the fault with its exact place.

A document repeats itself, and presets repeat each other, so every answer is kept by its text.
Nodes hold offsets into that text; `Excerpt.at` makes them places in a file.

How much is too much: `2%` of the bytes of all arrays, or a size such as `64 MiB`.

A list of devices, `0..3 7..4` or `0 1 3 2`: which of them stands where in a mesh.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from shardspec.language.grammar import refusals, syntax
from shardspec.language.grammar.parser import Node, parser
from shardspec.language.grammar.refusals import too_long
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.reading import DIGITS

T = TypeVar("T")

#: Answers of each kind: those of a file of a megabyte.
_KEPT = 16_384


def reader(
    grammar: str,
    start: str,
    make: Callable[[Node], T],
    refuse: Callable[[T], SyntaxFault | None] = lambda node: None,
    before: Callable[[str], T | SyntaxFault | None] = lambda text: None,
) -> Callable[[str], T | SyntaxFault]:
    """Return the function that reads one kind of expression, and keeps its answers.

    Args:
      make: makes the answer of the tree.
      refuse: says what is against an answer that the grammar allows.
      before: what is known of a text without a look at the grammar; None for most.
    """

    @lru_cache(_KEPT)
    def read(text: str) -> T | SyntaxFault:
        found = before(text) or refusals.too_long(text)
        if found is not None:
            return found
        machine = parser(grammar)
        tree = machine.parse(text, start)
        if tree is None:
            from shardspec.language.grammar.parse_faults import explain_fault

            return explain_fault(machine, start, text)
        huge = refusals.huge_number(text, tree)
        if huge is not None:
            return huge
        node = make(tree)
        return refuse(node) or node

    return read


#: `mlp, heads -> model | (replica, data) | none @ 5`.
parse_axis_rule = reader("axis_rule", "axis_rule", syntax.axis_rule, refusals.in_rule)

#: `((replica, data), none)`.
parse_partition = reader("axis_rule", "partition", syntax.partition, refusals.in_partition)

#: `data`, `(replica, data)`.
parse_mesh_axes = reader("axis_rule", "mesh_axes", syntax.mesh_axes, refusals.in_mesh_axes)

#: `before mlp`.
parse_place = reader("names", "place", syntax.place)

#: `batch length embed`.
parse_names = reader("names", "names", syntax.names, refusals.in_names)

#: `layers@0`.
parse_scan = reader("names", "scan", syntax.scan, refusals.in_scan)

#: `from **/kernel dims 0 _`.
parse_derived = reader("derived", "derived", syntax.derived, refusals.in_derived)

#: `heads * kv`, `inner + 2 * state`.
parse_size = reader(
    "array_type",
    "size",
    syntax.size,
    before=refusals.before_size,
)

#: `bf16[embed mlp]`.
parse_array_type = reader(
    "array_type",
    "array_type",
    syntax.array_type,
    refusals.in_array_type,
    refusals.before_size,
)

#: `submesh 4x2x2x1`, `tp`.
parse_mesh_size = reader(
    "mesh_axis",
    "mesh_size",
    syntax.mesh_size,
    refusals.in_mesh_size,
    refusals.before_mesh_size,
)

#: `2 * tpu v5p 4x4x8`.
parse_hardware = reader("hardware", "hardware", syntax.hardware)

#: `**/mlp/wi_{0,1}/kernel`.
parse_glob = reader(
    "path_pattern",
    "path_pattern",
    syntax.path_pattern,
    refusals.in_glob,
    lambda text: syntax.literal_glob(text) or refusals.before_glob(text),
)


_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_BOUND = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(%|[KMGT]iB|B)\s*")
_AMOUNT = re.compile(
    r"\s*+(-?)(?P<digits>[0-9]++(?:\.[0-9]++)?+)\s*+(?P<unit>(?:.*\S)?)\s*", re.DOTALL
)
_BOUND_FORMS = "a share of the bytes of all arrays, such as `2%`, or a size, such as `64 MiB`"


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
        return _bound_fault(text)
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


def _bound_fault(text: str) -> SyntaxFault:
    """Return what keeps a text from being a bound, and what would work."""
    stripped = text.strip()
    start = len(text) - len(text.lstrip())
    end = start + len(stripped)
    shown = stripped if len(stripped) <= 24 else f"{stripped[:20]}..."
    found = _AMOUNT.fullmatch(text)
    if not stripped:
        return SyntaxFault("the amount is missing", start, end, f"write {_BOUND_FORMS}")
    if found is None or len(found["digits"]) > 15:
        return SyntaxFault(f"`{shown}` is no amount of bytes", start, end, f"write {_BOUND_FORMS}")
    digits, unit = found["digits"], found["unit"]
    if found[1] == "-":
        return SyntaxFault(f"`{shown}` is less than nothing", start, end, f"write {_BOUND_FORMS}")
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


_RUN = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?(?=[\s,]|$)")
_GAP = re.compile(r"\s*,?\s*")
_WORD = re.compile(r"[^\s,]+|,")
_DEVICES_FORM = "numbers of devices stand one after another: `0 1 3 2`, `0..3 7..4`"


class RunExpr(NamedTuple):
    """`5`, or `0..3`; `7..4` counts down."""

    first: int
    last: int
    start: int
    end: int


def parse_devices(text: str) -> tuple[RunExpr, ...] | SyntaxFault:
    """Return the devices in `text`, each row of them as one.

    >>> parse_devices("0..3, 5")
    (RunExpr(first=0, last=3, start=0, end=4), RunExpr(first=5, last=5, start=6, end=7))
    """
    long = too_long(text)
    if long is not None:
        return long
    runs: list[RunExpr] = []
    at = len(text) - len(text.lstrip())
    while at < len(text.rstrip()):
        found = _RUN.match(text, at)
        if found is None:
            word = _WORD.match(text, at)
            end = word.end() if word else at + 1
            return SyntaxFault(f"`{text[at:end]}` is no number of a device", at, end, _DEVICES_FORM)
        if max(len(digits or "") for digits in found.groups()) > DIGITS:
            message = f"a number of more than {DIGITS} digits is no device"
            return SyntaxFault(message, *found.span(), _DEVICES_FORM)
        runs.append(RunExpr(int(found[1]), int(found[2] or found[1]), *found.span()))
        gap = _GAP.match(text, found.end())
        at = gap.end() if gap else found.end()
    return tuple(runs) or SyntaxFault("no device is listed", 0, len(text), _DEVICES_FORM)


def print_devices(runs: tuple[RunExpr, ...]) -> str:
    """Return `0..3 7..4`."""
    return " ".join(str(r.first) if r.first == r.last else f"{r.first}..{r.last}" for r in runs)
