"""The shape of optimizer state fits its parameter without one dimension, or without another.

State that lacks dimensions of its parameter is laid out as the parameter in those it has. Where
two dimensions are equally long, its shape does not say which is missing. The names of fields say it
for `optax.adafactor` and `optax.sm3`; for other optimizers the spec must, since a guess would
move the array on every step. An entry of `overrides` or `params` is about state if it matches
the path of the state array and not that of its parameter.

Bad:
    # state: {"row": f32[512]} of `kernel`, by an optimizer of one's own
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - embed -> data
      - mlp -> model
    arrays:
      kernel: bf16[embed=512 mlp=512]

Good:
       kernel: bf16[embed=512 mlp=512]
    +  row/kernel: f32[embed=512]
    +overrides:
    +  - {path: "row/**", axes: embed, because: mean over the columns}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import as_one, binary_bytes, counted, template
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import PartitionSpec, override_text
from shardspec.resolve.state import Reading, Relation, StateSharding, of_state, read_dims


def findings(plan: ShardingPlan) -> Iterator[Diagnostic]:
    """Yield a finding for each array of state with several readings, layers taken together."""
    groups: dict[object, tuple[ParamSharding, list[StateSharding]]] = {}
    for found in of_state(plan):
        if found.relation is Relation.AMBIGUOUS and found.owner is not None:
            key = (template(found.path), found.param.shape, found.owner.dims)
            groups.setdefault(key, (found.owner, []))[1].append(found)
    for owner, group in groups.values():
        yield _finding(group, owner)


def _finding(group: list[StateSharding], owner: ParamSharding) -> Diagnostic:
    first = group[0]
    shown = as_one(found.path for found in group)
    ways = " or ".join(_dropped(reading, owner) for reading in first.readings)
    size = sum(found.param.bytes for found in group)
    return point(
        codes.AMBIGUOUS_STATE,
        f"`{shown}` {first.param} may be `{owner.param.path}` {owner.param} {ways}",
        owner.named_at,
        "the parameter is named here" if owner.matched else "the parameter",
        notes=(
            f"{counted(len(group), 'array')}, {binary_bytes(size)} in all",
            *(_answer(reading, first, owner) for reading in first.readings),
        ),
        help=f"say which{quote.either(' in `overrides`', '')}: "
        + " or ".join(_entry(shown, reading, first, owner) for reading in first.readings),
    )


def _dropped(reading: Reading, owner: ParamSharding) -> str:
    gone = [dim for dim in range(owner.param.rank) if dim not in reading]
    return "without " + " and ".join(
        f"dim {dim} ({owner.dims[dim].logical_axis or '_'})" for dim in gone
    )


def _answer(reading: Reading, found: StateSharding, owner: ParamSharding) -> str:
    dims = read_dims(owner, found.param.shape, reading)
    spec = PartitionSpec(tuple(dim.mesh_axes for dim in dims))
    return f"{_dropped(reading, owner)}: {spec}"


def _entry(path: str, reading: Reading, found: StateSharding, owner: ParamSharding) -> str:
    """Return the override that would say that this reading is meant."""
    dims = read_dims(owner, found.param.shape, reading)
    if any(dim.logical_axis for dim in dims):
        return quote.override(path, " ".join(dim.logical_axis or "_" for dim in dims))
    return quote.override(path, spec=override_text(dim.mesh_axes for dim in dims))
