"""Gin for T5X: the arguments of `PjitPartitioner`, and names by path.

T5X's mesh is (data, model), or (replica, data, model) over several slices. Where the rules are one
of its four standard sets, or one with rules after it, the file says so instead of listing them.
Source: google-research/t5x, `t5x.partitioning`, `t5x.utils.override_params_axes_names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic
from shardspec.formats.export.exported import Request, Written, origin
from shardspec.formats.export.flax import rule_literal
from shardspec.formats.export.losses import ACTIVATIONS, OVERRIDES, PARAMS, losses, unproved
from shardspec.formats.export.path_regex import path_regex
from shardspec.formats.export.proof import proof
from shardspec.formats.export.reduced import rules_for
from shardspec.formats.foreign.imported import Options, lost
from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.patterns.glob import glob_regex
from shardspec.ir.grouping import template
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import LogicalAxes
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import AxisRule, Pattern, Target
from shardspec.pipeline import load_text
from shardspec.topology.submesh import best_submesh

_TOOL = "T5X's gin"
_PRESETS = {
    "t5x/1d": (1, 1),
    "t5x/activations-2d": (2, 1),
    "t5x/parameters-2d": (1, 2),
    "t5x/2d": (2, 2),
}
_PARTITIONER = "partitioning.PjitPartitioner"
_STANDARD = "partitioning.standard_logical_axis_rules"
_SLICED = ("replica", "data", "model")
_BOUND_BY = "# T5X has no argument for these: call utils.override_params_axes_names in the model."


def write(request: Request) -> Written:
    """Return the gin bindings that stand for the plan's target."""
    request = replace(request, is_resolved=True)
    mesh, faults = _mesh(request.plan.target)
    rules = tuple(_rules(rules_for(request), request.plan.mesh))
    lines = [
        f"# Exported by shardspec from {request.title}",
        "from __gin__ import dynamic_registration",
        "from t5x import partitioning",
        "from t5x import utils",
        "",
        *mesh,
        *rules,
        *_overrides(request),
    ]
    text = "\n".join(lines) + "\n"
    found = [*faults, *losses(request, _TOOL, PARAMS, OVERRIDES, ACTIVATIONS)]
    found += [*_stated(request), *_scanned(request), *unproved(request, _TOOL)]
    options = Options(mesh=tuple((axis.name, str(axis.size)) for axis in request.plan.mesh.axes))
    return text, (*found, *proof(request, text, "t5x-gin", options, by_path=True))


def _mesh(target: Target) -> tuple[list[str], list[Diagnostic]]:
    """Return the bindings that make the target's mesh."""
    names = target.mesh.names
    if names == _SLICED:
        shapes: dict[str, list[int]] = {"ici": [], "dcn": []}
        for axis in target.mesh.axes:
            far = axis.network == "dcn"
            shapes["ici"].append(1 if far else axis.size)
            shapes["dcn"].append(axis.size if far else 1)
        each = [f"{_PARTITIONER}.{k}_mesh_shape = {tuple(v)}" for k, v in shapes.items()]
        return [f"{_PARTITIONER}.num_partitions = 1", *each], []
    model = next((axis for axis in target.mesh.axes if axis.name == "model"), None)
    if model is None or names != ("data", "model"):
        message = f"T5X's mesh is (data, model) or {_as_tuple(_SLICED)}, and this is {target.mesh}"
        help = "rename the mesh axes, or make the mesh in code"
        lines = [] if model is None else [f"{_PARTITIONER}.num_partitions = {model.size}"]
        return lines, [lost(message, target.span, help=help)]
    hardware = target.hardware
    if hardware is None or hardware.chip.torus_rank == 0:
        lines = [f"{_PARTITIONER}.num_partitions = {model.size}"]
        is_cpu = hardware is not None and hardware.chip.platform == "cpu"
        return lines, list(_on_cpu(target)) if is_cpu else []
    tile = model.submesh or best_submesh(hardware, model.size)
    if tile is None:
        return [f"{_PARTITIONER}.num_partitions = {model.size}"], []
    return [f"{_PARTITIONER}.model_parallel_submesh = {tile}"], []


def _on_cpu(target: Target) -> Iterator[Diagnostic]:
    if target.mesh.sizes["data"] > 1:
        message = f"on CPU T5X gives a whole host to `model`, and this mesh is {target.mesh}"
        yield lost(message, target.span, help="make the mesh in code, or take another target")


def _as_tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)})"


def _rules(rules: Sequence[AxisRule], mesh: Mesh) -> Iterator[str]:
    """Yield the binding of the rules: a standard set and what comes after it, or the list."""
    pairs = [(rule.logical_axis, rule.mesh_axes) for rule in rules]
    for preset, (activations, parameters) in _PRESETS.items():
        standard = list(_standard(preset, mesh))
        if pairs[: len(standard)] != standard:
            continue
        extra = rules[len(standard) :]
        yield f"{_PARTITIONER}.logical_axis_rules = @{_STANDARD}()"
        yield f"{_STANDARD}.activation_partitioning_dims = {activations}"
        yield f"{_STANDARD}.parameter_partitioning_dims = {parameters}"
        if extra:
            yield from _list(f"{_STANDARD}.additional_rules", extra)
        return
    yield from _list(f"{_PARTITIONER}.logical_axis_rules", rules)


def _list(name: str, rules: Iterable[AxisRule]) -> Iterator[str]:
    yield f"{name} = ["
    yield from (f"    {rule_literal(rule)},{origin(rule.span)}" for rule in rules)
    yield "]"


def _standard(preset: str, mesh: Mesh) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the pairs of a standard set, as T5X has them on this mesh."""
    spec, _ = load_text(f"extends: {preset}\n")
    assert spec is not None, "presets load"
    for rule in spec.axis_rules:
        is_batch = rule.logical_axis == "batch" and mesh.names == _SLICED
        yield rule.logical_axis, ("replica", "data") if is_batch else rule.mesh_axes


def _overrides(request: Request) -> Iterator[str]:
    """Yield the pairs of regex and names, those of overrides first."""
    named = list(_stacked(request))
    for override in request.spec.overrides:
        if override.logical_axes is not None:
            names = override.logical_axes
            named.append((_regex(override.pattern), names, origin(override.span)))
    for rule in request.spec.path_rules:
        named.append((_regex(rule.pattern), rule.logical_axes, origin(rule.span)))
    if not named:
        return
    yield ""
    yield _BOUND_BY
    yield "utils.override_params_axes_names.params_axes_names_override = ["
    for regex, names, comment in named:
        yield f"    ({regex!a}, {_names(names)}),{comment}"
    yield "]"


def _regex(pattern: Pattern) -> str:
    text = pattern.text if pattern.dialect == "regex" else glob_regex(pattern.text)
    assert not isinstance(text, SyntaxFault), "the spec has loaded"
    return text


def _stacked(request: Request) -> Iterator[tuple[str, LogicalAxes, str]]:
    """Yield the names of arrays that `scan:` stacks, the stacked axis among them."""
    found: dict[tuple[str, LogicalAxes], list[ParamSharding]] = {}
    for sharding in request.plan.params:
        if sharding.scan is not None:
            key = (template(sharding.param.path), sharding.logical_axes)
            found.setdefault(key, []).append(sharding)
    for (_, names), shardings in found.items():
        regex = path_regex([each.param.path for each in shardings])
        yield regex, names, origin(shardings[0].named_at)


def _names(names: LogicalAxes) -> str:
    inside = ", ".join("None" if name is None else f'"{name}"' for name in names)
    return f"({inside},)" if len(names) == 1 else f"({inside})"


def _stated(request: Request) -> Iterator[Diagnostic]:
    for override in request.spec.overrides:
        if override.partition is not None:
            message = f"`{override.pattern.text}` states a layout, and T5X's overrides are names"
            help = "give the dimensions names with rules of their own"
            yield lost(message, override.span, help=help)


def _scanned(request: Request) -> Iterator[Diagnostic]:
    for scan in () if request.plan.params else request.spec.scans:
        message = f"`scan:` adds stacked axes by path, and {_TOOL} has no word for that"
        help = "with arrays (--params) each has its whole names"
        yield lost(message, scan.span, help=help)
