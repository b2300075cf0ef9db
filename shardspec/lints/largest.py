"""Arrays in lines, for notes: layers as one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from shardspec.ir.grouping import as_one, collapsed, counted, grouped, natural, template
from shardspec.ir.units import binary_bytes

_SHOWN = 5

Said = TypeVar("Said", bound=Hashable)

#: Lines of one kind before the rest is counted.
MOST_LINES = 8

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
    sizes = grouped(arrays, lambda array: template(array[0]))
    groups = {key: [path for path, _ in each] for key, each in sizes.items()}
    totals = {key: sum(size for _, size in each) for key, each in sizes.items()}
    order = sorted(groups, key=lambda key: (-totals[key], key))
    lines = [(totals[key], _named(groups[key])) for key in order[:_SHOWN]]
    rest = order[_SHOWN:]
    if rest:
        count = sum(len(groups[key]) for key in rest)
        lines.append((sum(totals[key] for key in rest), counted(count, "other array")))
    return tuple(f"{binary_bytes(size)}  {text}" for size, text in lines if size >= least)


def rows(arrays: Iterable[tuple[str, Said]]) -> Iterator[tuple[str, int, Said]]:
    """Yield paths that differ in numbers alone as one, with their count and what is said of all.

    >>> list(rows([("a/1", "new"), ("a/0", "new"), ("b", "gone")]))
    [('a/{0,1} x2', 2, 'new'), ('b', 1, 'gone')]
    """
    groups = grouped(arrays, lambda array: (template(array[0]), array[1]))
    for (_, said), members in sorted(groups.items(), key=lambda group: natural(group[1][0][0])):
        count = f" x{len(members)}" if len(members) > 1 else ""
        yield as_one((path for path, _ in members), " ..") + count, len(members), said


def cut(lines: Iterable[str]) -> Iterator[str]:
    """Yield some of the lines of `rows`, and how many there are left."""
    whole = list(lines)
    yield from whole[:MOST_LINES]
    if len(whole) > MOST_LINES:
        yield f"and {counted(len(whole) - MOST_LINES, 'more group')} of arrays"


def _named(paths: list[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    glob = None
    if len(paths) <= _COLLAPSED:
        glob = collapsed(sorted(paths, key=natural))
    return f"{glob} x{len(paths)}" if glob else f"{paths[0]} and {len(paths) - 1} alike"
