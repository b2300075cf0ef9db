"""Partitioning of T5X, from its gin files.

What counts are the arguments of `partitioning.PjitPartitioner` (or `MoePjitPartitioner`), those of
`partitioning.standard_logical_axis_rules`, and `params_axes_names_override`. The standard rules are
presets here (`t5x/1d` to `t5x/2d`), so the spec extends one of them where it can.
Source: google-research/t5x, `t5x.partitioning`, `t5x.utils.override_params_axes_names`.

Written are the arguments of `PjitPartitioner`, and names by path. T5X's mesh is (data, model), or
(replica, data, model) over several slices. Where the rules are one of its four standard sets, or
one with rules after it, the file says so instead of listing them.
Source: google-research/t5x, `t5x.partitioning`, `t5x.utils.override_params_axes_names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span
from shardspec.diagnostics.words import template
from shardspec.foreign import exported, imported
from shardspec.foreign.exported import Request, origin
from shardspec.foreign.flax import rule_lines
from shardspec.foreign.gin import GinBinding, GinConfig, other_scopes, read_config
from shardspec.foreign.imported import Answer, ForeignRule, NoAnswer, Options, bad, came_from, lost
from shardspec.foreign.proof import proof, rules_for
from shardspec.foreign.regex import path_regex
from shardspec.foreign.t5x_mesh import (
    EXPERTS,
    MOE_PARTITIONER,
    MOE_RULES,
    moe_mesh,
    state_of_experts,
    t5x_mesh,
    uses_moe,
    with_moe_batch,
)
from shardspec.foreign.values import Node
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import AxisRule, LogicalAxes, Mesh, Param, Params, Pattern, Target
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.glob import glob_regex
from shardspec.language.presets import T5X_PRESETS, preset_rules
from shardspec.language.reading import Comments, Data, Route
from shardspec.resolve.match import PathMatcher, path_matcher
from shardspec.topology.submesh import best_submesh

TOOL = "T5X"
_PARTITIONER = "PjitPartitioner"
_STANDARD = "standard_logical_axis_rules"
_OVERRIDE = "params_axes_names_override"
_ARGUMENTS = (
    *("num_partitions", "model_parallel_submesh", "logical_axis_rules"),
    *("ici_mesh_shape", "dcn_mesh_shape", EXPERTS),
)
_MOE = "moe"
_MANY_SLICES = ("replica", "data")
NO_NAMES = NoAnswer(
    "missing axis names for this parameter (ValueError); a manifest can state them, "
    "`f32[embed=64 mlp=256]`, and so does a model-info.txt"
)


@dataclass(frozen=True, slots=True)
class AxesOverride:
    """One pair of `params_axes_names_override`.

    Attributes:
      names: None leaves the array as it is, and ends the search.
    """

    pattern: str
    names: tuple[str | None, ...] | None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class T5xReading:
    """Rules and overrides as T5X uses them."""

    rules: tuple[ForeignRule, ...]
    overrides: tuple[AxesOverride, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules that a configuration asks for.

    Attributes:
      preset: the standard set they begin with, None for a list of one's own.
      extra: what comes after it.
      asked_at: where the standard rules are asked for.
      is_moe: whether the set is that of the partitioner for mixtures of experts.
    """

    preset: str | None
    extra: tuple[ForeignRule, ...]
    asked_at: Span | None = None
    is_moe: bool = False

    @property
    def standard(self) -> tuple[ForeignRule, ...]:
        """Return the rules of the standard set, as this partitioner has them."""
        if not self.is_moe:
            return _preset_rules(self.preset)
        return with_moe_batch((*_preset_rules(self.preset), *MOE_RULES))


def read(sources: Sequence[SourceFile], options: Options) -> imported.Outcome:
    """Return the spec that says what T5X's partitioner does under these gin files."""
    config = read_config(sources, options.include)
    faults = list(config.faults)
    if any(fault.is_error for fault in faults):
        return None, tuple(faults)
    scope = options.name or ""
    is_moe = uses_moe(config)
    partitioner = MOE_PARTITIONER if is_moe else _PARTITIONER
    found = {each: config.of(partitioner, each, scope) for each in _ARGUMENTS}
    arguments = {name: binding for name, binding in found.items() if binding is not None}
    overrides = _overrides(config)
    rules = _rules(config, arguments, scope, is_moe=is_moe)
    if not _is_configured(config):
        return None, (*faults, _nothing_here(sources[0]))
    for outcome in (overrides, rules):
        if isinstance(outcome, list):
            return None, (*faults, *outcome)
    assert isinstance(rules, _Rules)
    assert isinstance(overrides, tuple)
    faults += [_other_scope(each) for each in other_scopes(config, (partitioner,), scope)]
    faults += _other_partitioners(config)
    if _sets_both(arguments):
        return None, (*faults, _both_set(arguments))
    mesh = moe_mesh(arguments, options) if is_moe else t5x_mesh(arguments, options)
    faults += mesh.faults
    if is_moe:
        faults.append(state_of_experts(arguments.get(EXPERTS)))
    if any(fault.is_error for fault in faults):
        return None, tuple(faults)
    has_slices = {"ici_mesh_shape", "dcn_mesh_shape"} <= {
        name for name, each in arguments.items() if each.value.kind != "nothing"
    }
    data, comments = _document(rules, has_slices, mesh, faults)
    data |= _override_entries(overrides, comments, faults)
    reading = T5xReading(tuple(_flat(rules, has_slices)), overrides)
    return imported.Imported(data, comments, reading, TOOL), tuple(faults)


def answer(reading: T5xReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return what T5X gives each array."""
    texts = tuple(Pattern(each.pattern, "regex") for each in reading.overrides)
    matcher = path_matcher(texts)
    return tuple(_answer(reading, matcher, param, mesh) for param in params)


def _answer(reading: T5xReading, matcher: PathMatcher, param: Param, mesh: Mesh) -> Answer:
    names = param.logical_axes
    found = matcher.first_match(param.path)
    given = None if found is None else reading.overrides[found].names
    if given is not None:
        if len(given) != param.rank:
            return NoAnswer(f"the override's {given} does not match rank {param.rank} (ValueError)")
        names = given
    if names is None:
        return NO_NAMES
    return imported.placed(imported.linen_axes(names, reading.rules), param, mesh)


def _is_configured(config: GinConfig) -> bool:
    telling = (_PARTITIONER, MOE_PARTITIONER, _STANDARD)
    return any(
        each.argument and (each.function in telling or each.argument == _OVERRIDE)
        for each in config.bindings
    )


def _nothing_here(source: SourceFile) -> Diagnostic:
    message = f"`{source.name}` binds nothing of `{_PARTITIONER}`, `{_STANDARD}` or `{_OVERRIDE}`"
    help = "name the gin files that do, in T5X's order, or the folder of includes: --include FOLDER"
    return bad(message, source.whole, help=help)


def _other_scope(binding: GinBinding) -> Diagnostic:
    message = f"`{binding.argument}` is bound under the scope `{binding.scope}`, which is not read"
    return lost(message, binding.span, help=f"--name {binding.scope} reads that scope instead")


def _other_partitioners(config: GinConfig) -> Iterable[Diagnostic]:
    """Yield a finding for each partitioner of a class that is not T5X's own."""
    others = {
        each.function: each
        for each in config.bindings
        if each.argument
        and each.function not in (_PARTITIONER, MOE_PARTITIONER)
        and each.function.endswith("Partitioner")
    }
    for name, binding in others.items():
        message = f"`{name}` makes a mesh and rules of its own in code, which cannot be read"
        help = "state them as `logical_axis_rules` of `PjitPartitioner`, and as --mesh"
        yield bad(message, binding.span, help=help)


def _sets_both(arguments: Mapping[str, GinBinding]) -> bool:
    """Say whether T5X is told the mesh twice: a number of 0 and a submesh of nothing are none."""
    count, tile = (arguments.get(key) for key in ("num_partitions", "model_parallel_submesh"))
    if count is None or tile is None:
        return False
    is_count = count.value.kind not in ("nothing", "number", "boolean") or bool(count.value.number)
    return is_count and (
        tile.value.kind != "nothing" and (not tile.value.is_list or tile.value.items != ())
    )


def _both_set(arguments: Mapping[str, GinBinding]) -> Diagnostic:
    count, tile = arguments["num_partitions"], arguments["model_parallel_submesh"]
    message = "`num_partitions` and `model_parallel_submesh` are both set: T5X takes one at most"
    labels = (
        Label(tile.span, "one of the two"),
        Label(count.span, "and this", primary=False),
    )
    return replace(bad(message, tile.span, help="set one of them to None"), labels=labels)


def _rules(
    config: GinConfig, arguments: Mapping[str, GinBinding], scope: str, *, is_moe: bool
) -> _Rules | list[Diagnostic]:
    """Return the rules that are asked for; without any, the standard ones."""
    binding = arguments.get("logical_axis_rules")
    if binding is None or binding.value.kind == "nothing":
        return _standard(config, "", None, is_moe=is_moe)
    value = binding.value
    if value.kind == "call" and value.last_name == _STANDARD:
        of_scope = value.text.lstrip("@").rpartition("/")[0]
        is_moe = is_moe and _MOE in value.text
        return _standard(config, of_scope or scope, binding.span, is_moe=is_moe)
    if value.kind in ("call", "name"):
        message = f"`logical_axis_rules` is `{value.text}`, which has no value without running it"
        help = f"`@partitioning.{_STANDARD}()`, or the list itself"
        return [bad(message, value.span, help=help)]
    rules, faults = imported.read_rules(value, "`logical_axis_rules`")
    return list(faults) if faults else _Rules(None, rules)


def _standard(
    config: GinConfig, scope: str, span: Span | None, *, is_moe: bool
) -> _Rules | list[Diagnostic]:
    dims = []
    defaults, word = ((2, 1), _MOE) if is_moe else ((1, 1), "")
    arguments = ("activation_partitioning_dims", "parameter_partitioning_dims")
    for argument, default in zip(arguments, defaults, strict=True):
        binding = config.of(_STANDARD, argument, scope, word)
        value = default if binding is None else binding.value.number
        dims.append(value)
        if binding is not None and (
            binding.value.kind not in ("number", "boolean") or value not in (1, 2)
        ):
            message = f"`{argument}` is {binding.value.described()}; T5X has rules for 1 and 2"
            return [bad(message, binding.value.span, help="1, or 2")]
    more = config.of(_STANDARD, "additional_rules", scope, word)
    extra: tuple[ForeignRule, ...] = ()
    if more is not None and more.value.kind != "nothing":
        extra, faults = imported.read_rules(more.value, "`additional_rules`")
        if faults:
            return list(faults)
    extra = with_moe_batch(extra) if is_moe else extra
    return _Rules(T5X_PRESETS[int(dims[0]), int(dims[1])], extra, span, is_moe)


def _overrides(config: GinConfig) -> tuple[AxesOverride, ...] | list[Diagnostic]:
    """Return the pairs of the last `params_axes_names_override` that is bound."""
    found = [each for each in config.bindings if each.argument == _OVERRIDE]
    if not found:
        return ()
    value = config.resolved(found[-1]).value
    if value.kind == "nothing":
        return ()
    if not value.is_list:
        return [bad(f"`{_OVERRIDE}` is {value.described()}, not a list of pairs", value.span)]
    read, faults = imported.parted(map(_override, value.items))
    return list(faults) or read


def _override(node: Node) -> AxesOverride | Diagnostic:
    help = 'as in ("encoder/.*/kernel", ("embed", "mlp"))'
    if not node.is_list or len(node.items) != 2 or node.items[0].kind != "text":
        message = f"an override is a pair of a regex and names, and this is {node.described()}"
        return bad(message, node.span, help=help)
    pattern, value = node.items
    try:
        re.compile(pattern.text)
    except (re.error, OverflowError, RecursionError) as fault:
        return bad(f"the regex cannot be read: {fault}", pattern.span)
    if value.kind == "nothing":
        return AxesOverride(pattern.text, None, node.span)
    if value.kind == "text":
        return AxesOverride(pattern.text, tuple(value.text), node.span)
    if not value.is_list or not all(item.kind in ("text", "nothing") for item in value.items):
        return bad(
            f"the names are {value.described()}, not a tuple of names", value.span, help=help
        )
    names = tuple(item.text if item.kind == "text" else None for item in value.items)
    return AxesOverride(pattern.text, names, node.span)


def _flat(rules: _Rules, has_slices: bool) -> Iterable[ForeignRule]:
    """Return the rules as T5X has them in the end."""
    return (_sliced(rule, has_slices) for rule in (*rules.standard, *rules.extra))


def _sliced(rule: ForeignRule, has_slices: bool) -> ForeignRule:
    is_batch = has_slices and rule.name == "batch"
    return replace(rule, mesh_axes=_MANY_SLICES) if is_batch else rule


def _preset_rules(preset: str | None) -> tuple[ForeignRule, ...]:
    if preset is None:
        return ()
    return tuple(ForeignRule(rule.logical_axis, rule.mesh_axes) for rule in preset_rules(preset))


def _document(
    rules: _Rules, has_slices: bool, mesh: imported.MeshPart, faults: list[Diagnostic]
) -> tuple[dict[str, Data], dict[Route, Comments]]:
    """Return a preset and the rules after it, or all rules where they would change the preset.

    In a spec, a rule for an axis of the preset replaces the preset's; in T5X, an additional
    rule stands behind them.
    """
    standard = rules.standard
    kept = list(_kept(rules.extra, faults))
    taken = {rule.name for rule in standard} & {rule.name for rule in kept}
    is_extended = rules.preset is not None and not taken and not rules.is_moe
    of = f"of {rules.preset}{', with experts' if rules.is_moe else ''}"
    lines = [] if is_extended else [(rule, of) for rule in standard]
    lines += [(rule, "") for rule in kept]
    if has_slices and is_extended:
        lines.insert(0, (ForeignRule("batch", _MANY_SLICES), "T5X over several slices"))
    written = (imported.rule_line(_sliced(rule, has_slices), why) for rule, why in lines)
    data, comments = imported.rules_document(
        written, "as T5X does; JAX refuses what does not divide", mesh
    )
    if not data["rules"]:
        del data["rules"]
    if is_extended:
        data["extends"] = [rules.preset]
        del data["lints"]
        if rules.asked_at is not None:
            comments["extends",] = came_from(rules.asked_at)
    else:
        comments["lints",] = Comments(trailing=imported.MANY_MODELS)
    return data, comments


def _kept(rules: Iterable[ForeignRule], faults: list[Diagnostic]) -> Iterator[ForeignRule]:
    for found in imported.writable(rules, TOOL):
        if isinstance(found, Diagnostic):
            faults.append(found)
            continue
        if found.is_free:
            message = f"`{found.name}` is UNCONSTRAINED: the compiler chooses; a spec decides"
            faults.append(lost(message, found.span, help="it stands as `none`"))
        yield found


def _override_entries(
    overrides: Sequence[AxesOverride], comments: dict[Route, Comments], faults: list[Diagnostic]
) -> dict[str, Data]:
    """Return `overrides:` with an entry for each pair that the language can say."""
    entries: list[Data] = []
    for index, each in enumerate(overrides):
        strange = next(
            (n for n in each.names or () if n is not None and not imported.is_name(n)), None
        )
        if each.names is None and index + 1 < len(overrides):
            faults.append(_kept_as_it_is(each))
        elif strange is not None:
            message = f"`{strange}` is a logical axis that cannot be a name in a spec"
            faults.append(lost(message, each.span, help="the override is left out"))
        elif each.names:
            assert each.span is not None
            comment = came_from(each.span)
            comments["overrides", len(entries)] = Comments(before=(comment.trailing or "",))
            axes = " ".join(name or "_" for name in each.names)
            entries.append({"match": each.pattern, "axes": axes})
    return {"overrides": entries} if entries else {}


def _kept_as_it_is(override: AxesOverride) -> Diagnostic:
    message = "an override of None keeps an array's own names from the pairs after it"
    help = "it is left out: see that no later pattern matches the same arrays"
    return lost(message, override.span, help=help)


_TOOL = "T5X's gin"
_WRITTEN_PARTITIONER = "partitioning.PjitPartitioner"
_WRITTEN_STANDARD = "partitioning.standard_logical_axis_rules"
_SLICED = ("replica", "data", "model")
_BOUND_BY = "# T5X has no argument for these: call utils.override_params_axes_names in the model."


def write(request: Request) -> exported.Written:
    """Return the gin bindings that stand for the plan's target."""
    request = replace(request, is_resolved=True)
    mesh, faults = _mesh(request.plan.target)
    rules = tuple(_rule_lines(rules_for(request), request.plan.mesh))
    lines = [
        f"# Exported by shardspec from {request.title}",
        "from __gin__ import dynamic_registration",
        "from t5x import partitioning",
        "from t5x import utils",
        "",
        *mesh,
        *rules,
        *_override_lines(request),
    ]
    text = "\n".join(lines) + "\n"
    found = [
        *faults,
        *exported.losses(request, _TOOL, exported.PARAMS, exported.OVERRIDES, exported.ACTIVATIONS),
    ]
    found += [*_stated(request), *_scanned(request), *exported.unproved(request, _TOOL)]
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
        each = [f"{_WRITTEN_PARTITIONER}.{k}_mesh_shape = {tuple(v)}" for k, v in shapes.items()]
        return [f"{_WRITTEN_PARTITIONER}.num_partitions = 1", *each], []
    model = next((axis for axis in target.mesh.axes if axis.name == "model"), None)
    if model is None or names != ("data", "model"):
        message = (
            f"T5X's mesh is (data, model) or ({', '.join(_SLICED)}), and this is {target.mesh}"
        )
        help = "rename the mesh axes, or make the mesh in code"
        lines = [] if model is None else [f"{_WRITTEN_PARTITIONER}.num_partitions = {model.size}"]
        return lines, [lost(message, target.span, help=help)]
    hardware = target.hardware
    if hardware is None or hardware.chip.torus_rank == 0:
        lines = [f"{_WRITTEN_PARTITIONER}.num_partitions = {model.size}"]
        is_cpu = hardware is not None and hardware.chip.platform == "cpu"
        return lines, list(_on_cpu(target)) if is_cpu else []
    tile = model.submesh or best_submesh(hardware, model.size)
    if tile is None:
        return [f"{_WRITTEN_PARTITIONER}.num_partitions = {model.size}"], []
    return [f"{_WRITTEN_PARTITIONER}.model_parallel_submesh = {tile}"], []


def _on_cpu(target: Target) -> Iterator[Diagnostic]:
    if target.mesh.sizes["data"] > 1:
        message = f"on CPU T5X gives a whole host to `model`, and this mesh is {target.mesh}"
        yield lost(message, target.span, help="make the mesh in code, or take another target")


def _rule_lines(rules: Sequence[AxisRule], mesh: Mesh) -> Iterator[str]:
    """Yield the binding of the rules: a standard set and what comes after it, or the list."""
    pairs = [(rule.logical_axis, rule.mesh_axes) for rule in rules]
    for (activations, parameters), preset in T5X_PRESETS.items():
        standard = list(_standard_pairs(preset, mesh))
        if pairs[: len(standard)] != standard:
            continue
        extra = rules[len(standard) :]
        yield f"{_WRITTEN_PARTITIONER}.logical_axis_rules = @{_WRITTEN_STANDARD}()"
        yield f"{_WRITTEN_STANDARD}.activation_partitioning_dims = {activations}"
        yield f"{_WRITTEN_STANDARD}.parameter_partitioning_dims = {parameters}"
        if extra:
            yield from _list(f"{_WRITTEN_STANDARD}.additional_rules", extra)
        return
    yield from _list(f"{_WRITTEN_PARTITIONER}.logical_axis_rules", rules)


def _list(name: str, rules: Iterable[AxisRule]) -> Iterator[str]:
    yield f"{name} = ["
    yield from rule_lines(rules)
    yield "]"


def _standard_pairs(preset: str, mesh: Mesh) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the pairs of a standard set, as T5X has them on this mesh."""
    for rule in preset_rules(preset):
        is_batch = rule.logical_axis == "batch" and mesh.names == _SLICED
        yield rule.logical_axis, ("replica", "data") if is_batch else rule.mesh_axes


def _override_lines(request: Request) -> Iterator[str]:
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
    for sharding in request.plan.arrays:
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
    for scan in () if request.plan.arrays else request.spec.scans:
        message = f"`scan:` adds stacked axes by path, and {_TOOL} has no word for that"
        help = "with arrays (--arrays) each has its whole names"
        yield lost(message, scan.span, help=help)
