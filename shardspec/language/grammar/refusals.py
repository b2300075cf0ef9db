"""What the grammars let through and the language does not: each with what to write instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from shardspec.ir.spec import ParentDim
from shardspec.language.grammar import syntax
from shardspec.language.grammar.parser import Node
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
