"""`spec.lock`: what every device holds on every target, as text for people and for git.

One line for each group of arrays that agree, sorted, in the spelling of the language: names and
sizes as in `arrays:`, the answer as in `overrides:`. Nothing in it depends on the platform, the
time or the place; what made it is there as digests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from shardspec.ir.grouping import collapsed, natural, template
from shardspec.ir.layout import ActivationLayout, ArrayLayout, AxisLayout, Layout, TargetLayout
from shardspec.ir.partition import PartitionSpec

#: The version of this format.
FORMAT = 1

HEADING = "# What every device holds. Made by `shardspec lock`; do not edit, run it again."

#: A name that stands for itself in a lock; others are quoted.
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN_PATH = re.compile(r"[^\s\"{}*?\\,#=]+")


def lock_text(layout: Layout) -> str:
    """Return the lock of a layout. Equal layouts have equal texts."""
    return "\n".join(_lines(layout)) + "\n"


def _lines(layout: Layout) -> Iterator[str]:
    yield HEADING
    yield f"lock {FORMAT}, language {layout.language}"
    yield from (f"input {quoted_path(each.name)} = {each.digest}" for each in layout.inputs)
    yield f"arrays = {layout.arrays_digest}"
    for target in layout.targets:
        yield ""
        yield from _target_lines(target)


def _target_lines(target: TargetLayout) -> Iterator[str]:
    yield f"target {name_text(target.name)}{f' on {target.hardware}' if target.hardware else ''}"
    yield from (_axis_line(placed) for placed in target.axes)
    if target.devices:
        yield f"devices {target.order} = {target.devices}"
    yield from (_activation_line(each) for each in target.activations)
    yield from (f"{path} : {rest}" for path, rest in _groups(target.arrays))


def _axis_line(placed: AxisLayout) -> str:
    axis = placed.axis
    network = " @ dcn" if axis.network == "dcn" else ""
    kind = "" if axis.axis_type == "auto" else f" {axis.axis_type}"
    runs = f" : {placed.runs}" if placed.runs else ""
    return f"mesh {name_text(axis.name)} = {axis.size}{network}{kind}{runs}"


def _activation_line(activation: ActivationLayout) -> str:
    dims = " ".join(map(_dim_text, activation.logical_axes, activation.sizes))
    answer = partition_text(activation.partition)
    return f"activation {name_text(activation.name)} : [{dims}] = {answer}"


def _groups(arrays: Sequence[ArrayLayout]) -> Iterator[tuple[str, str]]:
    """Yield the paths of each group and what they have in common, in natural order."""
    found: dict[tuple[str, str], list[str]] = {}
    texts: dict[tuple[object, ...], str] = {}
    for array in arrays:
        key = (array.dtype, array.shape, array.logical_axes, array.partition)
        text = texts.get(key)
        if text is None:
            text = texts[key] = _array_text(array)
        found.setdefault((template(array.path), text), []).append(array.path)
    lines: list[tuple[str, str, str]] = []
    for (_, text), paths in found.items():
        paths.sort(key=natural)
        plain = all(map(_PLAIN_PATH.fullmatch, paths))
        together = collapsed(paths) if plain else None
        if together is None:
            lines += [(path, quoted_path(path), text) for path in paths]
        else:
            lines.append((paths[0], together, text))
    lines.sort(key=lambda line: (natural(line[0]), line[0]))
    yield from ((paths, text) for _, paths, text in lines)


def _array_text(array: ArrayLayout) -> str:
    dims = " ".join(map(_dim_text, array.logical_axes, array.shape))
    return f"{name_text(array.dtype)}[{dims}] = {partition_text(array.partition)}"


def _dim_text(name: str | None, size: int | None) -> str:
    known = "" if size is None else f"={size}"
    return f"{'_' if name is None else name_text(name)}{known}"


def partition_text(partition: PartitionSpec) -> str:
    """Return an answer as an override spells it: `(none, (replica, data))`."""
    return f"({', '.join(map(_entry, partition.dims))})"


def _entry(dim: tuple[str, ...]) -> str:
    if not dim:
        return "none"
    names = ", ".join(map(name_text, dim))
    return names if len(dim) == 1 else f"({names})"


def name_text(name: str) -> str:
    """Return a name, quoted where it could be taken for something else."""
    plain = PLAIN_NAME.fullmatch(name) and name not in {"_", "none"}
    return name if plain else json.dumps(name)


def quoted_path(path: str) -> str:
    """Return a path, quoted where it could be taken for something else."""
    return path if _PLAIN_PATH.fullmatch(path) else json.dumps(path)
