"""JSON with Hugging Face's `base_model_tp_plan`: module -> `colwise`, `rowwise` and their kin.

A weight of `torch.nn.Linear` is [out, in]: `colwise` splits dim 0 of it and of its bias, `rowwise`
splits dim 1 and keeps the bias whole. Numbers in a module's path are `*`. What is not named is
whole, but for `embed_tokens`, which any plan splits over the vocabulary. What stands beside the
base model (`lm_head`) is in `_tp_plan`, the plan of the model's class. Parameters that are no
`weight` and no `bias`, such as those of packed experts, have keys of their own.
Source: transformers 5.23.0, as `formats.foreign.tp_styles` has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.codes import CANNOT_HOLD, EXPORT_DIFFERS
from shardspec.formats import hf_tp_plan
from shardspec.formats.export.exported import Request, Written
from shardspec.formats.export.losses import OVERRIDES, PARAMS, losses
from shardspec.formats.foreign.imported import NoAnswer, NotRead, Options, lost
from shardspec.formats.foreign.tp_styles import partition
from shardspec.ir.grouping import natural, template
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.plan import ParamSharding

_PREFIX = "model"
_EMBEDDING = "embed_tokens"
_WHOLE = "replicate"
_LINEAR = ("colwise", "rowwise")
_TOOL = "a tp_plan"
#: What is computed beside the base model is wanted whole: logits.
_GATHERED = {"colwise": "colwise_gather_output"}
_PARAMETERS = ("weight", "bias")


def write(request: Request) -> Written:
    """Return the plan over one mesh axis, as far as modules of `Linear` can say it."""
    axis = _axis(request)
    if isinstance(axis, Diagnostic):
        return None, (axis,)
    entries: dict[str, str] = {}
    refused: dict[str, list[ParamSharding]] = {}
    for module, shardings in _modules(request).items():
        key, style = _key(module), _style(shardings, axis)
        if style is None or entries.setdefault(key, style) != style:
            refused.setdefault(key, []).extend(shardings)
    styled = {key: entries[key] for key in sorted(entries, key=natural) if entries[key]}
    inside = {key: style for key, style in styled.items() if key not in refused}
    beside = _outside(request)
    kept = {key: style for key, style in inside.items() if key not in beside}
    heads = {key: _GATHERED.get(inside[key], inside[key]) for key in beside if key in inside}
    faults = [*_others(request, axis), *_refused(refused, axis), *_half_split(entries)]
    if not any(style != _WHOLE for style in (*kept.values(), *heads.values())):
        message = f"no array is split over `{axis}` as the weight of a Linear of PyTorch"
        help = "the paths and shapes have to be those of a model of Hugging Face"
        return None, (*faults, Diagnostic(CANNOT_HOLD, message, help=help))
    plans = {"base_model_tp_plan": kept | _experts(kept)}
    if heads:
        plans["_tp_plan"] = heads
    text = json.dumps(plans, indent=2) + "\n"
    proved = [s for s in request.plan.params if _key(_unit(s)) not in refused]
    faults += [*losses(request, _TOOL, PARAMS, OVERRIDES), *_proof(text, proved, axis, request)]
    return text, tuple(faults)


def _half_split(entries: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Yield a finding for experts of whose parameters some are split and others are whole."""
    owners = _experts({key: style for key, style in entries.items() if style})
    for owner in owners:
        inside = {key: style for key, style in entries.items() if key.startswith(f"{owner}.")}
        whole = [key for key, style in inside.items() if not style and not key.endswith("_bias")]
        if whole:
            message = f"`{whole[0]}` is whole, and others of `{owner}` are split"
            help = "transformers computes experts on local parts: packed_colwise, if it is packed"
            yield lost(message, None, help=help)


def _axis(request: Request) -> str | Diagnostic:
    """Return the mesh axis that the file is about."""
    sizes = request.plan.mesh.sizes
    used = [
        axis
        for axis, size in sizes.items()
        if size > 1 and any(axis in s.partition_spec.mesh_axes for s in request.plan.params)
    ]
    if request.axis is not None and request.axis not in sizes:
        message = f"the mesh has no axis `{request.axis}`: {', '.join(sizes)}"
        return Diagnostic(CANNOT_HOLD, message, help=f"--axis {used[0] if used else 'NAME'}")
    if request.axis is not None or len(used) == 1:
        return request.axis or used[0]
    named = " and ".join(f"`{axis}`" for axis in used)
    message = f"a tp_plan is about one mesh axis, and arrays are split over {named or 'none'}"
    help = f"say which: --axis {used[-1]}" if used else "there is nothing to write"
    return Diagnostic(CANNOT_HOLD, message, help=help)


def _others(request: Request, axis: str) -> Iterator[Diagnostic]:
    """Yield a finding for each other mesh axis that splits arrays."""
    for other in request.plan.mesh.axes:
        found = [s for s in request.plan.params if other.name in s.partition_spec.mesh_axes]
        if other.name != axis and other.size > 1 and found:
            message = f"{len(found)} arrays are split over `{other.name}` too, which is left out"
            yield lost(message, other.span, help="FSDP is set apart from the tp_plan over there")


def _modules(request: Request) -> dict[str, list[ParamSharding]]:
    """Return the arrays of each module, and each parameter that has a key of its own."""
    modules: dict[str, list[ParamSharding]] = {}
    for sharding in request.plan.params:
        modules.setdefault(_unit(sharding), []).append(sharding)
    return modules


def _unit(sharding: ParamSharding) -> str:
    """Return what a key is about: the module of a weight or bias, else the parameter."""
    module, kind = _parts(sharding)
    return module if kind in _PARAMETERS or not module else f"{module}.{kind}"


def _experts(entries: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of modules whose own parameters are split: their outputs are sums."""
    owners = {key.rpartition(".")[0] for key in entries}
    return {owner: "moe_tp_experts" for owner in sorted(owners) if owner.endswith("experts")}


def _outside(request: Request) -> tuple[str, ...]:
    """Return the modules that stand beside the base model, where there is one."""
    modules = _modules(request)
    outside = (module for module in modules if not module.startswith(f"{_PREFIX}."))
    return tuple(map(_key, outside)) if _is_based(request) else ()


def _is_based(request: Request) -> bool:
    """Say whether there is a base model, with others beside it or not."""
    return any(_parts(each)[0].startswith(f"{_PREFIX}.") for each in request.plan.params)


def _parts(sharding: ParamSharding) -> tuple[str, str]:
    """Return the module of an array, and its name there: `weight`, `bias`."""
    module, _, kind = sharding.param.path.replace("/", ".").rpartition(".")
    return module, kind


def _split(sharding: ParamSharding, axis: str) -> bool:
    return axis in sharding.partition_spec.mesh_axes


def _style(shardings: Sequence[ParamSharding], axis: str) -> str | None:
    """Return the style of a module, "" for one that is whole, None for what has no word."""
    name = _parts(shardings[0])[0].rpartition(".")[2]
    if not any(_split(each, axis) for each in shardings):
        return _WHOLE if name == _EMBEDDING else ""
    styles = ("embedding_rowwise", "embedding_colwise") if "embed" in name else _LINEAR
    for style in styles:
        if all(_styled(style, each, axis) == _dims(each, axis) for each in shardings):
            return style
    return None


def _styled(style: str, sharding: ParamSharding, axis: str) -> object:
    return partition(style, _parts(sharding)[1], sharding.param.rank, axis)


def _dims(sharding: ParamSharding, axis: str) -> tuple[tuple[str, ...], ...]:
    """Return the layout of an array over one axis alone."""
    return tuple((axis,) if axis in dim else () for dim in sharding.partition_spec.dims)


def _proof(
    text: str, shardings: Sequence[ParamSharding], axis: str, request: Request
) -> Iterator[Diagnostic]:
    """Yield a finding for each array that transformers would split otherwise over the axis."""
    source = SourceFile("<exported>.json", text)
    names = ["base_model_tp_plan=" + (_PREFIX if _is_based(request) else ".")]
    names += ["_tp_plan=."] if '"_tp_plan"' in text else []
    imported, faults = hf_tp_plan.read([source], Options(mesh=((axis, "2"),), names=tuple(names)))
    assert imported is not None, f"what was written reads back: {faults}"
    params = tuple(each.param for each in shardings)
    answers = hf_tp_plan.answer(imported.reading, params, request.plan.mesh)
    for sharding, answer in zip(shardings, answers, strict=True):
        ours = PartitionSpec(_dims(sharding, axis))
        if isinstance(answer, NotRead):
            answer = PartitionSpec(((),) * sharding.param.rank)  # no entry in all that is written
        if answer != ours:
            theirs = f"refuses: {answer.reason}" if isinstance(answer, NoAnswer) else str(answer)
            message = f"`{sharding.param.path}`: shardspec gives {ours}, transformers {theirs}"
            yield Diagnostic(EXPORT_DIFFERS, message, help="--lossy writes the file all the same")


def _key(module: str) -> str:
    """Return `layers.*.mlp.up_proj`: numbers as `*`, without the name of the base model."""
    parts = ["*" if part.isdecimal() else part for part in module.split(".")]
    return ".".join(parts[1:] if parts[0] == _PREFIX and len(parts) > 1 else parts)


def _refused(modules: Mapping[str, Sequence[ParamSharding]], axis: str) -> Iterator[Diagnostic]:
    """Yield a finding for modules that differ in numbers alone."""
    alike: dict[str, list[ParamSharding]] = {}
    for key, shardings in modules.items():
        alike.setdefault(template(key), []).extend(shardings)
    for shardings in alike.values():
        first = shardings[0]
        many = f" x{len(shardings)}" if len(shardings) > 1 else ""
        message = (
            f"`{first.param.path}`{many} is {first.partition_spec} over {first.param}: "
            f"neither colwise nor rowwise over `{axis}`"
        )
        yield lost(message, None, help="its module is left out, and so whole over there")
