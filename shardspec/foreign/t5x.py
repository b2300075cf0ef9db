"""Partitioning of T5X, from its gin files.

What counts are the arguments of `partitioning.PjitPartitioner` (or `MoePjitPartitioner`), those of
`partitioning.standard_logical_axis_rules`, and `params_axes_names_override`. The standard rules are
presets here (`t5x/1d` to `t5x/2d`), so the spec extends one of them where it can.
Source: google-research/t5x, `t5x.partitioning`, `t5x.utils.override_params_axes_names`.

Written are the arguments of `PjitPartitioner`, and names by path. T5X's mesh is (data, model), or
(replica, data, model) over several slices. Where the rules are one of its four standard sets, or
one with rules after it, the file says so instead of listing them.
Source: google-research/t5x, `t5x.partitioning`, `t5x.utils.override_params_axes_names`.

The mesh is the one that T5X's partitioner builds on a machine, as the language says it.
Source: google-research/t5x, `t5x.partitioning.default_mesh`, `get_mesh`, `get_cpu_mesh`,
`get_gpu_mesh`.

For mixtures of experts, `MoePjitPartitioner` cuts an axis `expert` out of `data`, lays the batch
over both, and appends rules for experts to the standard ones. What counts are its own arguments and
those of `moe_partitioning.standard_logical_axis_rules`.
Source: google-research/t5x, `t5x.contrib.moe.partitioning`: `default_moe_mesh`,
`MoePjitPartitioner`, `standard_logical_axis_rules`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span, parted
from shardspec.diagnostics.words import did_you_mean, grouped, listed, template
from shardspec.foreign import formats
from shardspec.foreign.flax import rule_lines, tuple_literal
from shardspec.foreign.formats import ForeignRule, Options, Request, bad, came_from, lost, origin
from shardspec.foreign.gin import GinBinding, GinConfig, read_config
from shardspec.foreign.proof import proof, rules_for
from shardspec.foreign.python_text import Module, Places, dotted_name, parse_python, read_scopes
from shardspec.foreign.regex import path_regex
from shardspec.foreign.values import Node
from shardspec.ir import spec as ir
from shardspec.ir.spec import AxisRule, LogicalAxes, Mesh, Pattern, Target, shape_text
from shardspec.language.glob import glob_regex
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.loader import T5X_PRESETS, preset_rules
from shardspec.language.reading import Comments, Data, Route
from shardspec.resolve.match import PathMatcher, path_matcher
from shardspec.topology.assignment import TilingFault, best_submesh, t5x_default_submesh, tiling_on
from shardspec.topology.machine import slice_extents
from shardspec.topology.placement import placed

TOOL = "T5X"
_PARTITIONER = "PjitPartitioner"
_STANDARD = "standard_logical_axis_rules"
_OVERRIDE = "params_axes_names_override"
_BY_CODE = "override_params_axes_names"
EXPERTS = "num_expert_partitions"
_ARGUMENTS = (
    *("num_partitions", "model_parallel_submesh", "logical_axis_rules"),
    *("ici_mesh_shape", "dcn_mesh_shape", EXPERTS),
)
#: What else the partitioners and the standard rules take, which changes no sharding.
_OTHERS = (
    *("params_on_devices", "backend", "use_cpu_pjit", "state_filter_fn", "num_experts"),
    *("activation_partitioning_dims", "parameter_partitioning_dims", "additional_rules"),
)
_MOE = "moe"
_MANY_SLICES = ("replica", "data")
NO_NAMES = formats.NoAnswer(
    "missing axis names for this parameter (ValueError)",
    help="state them in the manifest, `f32[embed=64 mlp=256]`, or give a model-info.txt",
)


@dataclass(frozen=True, slots=True)
class AxesOverride:
    """One pair of `params_axes_names_override`.

    Attributes:
      names: None leaves the array as it is, and ends the search.
    """

    pattern: str
    names: tuple[str | None, ...] | None
    span: Span = field(compare=False, repr=False)


class T5xReading(NamedTuple):
    """Rules and overrides as T5X uses them."""

    rules: tuple[ForeignRule, ...]
    overrides: tuple[AxesOverride, ...] = ()


class _Rules(NamedTuple):
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


def read(sources: Sequence[SourceFile], options: Options) -> formats.Outcome:
    """Return the spec that says what T5X's partitioner does under these gin files."""
    config = _config(sources, options)
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
    if isinstance(overrides, list):
        return None, (*faults, *overrides)
    if isinstance(rules, list):
        return None, (*faults, *rules)
    faults += [*_other_scopes(config, partitioner, scope), *_other_partitioners(config)]
    faults += _unread(config)
    twice = _both_set(arguments)
    if twice is not None:
        return None, (*faults, twice)
    mesh = moe_mesh(arguments, options) if is_moe else t5x_mesh(arguments, options)
    faults += mesh.faults
    if is_moe:
        faults.append(state_of_experts(arguments.get(EXPERTS)))
    if any(fault.is_error for fault in faults):
        return None, tuple(faults)
    said = {name for name, each in arguments.items() if each.value.kind != "nothing"}
    has_slices = said >= {"ici_mesh_shape", "dcn_mesh_shape"}
    data, comments = _document(rules, has_slices, mesh, faults)
    data |= _override_entries(overrides, comments, faults)
    in_the_end = (_sliced(rule, has_slices) for rule in (*rules.standard, *rules.extra))
    reading = T5xReading(tuple(in_the_end), overrides)
    return formats.Imported(data, comments, reading, TOOL, leaves_whole=True), tuple(faults)


def _config(sources: Sequence[SourceFile], options: Options) -> GinConfig:
    """Return what gin files bind, with the overrides that files of Python code pass."""
    code = [each for each in sources if each.name.endswith(".py")]
    config = read_config([each for each in sources if each not in code], options.include)
    for found in map(_in_code, code):
        if isinstance(found, Diagnostic):
            config.faults.append(found)
        else:
            config.bindings.append(found)
    return config


def answer(reading: T5xReading, params: ir.Params, mesh: Mesh) -> tuple[formats.Answer, ...]:
    """Return what T5X gives each array."""
    texts = tuple(Pattern(each.pattern, "regex") for each in reading.overrides)
    matcher = path_matcher(texts)
    return tuple(_answer(reading, matcher, param, mesh) for param in params)


def _answer(
    reading: T5xReading, matcher: PathMatcher, param: ir.Param, mesh: Mesh
) -> formats.Answer:
    names = param.logical_axes
    found = matcher.first_match(param.path)
    given = None if found is None else reading.overrides[found].names
    if given is not None:
        if len(given) != param.rank:
            why = f"the override's {given} does not match rank {param.rank} (ValueError)"
            return formats.NoAnswer(why, help=f"give the override {param.rank} names")
        names = given
    if names is None:
        return NO_NAMES
    return formats.placed(formats.linen_axes(names, reading.rules), param, mesh)


def _is_configured(config: GinConfig) -> bool:
    telling = (_PARTITIONER, MOE_PARTITIONER, _STANDARD)
    bindings = (each for each in config.bindings if each.argument)
    return any(each.function in telling or each.argument == _OVERRIDE for each in bindings)


def _nothing_here(source: SourceFile) -> Diagnostic:
    message = f"`{source.name}` binds nothing of `{_PARTITIONER}`, `{_STANDARD}` or `{_OVERRIDE}`"
    help = "name the gin files that do, in T5X's order, or the folder of includes: --include FOLDER"
    return bad(message, source.whole, help=help)


def _other_scopes(config: GinConfig, function: str, scope: str) -> Iterator[Diagnostic]:
    """Yield a finding for each binding of a function under a scope that is not asked for."""
    for each in config.bindings:
        if each.argument and each.function == function and each.scope not in ("", scope):
            where = f"under the scope `{each.scope}`, which is not read"
            message = f"`{each.argument}` is bound {where}"
            yield lost(message, each.span, help=f"--name {each.scope} reads that scope instead")


def _other_partitioners(config: GinConfig) -> Iterable[Diagnostic]:
    """Yield a finding for each partitioner of a class that is not T5X's own."""
    others = {each.function: each for each in config.bindings if each.argument}
    for name, binding in others.items():
        if name in (_PARTITIONER, MOE_PARTITIONER) or not name.endswith("Partitioner"):
            continue
        message = f"`{name}` makes a mesh and rules of its own in code, which cannot be read"
        help = "state them as `logical_axis_rules` of `PjitPartitioner`, and as --mesh"
        yield bad(message, binding.span, help=help)


def _unread(config: GinConfig) -> Iterator[Diagnostic]:
    """Yield one finding for all bindings of partitioning that are not known here."""
    functions, arguments = (_PARTITIONER, MOE_PARTITIONER, _STANDARD), (*_ARGUMENTS, *_OTHERS)
    found: dict[str, tuple[GinBinding, str | None]] = {}
    for each in config.bindings:
        is_of_partitioning = each.function in functions or "partition" in each.selector.lower()
        if not each.argument or not is_of_partitioning or each.argument == _OVERRIDE:
            continue
        if each.function not in functions and not each.function.endswith("Partitioner"):
            meant = did_you_mean(each.function, functions)
        elif each.function in functions and each.argument not in arguments:
            meant = did_you_mean(each.argument, arguments)
        else:
            continue
        found[f"{each.selector}.{each.argument}"] = each, meant
    if found:
        (first, _), *_ = found.values()
        helps = (meant for _, meant in found.values() if meant)
        other = "take them out, or state what they do as `logical_axis_rules` and --mesh"
        said = f"{listed(found)}: T5X's partitioning has no such binding, and nothing is read of it"
        yield lost(said, first.span, help=next(helps, other))


def _both_set(arguments: Mapping[str, GinBinding]) -> Diagnostic | None:
    """Return the finding for a mesh told twice: a number of 0 and a submesh of nothing are none."""
    count, tile = (arguments.get(key) for key in ("num_partitions", "model_parallel_submesh"))
    if count is None or tile is None or tile.value.kind == "nothing":
        return None
    is_count = count.value.kind not in ("nothing", "number", "boolean") or bool(count.value.number)
    if not is_count or (tile.value.is_list and not tile.value.items):
        return None
    message = "`num_partitions` and `model_parallel_submesh` are both set: T5X takes one at most"
    labels = (Label(tile.span, "one of the two"), Label(count.span, "and this", primary=False))
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
    rules, faults = formats.read_rules(value, "`logical_axis_rules`")
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
        extra, faults = formats.read_rules(more.value, "`additional_rules`")
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
    read, faults = parted(map(_override, value.items))
    return list(faults) or read


def _in_code(source: SourceFile) -> GinBinding | Diagnostic:
    """Return the pairs that a module passes to `override_params_axes_names`, as gin binds them.

    A list in a function or class counts by its own name.
    """
    scopes = read_scopes(source)
    if isinstance(scopes, Diagnostic):
        return scopes
    places = Places(source)
    module = Module(places, {each.name.rpartition(".")[2]: each for each in scopes})

    def lists(tree: ast.Module) -> list[Node]:
        calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
        of_t5x = (each for each in calls if (dotted_name(each.func) or "").endswith(_BY_CODE))
        keywords = [
            (each, [k.value for k in each.keywords if k.arg == _OVERRIDE]) for each in of_t5x
        ]
        given = [value for each, named in keywords for value in (*each.args[1:2], *named)]
        return [value for value in map(module.value, given) if value.items or not value.is_list]

    found = parse_python(source, lists)
    if isinstance(found, Diagnostic):
        return found
    if len(found) == 1 and found[0].is_list:
        return GinBinding("", _BY_CODE, _OVERRIDE, found[0], found[0].span)
    calls = f"{len(found)} calls of `{_BY_CODE}` have pairs" if len(found) > 1 else ""
    message = calls or f"no call of `{_BY_CODE}` has its pairs where they can be read"
    help = f'bind them in gin, `model.{_OVERRIDE} = [("encoder/.*/kernel", ("embed", "mlp"))]`'
    if not found:
        rules = f"`shardspec import flax {source.name}` reads a list of rules in Python"
        help = f"{rules}; overrides: {help}"
    return bad(f"`{source.name}`: {message}", found[0].span if found else source.whole, help=help)


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
        message = f"the names are {value.described()}, not a tuple of names"
        return bad(message, value.span, help=help)
    names = tuple(item.text if item.kind == "text" else None for item in value.items)
    return AxesOverride(pattern.text, names, node.span)


def _sliced(rule: ForeignRule, has_slices: bool) -> ForeignRule:
    is_batch = has_slices and rule.name == "batch"
    return replace(rule, mesh_axes=_MANY_SLICES) if is_batch else rule


def _preset_rules(preset: str | None) -> tuple[ForeignRule, ...]:
    if preset is None:
        return ()
    return tuple(ForeignRule(rule.logical_axis, rule.mesh_axes) for rule in preset_rules(preset))


def _document(
    rules: _Rules, has_slices: bool, mesh: formats.MeshPart, faults: list[Diagnostic]
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
    written = (formats.rule_line(_sliced(rule, has_slices), why) for rule, why in lines)
    keeps = "as T5X does; JAX refuses what does not divide"
    data, comments = formats.rules_document(written, keeps, mesh, is_linen=True)
    if not data["rules"]:
        del data["rules"]
    if is_extended:
        data["extends"] = [rules.preset]
        del data["lints"]
        if rules.asked_at is not None:
            comments["extends",] = came_from(rules.asked_at)
    else:
        comments["lints",] = Comments(trailing=formats.MANY_MODELS)
    return data, comments


def _kept(rules: Iterable[ForeignRule], faults: list[Diagnostic]) -> Iterator[ForeignRule]:
    for found in formats.writable(rules, TOOL):
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
        names = [name for name in each.names or () if name is not None]
        strange = next((name for name in names if not formats.is_name(name)), None)
        if each.names is None and index + 1 < len(overrides):
            message = "an override of None keeps an array's own names from the pairs after it"
            help = "it is left out: see that no later pattern matches the same arrays"
            faults.append(lost(message, each.span, help=help))
        elif strange is not None:
            message = f"`{strange}` is a logical axis that cannot be a name in a spec"
            faults.append(lost(message, each.span, help="the override is left out"))
        elif each.names:
            why = came_from(each.span).trailing or ""
            comments["overrides", len(entries)] = Comments(before=(why,))
            axes = " ".join(name or "_" for name in each.names)
            entries.append({"match": each.pattern, "axes": axes})
    return {"overrides": entries} if entries else {}


_TOOL = "T5X's gin"
_WRITTEN_PARTITIONER = "partitioning.PjitPartitioner"
_WRITTEN_STANDARD = "partitioning.standard_logical_axis_rules"
_SLICED = ("replica", "data", "model")
_BOUND_BY = "# T5X has no argument for these: call utils.override_params_axes_names in the model."


def write(request: Request) -> formats.Written:
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
    ]
    text = "\n".join((*lines, *mesh, *rules, *_override_lines(request))) + "\n"
    held = (formats.PARAMS, formats.OVERRIDES, formats.ACTIVATIONS)
    found = [*faults, *formats.order_by_hand(request, _TOOL)]
    found += [*formats.losses(request, _TOOL, *held), *_stated(request), *_scanned(request)]
    found += formats.unproved(request, _TOOL)
    options = Options(mesh=tuple((axis.name, str(axis.size)) for axis in request.plan.mesh.axes))
    return text, (*found, *proof(request, text, "t5x-gin", options, by_path=True))


def _mesh(target: Target) -> tuple[list[str], list[Diagnostic]]:
    """Return the bindings that make the target's mesh."""
    names = target.mesh.names
    if names == _SLICED:
        shapes = {
            network: tuple(axis.size if axis.network == network else 1 for axis in target.mesh.axes)
            for network in ("ici", "dcn")
        }
        each = [f"{_WRITTEN_PARTITIONER}.{k}_mesh_shape = {v}" for k, v in shapes.items()]
        return [f"{_WRITTEN_PARTITIONER}.num_partitions = 1", *each], []
    model = next((axis for axis in target.mesh.axes if axis.name == "model"), None)
    lines = [] if model is None else [f"{_WRITTEN_PARTITIONER}.num_partitions = {model.size}"]
    if model is None or names != ("data", "model"):
        message = (
            f"T5X's mesh is (data, model) or ({', '.join(_SLICED)}), and this is {target.mesh}"
        )
        help = "rename the mesh axes, or make the mesh in code"
        return lines, [lost(message, target.span, help=help)]
    hardware = target.hardware
    if hardware is None or hardware.chip.torus_rank == 0:
        is_cpu = hardware is not None and hardware.chip.platform == "cpu"
        if not is_cpu or target.mesh.sizes["data"] == 1:
            return lines, []
        message = f"on CPU T5X gives a whole host to `model`, and this mesh is {target.mesh}"
        help = "make the mesh in code, or take another target"
        return lines, [lost(message, target.span, help=help)]
    tile = model.submesh or best_submesh(hardware, model.size)
    if tile is None:
        return lines, []
    count = f"{_WRITTEN_PARTITIONER}.num_partitions = None"  # T5X takes one of the two
    named = f"{_WRITTEN_PARTITIONER}.model_parallel_submesh = {tile}"
    if _is_in_order(target, tile):
        return [count, named], []
    shown = shape_text(tile)
    message = f"T5X orders devices by the submesh {shown}, and the spec does not"
    help = f"`model: submesh {shown}` gives the spec T5X's order"
    return [count, named], [lost(message, target.span, help=help)]


def _is_in_order(target: Target, tile: Tile) -> bool:
    """Say whether the mesh of a submesh has its devices where the target has them."""
    tiled = (
        replace(axis, submesh=tile) if axis.name == "model" else axis for axis in target.mesh.axes
    )
    theirs = placed(replace(target, mesh=replace(target.mesh, axes=tuple(tiled))))
    ours = placed(target)
    if ours is None or theirs is None:
        return True
    return ours.coordinates() == theirs.coordinates()


def _rule_lines(rules: Sequence[AxisRule], mesh: Mesh) -> Iterator[str]:
    """Yield the binding of the rules: a standard set and what comes after it, or the list."""
    pairs = [(rule.logical_axis, rule.mesh_axes) for rule in rules]
    is_sliced = mesh.names == _SLICED
    for (activations, parameters), preset in T5X_PRESETS.items():
        given = (_sliced(rule, is_sliced) for rule in _preset_rules(preset))
        standard = [(rule.name, rule.mesh_axes) for rule in given]
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
        inside = ("None" if name is None else f'"{name}"' for name in names)
        yield f"    ({regex!a}, {tuple_literal(inside)}),{comment}"
    yield "]"


def _regex(pattern: Pattern) -> str:
    text = pattern.text if pattern.dialect == "regex" else glob_regex(pattern.text)
    assert not isinstance(text, SyntaxFault), "the spec has loaded"
    return text


def _stacked(request: Request) -> Iterator[tuple[str, LogicalAxes, str]]:
    """Yield the names of arrays that `scan:` stacks, the stacked axis among them."""
    stacked = (each for each in request.plan.arrays if each.scan is not None)
    found = grouped(stacked, lambda each: (template(each.param.path), each.logical_axes))
    for (_, names), shardings in found.items():
        regex = path_regex([each.param.path for each in shardings])
        yield regex, names, origin(shardings[0].named_at)


def _stated(request: Request) -> Iterator[Diagnostic]:
    for override in request.spec.overrides:
        if override.partition is not None:
            message = f"`{override.pattern.text}` states a layout, and T5X's overrides are names"
            help = "give the dimensions names with rules of their own"
            yield lost(message, override.span, help=help)


def _scanned(request: Request) -> Iterator[Diagnostic]:
    for scan in () if request.plan.arrays else request.spec.scans:
        message = f"`scan:` adds stacked axes by path, and {_TOOL} cannot say that"
        help = "with arrays (--arrays) each has its whole names"
        yield lost(message, scan.span, help=help)


Tile = tuple[int, ...]


def t5x_mesh(arguments: Mapping[str, GinBinding], options: Options) -> formats.MeshPart:
    """Return the mesh of a partitioner; no sections where only the machine can tell.

    Args:
      arguments: of `PjitPartitioner`, by name.
    """
    if options.mesh:
        return formats.NO_MESH
    set_ones = {key: each for key, each in arguments.items() if each.value.kind != "nothing"}
    ici, dcn = set_ones.get("ici_mesh_shape"), set_ones.get("dcn_mesh_shape")
    submesh = set_ones.get("model_parallel_submesh")
    if ici is not None and dcn is not None:
        found = _several_slices(ici, dcn)
    elif submesh is not None and submesh.value.items:
        found = _of_submesh(submesh, options)
    else:
        found = _of_partitions(set_ones.get("num_partitions"), options)
    return formats.mesh_part(found)


def _size(node: Node) -> int | None:
    return node.whole if node.whole is not None and 0 <= node.whole < 2**31 else None


def _sizes(binding: GinBinding) -> Tile | Diagnostic:
    sizes = [_size(item) for item in binding.value.items]
    if not binding.value.is_list or not sizes or None in sizes or 0 in sizes:
        message = f"`{binding.argument}` is no tuple of sizes"
        return bad(message, binding.value.span, help="as in (4, 2, 1, 1)")
    return tuple(size for size in sizes if size is not None)


def _several_slices(ici: GinBinding, dcn: GinBinding) -> formats.MeshPart | Diagnostic:
    """Return the mesh (replica, data, model): inside a slice times across slices."""
    sizes, faults = parted(map(_sizes, (ici, dcn)))
    if faults:
        return faults[0]
    wrong = next((at for at, each in zip((ici, dcn), sizes, strict=True) if len(each) != 3), None)
    if wrong is not None:
        message = "the mesh of several slices has three sizes: replica, data, model"
        return bad(message, wrong.value.span)
    pairs = map(formats.across_slices, *sizes)
    mesh: dict[str, Data] = dict(zip(_SLICED, pairs, strict=True))
    return formats.MeshPart({"mesh": mesh}, {("mesh",): came_from(ici.span, "ici times dcn")})


def _of_submesh(binding: GinBinding, options: Options) -> formats.MeshPart | Diagnostic:
    tile, machine = _sizes(binding), formats.machine_asked(options)
    if isinstance(tile, Diagnostic):
        return tile
    if machine is None:
        return _needs_machine(binding)
    is_torus = machine.chip.torus_rank > 0
    if is_torus and len(tile) != 4:
        message = f"`model_parallel_submesh` has {len(tile)} sizes; a TPU's has x, y, z and core"
        return bad(message, binding.value.span)
    model = f"submesh {shape_text(tile)}" if is_torus else math.prod(tile)
    return _data_and_model(model, options, came_from(binding.span))


def _of_partitions(binding: GinBinding | None, options: Options) -> formats.MeshPart | Diagnostic:
    count = None if binding is None else _size(binding.value)
    if binding is None or count == 0:
        message = "the files do not say how the mesh is cut"
        return lost(message, None, help=formats.SAY_MACHINE)
    if count is None:
        why = f"`num_partitions` is {binding.value.described()}, not a number"
        return bad(why, binding.value.span)
    machine = formats.machine_asked(options)
    if machine is None:
        return _needs_machine(binding)
    if machine.chip.platform == "cpu":
        comment = came_from(binding.span, "T5X gives a CPU host to model, whatever the number")
        mesh: dict[str, Data] = {"data": 1, "model": machine.device_count}
        return formats.MeshPart({"mesh": mesh, "hardware": options.hardware}, {("mesh",): comment})
    if machine.chip.torus_rank == 0:
        return _data_and_model(count, options, came_from(binding.span))
    return _default_submesh(count, machine, binding, options)


def _default_submesh(
    count: int, machine: ir.Hardware, binding: GinBinding, options: Options
) -> formats.MeshPart:
    """Return the tile of T5X's table; shardspec's own where T5X would fail."""
    tile = t5x_default_submesh(machine.chip.device_kinds[0], slice_extents(machine), count)
    if tile is None:
        message = f"T5X has no submesh for {count} partitions of {machine}, and fails there"
    elif isinstance(tiling_on(machine, tile), TilingFault):
        shown = shape_text(tile)
        message = f"T5X takes {shown} for {count} partitions, which does not tile {machine},"
        message += " and fails there"
    else:
        comment = came_from(binding.span, "T5X's own choice")
        return _data_and_model(f"submesh {shape_text(tile)}", options, comment)
    fault = lost(
        message,
        binding.span,
        help=f"the spec says `model: auto {count}`: shardspec chooses the submesh",
    )
    found = _data_and_model(f"auto {count}", options, came_from(binding.span))
    return found._replace(faults=(fault,))


def _data_and_model(model: Data, options: Options, comment: Comments) -> formats.MeshPart:
    data = {"hardware": options.hardware, "mesh": {"data": "rest", "model": model}}
    return formats.MeshPart(data, {("mesh", "model"): comment})


def _needs_machine(binding: GinBinding) -> Diagnostic:
    message = f"the mesh of `{binding.argument}` depends on the machine, so none stands in the spec"
    return lost(message, binding.span, help=formats.SAY_MACHINE)


MOE_PARTITIONER = "MoePjitPartitioner"

MOE_RULES = (
    ForeignRule("expert", ("expert",)),
    ForeignRule("expert_mlp", ("model",)),
    ForeignRule("expert_replicas", ("data",)),
    ForeignRule("unmodeled", ()),
)
_MOE_BATCH = ("expert", "data")


def uses_moe(config: GinConfig) -> bool:
    """Say whether the partitioner of the files is the one for mixtures of experts."""
    chosen = [each for each in config.bindings if each.argument == "partitioner"]
    if chosen:
        return config.resolved(chosen[-1]).value.last_name == MOE_PARTITIONER
    return any(each.argument and each.function == MOE_PARTITIONER for each in config.bindings)


def with_moe_batch(rules: Iterable[ForeignRule]) -> tuple[ForeignRule, ...]:
    """Return standard rules as they are here: the batch is over `expert` and `data`."""
    return tuple(
        replace(rule, mesh_axes=_MOE_BATCH) if rule.name == "batch" else rule for rule in rules
    )


def state_of_experts(binding: GinBinding | None) -> Diagnostic:
    """Return the finding for the state of Adafactor, which has an axis put in front."""
    message = f"`{MOE_PARTITIONER}` splits Adafactor's state of experts over `expert`, in its code"
    help = "`state:` follows the parameters here, which have the axis `expert` of their own"
    return lost(message, None if binding is None else binding.span, help=help)


def moe_mesh(arguments: Mapping[str, GinBinding], options: Options) -> formats.MeshPart:
    """Return the mesh (data, expert, model): the largest part of `data` that experts divide.

    Args:
      arguments: of the partitioner, by name.
    """
    base = t5x_mesh(arguments, options)
    mesh = base.data.get("mesh")
    machine = formats.machine_asked(options)
    if not isinstance(mesh, dict) or machine is None:
        return base
    binding = arguments.get(EXPERTS)
    most = None if binding is None else binding.value.whole
    if binding is None or most is None or most < 1:
        why = "is not stated" if binding is None else f"is {binding.value.described()}"
        message = f"`{EXPERTS}` {why}, so no mesh stands in the spec"
        help = "say the mesh: --mesh 'data=4 expert=8 model=2'"
        fault = lost(message, None if binding is None else binding.span, help=help)
        return formats.MeshPart(faults=(*base.faults, fault))
    assert binding is not None
    # `4`, `auto 4` or `submesh 4x1x1x1` says how many devices `model` has.
    model = str(mesh["model"]).rpartition(" ")[2].split("x")
    data = machine.device_count // math.prod(map(int, model))
    experts = next(size for size in range(min(most, data), 0, -1) if data % size == 0)
    axes: dict[str, Data] = {"data": mesh["data"], "expert": experts, "model": mesh["model"]}
    comment = came_from(binding.span, f"the most that divides data={data}")
    comments = {**base.comments, ("mesh", "expert"): comment}
    return formats.MeshPart({**base.data, "mesh": axes}, comments, base.faults)
