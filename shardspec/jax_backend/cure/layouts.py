"""The layouts that the rules of a spec give an array of unnamed dimensions.

A dimension may be any logical axis that is as long, but `embed'` is of weights alone. Names that a
spec gives an activation come first; what has the rows of a batch is taken for one, also where they
are joined with other dimensions or divided into microbatches. Of names that lie alike the first are
kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, islice, product

from shardspec.cure.figures import Figures
from shardspec.cure.lines import IsRows, Layout, Point, Site, Split
from shardspec.diagnostics.words import pattern_of
from shardspec.ir.spec import Activation, Shape, Spec
from shardspec.jax_backend.step.trace import Given, Layouts
from shardspec.kept import kept

_UNNAMED = "_"
#: Layouts of one array that are looked at, and combinations of names that are tried for them.
MOST_LAYOUTS, _MOST_NAMES = 12, 256


class Namer:
    """Names for the dimensions of arrays, by the sizes of logical axes."""

    def __init__(self, layouts: Layouts, arguments: Sequence[Given | None]) -> None:
        """Note how long each axis is: as declared, or as in the arrays that have it."""
        self._layouts = layouts
        self._kept: dict[object, object] = {}
        self._sizes = _sizes_of(layouts.spec, [each for each in arguments if each is not None])
        #: how many dimensions of matrices an axis has: those of activations alone have none
        self._of_weights = Counter(_names_of(arguments, least=2))
        self._of_vectors = frozenset(_names_of(arguments, least=1)) - self._of_weights.keys()
        rules = [rule for rule in layouts.spec.axis_rules if rule.logical_axis not in self._sizes]
        ruled = dict.fromkeys(rule.logical_axis for rule in rules)
        own = {e.logical_axis for e in rules if e.span and e.span.source == layouts.spec.source}
        #: of no known size; those of presets are no names of a dimension that an axis is as long as
        self._of_any_size = [*ruled]
        self._own_of_any_size = [name for name in ruled if name in own]
        self._batches = [name for name in (*self._sizes, *self._of_any_size) if "batch" in name]

    def layouts(
        self, shape: Shape, *, is_update: bool = False, rows: IsRows = ()
    ) -> tuple[Layout, ...]:
        """Return the layouts that an array could have, the most natural first.

        Args:
          is_update: whether it is of weights, which have no rows of a batch.
          rows: of each dimension whether it has the rows of a batch, where that is known.
        """
        rows = rows or (None,) * len(shape)
        found: dict[Split, Layout] = {}
        for names in islice(self._names(shape, is_update, rows), _MOST_NAMES):
            spelt = " ".join(names)
            split = self._split(spelt, shape)
            if any(split) and split not in found:
                found[split] = Layout(self._spelt(names, split, shape), split)
            if len(found) == MOST_LAYOUTS:
                break
        return tuple(found.values())

    def whole(self, shape: Shape) -> Layout:
        """Return the layout of an array that nothing shards."""
        return Layout(" ".join(_UNNAMED for _ in shape), tuple(() for _ in shape))

    def counts(self, shape: Shape) -> IsRows:
        """Return which dimensions of an argument are as long as a batch: no part of one is."""
        rows = {size for name in self._batches for size in self._sizes.get(name, ())}
        return tuple(size in rows for size in shape)

    def mapped(self, shape: Shape, vmaps: int) -> tuple[int, ...] | None:
        """Return the dimensions that `jax.vmap` maps, the outermost first: that maps the batch.

        Returns:
          None where that is not clear: no dimension has the rows of a batch.
        """
        if not vmaps:
            return ()
        rows = [size for name in self._batches for size in self._sizes.get(name, ())]
        exact = [at for at, size in enumerate(shape) if size in rows]
        parts = [
            at for at, size in enumerate(shape) if size > 1 and any(r % size == 0 for r in rows)
        ]
        outer = exact or parts
        if not outer or vmaps >= len(shape):
            return None
        of_weights = {n for name, own in self._sizes.items() if self._of_weights[name] for n in own}
        inner = [at for at in range(len(shape)) if at != outer[0]]
        inner.sort(key=lambda at: shape[at] in of_weights)
        return outer[0], *inner[: vmaps - 1]

    def common(
        self, shapes: Sequence[Shape], *, is_update: bool = False, rows: IsRows = ()
    ) -> tuple[Layout, ...]:
        """Return the layouts whose names do the same to arrays of several shapes.

        A dimension that is not as long as its name says in all of them has none.
        """
        found: dict[Split, Layout] = {}
        for shape in shapes:
            for layout in self.layouts(shape, is_update=is_update, rows=rows):
                names = self._names_of_all(layout.names, shapes)
                if all(self._split(names, each) == layout.split for each in shapes):
                    found.setdefault(layout.split, Layout(names, layout.split))
        return tuple(found.values())[:MOST_LAYOUTS]

    def _names_of_all(self, names: str, shapes: Sequence[Shape]) -> str:
        """Return names without those that are not right for a dimension of each shape."""
        sizes = zip(*shapes, strict=False)
        return " ".join(
            name
            if all(self._fits(name, size) or name in self._rows(size) for size in own)
            else _UNNAMED
            for name, own in zip(names.split(), sizes, strict=False)
        )

    @kept
    def _split(self, names: str, shape: Shape) -> Split:
        """Return how names lay out a shape; nothing where they do not fit."""
        return tuple(dim.mesh_axes for dim in self._layouts.dims(names, shape))

    def _names(self, shape: Shape, is_update: bool, rows: IsRows) -> Iterator[tuple[str, ...]]:
        for entry in self._layouts.spec.activations:
            names = _names(entry)
            if len(names) == len(shape) and all(map(self._fits, names, shape)):
                yield names
        options = [self._options(at, shape, is_update, rows[at]) for at in range(len(shape))]
        for chosen in sorted(map(_once, product(*options)), key=self._doubt):
            if any(name != _UNNAMED for name in chosen):
                yield chosen

    def _spelt(self, names: tuple[str, ...], split: Split, shape: Shape) -> str:
        """Return names; of dimensions that nothing splits only those that cannot be others."""
        if any(names == _names(entry) for entry in self._layouts.spec.activations):
            return " ".join(names)
        pairs = enumerate(zip(names, split, shape, strict=True))
        kept = (
            name if axes or self._is_sure(names, at, size) else _UNNAMED
            for at, (name, axes, size) in pairs
        )
        found = " ".join(kept)
        return found if self._split(found, shape) == split else " ".join(names)

    def _is_sure(self, names: tuple[str, ...], at: int, size: int) -> bool:
        """Say whether no other axis is as likely: last those of weights are, before that others."""
        known = self._sizes.items()
        rest = {*names[:at], *names[at + 1 :]} | self._of_vectors
        exact = [each for each, lengths in known if size in lengths and each not in rest]
        is_last = at == len(names) - 1
        likely = [each for each in exact if (self._of_weights[each] > 0) == is_last]
        return (likely or (exact if is_last else [])) == [names[at]]

    def _doubt(self, names: tuple[str, ...]) -> int:
        """Return how little the sizes of an array say that these are its names."""
        return 2 * sum(name in self._of_any_size for name in names) + names.count(_UNNAMED)

    def _fits(self, name: str, size: int) -> bool:
        return name not in self._sizes or size in self._sizes[name]

    def _options(self, at: int, shape: Shape, is_update: bool, is_rows: bool | None) -> list[str]:
        """Return the names that one dimension may have, the likeliest first, one of each effect."""
        size = shape[at]
        if size == 1:
            return [_UNNAMED]
        exact = [
            name
            for name, lengths in self._sizes.items()
            if size in lengths and (is_update or not name.endswith("'"))
        ]
        exact.sort(key=self._of_weights.__getitem__, reverse=at == len(shape) - 1)
        if is_rows is None and size not in shape[:at] and not is_update:
            exact = [name for name in exact if name in self._batches] or exact
        is_last = 0 < at == len(shape) - 1  # rows are not joined, or divided, in the last
        has_rows = not is_update and (is_rows or not (at and (exact or is_last)))
        rows = self._rows(size) if has_rows else []
        found: dict[tuple[str, ...], str] = {}
        unsized = self._own_of_any_size if exact else self._of_any_size
        if is_rows and not rows:
            rows = [name for name in self._of_any_size if name in self._batches]
        for name in (*rows, *exact, _UNNAMED, *unsized):
            is_batch = name in self._batches
            if (is_rows is not False or not is_batch) and (is_batch or not is_rows or not rows):
                found.setdefault(self._alone(name, size), name)
        if is_rows and rows:
            found.setdefault((), _UNNAMED)
        return [*found.values()]

    def _alone(self, name: str, size: int) -> tuple[str, ...]:
        """Return the mesh axes of a dimension of some name where nothing else takes them."""
        return next(iter(self._split(name, (size,))), ())

    def _rows(self, size: int) -> list[str]:
        """Return the axes of a batch that a dimension may be, whole or in part."""
        known = ((name, rows) for name in self._batches for rows in self._sizes.get(name, ()))
        return [name for name, rows in known if size % rows == 0 or rows % size == 0]


def _names(entry: Activation) -> tuple[str, ...]:
    return tuple(name or _UNNAMED for name in entry.logical_axes)


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of which none comes twice; the first is kept."""
    return tuple(_UNNAMED if name in names[:at] else name for at, name in enumerate(names))


def _names_of(arguments: Iterable[Given | None], *, least: int) -> Iterator[str]:
    """Yield the names of dimensions of parameters that have so many at least."""
    for each in arguments:
        if each is not None and len(each.shape) >= least and each.role == "parameter":
            yield from (dim.logical_axis for dim in each.dims if dim.logical_axis)


def _sizes_of(spec: Spec, given: list[Given]) -> dict[str, frozenset[int]]:
    """Return how long each logical axis is: as stated, or in each of the arrays that have it.

    That of the batch is as long as the data of the step.
    """
    seen: dict[str, set[int]] = {}
    for each in given:
        for dim, size in zip(each.dims, each.shape, strict=False):
            if dim.logical_axis is not None:
                seen.setdefault(dim.logical_axis, set()).add(size)
    stated = {axis.name: frozenset((axis.size,)) for axis in spec.logical_axes if axis.size}
    batches = (each for each in given if each.role == "batch" and not each.is_guess)
    rows = frozenset(each.shape[0] for each in batches if each.shape)
    ruled = {rule.logical_axis for rule in spec.axis_rules if "batch" in rule.logical_axis}
    of_rows = dict.fromkeys(ruled, rows) if rows else {}
    return of_rows | {name: frozenset(own) for name, own in seen.items()} | stated


def weighed(
    sites: Iterable[Site], namer: Namer, arguments: Sequence[Given | None], base: Figures
) -> list[Site]:
    """Return the sites that have layouts, each with its weight.

    Arrays of the shape of a parameter, or of one layer of it, are left out: they are weights and
    their gradients, which the spec shards. What an optimizer computes of them stays.
    """
    weights = set(_weight_shapes(arguments))
    kept = (s for s in sites if s.at is None or s.is_update or s.shape not in weights)
    laid = [each for each in _laid(kept, namer) if each.layouts]
    sizes = [math.prod(site.shape) for site in laid]
    weights_of = (
        site.near(base.places) + size / max(sizes) / 2
        for site, size in zip(laid, sizes, strict=True)
    )
    return [replace(site, weight=weight) for site, weight in zip(laid, weights_of, strict=True)]


def _laid(sites: Iterable[Site], namer: Namer) -> Iterator[Site]:
    """Yield sites with layouts; values of one expression are one site where names fit them all."""
    groups: dict[object, list[Site]] = {}
    for site in sites:
        if site.vmaps:
            yield _inside_vmap(site, namer)
            continue
        groups.setdefault(site.path or site.at, []).append(site)
    for own in groups.values():
        is_update = all(site.is_update for site in own)
        is_argument = own[0].at is None
        rows = namer.counts(own[0].shape) if is_argument else _rows_of_all(own)
        layouts = namer.common([site.shape for site in own], is_update=is_update, rows=rows)
        if is_argument:  # a guess may shard what is better replicated
            layouts = (*layouts, namer.whole(own[0].shape))
        if layouts:
            if is_update:  # an optimizer works on whole matrices, of which there are many
                layouts = tuple(sorted(layouts, key=lambda each: [not axes for axes in each.split]))
            largest = max(own, key=lambda site: math.prod(site.shape))
            points = tuple(point for site in own for point in site.points)
            yield replace(largest, layouts=layouts, points=points)
            continue
        for site in own:
            layouts = namer.layouts(site.shape, is_update=is_update, rows=site.rows)
            yield replace(site, layouts=layouts)


def _rows_of_all(sites: Sequence[Site]) -> IsRows:
    """Return which dimensions have the rows of a batch in all of some sites; of one rank."""
    if len({len(site.rows) for site in sites}) > 1:
        return ()
    return tuple(
        own[0] if len({*own}) == 1 else None for own in zip(*(s.rows for s in sites), strict=True)
    )


def with_mapped(sites: Iterable[Site], namer: Namer) -> Iterator[Site]:
    """Yield sites with what `jax.vmap` maps of them, and leave out those where it is not clear."""
    for site in sites:
        mapped = namer.mapped(site.shape, site.vmaps)
        if mapped is not None:
            yield replace(site, mapped=mapped)


def _inside_vmap(site: Site, namer: Namer) -> Site:
    """Return a site that lacks dimensions in the code, with layouts of all that it has."""
    shape = tuple(site.shape[dim] for dim in site.order)
    rows = tuple(site.rows[dim] for dim in site.order) if site.rows else ()
    layouts = namer.layouts(shape, is_update=site.is_update, rows=rows)
    has_batch = [not layout.names.startswith("_") for layout in layouts]
    return replace(site, layouts=tuple(compress(layouts, has_batch)))


def unplaced(arguments: Sequence[Given | None]) -> Iterator[Site]:
    """Yield the arguments that nothing places, as sites: one for all of one tree and shape.

    Their path is a pattern of the spec's `params`, which begins with the name of the argument.
    """
    groups: dict[tuple[str, Shape], list[tuple[int, str]]] = {}
    for number, each in enumerate(arguments):
        if each is not None and each.is_guess and len(each.shape) > 1:
            name = each.path.partition("/")[0]
            groups.setdefault((name, each.shape), []).append((number, each.path))
    for (_, shape), own in groups.items():
        points = tuple(Point(number) for number, _ in own)
        yield Site(shape, "", None, pattern_of(path for _, path in own), points)


def _weight_shapes(arguments: Sequence[Given | None]) -> Iterable[Shape]:
    for each in arguments:
        if each is not None and each.role in ("parameter", "optimizer"):
            yield each.shape
            yield each.shape[1:]
