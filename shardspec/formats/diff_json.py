"""A diff as JSON, for other programs. Sizes in bytes; arrays in natural order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardspec.analysis.layout_diff import ArrayMove, DimMove, Reason, TargetDiff
from shardspec.analysis.restore import restore
from shardspec.ir.grouping import natural
from shardspec.ir.layout import ArrayLayout, TargetLayout

SCHEMA = "shardspec.diff/1"


def diff_text(
    diffs: Sequence[TargetDiff], before: str, after: str, failed: Sequence[str] = ()
) -> str:
    """Return the diff as JSON text, with a line break at the end.

    Args:
      before: the name of the old side; `after` is that of the new one.
      failed: the gates that it trips, each with what moved.
    """
    import json

    data = {
        "schema": SCHEMA,
        "old": before,
        "new": after,
        "failed": list(failed),
        "targets": [_target(diff) for diff in diffs],
    }
    return json.dumps(data, indent=2) + "\n"


def _target(diff: TargetDiff) -> dict[str, Any]:
    moves = sorted(diff.moves, key=lambda move: natural(move.path))
    return {
        "target": diff.name,
        "same": diff.is_same,
        "machine_changed": diff.machine_changed,
        "before": _side(diff.before),
        "after": _side(diff.after),
        "restore": _restore(diff),
        "arrays": [_move(move) for move in moves],
        "activations": [(after or before).name for before, after in diff.activations],  # type: ignore[union-attr]
    }


def _side(target: TargetLayout | None) -> dict[str, Any] | None:
    if target is None:
        return None
    return {
        "hardware": target.hardware or None,
        "mesh": target.mesh.sizes,
        "per_device_bytes": target.per_device_bytes,
    }


def _restore(diff: TargetDiff) -> dict[str, Any] | None:
    if diff.before is None or diff.after is None:
        return None
    found = restore(diff.before, diff.after)
    return {
        "arrays": len(found.arrays),
        "total_bytes": found.total_bytes,
        "most_bytes": found.most_bytes,
        "exact": found.is_exact,
    }


def _move(move: ArrayMove) -> dict[str, Any]:
    return {
        "path": move.path,
        "mark": str(move.mark),
        "before": _array(move.before),
        "after": _array(move.after),
        "dims": [_dim(dim) for dim in move.dims],
        "bytes_before": move.bytes_before,
        "bytes_after": move.bytes_after,
    }


def _array(array: ArrayLayout | None) -> dict[str, Any] | None:
    if array is None:
        return None
    entries = [
        None if not dim else dim[0] if len(dim) == 1 else list(dim) for dim in array.partition.dims
    ]
    return {"shape": list(array.shape), "dtype": array.dtype, "spec": entries}


def _dim(dim: DimMove) -> dict[str, Any]:
    return {
        "axis": dim.logical_axis,
        "before": list(dim.before),
        "after": list(dim.after),
        "why_before": _reason(dim.why_before),
        "why_after": _reason(dim.why_after),
    }


def _reason(reason: Reason | None) -> dict[str, str] | None:
    return None if reason is None else {"rule": reason.text, "place": reason.place}
