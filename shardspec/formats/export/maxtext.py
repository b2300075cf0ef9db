"""YAML for MaxText: mesh axes, sizes inside a slice and across, and the whole list of rules.

`override_logical_axis_rules: true` makes MaxText take the list as it stands; it would move rules to
the end of its own otherwise.
Source: AI-Hypercomputer/maxtext, `src/maxtext/configs/base.yml` and `types.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import CANNOT_HOLD
from shardspec.formats.export.exported import Request, Written, origin
from shardspec.formats.export.losses import ACTIVATIONS, AXIS_TYPES, losses, unproved
from shardspec.formats.export.proof import proof
from shardspec.formats.export.reduced import rules_for
from shardspec.formats.foreign.imported import Options, lost
from shardspec.ir.mesh import Mesh
from shardspec.ir.spec import Activation

_TOOL = "MaxText's YAML"
_INPUT = "input_data"
_FLAGS = {"stage": "pipeline", "model": "tensor"}
_KNOWN = frozenset(
    (
        *("diloco", "data", "stage", "fsdp", "fsdp_transpose", "sequence", "context"),
        *("context_usp_ulysses", "context_autoregressive", "tensor", "tensor_transpose"),
        *("tensor_sequence", "expert", "autoregressive", "model"),
    )
)


def write(request: Request) -> Written:
    """Return the configuration that stands for the plan's target."""
    request = replace(request, is_resolved=True)
    mesh = request.plan.mesh
    rules = rules_for(request)
    if not rules:
        message = f"no rule counts on target {request.plan.target.name}, and MaxText needs some"
        return None, (Diagnostic(CANNOT_HOLD, message, help="add `rules:`, or `extends:`"),)
    lines = [f"# Exported by shardspec from {request.title}", *_mesh(mesh), *_input(request)]
    lines += ["override_logical_axis_rules: true", "logical_axis_rules: ["]
    for rule in rules:
        axes = _flow(rule.mesh_axes)
        lines.append(f'  ["{rule.logical_axis}", {axes}],{origin(rule.span)}')
    text = "\n".join((*lines, "]")) + "\n"
    found = [*_unknown(request), *_mixed_types(mesh), *_activations(request)]
    found += [*losses(request, _TOOL, ACTIVATIONS, AXIS_TYPES), *unproved(request, _TOOL)]
    return text, (*found, *proof(request, text, "maxtext", Options()))


def _mesh(mesh: Mesh) -> Iterator[str]:
    yield f"mesh_axes: {_flow(mesh.names)}"
    for axis in mesh.axes:
        is_far = axis.network == "dcn"
        flag = _FLAGS.get(axis.name, axis.name)
        yield f"ici_{flag}_parallelism: {1 if is_far else axis.size}"
        yield f"dcn_{flag}_parallelism: {axis.size if is_far else 1}"
    if mesh.axes and all(axis.axis_type == "explicit" for axis in mesh.axes):
        yield "shard_mode: explicit"


def _input(request: Request) -> Iterator[str]:
    """Yield how input is split, where the spec names the activation `input_data`."""
    for sharding in request.plan.activations:
        names = sharding.activation.logical_axes
        if sharding.activation.name == _INPUT and None not in names:
            dims = [f'"{name}"' for name in names]
            yield f"data_sharding: [{_flow(sharding.dims[0].mesh_axes if sharding.dims else ())}]"
            yield f"input_data_sharding_logical_axes: [{', '.join(dims)}]"


def _flow(names: Sequence[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"[{quoted}]"


def _unknown(request: Request) -> Iterator[Diagnostic]:
    for axis in request.plan.mesh.axes:
        if axis.name not in _KNOWN:
            message = f"MaxText has no size for a mesh axis `{axis.name}`, and fails (KeyError)"
            help = "rename it: data, fsdp, tensor, expert, stage, context are some that it has"
            yield lost(message, axis.span, help=help)


def _mixed_types(mesh: Mesh) -> Iterator[Diagnostic]:
    types = {axis.axis_type for axis in mesh.axes}
    if types - {"auto"} and types != {"explicit"}:
        odd = next(axis for axis in mesh.axes if axis.axis_type != "auto")
        message = f"`{odd.name}` is {odd.axis_type}, and MaxText's mesh axes are all of one type"
        yield lost(message, odd.span, help="all `auto`, or all `explicit`")


def _activations(request: Request) -> Iterator[Diagnostic]:
    found: list[Activation] = [a for a in request.spec.activations if a.name != _INPUT]
    if found:
        message = f"{_TOOL} holds one activation, `{_INPUT}`, and not `{found[0].name}`"
        help = "MaxText's code names the dimensions of its activations itself"
        yield lost(message, found[0].span, help=help)
