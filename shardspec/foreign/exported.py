"""What an export is made of and what comes of it.

Every format is one module with `write(request) -> (text | None, diagnostics)`. A format of rules
(Flax, T5X, MaxText) says how arrays that are not made yet are placed; a format of answers (regexes,
a Python module) says where the arrays of one plan lie. What a format cannot say is left out
and said. Where it would give an array another layout than the plan does, that is an error.

`losses` is what a spec says that another tool's file has no place for. `by_name` is a plan as a
dictionary from logical axis to mesh axes, where it is one: NNX and Haliax know no contest: a name
has the same mesh axes in every array. A plan in which contests are decided array by array is no
dictionary; the names that differ are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, Label, Span, codes
from shardspec.diagnostics.words import counted
from shardspec.foreign.imported import MeshAxes, lost, place
from shardspec.ir.plan import Origin, ShardingPlan
from shardspec.ir.spec import Override, PartitionSpec, Spec

Written = tuple[str | None, tuple[Diagnostic, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be written.

    Attributes:
      plan: of one target; without arrays where the spec lists none.
      is_resolved: whether rules are reduced to the target's mesh and the arrays of the plan.
      axis: the one mesh axis that a format with room for one is about.
    """

    plan: ShardingPlan
    is_resolved: bool = False
    axis: str | None = None

    @property
    def spec(self) -> Spec:
        """Return the spec of the plan."""
        return self.plan.spec

    @property
    def title(self) -> str:
        """Return what the text is made of: `spec.yaml, target pod: mesh data=4 model=2`."""
        return f"{source_name(self.spec)}, {self.target_title}"

    @property
    def target_title(self) -> str:
        """Return `target pod: mesh data=4 model=2 on tpu v5e 2x4`."""
        target = self.plan.target
        hardware = "" if target.hardware is None else f" on {target.hardware}"
        return f"target {target.name}: mesh {target.mesh}{hardware}"


def source_name(spec: Spec) -> str:
    """Return the name of the spec's file without its folder, in one line of plain text."""
    name = spec.source.name.replace("\\", "/").rpartition("/")[2]
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in name).replace('"', "?")


def origin(span: Span | None) -> str:
    """Return a trailing comment for a line of Python or YAML: `  # spec.yaml:12`."""
    if span is None:
        return ""
    name = span.source.name
    text = f"{name}:{span.line}" if name.startswith("preset:") else place(span)
    return f"  # {text}" if text.isprintable() and text.isascii() else ""


def python_module(request: Request, title: str, about: Iterable[str], body: Iterable[str]) -> str:
    """Return the text of a Python module: what it is in its docstring, then its lines."""
    first = f'"""{title}, exported by shardspec from {source_name(request.spec)}.'
    return "\n".join((first, "", *about, '"""', "", *body)) + "\n"


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
    if request.plan.arrays:
        return
    for axis in request.spec.logical_axes:
        if axis.unit > 1:
            message = f"`{axis.name}` is split in units of {axis.unit}, and {tool} has no units"
            help = "with arrays (--arrays) the export shows whether any array is cut otherwise"
            yield lost(message, axis.span, help=help)


def _params(request: Request, tool: str) -> Iterator[Diagnostic]:
    """Yield one finding for all entries of `params:` that name an array."""
    entries = request.spec.path_rules
    named = sum(sharding.origin is Origin.PARAMS for sharding in request.plan.arrays)
    if entries and (named or not request.plan.arrays):
        many = f" of {counted(named, 'array')}" if named else ""
        message = f"{tool} has no paths: the names{many} that `params:` gives stay here"
        help = "the model has to name these dimensions itself"
        yield lost(message, entries[0].span, help=help)


def _overrides(request: Request, tool: str) -> Iterator[Diagnostic]:
    matched = Counter(
        sharding.matched
        for sharding in request.plan.arrays
        if isinstance(sharding.matched, Override)
    )
    for override in request.spec.overrides:
        count = matched[override]
        if request.plan.arrays and not count:
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
        message = f"{tool} cannot say `optimizer: {state.optimizer}`: state lies as its array"
        yield lost(message, state.span, help="`Resolver.state_shardings` lays state out")


def by_name(request: Request, tool: str) -> tuple[Mapping[str, MeshAxes], tuple[Diagnostic, ...]]:
    """Return the mesh axes of each name, in the order of the rules, and the names that have none.

    Names that no array has take what a rule would give them alone.
    """
    seen: dict[str, Counter[MeshAxes]] = {}
    for sharding in request.plan.arrays:
        for dim in sharding.dims:
            if dim.logical_axis is not None:
                seen.setdefault(dim.logical_axis, Counter())[dim.mesh_axes] += 1
    alone = _alone(request)
    mapping: dict[str, MeshAxes] = {}
    faults = []
    for name in dict.fromkeys((*alone, *seen)):
        answers = seen.get(name, Counter({alone.get(name, ()): 1}))
        if len(answers) > 1:
            faults.append(_several(name, answers, request, tool))
        mapping[name] = answers.most_common(1)[0][0]
    return mapping, tuple(faults)


def _alone(request: Request) -> dict[str, MeshAxes]:
    """Return what the first rule of each name gives on the target."""
    here = request.plan.mesh.sizes
    found: dict[str, MeshAxes] = {}
    for rule in request.spec.axis_rules:
        present = tuple(axis for axis in rule.mesh_axes if axis in here)
        if present or rule.is_none:
            found.setdefault(rule.logical_axis, present)
    return found


def _several(name: str, answers: Counter[MeshAxes], request: Request, tool: str) -> Diagnostic:
    shown = " and ".join(f"{PartitionSpec((axes,))} {count}x" for axes, count in answers.items())
    message = f"`{name}` is {shown}, and {tool} gives a name one answer"
    rule = next((r for r in request.spec.axis_rules if r.logical_axis == name), None)
    labels = () if rule is None or rule.span is None else (Label(rule.span),)
    help = "two names for the two kinds of dimension, or a format that holds rules (flax) or paths"
    return Diagnostic(codes.CANNOT_HOLD, message, labels, help=help)
