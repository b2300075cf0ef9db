"""An explanation for programs: one tab-separated line per attempt, stable across versions."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import target_text


def porcelain(sharding: ParamSharding) -> Iterator[str]:
    """Yield lines of: path, dim, size, logical axis, mesh axes, outcome, blocked by, place.

    A dimension without attempts has one line whose outcome is `none`. Empty fields are `-`.
    """
    for index, dim in enumerate(sharding.dims):
        head = (sharding.param.path, str(index), str(dim.size), dim.logical_axis or "-")
        if not dim.attempts:
            yield "\t".join((*head, "-", "none", "-", "-"))
        for attempt in dim.attempts:
            span = attempt.span
            blocked = "-" if attempt.blocked_by is None else str(attempt.blocked_by)
            place = str(span) if span else "-"
            asked = target_text(attempt.mesh_axes).replace(" ", "")
            yield "\t".join((*head, asked, str(attempt.outcome), blocked, place))
