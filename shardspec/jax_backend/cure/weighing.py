"""What could be constrained in a step, with layouts, and how much may depend on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardspec.cure.lines import Site
from shardspec.ir.spec import Shape
from shardspec.ir.step import Step
from shardspec.jax_backend.cure.layouts import Namer
from shardspec.jax_backend.step.trace import Given
from shardspec.programs.op_names import shown

#: Lines that are so far apart have nothing to do with each other.
_NEAR = 8


def weighed(
    sites: Iterable[Site], namer: Namer, arguments: Sequence[Given | None], step: Step
) -> list[Site]:
    """Return the sites that have layouts, each with its weight.

    Arrays of the shape of a parameter, or of one layer of it, are left out: they are weights, their
    gradients and updates, which lie as the spec says.
    """
    weights = set(_weight_shapes(arguments))
    sent: dict[tuple[str, int], float] = {}
    for each in step.collectives:
        key = each.place.file, each.place.line
        sent[key] = sent.get(key, 0) + each.wire_bytes
    whole = sum(sent.values()) or 1
    named = ((site, namer.layouts(site.shape)) for site in sites if site.shape not in weights)
    laid = [replace(site, layouts=layouts) for site, layouts in named if layouts]
    largest = max((site.bytes for site in laid), default=1)
    return [
        replace(site, weight=_near(site, sent) / whole + 0.5 * site.bytes / largest) for site in laid
    ]


def _weight_shapes(arguments: Sequence[Given | None]) -> Iterable[Shape]:
    for each in arguments:
        if each is not None and each.role in ("parameter", "optimizer"):
            yield each.shape
            yield each.shape[1:]


def _near(site: Site, sent: dict[tuple[str, int], float]) -> float:
    """Return the bytes that are sent at lines near to a site, less for those farther away."""
    if site.at is None:
        return 0.0
    file, lines = shown(site.at.file), (site.at.line, site.at.end_line)
    return sum(
        size * max(0.0, 1 - min(abs(line - at) for at in lines) / _NEAR)
        for (other, line), size in sent.items()
        if other == file
    )
