"""Smaller sizes for a step: every size of its arrays gets a small one, and relations stay.

A size is a number, and the same number gets the same small one wherever it stands: in the
arguments, in the spec, in the code. So arrays that share an axis still agree. Sizes up to 16 stay
as they are. A size that the program makes of others - heads times their width, three parts behind
one another, one more than another - is made of their small ones. All others become 16 or 32,
factors of a product 8, and multiples of what divides them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: What a number of layers is called, and what it becomes where it is larger.
_OF_LAYERS = re.compile(r"layer|depth|blocks", re.IGNORECASE)
_LAYERS = 4
#: Parts that a size along a mesh axis has, at the most.
_PARTS = 4
#: Two sizes no further apart than this stay as far apart: a length, and one more for the labels.
_NEAR = 4


class Scale(NamedTuple):
    """How small sizes become.

    Attributes:
      stays: sizes up to this one stay.
      steps: what others become, in their order; the last is for all that follow.
      factor: what those become of which others are products.
    """

    stays: int
    steps: tuple[int, ...]
    factor: int


ROOMY = Scale(16, (16, 32), 8)
#: For steps that are slow with roomy sizes.
TIGHT = Scale(4, (8, 16), 4)


@dataclass(frozen=True, slots=True)
class Relations:
    """How sizes are made of others, as the reshapes and concatenations of a program show it.

    Attributes:
      products: a size and the sizes that it is the product of.
      sums: a size and the sizes that it is the sum of.
    """

    products: tuple[tuple[int, tuple[int, ...]], ...] = ()
    sums: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class SmallSizes:
    """The small size for each size; a number of layers, known by its name, has one of its own.

    Attributes:
      kept: sizes that stay.
      loops: what numbers are called that code counts to.
    """

    sizes: Mapping[int, int] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()
    loops: frozenset[str] = frozenset()

    def of(self, size: int) -> int:
        """Return the small size for one without a name, or itself."""
        return self.sizes.get(size, size)

    def named(self, size: int, name: str) -> int | None:
        """Return the small size for one that is called so; None where it stays."""
        if _is_of_layers(name) and size > _LAYERS and size not in self.kept:
            return _LAYERS
        small = self.sizes.get(size)
        is_count = small is None and name in self.loops and size not in self.kept
        return min(size, _LAYERS) if is_count else small


def small_sizes(
    named: Iterable[tuple[str, int]],
    sizes: Iterable[int],
    relations: Relations = Relations(),
    kept: Iterable[int] = (),
    loops: Iterable[str] = (),
    scale: Scale = ROOMY,
    split: Iterable[int] = (),
) -> SmallSizes:
    """Return small sizes for those that have names, and those of arrays.

    Args:
      named: what sizes are called in the code and in the spec.
      sizes: of arrays.
      kept: sizes that stay as they are.
      loops: what numbers are called that code counts to.
      split: sizes of which each device has a part that others divide: they stay larger.
    """
    pairs = list(named)
    stay = frozenset(kept)
    layers = {size for name, size in pairs if _is_of_layers(name) and size > _LAYERS} - stay
    others = {size for name, size in pairs if not _is_of_layers(name) and name}
    own = dict.fromkeys(layers - others, _LAYERS)
    return SmallSizes(
        smaller({*sizes} - own.keys(), relations, stay, scale, split) | own,
        stay,
        frozenset(loops),
    )


def products_among(sizes: Iterable[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each size that is the product of two others, and those: the nearest to each other.

    >>> list(products_among([24, 128, 512, 3072]))
    [(3072, (24, 128))]
    """
    known = sorted({each for each in sizes if each > 1})
    for whole in known:
        pairs = [(each, whole // each) for each in known if each * each <= whole]
        found = [(a, b) for a, b in pairs if a * b == whole and b in known and a > ROOMY.factor]
        if found:
            yield whole, found[-1]


def _is_of_layers(name: str) -> bool:
    return _OF_LAYERS.search(name) is not None


def smaller(
    sizes: Iterable[int],
    relations: Relations = Relations(),
    kept: Iterable[int] = (),
    scale: Scale = ROOMY,
    split: Iterable[int] = (),
) -> dict[int, int]:
    """Return a small size for each size that gets another one.

    Args:
      kept: sizes that stay as they are.
      split: sizes of which each device has a part that others divide.

    >>> smaller([8, 32, 128, 4096, 4097], Relations(((4096, (32, 128)),)))
    {32: 8, 128: 8, 4096: 64, 4097: 65}
    """
    asked = set(sizes)
    stay = set(kept)
    wanted = sorted(size for size in asked if size > scale.stays and size not in stay)
    made = dict(_made_of_others(relations, wanted, stay | {*range(scale.stays + 1)}))
    chosen: dict[int, int] = {size: size for size in stay}
    parts_of = {*split}
    factors = {part for is_product, parts in made.values() if is_product for part in parts}
    free = [size for size in wanted if size not in made and _near(size, wanted) is None]
    for at, size in enumerate(free):
        step = scale.factor if size in factors else scale.steps[min(at, len(scale.steps) - 1)]
        units = {each: each for each in asked if 1 < each <= scale.stays} | chosen
        small = math.lcm(step, *(unit for each, unit in units.items() if size % each == 0))
        small *= _PARTS if size in parts_of else 1
        chosen[size] = small if small < size else size
    for size in wanted:
        _derive(size, made, chosen, wanted, frozenset())
    return {size: chosen[size] for size in wanted if chosen[size] != size}


Made = Mapping[int, tuple[bool, tuple[int, ...]]]


def _made_of_others(
    relations: Relations, wanted: list[int], stay: set[int]
) -> Iterable[tuple[int, tuple[bool, tuple[int, ...]]]]:
    """Yield each size that others make, with whether it is their product, and them."""
    known = set(wanted)
    both = itertools.chain(
        ((size, True, parts) for size, parts in relations.products),
        ((size, False, parts) for size, parts in relations.sums),
    )
    for size, is_product, parts in both:
        is_of_known = all(part in known or part in stay for part in parts)
        if size in known and is_of_known and max(parts) < size:
            yield size, (is_product, parts)


def _near(size: int, wanted: list[int]) -> int | None:
    """Return the first size just below this one."""
    return next((each for each in wanted if size - _NEAR <= each < size), None)


def _derive(
    size: int, made: Made, chosen: dict[int, int], wanted: list[int], above: frozenset[int]
) -> int:
    """Return the small size of one, working out what it is made of first."""
    if size in chosen or size not in wanted:
        return chosen.get(size, size)
    if size in made and size not in above:
        is_product, parts = made[size]
        small = [_derive(each, made, chosen, wanted, above | {size}) for each in parts]
        chosen[size] = math.prod(small) if is_product else sum(small)
    else:
        near = _near(size, wanted)
        base = size if near is None else _derive(near, made, chosen, wanted, above | {size})
        chosen[size] = base if near is None else base + size - near
    return chosen[size]
