"""What a spec says that another tool's file has no place for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.formats.export.exported import Request
from shardspec.formats.foreign.imported import lost
from shardspec.ir.grouping import counted
from shardspec.ir.plan import Origin
from shardspec.ir.spec import Override

#: Sections that a format may have a place for.
PARAMS, OVERRIDES, ACTIVATIONS, AXIS_TYPES = "params", "overrides", "activations", "axis types"


def losses(request: Request, tool: str, *holds: str) -> Iterator[Diagnostic]:
    """Yield a finding for each entry that is left out.

    Units, `indivisible: next` and fallbacks are no entries here: where they change the answer of
    an array, the proof finds that array. They are found here only where there are no arrays.

    Args:
      tool: what has no place, for messages: "a rule list of Flax".
      holds: the sections that it has a place for.
    """
    if PARAMS not in holds:
        yield from _params(request, tool)
    if OVERRIDES not in holds:
        yield from _overrides(request, tool)
    if ACTIVATIONS not in holds:
        yield from _activations(request, tool)
    if AXIS_TYPES not in holds:
        yield from _axis_types(request, tool)
    yield from _state(request, tool)


def absent(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding for each rule with a mesh axis that the target lacks."""
    for rule in request.spec.axis_rules:
        gone = [axis for axis in rule.mesh_axes if axis not in request.plan.mesh.sizes]
        if gone:
            target = request.plan.target.name
            message = f"`{rule}`: the mesh of {target} has no `{gone[0]}`, and {tool} keeps it"
            help = "JAX refuses it where it fires; --resolved writes the rules of this target"
            yield lost(message, rule.span, help=help)


def unproved(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield a finding for each axis whose sizes matter, where no array tells if they do."""
    if request.plan.params:
        return
    for axis in request.spec.logical_axes:
        if axis.unit > 1:
            message = f"`{axis.name}` is split in units of {axis.unit}, and {tool} has no units"
            help = "with arrays (--params) the export shows whether any array is cut otherwise"
            yield lost(message, axis.span, help=help)


def _params(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield one finding for all entries of `params:` that name an array."""
    entries = request.spec.path_rules
    named = sum(sharding.origin is Origin.PARAMS for sharding in request.plan.params)
    if entries and (named or not request.plan.params):
        many = f" of {counted(named, 'array')}" if named else ""
        message = f"{tool} has no paths: the names{many} that `params:` gives stay here"
        help = "the model has to name these dimensions itself"
        yield lost(message, entries[0].span, help=help)


def _overrides(request: Request, tool: str) -> Iterator[Diagnostic]:
    matched = Counter(
        id(sharding.matched)
        for sharding in request.plan.params
        if isinstance(sharding.matched, Override)
    )
    for override in request.spec.overrides:
        count = matched[id(override)]
        if request.plan.params and not count:
            continue
        arrays = f": {counted(count, 'array')}" if count else ""
        message = f"{tool} has no overrides, and `{override.pattern.text}` is one{arrays}"
        what = "this layout" if override.logical_axes is None else "these names"
        yield lost(message, override.span, help=f"the model has to give the arrays {what} itself")


def _activations(request: Request, tool: str) -> Iterator[Diagnostic]:
    found = request.spec.activations
    if found:
        names = counted(len(found), "named activation")
        message = f"{tool} does not hold the {names} of the spec"
        help = "code that constrains them has to name their dimensions itself"
        yield lost(message, found[0].span, help=help)


def _axis_types(request: Request, tool: str) -> Iterator[Diagnostic]:
    for axis in request.plan.mesh.axes:
        if axis.axis_type != "auto":
            message = f"`{axis.name}` is an {axis.axis_type} mesh axis, and {tool} makes no mesh"
            help = f"say so where the mesh is made: AxisType.{axis.axis_type.capitalize()}"
            yield lost(message, axis.span, help=help)


def _state(request: Request, tool: str) -> Iterator[Diagnostic]:
    state = request.spec.state
    if state is not None and state.optimizer != "same":
        message = f"{tool} has no word for `optimizer: {state.optimizer}`: state lies as its array"
        yield lost(message, state.span, help="`Resolver.state_shardings` lays state out")
