"""Large optimizer state shares no dimension with its parameter, and is replicated on every device.

State is sharded like its parameter in the dimensions that both have. Some optimizers keep other
arrays: Shampoo a square of statistics for each dimension, GaLore a projection to a small rank.
These arrays are replicated, also under ZeRO. Name their dimensions by an entry of `derive:` that
matches the path of the state, shard them by an override, or list them under `replicate:` with a
reason.

Bad:
    # state: {"statistics": f32[16384, 16384]} of `kernel`
    shardspec: 1
    mesh: {data: 4, model: 2}
    rules:
      - embed -> data
      - mlp -> model
    arrays:
      kernel: bf16[embed=4096 mlp=16384]

Good:
       kernel: bf16[embed=4096 mlp=16384]
    +  statistics/kernel: f32[16384, 16384]
    +overrides:
    +  - {path: "statistics/**", spec: "((data, model), none)", because: of no axis}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.coverage import allowed_paths, is_large
from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import as_one, binary_bytes, counted, grouped, template
from shardspec.ir.plan import Dims, ShardingPlan
from shardspec.ir.spec import Mesh, override_text
from shardspec.lints.evidence.arrays import largest
from shardspec.resolve.state import Relation, StateSharding, extra_axes, of_state


def findings(plan: ShardingPlan) -> Iterator[Diagnostic]:
    """Yield one finding for all such state, if it is large."""
    found = [each for each in of_state(plan) if each.relation is Relation.UNRELATED]
    if not found or plan.mesh.device_count == 1:
        return
    allowed = allowed_paths(plan.spec, (each.path for each in found))
    found = [each for each in found if each.path not in allowed]
    if is_large(_bytes(found), plan.held_bytes):
        yield _finding(found, plan.mesh)


def _finding(found: Sequence[StateSharding], mesh: Mesh) -> Diagnostic:
    groups = grouped(found, lambda each: (template(each.path), str(each.param)))
    most = max(groups.values(), key=_bytes)
    first, owner = most[0], most[0].owner
    assert owner is not None, "state is unrelated to a parameter that it has"
    shown = as_one(each.path for each in most)
    size = _bytes(found)
    return point(
        codes.UNRELATED_STATE,
        f"`{shown}` {first.param} has no dimension of `{owner.param.path}` {owner.param},"
        " and is replicated on every device",
        owner.named_at,
        "the parameter is named here" if owner.matched else "the parameter",
        notes=(
            f"{counted(len(found), 'array')} of such state, {binary_bytes(size)} on each device",
            *largest((each.path, each.per_device_bytes) for each in found),
        ),
        help="; else ".join(
            filter(None, (_derivation(shown, first), _help(shown, first.dims, mesh)))
        ),
    )


def _derivation(path: str, state: StateSharding) -> str | None:
    """Return the entry of `derive:` for state with one dimension as long as one that is split."""
    owner = state.owner.dims if state.owner is not None else Dims()
    alike = [
        (at, place)
        for at, size in enumerate(state.param.shape)
        for place, dim in enumerate(owner)
        if dim.size == size and dim.mesh_axes
    ]
    if not alike or len({place for _, place in alike}) > 1:
        return None
    at, place = alike[0]
    dims = " ".join(str(place) if each == at else "_" for each in range(state.param.rank))
    entry = quote.pattern(path, f"dims {dims}")
    return f"if it goes with dim {place} of the parameter, add to `derive`: {entry}"


def _help(path: str, dims: Dims, mesh: Mesh) -> str:
    meant = f"allow what should be replicated under {quote.section('replicate:')}, with a reason"
    split = _split(dims, mesh)
    if split == dims:
        return f"no mesh axis divides it: {meant}"
    says = override_text(dim.mesh_axes for dim in split)
    entry = quote.override(path, spec=says)
    return f"say how it is sharded{quote.either(' in `overrides`', '')}, {entry}; {meant}"


def _split(dims: Dims, mesh: Mesh) -> Dims:
    """Return the dimensions split over all mesh axes, else over the largest that divides one."""
    by_size = sorted(mesh.axes, key=lambda axis: -axis.size)
    for axes in (mesh.names, *((axis.name,) for axis in by_size)):
        split = extra_axes(dims, mesh, axes)
        if split != dims:
            return split
    return dims


def _bytes(found: Sequence[StateSharding]) -> int:
    return sum(each.per_device_bytes for each in found)
