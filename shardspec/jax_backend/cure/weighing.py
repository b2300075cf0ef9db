"""What could be constrained in a step, with layouts, and how much may depend on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress

from shardspec.cure.figures import Figures
from shardspec.cure.lines import IsRows, Point, Site
from shardspec.diagnostics.words import pattern_of
from shardspec.ir.spec import Shape
from shardspec.jax_backend.cure.layouts import Namer
from shardspec.jax_backend.step.trace import Given


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

    Their path is a pattern of the spec's `params`, which go by the paths inside of an argument.
    What is an argument by itself goes by what the function calls it.
    """
    groups: dict[tuple[str, Shape], list[tuple[int, str]]] = {}
    for number, each in enumerate(arguments):
        if each is not None and each.is_guess and len(each.shape) > 1:
            name, _, path = each.path.partition("/")
            groups.setdefault((name, each.shape), []).append((number, path or name))
    for (_, shape), own in groups.items():
        points = tuple(Point(number) for number, _ in own)
        yield Site(shape, "", None, pattern_of([path for _, path in own]), points)


def _weight_shapes(arguments: Sequence[Given | None]) -> Iterable[Shape]:
    for each in arguments:
        if each is not None and each.role in ("parameter", "optimizer"):
            yield each.shape
            yield each.shape[1:]
