"""What could be added to a step: a constraint on a value, or a layout of an argument."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shardspec.cure.patching import Extent
from shardspec.ir.spec import Shape
from shardspec.programs.op_names import shown

#: Lines that are so far apart have little to do with each other.
_NEAR = 8

#: Of each dimension whether it has the rows of a batch; None where that is not known.
IsRows = tuple[bool | None, ...]
#: The mesh axes of each dimension.
Split = tuple[tuple[str, ...], ...]


class Point(NamedTuple):
    """A value of a lowered module.

    Attributes:
      op: the number of an operation, in the order of the module.
      at: which of its results, or of its operands.
    """

    op: int
    at: int = 0
    is_operand: bool = False


class Layout(NamedTuple):
    """Logical axes, a name for each dimension, and where the rules of the spec place them."""

    names: str
    split: Split


@dataclass(frozen=True, slots=True)
class Site:
    """A value that could be constrained: what an expression of the code yields, or an argument.

    Attributes:
      at: the expression; None for an argument.
      path: of the argument, a pattern of the spec's `params`; empty for an expression.
      points: all values that it stands for: of each call, of what is computed again, of gradients;
        of arguments their numbers.
      vmaps: how many `jax.vmap` are around the expression.
      mapped: the dimensions of the value that these map, which the code does not see, the outermost
        first; layouts begin with them. Empty where they are not known.
      rows: of each dimension whether it has the rows of a batch, by what the code does along it;
        None where that cannot be told.
      layouts: in which it could be, the most natural first.
      weight: how much may depend on it; those of most are tried first.
      effort: 0 for a line of its own by what the file calls constraints, 1 where an expression
        becomes longer; 2 and 3 the same by `shardspec.constrain`.
      is_update: whether it is computed from gradients, as an optimizer does it.
      is_index: whether the expression looks up by it; `writable` finds the part that gives it.
      place: of an expression in a file that is not changed: the `at:` of an entry of `activations`.
    """

    shape: Shape
    dtype: str
    at: Extent | None = None
    path: str = ""
    points: tuple[Point, ...] = ()
    vmaps: int = 0
    mapped: tuple[int, ...] = ()
    rows: IsRows = ()
    layouts: tuple[Layout, ...] = ()
    weight: float = 0.0
    effort: int = 0
    is_update: bool = False
    is_index: bool = False
    place: str = ""

    @property
    def is_of_spec(self) -> bool:
        """Say whether its line is an entry of the spec."""
        return self.at is None or bool(self.place)

    @property
    def order(self) -> tuple[int, ...]:
        """Return the dimensions of the value in the order of the layouts."""
        dims = range(len(self.shape))
        return *self.mapped, *(dim for dim in dims if dim not in self.mapped)

    def split_of(self, layout: Layout) -> Split:
        """Return the mesh axes of each dimension of the value."""
        axes = dict(zip(self.order, layout.split, strict=True))
        return tuple(axes[dim] for dim in range(len(self.shape)))

    def near(self, places: Iterable[tuple[str, int, float]]) -> float:
        """Return the share of what is sent that is sent at lines near to this one."""
        if self.at is None:
            return 1.0
        file, lines = shown(self.at.file), (self.at.line, self.at.end_line)
        near = whole = 0.0
        for other, line, size in places:
            whole += size
            if other == file:
                near += size * max(0.0, 1 - min(abs(line - at) for at in lines) / _NEAR)
        return near / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line to add: one layout, or two for a move, which the value has one after the other."""

    site: Site
    layouts: tuple[Layout, ...]

    @property
    def is_move(self) -> bool:
        """Say whether the value is moved from one layout to another."""
        return len(self.layouts) > 1
