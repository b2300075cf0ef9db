"""The arrays that take most, for a note: layers as one."""

from __future__ import annotations

from collections.abc import Iterable

from shardspec.ir.grouping import collapsed, counted, natural, template
from shardspec.ir.units import binary_bytes

_SHOWN = 5

#: Paths that are worth putting into one glob.
_COLLAPSED = 500


def largest(arrays: Iterable[tuple[str, int]], least: int = 0) -> tuple[str, ...]:
    """Return a line for each of the arrays that take most, and one for the rest.

    Arrays whose paths differ in numbers alone stand in one line, and count together.

    Args:
      arrays: paths, and the bytes of each.
      least: bytes below which a line says nothing, and is left out.

    >>> largest([("a/0/w", 1024), ("a/1/w", 1024), ("b", 16)])
    ('2.00 KiB  a/{0,1}/w x2', '16 B  b')
    """
    groups: dict[str, list[str]] = {}
    totals: dict[str, int] = {}
    for path, size in arrays:
        key = template(path)
        groups.setdefault(key, []).append(path)
        totals[key] = totals.get(key, 0) + size
    order = sorted(groups, key=lambda key: (-totals[key], key))
    lines = [(totals[key], _named(groups[key])) for key in order[:_SHOWN]]
    rest = order[_SHOWN:]
    if rest:
        count = sum(len(groups[key]) for key in rest)
        lines.append((sum(totals[key] for key in rest), counted(count, "other array")))
    return tuple(f"{binary_bytes(size)}  {text}" for size, text in lines if size >= least)


def _named(paths: list[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    glob = None
    if len(paths) <= _COLLAPSED:
        glob = collapsed(sorted(paths, key=natural))
    return f"{glob} x{len(paths)}" if glob else f"{paths[0]} and {len(paths) - 1} alike"
