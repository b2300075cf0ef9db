"""The small expressions of the language: text -> node, or the fault with its exact place.

A document repeats itself, and presets repeat each other, so every answer is kept by its text.
Nodes hold offsets into that text; `Excerpt.at` makes them places in a file.

How much is too much: `2%` of the bytes of all arrays, or a size such as `64 MiB`.

A list of devices, `0..3 7..4` or `0 1 3 2`: which of them stands where in a mesh.

What the grammars let through and the language does not is refused here, each with what to write.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

from shardspec.ir.spec import ParentDim
from shardspec.language.grammar import syntax
from shardspec.language.grammar.parser import Node, parser
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.reading import DIGITS

NOTHING = frozenset({"None", "null", "Null", "NULL", "NONE", "nil"})
#: For `none` in the place of all names.
NO_NAMES = (
    "`_` for each dimension: `_ _` for two; arrays that are meant to be whole go under"
    " `replicate`, with the reason"
)
#: Words that mean something where the size of a mesh axis stands: no `let` may take one.
_KINDS = {"rest", "fit", "submesh", "over", "auto"}
NO_LETS = NOTHING | _KINDS | {"none", "explicit", "manual", "dcn", "ici", "all"}
_REST = "what the other axes leave over is written `rest`"
_TYPE = "the size stands before the type: `8 explicit`"
_NETWORK = "the network follows `@`: `2 @ dcn`"
_WORD_HELP = {"explicit": _TYPE, "manual": _TYPE, "dcn": _NETWORK, "ici": _NETWORK}
_NO_SIZE = re.compile(rf"\s*({'|'.join(sorted(NO_LETS - _KINDS))})(?![\w.-])")
_LONGEST = 20_000
_HUGE = re.compile(rf"[0-9]{{{DIGITS + 1},}}")
#: How deep braces and parentheses may nest.
DEPTH = 16


def too_long(text: str) -> SyntaxFault | None:
    """Return a fault where an expression is longer than anyone can mean."""
    if len(text) <= _LONGEST:
        return None
    message = f"an expression of {len(text):,} characters is too long"
    return SyntaxFault(message, 0, len(text), f"at most {_LONGEST:,} characters")


def huge_number(text: str, tree: Node) -> SyntaxFault | None:
    """Return a fault where a number is longer than any size there is."""
    for token in tree.all_tokens if _HUGE.search(text) else ():
        run = _HUGE.search(token)
        if run and token.type != "LITERAL" and "AXIS" not in token.type:
            start, length = token.start + run.start(), len(run[0])
            message = f"a number of {length} digits is no size of anything"
            return SyntaxFault(message, start, start + length, f"at most {DIGITS} digits")
    return None


def in_rule(rule: syntax.RuleExpr) -> SyntaxFault | None:
    """Return a fault where a right side misspells `none` or repeats a mesh axis."""
    return next(_target_faults(rule.targets), None)


def in_partition(partition: syntax.PartitionExpr) -> SyntaxFault | None:
    """Return a fault where a mesh axis is given twice, be it of a dimension or of sums."""
    misspelt = next(_target_faults(partition.dims), None)
    sums = [axis for axes in partition.sums for axis in axes]
    split = [axis for dim in partition.dims for axis in dim.mesh_axes]
    return misspelt or _repeated((*split, *sums))


def in_mesh_axes(target: syntax.AxisTarget) -> SyntaxFault | None:
    """Return a fault where there is no mesh axis, or one is given twice."""
    return next(_target_faults((target,), "name a mesh axis of a target"), None)


def in_names(names: syntax.NamesExpr) -> SyntaxFault | None:
    """Return a fault where a dimension without a name is misspelt."""
    for name in names.names:
        if name is not None and name.text in NOTHING:
            message = f"`{name.text}` is no logical axis"
            only = len(names.names) == 1
            help = NO_NAMES if only else "a dimension without a name is written `_`"
            return SyntaxFault(message, name.start, name.end, help)
    return None


def in_scan(scan: syntax.ScanExpr) -> SyntaxFault | None:
    """Return a fault where two stacked axes stand at one position."""
    taken: dict[int, syntax.Name] = {}
    for name, position in scan.axes:
        if position in taken:
            both = f"`{taken[position].text}` and `{name.text}`"
            message = f"{both} both stand at position {position}"
            return SyntaxFault(message, name.start, name.end, "give each its own position")
        taken[position] = name
    return None


def in_derived(derived: syntax.DerivedExpr) -> SyntaxFault | None:
    """Return a fault where dimensions repeat, `...` is not the first, or a rank has two answers."""
    ranks: set[tuple[int, bool]] = set()
    for answer, dims in zip(derived.answers, derived.dims, strict=False):
        seen: set[int | None] = set()
        for name, dim in zip(answer, dims, strict=True):
            fault = _dim_fault(name, dim, seen)
            if fault is not None:
                return fault
        rank = (len(dims), None in seen)
        if rank in ranks:
            message = f"two answers are for {len(dims)} dimensions"
            help = "behind `|` stands an answer for another number of dimensions"
            return SyntaxFault(message, answer[0].start, answer[-1].end, help)
        ranks.add(rank)
    answers = tuple(name for names in derived.answers for name in names)
    return _in_factors(derived) or in_names(syntax.NamesExpr(answers))


def _in_factors(derived: syntax.DerivedExpr) -> SyntaxFault | None:
    """Return a fault where a product does not say what is whose."""
    if derived.factors is None:
        return None
    left, right, _ = derived.factors
    if left.text == right.text:
        help = "write what the braces of the pattern have for each: `A[in] @ B` for `lora_{A,B}`"
        return SyntaxFault(f"`{left.text}` stands on both sides", 0, 0, help)
    if not left.names and not right.names:
        message = "the product does not say which dimensions either side holds"
        help = f"name those that are summed over: `{left.text}[embed] @ {right.text}`"
        return SyntaxFault(message, 0, 0, help)
    return None


def _dim_fault(
    name: syntax.Name, dim: ParentDim | str | None, seen: set[int | None]
) -> SyntaxFault | None:
    """Return what is wrong with one dimension, and note which of the parent's it is."""
    if not isinstance(dim, ParentDim):
        seen.add(-_BEHIND)
        return None
    if dim.place in seen:
        help = "a dimension of the parent is one of the array; the others are `_`, or have names"
        return SyntaxFault(f"`{dim.place_text}` is given twice", name.start, name.end, help)
    if dim.place is None and seen:
        help = "`...` is the first dimensions, as many as there is room for: `... -2 _`"
        message = "`...` stands behind other dimensions"
        return SyntaxFault(message, name.start, name.end, help)
    if dim.operator and dim.by == 0:
        help = "write 1 or more, or `any`"
        return SyntaxFault("a size is no multiple of 0", name.start, name.end, help)
    seen.add(dim.place)
    return None


#: Stands for a dimension that is none of the parent's.
_BEHIND = 1 << 60


def in_array_type(array_type: syntax.ArrayType) -> SyntaxFault | None:
    """Return a fault where a dimension is given a misspelt blank name."""
    return in_names(syntax.NamesExpr(tuple(dim.name for dim in array_type.dims)))


def in_mesh_size(size: syntax.MeshSize) -> SyntaxFault | None:
    """Return a fault where a mesh axis would have no devices, or is in parts of parts."""
    if len(size.parts) == 1:
        message = f"`{size.parts[0][0].text}` alone is no part of a mesh axis"
        return SyntaxFault(message, 0, 0, "name two or more: `(kv_tp = 4, attn_dp = 2)`")
    for _, part in size.parts:
        if part.parts:
            return SyntaxFault("a part of a mesh axis has parts", 0, 0, "name them all in one row")
        fault = in_mesh_size(part)
        if fault is not None:
            return fault
    repeated = _repeated(name for name, _ in size.parts)
    if repeated is not None:
        return repeated
    if size.over:
        return _in_over(size)
    zero = (size.kind in {"integer", "auto"} and size.count == 0) or 0 in size.tile
    if not zero:
        return None
    return SyntaxFault("a mesh axis has at least one device", 0, 0, "write 1 or more, or `rest`")


def _in_over(size: syntax.MeshSize) -> SyntaxFault | None:
    """Return a fault where a stretch has no devices or goes nowhere, or the network is said too."""
    first, last = size.over[0], size.over[-1]
    if size.network == "dcn":
        message = "`over` says what an axis crosses, and `@ dcn` says it again"
        return SyntaxFault(message, first.start, last.end, "leave out `@ dcn`")
    for name in size.over:
        stretch = syntax.stretch(name.text)
        if stretch.size == 0 or stretch.step == 0:
            message = f"`{name.text}` has no devices"
            form = "`y4` is 4 neighbours along y, `y4/2` 4 of which each is the 2nd"
            return SyntaxFault(message, name.start, name.end, f"write 1 or more: {form}")
    return None


def before_mesh_size(text: str) -> SyntaxFault | None:
    """Return a fault where a size begins with a word that is none."""
    found = _NO_SIZE.match(text)
    if found is None:
        return None
    message = "expected a number, a name of `let`, `rest`, `submesh` or `auto`"
    return SyntaxFault(message, *found.span(1), _WORD_HELP.get(found[1], _REST))


def before_glob(text: str) -> SyntaxFault | None:
    """Return a fault where braces nest deeper than anyone can read."""
    return _too_deep(text, r"\\.|[{}]", "braces", "{}", "write several patterns")


def before_size(text: str) -> SyntaxFault | None:
    """Return a fault where parentheses nest deeper than anyone can read, outside of quotes."""
    help = "give a part a name of its own, as an axis"
    return _too_deep(text, r'"(?:[^"\\]|\\.)*"|[()]', "parentheses", "()", help)


def _too_deep(text: str, lexeme: str, what: str, pair: str, help: str) -> SyntaxFault | None:
    depth = 0
    for match in re.finditer(lexeme, text, re.DOTALL):
        depth += {pair[0]: 1, pair[1]: -1}.get(match.group(), 0)
        if depth > DEPTH:
            return SyntaxFault(f"{what} nest more than {DEPTH} deep", *match.span(), help)
    return None


def in_glob(glob: syntax.Glob) -> SyntaxFault | None:
    """Return a fault of `**` inside a component, an empty range or a typographic quote."""
    return next(chain(_text_faults(glob.parts), _part_faults(glob.parts, True, True)), None)


_TYPOGRAPHIC = re.compile("[\u201c\u201d\u2018\u2019\u201e]")


def _text_faults(parts: tuple[syntax.Part, ...]) -> Iterator[SyntaxFault]:
    """Yield quotes of word processors, which would be characters of the path."""
    for part in parts:
        if isinstance(part, syntax.GlobText) and (quote := _TYPOGRAPHIC.search(part.text)):
            message = f"`{quote[0]}` is not a quote in YAML"
            at = part.start + quote.start()
            yield SyntaxFault(message, at, at + 1, 'write straight quotes: `"`')


def _part_faults(
    parts: tuple[syntax.Part, ...], opens: bool, closes: bool
) -> Iterator[SyntaxFault]:
    """Yield what is wrong with parts.

    Args:
      opens: whether a component of the path begins with the first part.
      closes: whether one ends with the last.
    """
    befores = (None, *parts[:-1]) if parts else ()
    afters = (*parts[1:], None) if parts else ()
    for before, part, after in zip(befores, parts, afters, strict=True):
        starts = opens if before is None else _has_slash(before, -1)
        ends = closes if after is None else _has_slash(after, 0)
        match part:
            case syntax.DoubleStar() if not (starts and ends):
                message = "`**` is not a whole component of the path"
                help = "write `**/a` or `a/**`; within a component, `*` stands for any characters"
                yield SyntaxFault(message, part.start, part.end, help)
            case syntax.IntRange() if part.first > part.last:
                message = f"the range from {part.first} to {part.last} is empty"
                help = f"write `{{{part.last}..{part.first}}}`"
                yield SyntaxFault(message, part.start, part.end, help)
            case syntax.Braces():
                yield from _brace_faults(part, starts, ends)


def _has_slash(part: syntax.Part, at: int) -> bool:
    """Say whether a part of a glob is text with a slash at one end."""
    return isinstance(part, syntax.GlobText) and part.text[at] == "/"


#: A range as other languages write one; braces around a single text have no other use.
_RANGE_MEANT = re.compile(r"\s*([0-9]{1,9})(?:\s*(?:[-–—:~.…]|to)\s*|\s+)([0-9]{1,9})\s*")


def _brace_faults(braces: syntax.Braces, starts: bool, ends: bool) -> Iterator[SyntaxFault]:
    if braces.alternatives == ((),):
        help = "write `{a,b}` or `{0..3}`"
        yield SyntaxFault("these braces are empty", braces.start, braces.end, help)
    match braces.alternatives:
        case ((syntax.GlobText() as only,),) if found := _RANGE_MEANT.fullmatch(only.text):
            low, high = sorted((int(found[1]), int(found[2])))
            message = f"`{only.text}` is read as this text, not as a range"
            yield SyntaxFault(message, only.start, only.end, f"write `{{{low}..{high}}}`")
    for parts in braces.alternatives:
        for part in parts:
            if isinstance(part, syntax.GlobText) and ".." in part.text:
                message = "`..` is no range here"
                help = "a range of integers stands in braces of its own: `{0..23}`, `{{0..2},7}`"
                yield SyntaxFault(message, part.start, part.end, help)
        yield from _part_faults(parts, starts, ends)


def _target_faults(
    targets: Iterable[syntax.AxisTarget], help: str = "no mesh axis at all is written `none`"
) -> Iterator[SyntaxFault]:
    for target in targets:
        for axis in target.mesh_axes:
            if axis.text in NOTHING:
                yield SyntaxFault(f"`{axis.text}` is no mesh axis", axis.start, axis.end, help)
        yield from filter(None, [_repeated(target.mesh_axes)])


def _repeated(axes: Iterable[syntax.Name]) -> SyntaxFault | None:
    seen: Counter[str] = Counter()
    for axis in axes:
        if seen[axis.text]:
            message = f"mesh axis `{axis.text}` is given twice"
            help = "a mesh axis can split an array, or sum it up, once"
            return SyntaxFault(message, axis.start, axis.end, help)
        seen[axis.text] += 1
    return None


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
        found = before(text) or too_long(text)
        if found is not None:
            return found
        machine = parser(grammar)
        tree = machine.parse(text, start)
        if tree is None:
            from shardspec.language.grammar.parse_faults import explain_fault

            return explain_fault(machine, start, text)
        huge = huge_number(text, tree)
        if huge is not None:
            return huge
        node = make(tree)
        return refuse(node) or node

    return read


#: `mlp, heads -> model | (replica, data) | none @ 5`.
parse_axis_rule = reader("axis_rule", "axis_rule", syntax.axis_rule, in_rule)

#: `((replica, data), none)`.
parse_partition = reader("axis_rule", "partition", syntax.partition, in_partition)

#: `data`, `(replica, data)`.
parse_mesh_axes = reader("axis_rule", "mesh_axes", syntax.mesh_axes, in_mesh_axes)

#: `before mlp`.
parse_place = reader("names", "place", syntax.place)

#: `batch length embed`.
parse_names = reader("names", "names", syntax.names, in_names)

#: `layers@0`.
parse_scan = reader("names", "scan", syntax.scan, in_scan)

#: `from **/kernel dims 0 _`.
parse_derived = reader("derived", "derived", syntax.derived, in_derived)

#: `heads * kv`, `inner + 2 * state`.
parse_size = reader(
    "array_type",
    "size",
    syntax.size,
    before=before_size,
)

#: `bf16[embed mlp]`.
parse_array_type = reader(
    "array_type",
    "array_type",
    syntax.array_type,
    in_array_type,
    before_size,
)

#: `submesh 4x2x2x1`, `tp`.
parse_mesh_size = reader(
    "mesh_axis",
    "mesh_size",
    syntax.mesh_size,
    in_mesh_size,
    before_mesh_size,
)

#: `2 * tpu v5p 4x4x8`.
parse_hardware = reader("hardware", "hardware", syntax.hardware)

#: `**/mlp/wi_{0,1}/kernel`.
parse_glob = reader(
    "path_pattern",
    "path_pattern",
    syntax.path_pattern,
    in_glob,
    lambda text: syntax.literal_glob(text) or before_glob(text),
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
