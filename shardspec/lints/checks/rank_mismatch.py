"""An array has more or fewer names than dimensions.

The names cannot be right, so none is used, and no later pattern is tried: a fall-through
would hide the mistake. Stacked layers have one dimension more: say so under `scan:`. The help has
the line to write where the path and the sizes under `axes` allow one answer.

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
    -  - embed -> none
    +  - layers, embed -> none
       "**/wi/kernel": embed mlp
    +scan:
    +  "layers/**": layers@0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, quote
from shardspec.diagnostics.words import counted, grouped, template
from shardspec.ir.plan import Origin, ParamSharding, is_same
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import shared_folder, with_cost
from shardspec.lints.evidence.entries import params_line, proposed_names


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each entry and rank that do not agree."""
    wrong = (sharding for sharding in context.first if sharding.mismatch is not None)
    groups = grouped(wrong, _entry_and_rank)
    stacked = _stacked(list(groups.values()))
    if stacked:
        paths = [sharding.param.path for group in stacked for sharding in group]
        yield with_cost(_not_scanned(stacked), context, paths)
    for (place, _, _), group in groups.items():
        if group not in stacked:
            paths = [sharding.param.path for sharding in group]
            yield with_cost(_finding(context, place, group), context, paths)


def _entry_and_rank(sharding: ParamSharding) -> tuple[Span | None, int, str]:
    alike = "" if sharding.matched else template(sharding.param.path)
    return sharding.named_at, sharding.param.rank, alike


def _stacked(groups: Sequence[list[ParamSharding]]) -> list[list[ParamSharding]]:
    """Return the entries that all lack one name for arrays of one folder with equal first sizes."""
    found: dict[tuple[str, int], list[list[ParamSharding]]] = {}
    for group in groups:
        first = group[0]
        names = first.mismatch or ()
        if first.origin is Origin.PARAMS and names and len(names) + 1 == first.param.rank:
            key = (first.param.path.partition("/")[0], first.param.shape[0])
            found.setdefault(key, []).append(group)
    most = max(found.values(), key=len, default=[])
    return most if len(most) > 1 else []


def _not_scanned(groups: Sequence[list[ParamSharding]]) -> Diagnostic:
    """Return the one finding for stacked layers that nothing says are stacked."""
    members = [sharding for group in groups for sharding in group]
    parents = [sharding.param.path.split("/")[:-1] for sharding in members]
    folder = "/".join((*shared_folder(parents), "**"))
    first = members[0]
    return Diagnostic(
        codes.RANK_MISMATCH,
        f"{len(groups)} entries of `params` have one name less than their arrays have dimensions,"
        f" and the first dimension of all is {first.param.shape[0]}",
        labels_at(
            (first.named_at, "one name too few"),
            (first.param.span, counted(first.param.rank, "dimension")),
        ),
        help=f"if layers are stacked, add to `scan`: {quote.pattern(folder, 'layers@0')}; else name"
        " every dimension, `_` where it has none",
    )


def _finding(context: Context, place: Span | None, group: list[ParamSharding]) -> Diagnostic:
    sharding = group[0]
    param = sharding.param
    names = sharding.mismatch or ()
    shown = " ".join(name or "_" for name in names)
    matched = sharding.matched
    source = f"its own names `{shown}`"
    if matched is not None:
        source = f"{sharding.origin} entry `{matched.pattern}`"
    is_partition = sharding.is_stated
    given = counted(len(names), "part" if is_partition else "name")
    if sharding.scan is not None and len(names) == param.rank:
        return _no_position(group)
    return Diagnostic(
        codes.RANK_MISMATCH,
        f"{source}: {given} for {counted(param.rank, 'dimension')} of `{param.path}` {param}",
        labels_at((place, given), (param.span, counted(param.rank, "dimension"))),
        help=_own_help(context, group)
        if matched is None
        else _PARTS
        if is_partition
        else _proposal(context, group) or _help(len(names), param.rank, param.path),
    )


def _no_position(group: list[ParamSharding]) -> Diagnostic:
    """Return the finding for a scan axis beyond the end of the array."""
    param, scan = group[0].param, group[0].scan
    asked = " ".join(f"{axis}@{position}" for axis, position in scan.axes) if scan else ""
    return Diagnostic(
        codes.RANK_MISMATCH,
        f"`{asked}`: `{param.path}` {param} does not have this dimension",
        labels_at((scan.span if scan else None, "")),
        help=f"positions run from 0 to {param.rank - 1}, or from -{param.rank} to -1",
    )


def _own_help(context: Context, group: list[ParamSharding]) -> str:
    """Return the way out for names that an array carries: `scan` and `params` leave those alone.

    The names of a kernel that its layer reshapes cannot be mended where they stand.
    """
    params = [sharding.param for sharding in group]
    axes = proposed_names(context.spec, params) or _placed_names(context, group[0])
    path = template(params[0].path).replace("#", "*")
    yaml = f'to `overrides` `- {{path: "{path}", axes: {axes}}}`'
    entry = quote.either(yaml, f"`override {path} : {axes}`")
    return (
        f"an array's own names come before `params` and `scan`: add {entry}; or correct"
        " them in the model, unless a layer reshapes the array that it names (Flax's"
        " `DenseGeneral`)"
    )


def _placed_names(context: Context, sharding: ParamSharding) -> str:
    """Return an array's own names at dimensions of their sizes; at the last ones without sizes."""
    shape, names = sharding.param.shape, [*(sharding.mismatch or ())]
    sizes = {axis.name: axis.size for axis in context.spec.logical_axes if axis.size}
    if not any(name in sizes for name in names):
        return " ".join(name or "_" for name in ([None] * len(shape) + names)[-len(shape) :])
    placed = ["_"] * len(shape)
    for name in names:
        at = next((at for at, size in enumerate(shape) if size == sizes.get(name or "")), None)
        if at is not None and placed[at] == "_":
            placed[at] = name or "_"
    return " ".join(placed)


_PARTS = "one part for every dimension, `none` for one that is replicated: `(none, model)`"


def _proposal(context: Context, group: list[ParamSharding]) -> str | None:
    """Return the entry of `params` that would be right for arrays, where there is one answer.

    It stands in place of the wrong one, or above where that one is right for other arrays.
    """
    first = group[0]
    params = [sharding.param for sharding in group]
    names = proposed_names(context.spec, params)
    if first.origin is not Origin.PARAMS or first.matched is None or names is None:
        return None
    of_entry = [each for each in context.first if is_same(each.matched, first.matched)]
    if len(of_entry) == len(group):
        return f"by path and size, write {quote.pattern(str(first.matched.pattern), names)}"
    line = params_line(context.spec, params)
    return None if line is None else f"by path and size, put above it {line}"


def _help(names: int, rank: int, path: str) -> str:
    if names and names + 1 == rank:
        folder = template(path).replace("#", "*").rsplit("/", 1)[0]
        return (
            "name every dimension, `_` where it has none; if layers are stacked, add to `scan`: "
            f"{quote.pattern(f'{folder}/**', 'layers@0')}"
        )
    return "name every dimension, `_` where it has none"
