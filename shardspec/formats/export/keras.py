"""A Python module with the entries of a Keras `LayoutMap`: regex -> mesh axes of each dimension.

Keras refuses a path that two regexes match. These are anchored and disjoint, so that `search` and
`fullmatch` agree. A dimension over several mesh axes has no place in a `TensorLayout`.
"""

from __future__ import annotations

from shardspec.diagnostics import Diagnostic
from shardspec.formats.export.by_path import Group, groups, line_end
from shardspec.formats.export.exported import Request, Written, source_name
from shardspec.formats.export.flax import axes_literal
from shardspec.formats.export.losses import OVERRIDES, PARAMS, losses
from shardspec.formats.export.regex import raw
from shardspec.formats.foreign.imported import lost


def write(request: Request) -> Written:
    """Return the layouts of the plan's arrays, without those that Keras has no word for."""
    found = groups(request.plan)
    kept = [group for group in found if not _is_joined(group)]
    end = line_end(request.plan)
    lines = [f"    {raw(f'^{group.regex}{end}')}: {_axes(group)}," for group in kept]
    text = "\n".join((*_head(request), "LAYOUT_MAP = {", *lines, "}")) + "\n"
    left_out = [_left_out(group) for group in found if _is_joined(group)]
    return text, (*left_out, *losses(request, "a LayoutMap", PARAMS, OVERRIDES))


def _is_joined(group: Group) -> bool:
    return any(len(dim) > 1 for dim in group.partition.dims)


def _left_out(group: Group) -> Diagnostic:
    many = f" x{len(group.paths)}" if len(group.paths) > 1 else ""
    message = f"`{group.paths[0]}`{many} is {group.partition}: a dimension over several mesh axes"
    return lost(message, None, help="it is left out: Keras lays out a dimension over one mesh axis")


def _axes(group: Group) -> str:
    inside = ", ".join(axes_literal(dim) for dim in group.partition.dims)
    return f"({inside},)" if len(group.partition.dims) == 1 else f"({inside})"


def _head(request: Request) -> tuple[str, ...]:
    return (
        f'"""Entries of a Keras LayoutMap, exported by shardspec from {source_name(request.spec)}.',
        "",
        "    for path, axes in LAYOUT_MAP.items():",
        "        layout_map[path] = axes",
        '"""',
        "",
        f"# {request.target_title}",
    )
