"""What the small expressions of the language mean, before anything is looked up.

Offsets are relative to the expression's own text, so a parsed expression can be shared by
every place that holds the same text; `Excerpt.at` turns them into spans. Most are named
tuples, since a dataclass takes half a millisecond to define and every start pays for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from shardspec.diagnostics import Code, Diagnostic, Excerpt, codes, point
from shardspec.ir.spec import AxisType, Network


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
    """

    mesh_axes: tuple[Name, ...]
    start: int
    end: int


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
    """`(none, model)`, `((replica, data), none)`, `(model,)` or `()`: one entry a dimension."""

    dims: tuple[AxisTarget, ...]


class SizeExpr(NamedTuple):
    """A product of numbers and axis names: `4096`, `heads * kv`, `3*embed`."""

    factors: tuple[int | Name, ...]


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


class ArrayType(NamedTuple):
    """`bf16[embed mlp]`, `bf16[10240, 4096]`, `f32[]`."""

    dtype: Name
    dims: tuple[ArrayDim, ...]


@dataclass(frozen=True, slots=True)
class MeshSize:
    """`8`, `rest`, `submesh 4x2x2x1`, `auto 16`, with `@ dcn` or not, and `explicit` or not.

    Attributes:
      count: the integer, or N of `auto N`.
      tile: the submesh.
    """

    kind: Literal["integer", "rest", "submesh", "auto"]
    count: int = 0
    tile: tuple[int, ...] = ()
    network: Network = "ici"
    axis_type: AxisType = "auto"


@dataclass(frozen=True, slots=True)
class HardwareExpr:
    """`2 * tpu v5p 4x4x8`, `v4-512`, `4 * h100`, `8 cpu`.

    Attributes:
      slices: the number before `*`; 1 when left out.
      platform: `tpu`, `gpu` or `cpu` where it was written.
      chip: the catalogue name or accelerator type: `v5p`, `h100`, `v4-512`, `a3-highgpu-8g`.
      count: the number before a chip without `*`: `8 cpu`.
      topology: `(4, 4, 8)`, or empty.
    """

    chip: Name
    slices: int = 1
    platform: str | None = None
    count: int | None = None
    topology: tuple[int, ...] = ()


class ScanExpr(NamedTuple):
    """`layers@0`, or several: `stage@0 layers@1`."""

    axes: tuple[tuple[Name, int], ...]


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
class Star:
    """`*`: any characters, none included, within one component of the path."""

    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DoubleStar:
    """`**`: any number of whole components, none included."""

    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AnyChar:
    """`?`: one character that is not `/`."""

    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


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


@dataclass(frozen=True, slots=True)
class Glob:
    """A whole pattern: `**/mlp/wi_{0,1}/kernel`."""

    parts: tuple[Part, ...]
