"""What could be constrained in a step, with layouts, and how much may depend on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardspec.cure.figures import Figures
from shardspec.cure.lines import Site
from shardspec.ir.spec import Shape
from shardspec.jax_backend.cure.layouts import Namer
from shardspec.jax_backend.step.trace import Given


def weighed(
    sites: Iterable[Site], namer: Namer, arguments: Sequence[Given | None], base: Figures
) -> list[Site]:
    """Return the sites that have layouts, each with its weight.

    Arrays of the shape of a parameter, or of one layer of it, are left out: they are weights, their
    gradients and updates, which lie as the spec says.
    """
    weights = set(_weight_shapes(arguments))
    named = ((site, namer.layouts(site.shape)) for site in sites if site.shape not in weights)
    laid = [replace(site, layouts=layouts) for site, layouts in named if layouts]
    largest = max((site.bytes for site in laid), default=1)
    weights_of = (site.near(base.places) + site.bytes / largest / 2 for site in laid)
    return [replace(site, weight=weight) for site, weight in zip(laid, weights_of, strict=True)]


def _weight_shapes(arguments: Sequence[Given | None]) -> Iterable[Shape]:
    for each in arguments:
        if each is not None and each.role in ("parameter", "optimizer"):
            yield each.shape
            yield each.shape[1:]
