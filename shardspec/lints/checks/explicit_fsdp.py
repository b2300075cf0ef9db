"""A result would be sharded twice over one explicit mesh axis, which JAX refuses.

Fully sharded weights lie on the mesh axis that the batch has. Under automatic axes XLA gathers
them where they are used. Where the axis is explicit, JAX asks the types: a weight's dimension that
is contracted it gathers unasked, and one that stays in the result, beside the batch, is a
`ShardingTypeError`, also where the axis has size 1. So `embed -> data` works into the hidden layer
(`embed mlp`), and not out of it (`mlp embed`), nor for scales and biases (`embed`).

The way out is to gather such a weight where it is used: `resolver.constrain(w, "mlp _")`, with no
name for the dimension that is split. If the spec has an activation with these names, the code is
assumed to do so, and nothing is reported.

A spec does not say what the code multiplies; names do, read as Flax stores weights, inputs first,
and inputs last where the path ends in `weight`, as those of PyTorch and Equinox. A weight is met
where an activation has its last axes and lacks those before them (`batch length embed` is a result
of `mlp embed`), or ends as the weight does (`embed`: a scale). Names of activations count without
`activation_` in front. Where no activation has a batch, the rules of batch axes count, and the last
dimension of each weight. Dimensions of stacked layers are those of `scan` and those whose name says
so, and are no part of a product. Tables over a vocabulary are left out: they are looked up, and JAX
needs `table.at[ids].get(out_sharding=...)` there anyway.

Bad:
    shardspec: 1
    mesh: {data: 8 explicit}
    axes: {batch: 64}
    rules:
      - batch -> data
      - embed -> data
      - mlp -> none
    arrays:
      mlp/wi/kernel: bf16[embed=1024 mlp=4096]
      mlp/wo/kernel: bf16[mlp=4096 embed=1024]
    activations:
      residual: batch _ embed
      hidden: batch _ mlp

Good:
       hidden: batch _ mlp
    +  wo_where_used: mlp _
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, Span, codes, quote
from shardspec.diagnostics.words import binary_bytes, counted, listed, named
from shardspec.ir.plan import ActivationSharding, Alike, DimSharding, ShardingPlan
from shardspec.ir.spec import Activation, AxisRule, MeshAxis, array_bytes
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import largest, only
from shardspec.lints.evidence.rules import batch_rules, is_batch, is_stacked, stacked_axes

#: What MaxText calls the axes of activations begins with it.
_OF_ACTIVATIONS = "activation_"

#: Part of the name of the axis along which a table is looked up.
_LOOKED_UP = "vocab"

#: How the path of a weight ends whose inputs stand last.
_TURNED = (".weight", "/weight")

#: How many ways to gather a weight are spelt out.
_SHOWN = 3

Names = tuple[str | None, ...]


class _Weight(NamedTuple):
    """Arrays that are laid out alike, as a product meets them: without stacked dimensions.

    Attributes:
      at: which of the dimensions is on the explicit mesh axis.
    """

    arrays: Alike
    dims: tuple[DimSharding, ...]
    at: int

    @property
    def names(self) -> Names:
        return tuple(dim.logical_axis for dim in self.dims)

    @property
    def inputs_first(self) -> Names:
        """Return the names as Flax would store the weight."""
        is_turned = self.arrays.first.param.path.endswith(_TURNED)
        return self.names[::-1] if is_turned else self.names

    @property
    def where_used(self) -> str:
        """Return the names under which the weight is gathered."""
        return " ".join("_" if i == self.at else n or "_" for i, n in enumerate(self.names))

    @property
    def gathered_bytes(self) -> int:
        """Return the bytes of one of them on a device, where it is used."""
        sizes = ((d.size if i == self.at else d.shard_size) for i, d in enumerate(self.dims))
        return array_bytes(tuple(size or 0 for size in sizes), self.arrays.dtype)


class _Other(NamedTuple):
    """What has the mesh axis in the same result.

    Attributes:
      rule: what puts it there.
      result: the activation that shows it; None where only the rules do.
    """

    rule: AxisRule
    result: Activation | None


@dataclass(slots=True)
class _Clash:
    """One dimension of weights, and one of what they meet, on the same explicit mesh axes."""

    rule: AxisRule
    other: _Other
    axes: dict[str, MeshAxis] = field(default_factory=dict)
    targets: dict[str, None] = field(default_factory=dict)
    ways: dict[str, None] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    gathered: int = 0


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each two logical axes that would share an explicit mesh axis."""
    stacked = stacked_axes(context.spec)
    clashes: dict[tuple[AxisRule, AxisRule], _Clash] = {}
    for plan in context.plans:
        for axis in plan.mesh.axes:
            if axis.axis_type == "explicit":
                for weight in _weights(plan, axis.name, stacked):
                    _add(clashes, plan, axis, weight)
    for clash in clashes.values():
        yield _finding(clash)


def _weights(plan: ShardingPlan, axis: str, stacked: frozenset[str]) -> Iterator[_Weight]:
    """Yield what meets activations, and is split over a mesh axis along a named dimension."""
    for arrays in plan.alike:
        dims = tuple(d for d in arrays.dims if not is_stacked(d.logical_axis or "", stacked))
        at = next((i for i, dim in enumerate(dims) if axis in dim.mesh_axes), None)
        if at is None or dims[at].logical_axis is None:
            continue
        names = [(dim.logical_axis or "").lower() for dim in dims]
        if not any(map(is_batch, names)) and not any(_LOOKED_UP in name for name in names[:at]):
            yield _Weight(arrays, dims, at)


def _add(
    clashes: dict[tuple[AxisRule, AxisRule], _Clash],
    plan: ShardingPlan,
    axis: MeshAxis,
    weight: _Weight,
) -> None:
    """Note what JAX would refuse of one weight, if it would."""
    other, rule = _other(plan, axis.name, weight), weight.dims[weight.at].rule
    if other is None or rule is None or _is_gathered(plan, weight):
        return
    clash = clashes.setdefault((rule, other.rule), _Clash(rule, other))
    clash.axes.setdefault(axis.name, axis)
    clash.targets.setdefault(plan.target.name)
    clash.ways.setdefault(weight.where_used)
    clash.bytes.update((s.param.path, s.param.bytes) for s in weight.arrays.shardings)
    clash.gathered = max(clash.gathered, weight.gathered_bytes)


def _other(plan: ShardingPlan, axis: str, weight: _Weight) -> _Other | None:
    """Return what else has the mesh axis in a result of the weight."""
    for result in plan.activations:
        for met in _met(plan, weight, result):
            for dim in met.dims:
                if axis in dim.mesh_axes and dim.rule and _plain(dim) not in weight.names:
                    return _Other(dim.rule, result.activation)
    has_batch = any(is_batch(n or "") for each in plan.activations for n in each.logical_axes)
    if has_batch or weight.names[weight.at] != weight.inputs_first[-1]:
        return None
    rule = next((rule for rule in _batch_splits(plan) if axis in rule.mesh_axes), None)
    return None if rule is None else _Other(rule, None)


def _met(
    plan: ShardingPlan, weight: _Weight, result: ActivationSharding
) -> Sequence[ActivationSharding]:
    """Return what is multiplied with a weight for a result; the result itself if none is named."""
    names, has = weight.names, _names(result)
    if names == has[-len(names) :]:
        return (result,) if len(has) > len(names) else ()
    named = {name for name in has if name is not None}
    gone = tuple(name for name in names if name not in named)
    stays = names[weight.at]
    ordered = weight.inputs_first
    if stays not in named or not gone or not set(gone).isdisjoint(ordered[ordered.index(stays) :]):
        return ()
    summed = {name for name in gone if name is not None}
    inputs = tuple(
        each
        for each in plan.activations
        for own in (set(_names(each)) - {None},)
        if stays not in own and summed <= own and named - set(names) <= own <= named | summed
    )
    return inputs or (result,)


def _is_gathered(plan: ShardingPlan, weight: _Weight) -> bool:
    """Say whether an activation names the weight as it is where it is used."""
    wanted = tuple(None if i == weight.at else name for i, name in enumerate(weight.names))
    return any(_names(each) == wanted for each in plan.activations)


def _batch_splits(plan: ShardingPlan) -> Iterator[AxisRule]:
    """Yield, for each batch axis, the rule that splits it on a target if nothing is in its way."""
    done: set[str] = set()
    for rule in batch_rules(plan.spec):
        if rule.logical_axis not in done and (
            rule.is_none or not set(plan.mesh.in_parts(rule.mesh_axes)).isdisjoint(plan.mesh.names)
        ):
            done.add(rule.logical_axis)
            yield rule


def _names(activation: ActivationSharding) -> Names:
    return tuple(map(_plain, activation.dims))


def _plain(dim: DimSharding) -> str | None:
    """Return the name of an activation's dimension as a weight would have it."""
    name = dim.logical_axis
    return None if name is None else name.removeprefix(_OF_ACTIVATIONS)


def _finding(clash: _Clash) -> Diagnostic:
    other, count = clash.other, len(clash.bytes)
    return Diagnostic(
        codes.EXPLICIT_FSDP,
        f"explicit {listed(clash.axes)} would split `{other.rule.logical_axis}` and"
        f" `{clash.rule.logical_axis}` of one result on {named('target', clash.targets)}: JAX"
        f" refuses to use {counted(count, 'array')} (ShardingTypeError)",
        tuple(_labels(clash)),
        notes=(
            f"{binary_bytes(sum(clash.bytes.values()))} in all; gathered where it is used, the"
            f" largest takes {binary_bytes(clash.gathered)} on each device",
            *largest(clash.bytes.items()),
        ),
        help=_help(clash),
        target=only(clash.targets),
    )


def _labels(clash: _Clash) -> Iterator[Label]:
    """Yield the rule of the weights, then what it clashes with."""
    weights, other, result = clash.rule, clash.other.rule, clash.other.result
    places: dict[Span, str] = {}
    for span, text in (
        (weights.span, f"splits weights along `{weights.logical_axis}`"),
        (other.span, f"splits `{other.logical_axis}`"),
        *((axis.span, "explicit") for axis in clash.axes.values()),
        (result.span if result else None, "the result has both"),
    ):
        if span is not None:
            places[span] = f"{places[span]}, and {text}" if span in places else text
    for index, (span, text) in enumerate(places.items()):
        yield Label(span, text, primary=index == 0)


def _help(clash: _Clash) -> str:
    ways = [f'"{names}"' for names in clash.ways]
    shown = ", ".join(ways[:_SHOWN]) + (", ..." if len(ways) > _SHOWN else "")
    first = next(iter(clash.ways))
    call = f"`resolver.constrain(w, {ways[0]})`" if len(ways) == 1 else ""
    call = call or f"`resolver.constrain(w, names)` with {shown}"
    line = quote.either(
        f"under `activations` (`NAME: {first}`)", f"by a line `activation NAME : {first}`"
    )
    return (
        f"gather where used: {call}, and say so {line};"
        f" or leave {listed(clash.axes)} automatic, without `explicit`"
    )
