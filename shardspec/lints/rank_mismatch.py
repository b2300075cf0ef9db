"""An array is given more or fewer names than it has dimensions.

The names cannot be right, so none is used, and no later pattern is tried: a fall-through
would hide the mistake. Stacked layers have one dimension more: say so under `scan:`.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> none
      - mlp -> tensor
    params:
      "**/wi/kernel": embed mlp
    arrays:
      layers/wi/kernel: bf16[24, 64, 128]

Good:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - layers, embed -> none
      - mlp -> tensor
    params:
      "**/wi/kernel": embed mlp
    scan:
      "layers/**": layers@0
    arrays:
      layers/wi/kernel: bf16[24, 64, 128]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Label, Span
from shardspec.diagnostics.codes import RANK_MISMATCH as CODE
from shardspec.ir.grouping import counted, described, template
from shardspec.ir.plan import Origin, ParamSharding
from shardspec.ir.spec import Override
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each entry and rank that do not agree."""
    groups: dict[tuple[Span | None, int, str], list[ParamSharding]] = {}
    for sharding in context.first:
        if sharding.mismatch is not None:
            place = sharding.named_at
            alike = "" if sharding.matched else template(sharding.param.path)
            groups.setdefault((place, sharding.param.rank, alike), []).append(sharding)
    for (place, _, _), group in groups.items():
        yield _finding(place, group)


def _finding(place: Span | None, group: list[ParamSharding]) -> Diagnostic:
    sharding = group[0]
    param = sharding.param
    names = sharding.mismatch or ()
    shown = " ".join(name or "_" for name in names)
    source = "its own names" if sharding.origin is Origin.ARRAY else f"{sharding.origin} entry"
    matched = sharding.matched
    is_partition = isinstance(matched, Override) and matched.partition is not None
    given = counted(len(names), "part" if is_partition else "name")
    if sharding.scan is not None and len(names) == param.rank:
        return _no_position(group)
    labels = []
    if place is not None:
        labels.append(Label(place, given))
    if param.span is not None and param.span != place:
        said = counted(param.rank, "dimension")
        labels.append(Label(param.span, said, primary=place is None))
    return Diagnostic(
        CODE,
        f"{source} `{shown}`: {given} for"
        f" {counted(param.rank, 'dimension')} of `{param.path}` {param}",
        tuple(labels),
        notes=(described([member.param.path for member in group]),),
        help=_help(len(names), param.rank, param.path),
    )


def _no_position(group: list[ParamSharding]) -> Diagnostic:
    """Return the finding for a scan axis beyond the end of the array."""
    param, scan = group[0].param, group[0].scan
    asked = " ".join(f"{axis}@{position}" for axis, position in scan.axes) if scan else ""
    labels = () if scan is None or scan.span is None else (Label(scan.span),)
    return Diagnostic(
        CODE,
        f"`{asked}`: `{param.path}` {param} has no such position",
        labels,
        notes=(described([member.param.path for member in group]),),
        help=f"positions run from 0 to {param.rank - 1}, or from -{param.rank} to -1",
    )


def _help(names: int, rank: int, path: str) -> str:
    if names + 1 == rank:
        folder = template(path).replace("#", "*").rsplit("/", 1)[0]
        return (
            "name every dimension, `_` where it has none; if layers are stacked, add to `scan`: "
            f'`"{folder}/**": layers@0`'
        )
    return "name every dimension, `_` where it has none"
