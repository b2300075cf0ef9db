r"""What a glob over paths is made of.

Offsets are relative to the pattern's own text, and do not count when two globs are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
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


Part: TypeAlias = Literal | Star | DoubleStar | AnyChar | IntRange | Braces


@dataclass(frozen=True, slots=True)
class Glob:
    """A whole pattern: `**/mlp/wi_{0,1}/kernel`."""

    parts: tuple[Part, ...]
