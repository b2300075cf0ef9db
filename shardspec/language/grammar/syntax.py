"""What the small expressions of the language mean, before anything is looked up.

Offsets are relative to the expression's own text, so a parsed expression can be shared by
every place that holds the same text; `Excerpt.at` turns them into spans. Most are named
tuples, since a dataclass takes half a millisecond to define and every start pays for it.

A parse tree becomes a node by one function for each start symbol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

from shardspec.diagnostics import Code, Diagnostic, Excerpt, codes, point
from shardspec.ir import spec as ir
from shardspec.language.grammar.parser import Node, Token

#: A path: no character of it means others.
_NO_SIGN = re.compile(r"[^*?{},\\\u201c\u201d\u2018\u2019\u201e]{1,1000}")


class SyntaxFault(NamedTuple):
    """An expression that cannot be read.

    Attributes:
      message: the fact, e.g. "expected a mesh axis after `|`".
      start, end: the offending characters.
      help: what would work.
    """

    message: str
    start: int
    end: int
    help: str | None = None

    def diagnostic(self, excerpt: Excerpt, code: Code = codes.SYNTAX) -> Diagnostic:
        """Return the finding, with the offsets counted in `excerpt`."""
        return point(code, self.message, excerpt.at(self.start, self.end), help=self.help)


class Name(NamedTuple):
    """A name and its place in the expression."""

    text: str
    start: int
    end: int


class AxisTarget(NamedTuple):
    """One right side of a rule, or one dimension of a partition: `none`, `data`, `(a, b)`.

    Attributes:
      mesh_axes: major to minor; empty for `none`.
      in_part: whether those that do not fit are left out: `(a, b)?`.
    """

    mesh_axes: tuple[Name, ...]
    start: int
    end: int
    in_part: bool = False


class RuleExpr(NamedTuple):
    """`mlp, heads -> model | (replica, data) | none @ 5`."""

    names: tuple[Name, ...]
    targets: tuple[AxisTarget, ...]
    priority: int = 0


class PlaceExpr(NamedTuple):
    """`start`, `end`, `before mlp`, `after mlp`."""

    kind: Literal["start", "end", "before", "after"]
    axis: Name | None = None


class NamesExpr(NamedTuple):
    """`embed mlp` or `embed, mlp`; `_` is a dimension without a name (None here)."""

    names: tuple[Name | None, ...]


class PartitionExpr(NamedTuple):
    """`(none, model)`, `(model,)`, `()`, `(data) unreduced model`: one entry a dimension, and sums.

    Attributes:
      sums: the mesh axes that are `unreduced`, and those that are `reduced`.
    """

    dims: tuple[AxisTarget, ...]
    sums: tuple[tuple[Name, ...], tuple[Name, ...]] = ((), ())


class SizeTerm(NamedTuple):
    """A product in a sum: `3 * (kv + rope)`.

    Attributes:
      factors: numbers, axes, and sums in parentheses.
      sign: 1, or -1 where it is taken off.
    """

    factors: tuple[int | Name | SizeExpr, ...]
    sign: int = 1


class SizeExpr(NamedTuple):
    """A sum of products of numbers and axes: `4096`, `heads * kv`, `inner + 2 * groups * state`.

    Invariants:
      plain: parentheses that change nothing are gone.
    """

    terms: tuple[SizeTerm, ...]

    @property
    def names(self) -> Iterator[Name]:
        """Yield the axes in it, in order."""
        for term in self.terms:
            for factor in term.factors:
                if isinstance(factor, Name):
                    yield factor
                elif isinstance(factor, SizeExpr):
                    yield from factor.names

    def value(self, lookup: Callable[[str], int | None]) -> int | None:
        """Return what it comes to, which may be below 0; None where an axis has no size.

        Args:
          lookup: gives the size of an axis by name.
        """
        total = 0
        for term in self.terms:
            product = term.sign
            for factor in term.factors:
                match factor:
                    case int():
                        size: int | None = factor
                    case Name():
                        size = lookup(factor.text)
                    case _:
                        size = factor.value(lookup)
                if size is None:
                    return None
                product *= size
            total += product
        return total


def product(*factors: int | Name | SizeExpr) -> SizeExpr:
    """Return the size that is one product."""
    return SizeExpr((SizeTerm(factors),))


class ArrayDim(NamedTuple):
    """One dimension of an array type: `4096`, `embed`, `embed=4096`, `qkv = 3 * embed`, `_=7`.

    Attributes:
      name: None for a bare size.
      size: None for a bare name, whose size its axis must state.
    """

    name: Name | None
    size: SizeExpr | None
    start: int
    end: int

    @property
    def stated(self) -> SizeExpr:
        """Return its size, or the name whose axis states it."""
        return self.size or product(*filter(None, [self.name]))


class ArrayType(NamedTuple):
    """`bf16[embed mlp]`, `bf16[10240, 4096]`, `f32[]`."""

    dtype: Name
    dims: tuple[ArrayDim, ...]


@dataclass(frozen=True, slots=True)
class MeshSize:
    """`8`, `tp`, `rest`, `submesh 4x2x2x1`, `auto 16`, with `@ dcn` or not, `explicit` or not.

    `over x y4/2` says what it crosses, and has no `@ dcn`.

    Attributes:
      count: the integer, or N of `auto N`; 1 where `named` says it.
      tile: the submesh.
      named: the integer, or N, where it is worked out from names of `let`.
      fits: the logical axis of `fit kv_heads`.
      over: the stretches of the machine of `over x y4/2`, each with its text and place.
      parts: the mesh axes that this one is in, with the size of each, major to minor.
    """

    kind: Literal["integer", "rest", "submesh", "auto", "fit", "over", "parts"]
    count: int = 0
    tile: tuple[int, ...] = ()
    network: ir.Network = "ici"
    axis_type: ir.AxisType = "auto"
    named: SizeExpr | None = None
    fits: Name | None = None
    over: tuple[Name, ...] = ()
    parts: tuple[tuple[Name, MeshSize], ...] = ()


_STRETCH = re.compile(r"([A-Za-z]+)([0-9]+)?(?:/([0-9]+))?")


def stretch(text: str) -> ir.Stretch:
    """Return what `y4/2` means.

    >>> stretch("y4/2"), stretch("node")
    (Stretch(direction='y', size=4, step=2), Stretch(direction='node', size=None, step=1))
    """
    found = _STRETCH.fullmatch(text)
    assert found is not None, "the grammar has read it"
    direction, size, step = found.groups()
    return ir.Stretch(direction, None if size is None else int(size), int(step or 1))


@dataclass(frozen=True, slots=True)
class HardwareExpr:
    """`2 * tpu v5p 4x4x8`, `v4-512`, `4 * h100`, `8 cpu`, `8 cpu by hardware.local.yaml`.

    Attributes:
      slices: the number before `*`; 1 when left out, the largest of several.
      counts: of `{1..8} * ...`, each number, ascending; empty where there is one.
      platform: `tpu`, `gpu` or `cpu` where it was written.
      chip: the catalogue name or accelerator type: `v5p`, `h100`, `v4-512`, `a3-highgpu-8g`.
      count: the number before a chip without `*`: `8 cpu`.
      topology: `(4, 4, 8)`, or empty.
      by: the file that says how fast it is.
      share: the share of a GPU's memory behind `memory`, as it is written.
    """

    chip: Name
    slices: int = 1
    platform: str | None = None
    count: int | None = None
    topology: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    by: Name | None = None
    share: Name | None = None


class ScanExpr(NamedTuple):
    """`layers@0`, or several: `stage@0 layers@1`."""

    axes: tuple[tuple[Name, int], ...]


class DerivedExpr(NamedTuple):
    """`from **/kernel dims 0 _ | 0`, `from *.weight [out in] = B @ A[in]`.

    Attributes:
      parent: None where it is left out.
      answers: the dimensions for each rank; `()` where they are left out.
      own: the names in brackets; None where there are no brackets.
      factors: None where there is no product.
      names: the logical axes in that.
    """

    parent: Name | None
    answers: tuple[tuple[Name, ...], ...]
    own: ir.OwnNames | None = None
    factors: ir.Factors | None = None
    names: tuple[Name, ...] = ()

    @property
    def dims(self) -> tuple[ir.DerivedDims, ...]:
        """Return what the answers mean; `...` where there are none."""
        if self.factors is not None:
            return ()
        if not self.answers:
            return ((ir.ParentDim(None),),)
        return tuple(tuple(_derived_dim(dim.text) for dim in answer) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class GlobText:
    """Characters that stand for themselves; `/` is one, and escapes are resolved.

    Invariants:
      joined: it is not empty, and no two literals stand side by side.
    """

    text: str
    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sign:
    """A part that is what its kind is, wherever it stands."""

    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


class Star(Sign):
    """`*`: any characters, none included, within one component of the path."""

    __slots__ = ()


class DoubleStar(Sign):
    """`**`: any number of whole components, none included."""

    __slots__ = ()


class AnyChar(Sign):
    """`?`: one character that is not `/`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class IntRange:
    """`{0..23}`: the integers from `first` to `last`, both included.

    Attributes:
      width: digits of each, filled with zeros (`{00..11}` has 2); 0 where they are not filled.
    """

    first: int
    last: int
    width: int = 0
    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)

    @property
    def count(self) -> int:
        """Return how many integers it stands for."""
        return self.last - self.first + 1

    @property
    def texts(self) -> tuple[str, ...]:
        """Return each integer as it stands in a path."""
        return tuple(str(i).zfill(self.width) for i in range(self.first, self.last + 1))


@dataclass(frozen=True, slots=True)
class Braces:
    """`{a,b}`: one of several; an alternative may be empty."""

    alternatives: tuple[tuple[Part, ...], ...]
    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


Part: TypeAlias = GlobText | Star | DoubleStar | AnyChar | IntRange | Braces


class Glob(NamedTuple):
    """A whole pattern: `**/mlp/wi_{0,1}/kernel`."""

    parts: tuple[Part, ...]


def axis_rule(tree: Node) -> RuleExpr:
    """Return the rule of an `axis_rule` tree."""
    names, targets = tree.nodes
    sides = tuple(map(_name, names.tokens)), tuple(map(_target, targets.nodes))
    return RuleExpr(*sides, int(tree.tokens[0]) if tree.tokens else 0)


def partition(tree: Node) -> PartitionExpr:
    """Return the partition of a `partition` tree."""
    dims = tuple(_target(node) for node in tree.nodes if node.name != "sums")
    sums: dict[str, tuple[Name, ...]] = {}
    for node in tree.nodes:
        if node.name == "sums":
            kind = node.tokens[0].text
            sums[kind] = sums.get(kind, ()) + _target(node.nodes[0]).mesh_axes
    return PartitionExpr(dims, (sums.get("unreduced", ()), sums.get("reduced", ())))


def mesh_axes(tree: Node) -> AxisTarget:
    """Return the mesh axes of a `mesh_axes` tree."""
    return _target(tree.nodes[0])


def place(tree: Node) -> PlaceExpr:
    """Return the place of a `place` tree."""
    kind, *axis = tree.tokens
    return PlaceExpr(kind.text, _name(axis[0]) if axis else None)  # type: ignore[arg-type]


def names(tree: Node) -> NamesExpr:
    """Return the names of a `names` tree."""
    return NamesExpr(tuple(_name_or_blank(token) for token in tree.tokens))


def scan(tree: Node) -> ScanExpr:
    """Return the stacked axes of a `scan` tree."""
    pairs = (stacked.tokens for stacked in tree.nodes)
    return ScanExpr(tuple((_name(name), int(position)) for name, position in pairs))


def derived(tree: Node) -> DerivedExpr:
    """Return the parent and the dimensions of a `derived` tree."""
    found = {node.name: node for node in tree.nodes}
    parent = found["parent"].tokens[0] if "parent" in found else None
    stated = found["dims"].nodes if "dims" in found else ()
    answers = tuple(tuple(map(_name, answer.tokens)) for answer in stated)
    named = None if parent is None else _parent(parent)
    own = None
    if "named" in found:
        own = tuple(tuple(map(str, names.tokens)) for names in found["named"].nodes)
    if "factors" not in found:
        return DerivedExpr(named, answers, own)
    sides = left, right = [[*map(_name, side.tokens)] for side in found["factors"].nodes]
    rank = tuple(map(_name, found["factors"].tokens))
    first, second = (ir.Side(name.text, tuple(n.text for n in names)) for name, *names in sides)
    factors = ir.Factors(first, second, rank[0].text if rank else None)
    return DerivedExpr(named, answers, own, factors, (*left[1:], *right[1:], *rank))


def _parent(token: Token) -> Name:
    if token.type == "STRING":
        return Name(re.sub(r"\\(.)", r"\1", token.text[1:-1]), token.start + 1, token.end - 1)
    return _name(token)


def _derived_dim(text: str) -> ir.ParentDim | str | None:
    if text == "_":
        return None
    if not re.match(r"-?[0-9]|\.", text):
        return text
    place, operator, by = re.split("([/*])", text) if re.search("[/*]", text) else (text, "", "")
    at = None if place == "..." else int(place)
    return ir.ParentDim(at, operator, int(by) if by.isdecimal() else None)


def size(tree: Node) -> SizeExpr:
    """Return the sum of a `size` tree."""
    terms: list[SizeTerm] = []
    sign = 1
    for child in tree.children:
        if isinstance(child, Token):
            sign = -1 if child == "-" else 1
            continue
        factors = tuple(_factors(child))
        only = factors[0] if len(factors) == 1 else None
        if isinstance(only, SizeExpr) and sign == 1:
            terms += only.terms
        else:
            terms.append(SizeTerm(factors, sign))
    return SizeExpr(tuple(terms))


def array_type(tree: Node) -> ArrayType:
    """Return the type of an `array_type` tree."""
    return ArrayType(_name(tree.tokens[0]), tuple(map(_array_dim, tree.nodes)))


def mesh_size(tree: Node) -> MeshSize:
    """Return the size of a `mesh_size` tree."""
    stated = tree.nodes[0]
    if stated.name.endswith("parts"):
        parts = ((_name(part.tokens[0]), mesh_size(part.nodes[0])) for part in stated.nodes)
        return MeshSize("parts", parts=tuple(parts))
    network: ir.Network = "dcn" if "dcn" in tree.tokens else "ici"
    words = stated.tokens[1:]
    match stated.name:
        case "submesh":
            found = MeshSize("submesh", tile=_tile(words[0]))
        case "rest":
            found = MeshSize("rest")
        case "fit":
            found = MeshSize("fit", 1, fits=_name(words[0]))
        case "over":
            found = MeshSize("over", 1, over=tuple(map(_name, words)))
        case "auto":
            found = _counted("auto", stated.nodes[0])
        case _:
            found = _counted("integer", stated)
    axis_type: Any = next(
        (node.tokens[0].text for node in tree.nodes if node.name == "type"), "auto"
    )
    return replace(found, network=network, axis_type=axis_type)


def _counted(kind: Literal["integer", "auto"], tree: Node) -> MeshSize:
    """Return a size that is a number, or worked out from names of `let`."""
    stated = size(tree)
    match stated.terms:
        case (SizeTerm((int(count),), 1),):
            return MeshSize(kind, count)
    return MeshSize(kind, 1, named=stated)


def hardware(tree: Node) -> HardwareExpr:
    """Return the machine of a `hardware` tree."""
    stated = {node.name: node.tokens[0] for node in tree.nodes}
    several = stated["slices"] if stated.get("slices", "").startswith("{") else None
    counts = _counts(several) if several else ()
    numbers = {name: int(text) for name, text in stated.items() if text is not several}
    tokens = {token.type: token for token in tree.tokens}
    platform = tokens.get("PLATFORM") if "CHIP" in tokens else None
    return HardwareExpr(
        chip=_name(tokens.get("CHIP") or tokens["PLATFORM"]),
        slices=counts[-1] if counts else numbers.get("slices", 1),
        platform=None if platform is None else platform.text,
        count=numbers.get("count"),
        topology=_tile(tokens["TILE"]) if "TILE" in tokens else (),
        counts=counts,
        by=_name(tokens["CALIBRATION"]) if "CALIBRATION" in tokens else None,
        share=_name(tokens["SHARE"]) if "SHARE" in tokens else None,
    )


#: Numbers of slices that one target may stand for: each is a machine of its own.
MOST_COUNTS = 64


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of `{1..8}` or `{1,2,4}`, ascending; one too many where there are more."""
    found: set[int] = set()
    for part in text.strip("{} ").split(","):
        first, _, last = (number.strip() for number in part.partition(".."))
        end = min(int(last or first), int(first) + MOST_COUNTS)
        found.update(range(int(first), end + 1))
    return tuple(sorted(found)) or (0,)


def literal_glob(text: str) -> Glob | None:
    """Return the glob of a path alone, of which there are many: nothing in it is a sign."""
    return Glob((GlobText(text, 0, len(text)),)) if _NO_SIGN.fullmatch(text) else None


def path_pattern(tree: Node) -> Glob:
    """Return the glob of a `path_pattern` tree."""
    return Glob(_parts(tree))


def _parts(tree: Node) -> tuple[Part, ...]:
    """Return the parts of a tree, neighbouring literals joined."""
    parts: list[Part] = []
    for is_text, group in groupby(
        map(_part, tree.children), lambda part: isinstance(part, GlobText)
    ):
        members = tuple(group)
        parts += (_joined(members),) if is_text else members
    return tuple(parts)


def _joined(parts: tuple[Part, ...]) -> GlobText:
    """Return neighbouring literals as one."""
    text = "".join(part.text for part in parts if isinstance(part, GlobText))
    return GlobText(text, parts[0].start, parts[-1].end)


def _part(child: Node | Token) -> Part:
    start, end = child.start, child.end
    if isinstance(child, Node):
        return Braces(tuple(map(_parts, child.nodes)), start, end)
    match child.type:
        case "STAR":
            return Star(start, end)
        case "DOUBLE_STAR":
            return DoubleStar(start, end)
        case "ANY_CHAR":
            return AnyChar(start, end)
        case "RANGE":
            return _int_range(child.text, start, end)
    return GlobText(unescaped(child.text), start, end)


def _int_range(text: str, start: int, end: int) -> IntRange:
    """Return the range of `{0..23}`, which stands from `start` to `end`."""
    first, last = text[1:-1].split("..")
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return IntRange(int(first), int(last), width, start, end)


def unescaped(text: str) -> str:
    r"""Return `text` without the backslashes that escape.

    >>> unescaped(r"a\*\\")
    'a*\\'
    """
    if "\\" not in text:
        return text
    chars = iter(text)
    return "".join(next(chars, "") if char == "\\" else char for char in chars)


def _target(tree: Node) -> AxisTarget:
    axes = tuple(_name(token) for token in tree.tokens if token.type == "MESH_AXIS")
    return AxisTarget(axes, tree.start, tree.end, tree.name.endswith("in_part"))


def _array_dim(tree: Node) -> ArrayDim:
    stated = size(tree.nodes[0])
    if tree.name == "sized":
        return ArrayDim(_name_or_blank(tree.tokens[0]), stated, tree.start, tree.end)
    alone = stated.terms[0].factors[0]
    if isinstance(alone, Name) and stated == product(alone):
        return ArrayDim(alone, None, tree.start, tree.end)
    return ArrayDim(None, stated, tree.start, tree.end)


def _tile(token: Token) -> tuple[int, ...]:
    return tuple(map(int, token.split("x")))


def _factors(term: Node) -> Iterator[int | Name | SizeExpr]:
    """Yield the factors of a product; those of a product in parentheses are its own."""
    for child in term.children:
        if isinstance(child, Token):
            yield int(child) if child.type.endswith("SIZE") else _name(child)
            continue
        inner = size(child)
        if len(inner.terms) == 1 and inner.terms[0].sign == 1:
            yield from inner.terms[0].factors
        else:
            yield inner


def _name_or_blank(token: Token) -> Name | None:
    return None if token.type == "BLANK" else _name(token)


def _name(token: Token) -> Name:
    return Name(token.text, token.start, token.end)


# Text in quotes, as expressions and the DSL have it: what stands in it, and how it is spelt.


_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
_SPELT = {char: f"\\{escape}" for escape, char in _ESCAPES.items()}
_NEEDS_ESCAPE = re.compile(r'["\\\n\t\r]')


def quoted(text: str) -> str:
    r"""Return `text` in quotes.

    Invariants:
      round_trip: `unquoted(quoted(text)) == text`.

    >>> print(quoted('a "b"'))
    "a \"b\""
    """
    return '"' + _NEEDS_ESCAPE.sub(lambda match: _SPELT[match.group()], text) + '"'


def unquoted(text: str) -> str:
    """Return what stands in quotes; an escape that is none stays as it is."""
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), inner)


def bad_escape(text: str) -> tuple[int, int] | None:
    """Return where an escape stands that means nothing, as offsets into the quoted text."""
    for match in re.finditer(r"\\(.)", text):
        if match[1] not in _ESCAPES:
            return match.span()
    return None
