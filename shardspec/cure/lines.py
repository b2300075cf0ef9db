"""What could be added to a step: a constraint on a value of the code, or a layout of an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shardspec.cure.patching import Extent
from shardspec.ir.spec import Shape, array_bytes

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
      path: of the argument; empty for an expression.
      points: all values that it stands for: of each call, of what is computed again, of gradients.
      layouts: in which it could be, the most natural first.
      weight: how much may depend on it; those of most are tried first.
    """

    shape: Shape
    dtype: str
    at: Extent | None = None
    path: str = ""
    points: tuple[Point, ...] = ()
    layouts: tuple[Layout, ...] = ()
    weight: float = 0.0

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole array."""
        return array_bytes(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Line:
    """A line to add: one layout, or two for a move, which the value has one after the other."""

    site: Site
    layouts: tuple[Layout, ...]

    @property
    def is_move(self) -> bool:
        """Say whether the value is moved from one layout to another."""
        return len(self.layouts) > 1
