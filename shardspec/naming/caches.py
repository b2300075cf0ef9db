"""Names for the dimensions of caches, by their sizes: a first spec of a step that serves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from shardspec.ir.spec import Param, Params, Shape
from shardspec.naming.guessing import GuessedAxis, Names

#: Dimensions of a cache in their usual order, what the step looks up by last.
_ORDER = ("layers", "batch", "cache_length", "kv_heads", "heads", "ssm_heads")
#: What says most of a cache, first: a dimension that is no other is as long as the cache.
_WORTH = {"batch": 8, "kv_heads": 6, "layers": 5, "kv": 4, "cache_length": 3, None: 0}
_USUAL_WORTH = 2
#: What is kept of each token: a cache has one of these.
_WIDTHS = frozenset(("kv", "kv_lora", "kv_lora_rope", "joined_kv", "joined_kv_heads", "embed"))
_OF_STATES = _WIDTHS | {"heads", "inner", "inner_conv", "ssm_heads", "state"}
_MOST_ANSWERS = 4096
_LAYER = re.compile(r"(?:^|[/._])(\d+)(?=[/.]|$)")
#: The least rank of a cache that is as long as its tokens.
_LEAST_RANK = 3


def named_caches(
    caches: Params, params: Params, axes: Sequence[GuessedAxis], rows: Collection[int]
) -> tuple[Param, ...]:
    """Return caches whose dimensions have names, those alike the same ones.

    Args:
      params: the parameters, whose paths count the layers.
      axes: those of the parameters.
      rows: how many rows the other arguments of the step have.
    """
    sizes = _sizes(caches, params, axes, rows)
    answers: dict[Shape, Names] = {}
    for each in caches:
        if each.shape not in answers:
            answers[each.shape] = _best(each.shape, sizes)
    return tuple(replace(each, logical_axes=answers[each.shape]) for each in caches)


def dims_of(cache: Param) -> Iterator[tuple[str | None, int]]:
    """Yield the name and the size of each dimension of a cache that has names."""
    yield from zip(cache.logical_axes or (), cache.shape, strict=True)


def axes_of(caches: Params, axes: Sequence[GuessedAxis]) -> Iterator[GuessedAxis]:
    """Yield the axes of caches that the parameters lack; of several sizes of one, the first."""
    known = {axis.name for axis in axes}
    for each in caches:
        for name, size in dims_of(each):
            if name is not None and name not in known:
                known.add(name)
                yield GuessedAxis(name, size, name)


def type_of(cache: Param, sizes: Mapping[str, int]) -> str:
    """Return the type of a cache, with a size where the axis has another one, or none.

    >>> type_of(Param("k", (4, 8, 3), "bf16", ("batch", "kv", None)), {"batch": 4, "kv": 16})
    'bf16[batch kv=8 _=3]'
    """
    dims = dims_of(cache)
    inside = (n if n and sizes.get(n) == size else f"{n or '_'}={size}" for n, size in dims)
    return f"{cache.dtype}[{' '.join(inside)}]"


def _sizes(
    caches: Params, params: Params, axes: Sequence[GuessedAxis], rows: Collection[int]
) -> dict[int, list[str]]:
    """Return the axes that a dimension may have, by its size."""
    found: dict[int, list[str]] = {}

    def add(name: str, size: int) -> None:
        if name not in found.setdefault(size, []):
            found[size].append(name)

    for size in rows:
        add("batch", size)
    numbers = [int(number) for param in params for number in _LAYER.findall(param.path)]
    if numbers:
        add("layers", max(numbers) + 1)
    for axis in axes:
        if axis.name in _OF_STATES | {"layers", "kv_heads"}:
            add(axis.name, axis.size)
        if axis.kind in ("joined_kv_heads", "joined_kv"):
            for heads, kv in _heads(axis.size, caches):
                add("kv_heads", heads)
                add("kv", kv)
    return found


def _heads(width: int, caches: Params) -> Iterator[tuple[int, int]]:
    """Yield how many heads a cache has, and their width, where both together are so wide."""
    for shape in dict.fromkeys(each.shape for each in caches if each.rank > _LEAST_RANK):
        *others, kv = shape
        yield from ((n, kv) for n in others if n * kv == width)


def _best(shape: Shape, sizes: Mapping[int, Sequence[str]]) -> Names:
    """Return the names that say most of a shape; of those alike, the ones in the usual order."""
    length = ("cache_length",) if len(shape) >= _LEAST_RANK else ()
    answers: list[Names] = [()]
    for size in shape:
        options = (*sizes.get(size, ()), *length, None)
        more = [(*names, n) for names in answers for n in options if n is None or _is_new(n, names)]
        more.sort(key=lambda names: (-_worth(names), _inversions(names)))
        answers = more[:_MOST_ANSWERS]
    return _with_length(shape, answers[0]) if length else answers[0]


def _with_length(shape: Shape, names: Names) -> Names:
    """Return names with those of what is as long as the tokens: the largest that is no other.

    A cache without rows that has two such dimensions, the larger one first, is one of pages.
    """
    free = [at for at, name in enumerate(names) if name in (None, "cache_length")]
    pages = [at for at in free if at + 1 in free and shape[at] > shape[at + 1] > 1]
    found: list[str | None] = [None if at in free else name for at, name in enumerate(names)]
    is_paged = bool(pages) and "batch" not in names and not {*found} <= {"layers", None}
    at = max(pages if is_paged else free, key=shape.__getitem__, default=0)
    if is_paged:
        found[at : at + 2] = "pages", "page_size"
    elif free:
        found[at] = "cache_length"
    return tuple(found)


def _is_new(name: str, names: Names) -> bool:
    return name not in names and not (name in _WIDTHS and _WIDTHS & {*names})


def _worth(names: Names) -> int:
    return sum(_WORTH.get(name, _USUAL_WORTH) for name in names)


def _inversions(names: Names) -> int:
    """Return how many pairs of names are not in the usual order; other names come last."""
    places = [_ORDER.index(n) if n in _ORDER else len(_ORDER) for n in names if n is not None]
    return sum(a > b for at, a in enumerate(places) for b in places[at + 1 :])
