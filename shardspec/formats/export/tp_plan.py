"""JSON with Hugging Face's `base_model_tp_plan`: module -> `colwise` or `rowwise`.

A weight of `torch.nn.Linear` is [out, in]: `colwise` splits dim 0 of it and of its bias, `rowwise`
splits dim 1 and keeps the bias whole. Numbers in a module's path are `*`. What is not named is
whole. Embeddings are left out: over the rows of a vocabulary, their word depends on the version.
Source: huggingface/transformers at 0017fdb2, `integrations/tensor_parallel.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import CANNOT_HOLD
from shardspec.formats.export.exported import Request, Written
from shardspec.formats.export.losses import OVERRIDES, PARAMS, losses
from shardspec.formats.foreign.imported import lost
from shardspec.ir.grouping import natural, template
from shardspec.ir.plan import ParamSharding

_PREFIX = "model"
_TOOL = "a tp_plan"


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
    kept = {key: style for key, style in inside.items() if key not in _outside(request)}
    faults = [*_others(request, axis), *_refused(refused, axis)]
    faults += [_of_class(key, inside[key]) for key in _outside(request) if key in inside]
    if not kept:
        message = f"no array is split over `{axis}` as the weight of a Linear of PyTorch"
        help = "the paths and shapes have to be those of a model of Hugging Face"
        return None, (*faults, Diagnostic(CANNOT_HOLD, message, help=help))
    text = json.dumps({"base_model_tp_plan": kept}, indent=2) + "\n"
    return text, (*faults, *losses(request, _TOOL, PARAMS, OVERRIDES))


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
    """Return the arrays of each module."""
    modules: dict[str, list[ParamSharding]] = {}
    for sharding in request.plan.params:
        modules.setdefault(_parts(sharding)[0], []).append(sharding)
    return modules


def _outside(request: Request) -> tuple[str, ...]:
    """Return the modules that stand beside the base model, where there is one."""
    modules = _modules(request)
    based = [module for module in modules if module.startswith(f"{_PREFIX}.")]
    return tuple(_key(module) for module in modules if based and module not in based)


def _of_class(key: str, style: str) -> Diagnostic:
    message = f"`{key}` is {style}, and stands outside the base model"
    return lost(message, None, help="`_tp_plan` of the model's class is the place for it")


def _parts(sharding: ParamSharding) -> tuple[str, str]:
    """Return the module of an array, and its name there: `weight`, `bias`."""
    module, _, kind = sharding.param.path.replace("/", ".").rpartition(".")
    return module, kind


def _split(sharding: ParamSharding, axis: str) -> tuple[int, ...]:
    """Return the dimensions that the axis splits."""
    dims = enumerate(sharding.partition_spec.dims)
    return tuple(index for index, names in dims if axis in names)


#: What a style splits, by the name of the array and its rank.
_STYLES: Mapping[str, Mapping[tuple[str, int], tuple[int, ...]]] = {
    "colwise": {("weight", 2): (0,), ("bias", 1): (0,)},
    "rowwise": {("weight", 2): (1,), ("bias", 1): ()},
}


def _style(shardings: Sequence[ParamSharding], axis: str) -> str | None:
    """Return `colwise`, `rowwise`, "" for a module that is whole, None for what has no word."""
    split = {(_parts(s)[1], s.param.rank): _split(s, axis) for s in shardings}
    if not any(split.values()):
        return ""
    if "embed" in _parts(shardings[0])[0].rpartition(".")[2]:
        return None
    for style, wanted in _STYLES.items():
        if all(wanted.get(kind) == dims for kind, dims in split.items()):
            return style
    return None


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
