"""MaxText's rules and mesh, from `base.yml`, a model's file and a custom mesh and rule file.

MaxText moves rules that a later file replaces to the end of the list, below rules that they used to
beat. `--merge maxtext`, the default, imports the list as MaxText has it; `--merge in-place` puts
the new rules where the old ones stood. `--against` always compares with what MaxText does.

Written is YAML with mesh axes, sizes inside a slice and across, and the whole list of rules.
`override_logical_axis_rules: true` makes MaxText take the list as it stands; it would move rules to
the end of its own otherwise.
Source: AI-Hypercomputer/maxtext, `src/maxtext/configs/base.yml` and `types.py`.

MaxText's list of rules is read a second time and by itself: the witness of an import. Nothing in it
is shared with `maxtext_config`, which the spec is made of: files are read by PyYAML, as MaxText
reads them, into plain lists, and joined by code written down from MaxText's own. A mistake in the
import shows as a difference between the two.
Source: AI-Hypercomputer/maxtext, `maxtext/configs/pyconfig.py`: `_load_config`,
`_merge_logical_axis_rules`, `_apply_rules`; `types.py`: `set_derived_and_validate_values`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardspec.diagnostics import Diagnostic, Label, SourceFile, codes, parted
from shardspec.diagnostics.words import by_key, counted, is_slip
from shardspec.foreign import formats, maxtext_config
from shardspec.foreign.formats import ForeignRule, Options, Request, bad, linen_axes, lost, place
from shardspec.foreign.maxtext_config import MaxTextConfig, MaxTextMesh, Rules
from shardspec.foreign.maxtext_step import maxtext_step
from shardspec.foreign.proof import proof, rules_for, spelt_out
from shardspec.ir.spec import Activation, AxisRule, MemoryRule, Mesh, Params
from shardspec.language.files import leads_out, read_source
from shardspec.language.reading import Comments, Data, Route
from shardspec.language.yaml_text.printer import load_as_pyyaml
from shardspec.resolve.state import OPT_STATE

TOOL = "MaxText"
#: What each of `optimizer_memory_host_offload` and `parameter_memory_host_offload` is about.
_OFFLOADED = {"optimizer": f"{OPT_STATE}/**", "parameter": "**"}
_HOST = "pinned_host"
_RULELESS = "the input has it, and no rule: MaxText leaves it whole"
_KEEPS = "as MaxText does; JAX refuses what does not divide"
_INPUT = "input_data_sharding_logical_axes"
_IN_PLACE = "in-place"


@dataclass(frozen=True, slots=True)
class MaxTextReading:
    """The files themselves: what they say is read again for the answer, without the import.

    Attributes:
      files: name and text of each.
      folders: where files that they name are looked for.
      is_eval: whether the rules of evaluation are meant, which must be stated.
    """

    files: tuple[tuple[str, str], ...]
    folders: tuple[str, ...] = ()
    is_eval: bool = False


def read(sources: Sequence[SourceFile], options: Options) -> formats.Outcome:
    """Return the spec that says what MaxText does under these files, the last one on top."""
    config = maxtext_config.read_configs(sources, options.include)
    if any(fault.is_error for fault in config.faults):
        return None, tuple(config.faults)
    if not config.rules:
        message = "no file has `logical_axis_rules`"
        help = (
            "give the configuration first (base.yml, or one with `base_config`), then the model's"
        )
        return None, (*config.faults, bad(message, sources[0].whole, help=help))
    axes = config.names("mesh_axes")
    if axes is None and "mesh_axes" in config.values:
        span = config.values["mesh_axes"].span
        return None, (*config.faults, bad("`mesh_axes` is no list of names", span))
    mesh = maxtext_config.maxtext_mesh(
        config, axes or tuple(axis for axis, _ in options.mesh), options
    )
    faults = [*config.faults, *mesh.faults, *_beyond(config, mesh)]
    if any(fault.is_error for fault in faults):
        return None, tuple(faults)
    faults += _moves(config, options)
    document = _document(config, mesh, faults, options)
    files = tuple((source.name, source.text) for source in sources)
    reading = MaxTextReading(files, options.include)
    of_phases = {"eval": replace(reading, is_eval=True)} if config.for_eval is not None else {}
    return replace(document, reading=reading, of_phases=of_phases), tuple(faults)


def answer(reading: MaxTextReading, params: Params, mesh: Mesh) -> tuple[formats.Answer, ...]:
    """Return what MaxText gives each array; one without names is whole."""
    try:
        pairs = maxtext_rules(reading.files, reading.folders, is_eval=reading.is_eval)
    except Exception as fault:  # whatever PyYAML and a damaged list may come to
        text = next(iter(str(fault).splitlines()), "")
        reason = f"the files cannot be read as MaxText reads them ({type(fault).__name__}: {text})"
        return (formats.NoAnswer(reason),) * len(params)
    rules = tuple(ForeignRule(name, axes) for name, axes in pairs)
    return tuple(
        formats.placed(linen_axes(each.logical_axes or (), rules), each, mesh) for each in params
    )


def _document(
    config: MaxTextConfig, mesh: MaxTextMesh, faults: list[Diagnostic], options: Options
) -> formats.Imported:
    """Return the document of a configuration; notes what is left out."""
    axes, in_place = config.names("mesh_axes"), options.merge == _IN_PLACE
    how = "each name in its first place" if in_place else "replaced names at the end, as there"
    doc = f"Rules of MaxText: {how}" if config.replaced else "Rules of MaxText"
    kept, wrong = parted(formats.writable(config.in_place if in_place else config.rules, TOOL))
    faults += wrong
    dead = _dead_without(kept, axes)
    faults += _unknown_axes(kept, config, dead)
    alive = tuple(rule for rule in kept if rule not in dead)
    step, wrong = maxtext_step(config, alive, mesh.sizes, options)
    faults += wrong
    lines = [*_lines([*(step.rules if step else ()), *alive], axes)]
    names = config.names(_INPUT) or ()
    names = names if all(map(formats.is_name, names)) else ()
    lines += [formats.rule_line(rule, _RULELESS) for rule in _without_rule(names, kept)]
    part = formats.MeshPart({"doc": doc, **mesh.data}, mesh.comments)
    data, comments = formats.rules_document(lines, _KEEPS, part)
    inputs: dict[str, Data] = {"input_data": " ".join(names)} if names else {}
    if names:
        comments["activations", "input_data"] = formats.came_from(config.values[_INPUT].span)
    if step is not None:
        data, inputs = data | step.data, inputs | step.activations
        comments |= step.comments
    if inputs:
        data["activations"] = inputs
    if config.for_eval is not None:
        own = [*alive, *_without_rule(names, kept)]
        data["phases"] = {"eval": _for_eval(config, own, names, faults, comments)}
    _add_memory(config, data, comments)
    data["lints"] = {"axis-without-array": "allow", "size-one-axis": "allow"}
    comments["lints",] = Comments(trailing="one list and one mesh for all of MaxText's models")
    return formats.Imported(data, comments, None, TOOL, leaves_whole=True)


def _without_rule(names: Sequence[str], rules: Rules) -> Rules:
    """Return rules that leave those of the names whole that have none."""
    ruled = {rule.name for rule in rules}
    return tuple(ForeignRule(name, ()) for name in dict.fromkeys(names) if name not in ruled)


def _for_eval(
    config: MaxTextConfig,
    trained: Sequence[ForeignRule],
    names: Sequence[str],
    faults: list[Diagnostic],
    comments: dict[Route, Comments],
) -> dict[str, Data]:
    """Return the phase `eval`: what its list says otherwise than that of training.

    MaxText evaluates on the mesh of training, whatever the custom file says of one. A rule of a
    phase stands where the spec's for that axis stood. Where that would be another list, the phase
    drops all of them and has its own, in order.

    Args:
      trained: the rules of training that the spec has.
      names: the dimensions of the input, which the spec places.
    """
    axes = config.names("mesh_axes")
    kept, wrong = parted(formats.writable(config.for_eval or (), TOOL))
    faults += wrong
    dead = _dead_without(kept, axes)
    rules = (*(rule for rule in kept if rule not in dead), *_without_rule(names, kept))
    of_train, of_eval = (by_key((rule.name, rule) for rule in each) for each in (trained, rules))
    same = {
        name
        for name, each in of_eval.items()
        if _answers(of_train.get(name, ()), axes) == _answers(each, axes)
    }
    gone = [name for name in of_train if name not in of_eval]
    own = tuple(rule for rule in rules if rule.name not in same)
    left = tuple(rule for rule in trained if rule.name not in gone)
    merged = maxtext_config.put_in_place(left, own)
    if _answers(merged, axes) != _answers(rules, axes):
        gone, own = [*of_train], rules
    told = {axis for rule in config.rules for axis in rule.mesh_axes}
    unheard = tuple(rule for rule in kept if set(rule.mesh_axes) - told)
    faults += _unknown_axes(unheard, config, dead)
    lines = [*_lines(own, axes)]
    phase: dict[str, Data] = {"drop": [*map(str, gone)]} if gone else {}
    comments |= {("phases", "eval", "rules", at): comment for at, (_, comment) in enumerate(lines)}
    return phase | ({"rules": [text for text, _ in lines]} if lines else {})


def _answers(rules: Sequence[ForeignRule], axes: tuple[str, ...] | None) -> list[Any]:
    return [(rule.name, _known(rule, axes)) for rule in rules]


def _lines(
    rules: Sequence[ForeignRule], axes: tuple[str, ...] | None
) -> Iterator[formats.RuleLine]:
    """Yield the rules; a tuple with all of its parts behind it is one, `(a, b)?`."""
    at = 0
    while at < len(rules):
        first = rules[at]
        known = _known(first, axes)
        parts = spelt_out(AxisRule(str(first.name), known, in_part=len(known) > 1))
        those = [(str(rule.name), _known(rule, axes)) for rule in rules[at : at + len(parts)]]
        text, comment = _line(first, axes)
        if len(parts) > 1 and those == [(part.logical_axis, part.mesh_axes) for part in parts]:
            yield f"{text}?", comment
            at += len(parts)
        else:
            yield text, comment
            at += 1


def _line(rule: ForeignRule, axes: tuple[str, ...] | None) -> formats.RuleLine:
    """Return a rule without mesh axes that are not there."""
    known = _known(rule, axes)
    gone = [axis for axis in rule.mesh_axes if axis not in known]
    more = f"without {', '.join(gone)}, no mesh axis" if gone else ""
    return formats.rule_line(replace(rule, mesh_axes=known), more)


def _known(rule: ForeignRule, axes: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the mesh axes of a rule that are there."""
    return tuple(axis for axis in rule.mesh_axes if axes is None or axis in axes)


def _dead_without(rules: Rules, axes: tuple[str, ...] | None) -> tuple[ForeignRule, ...]:
    """Return rules that no longer fire once the mesh axes that are not there are out of the list.

    One is dead behind a rule of the same name that asks for no other mesh axes than it does. What
    is dead in the files themselves stays, for `check` to say.
    """
    dead = []
    for index, rule in enumerate(rules):
        before = [each for each in rules[:index] if each.name == rule.name]
        wanted, known = set(rule.mesh_axes), set(_known(rule, axes))
        was_dead = any(wanted.issuperset(each.mesh_axes) for each in before)
        if not was_dead and any(known.issuperset(_known(each, axes)) for each in before):
            dead.append(rule)
    return tuple(dead)


def _unknown_axes(rules: Rules, config: MaxTextConfig, dead: Rules) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis that rules name and `mesh_axes`, if stated, lacks."""
    axes = config.names("mesh_axes")
    if axes is None:
        return
    named_axes = ((axis, rule) for rule in rules for axis in rule.mesh_axes)
    unknown = by_key((axis, rule) for axis, rule in named_axes if axis not in axes)
    for axis, named in unknown.items():
        who = "a rule names" if len(named) == 1 else f"{counted(len(named), 'rule')} name"
        message = f"`{axis}` is no axis of `mesh_axes`, and {who} it"
        first = named[0].span
        labels = () if first is None else (Label(first, "MaxText ignores it here"),)
        notes: tuple[str, ...] = (
            "MaxText silently drops the axis for activations, and raises an error for a parameter",
            f"mesh_axes: {', '.join(axes)} ({place(config.values['mesh_axes'].span)})",
        )
        left = [place(rule.span) for rule in dead if rule.span is not None]
        if left and axis == next(iter(unknown)):
            notes += (f"rules that can never fire without such axes: {', '.join(left)}, left out",)
        meant = [f"did you mean `{each}`? " for each in axes if is_slip(axis, each)][:1]
        help = f"{''.join(meant)}the axis is left out of these rules in the spec"
        yield replace(lost(message, None, help=help), labels=labels, notes=notes)


def _moves(config: MaxTextConfig, options: Options) -> Iterator[Diagnostic]:
    """Yield a finding for each replaced name whose move to the end can change an answer."""
    in_place = options.merge == _IN_PLACE
    done = "each name keeps its place in the spec" if in_place else "the spec has them at the end"
    for each in config.replaced:
        rival = _rival(each)
        touched = _touched(config, options, each.name)
        if rival is None or (touched is not None and not touched[0]):
            continue
        first, old = each.new[0], each.before[each.position]
        assert first.span is not None
        assert old.span is not None
        message = (
            f"`{each.name}` moves behind `{formats.rule_text(str(rival.name), rival.mesh_axes)}`, "
            "which comes first now where both stand in an array"
        )
        labels = (
            Label(first.span, "MaxText puts this at the end"),
            Label(old.span, "in place of this", primary=False),
        )
        notes: tuple[str, ...] = (done,)
        if touched is not None:
            total = counted(touched[1], "array")
            notes = (f"it changes {touched[0]} of {total} with `{each.name}`", done)
        help = (
            "--merge in-place keeps its place"
            if not in_place
            else "--merge maxtext imports what MaxText does"
        )
        yield Diagnostic(codes.MOVED_BY_MERGE, formats.one_line(message), labels, notes, help)


def _rival(replaced: maxtext_config.Replaced) -> ForeignRule | None:
    """Return the first rule behind the old place that wants a mesh axis of the new rules."""
    wanted = {axis for rule in replaced.new for axis in rule.mesh_axes}
    for rule in replaced.before[replaced.position + 1 :]:
        if rule.name != replaced.name and wanted & set(rule.mesh_axes):
            return rule
    return None


def _touched(config: MaxTextConfig, options: Options, name: str) -> tuple[int, int] | None:
    """Return how many arrays get another answer by the move, of how many that have the name."""
    if options.params is None:
        return None
    having = [param for param in options.params if name in (param.logical_axes or ())]
    moved = [
        param
        for param in having
        if linen_axes(param.logical_axes or (), config.rules)
        != linen_axes(param.logical_axes or (), config.in_place)
    ]
    return len(moved), len(having)


def _beyond(config: MaxTextConfig, mesh: MaxTextMesh) -> Iterator[Diagnostic]:
    """Yield what MaxText does in code, beside its rules."""
    if config.is_true("shard_optimizer_over_data"):
        message = "`shard_optimizer_over_data` splits Adam's state further over `data`"
        span = config.values["shard_optimizer_over_data"].span
        help = "`state: {optimizer: zero1, over: data}` is near: it may choose another dimension"
        yield lost(message, span, help=help)
    yield from _beside_training(config)
    stages = (mesh.sizes or {}).get("stage", 1)
    if stages > 1:
        message = f"over {stages} pipeline stages MaxText changes rules in its code"
        help = "`activation_embed_and_logits_batch`, and the rules outside the pipeline"
        yield lost(message, None, help=help)
    if config.text("custom_mesh"):
        message = f"`custom_mesh: {config.text('custom_mesh')}` is an order of devices made by hand"
        span = config.values["custom_mesh"].span
        yield lost(message, span, help="`policy: {order: ring}` is shardspec's own ring")
    yield from _data_sharding(config, mesh)


def _beside_training(config: MaxTextConfig) -> Iterator[Diagnostic]:
    """Yield what is said of evaluation, and of where arrays lie: a spec has no place for it."""
    listed = config.values.get("logical_axis_rules_for_eval")
    custom = config.text("custom_mesh_and_rule_for_eval")
    if listed is not None and listed.is_list and listed.items and custom in ("", "default"):
        message = "MaxText evaluates by `logical_axis_rules`, whatever this list says"
        help = "the phase `eval` has the list; `custom_mesh_and_rule_for_eval` is what it obeys"
        yield lost(message, listed.span, help=help)


def _add_memory(
    config: MaxTextConfig, data: dict[str, Data], comments: dict[Route, Comments]
) -> None:
    """Add where arrays lie: MaxText's two switches are of the state, and of parameters alone."""
    offloaded = {key: config.is_true(f"{key}_memory_host_offload") for key in _OFFLOADED}
    memory: dict[str, Data] = {}
    for key, pattern in _OFFLOADED.items():
        if offloaded[key]:
            memory[pattern] = _HOST
            span = config.values[f"{key}_memory_host_offload"].span
            comments["memory", pattern] = formats.came_from(span)
        elif key == "optimizer" and offloaded["parameter"]:
            memory[pattern] = "device"
    if memory:
        data["memory"] = memory


def _data_sharding(config: MaxTextConfig, mesh: MaxTextMesh) -> Iterator[Diagnostic]:
    """Yield a finding where `data_sharding` splits the batch otherwise than the rules."""
    stated, names = config.values.get("data_sharding"), config.names(_INPUT)
    if stated is None or not names or mesh.sizes is None or not stated.is_list:
        return
    first = stated.items[0] if stated.items else stated
    entries = first.items if first.is_list else stated.items
    dims = linen_axes(names, config.rules)
    by_rules = () if isinstance(dims, formats.NoAnswer) else dims[0]
    axes = [item.text for item in entries]
    here, there = ([a for a in each if mesh.sizes.get(a, 1) != 1] for each in (by_rules, axes))
    if here != there:
        message = (
            f"`data_sharding` shards the batch over ({', '.join(there)}), "
            f"and the rules shard `{names[0]}` over ({', '.join(here)})"
        )
        further = [item for item in entries if item.text in there and item.text not in here]
        span = (*further, *entries, stated)[0].span
        help = "the spec places the batch by the rules (`input_data`); parameters are not affected"
        yield lost(message, span, help=help)


_TOOL = "MaxText's YAML"
_WITNESS_INPUT = "input_data"
_FLAGS = {"stage": "pipeline", "model": "tensor"}
_KNOWN = frozenset(
    (
        *("diloco", "data", "stage", "fsdp", "fsdp_transpose", "sequence", "context"),
        *("context_usp_ulysses", "context_autoregressive", "tensor", "tensor_transpose"),
        *("tensor_sequence", "expert", "autoregressive", "model"),
    )
)


def write(request: Request) -> formats.Written:
    """Return the configuration that stands for the plan's target."""
    request = replace(request, is_resolved=True)
    mesh = request.plan.mesh
    rules = rules_for(request)
    if not rules:
        message = f"no rule counts on target {request.plan.target.name}, and MaxText needs some"
        return None, (Diagnostic(codes.CANNOT_HOLD, message, help="add `rules:`, or `extends:`"),)
    lines = [f"# Exported by shardspec from {request.title}", *_mesh(mesh), *_input(request)]
    switches = _switches(request.spec.memory)
    lines += [f"{key}_memory_host_offload: true" for key in switches or ()]
    lines += ["override_logical_axis_rules: true", "logical_axis_rules: ["]
    for rule in rules:
        axes = _flow(rule.mesh_axes)
        lines.append(f'  ["{rule.logical_axis}", {axes}],{formats.origin(rule.span)}')
    text = "\n".join((*lines, "]")) + "\n"
    found = [*_unknown(request), *_mixed_types(mesh), *_activations(request)]
    found += [
        *formats.order_by_hand(request, _TOOL),
        *formats.losses(request, _TOOL, *_held(switches)),
        *formats.unproved(request, _TOOL),
    ]
    return text, (*found, *proof(request, text, "maxtext", Options()))


def _held(switches: tuple[str, ...] | None) -> tuple[str, ...]:
    held = (formats.ACTIVATIONS, formats.AXIS_TYPES)
    return held if switches is None else (*held, formats.MEMORY)


def _switches(memory: Sequence[MemoryRule]) -> tuple[str, ...] | None:
    """Return what MaxText has to offload for these entries; None where it has no switch for it."""
    asked = [(str(entry.pattern), entry.memory) for entry in memory]
    state, whole = _OFFLOADED.values()
    found: dict[tuple[tuple[str, str], ...], tuple[str, ...]] = {
        (): (),
        ((state, _HOST),): ("optimizer",),
        ((whole, _HOST),): ("optimizer", "parameter"),
        ((state, _HOST), (whole, _HOST)): ("optimizer", "parameter"),
        ((state, "device"), (whole, _HOST)): ("parameter",),
    }
    return found.get(tuple(asked))


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
        if sharding.activation.name == _WITNESS_INPUT and None not in names:
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
    found: list[Activation] = [a for a in request.spec.activations if a.name != _WITNESS_INPUT]
    if found:
        message = f"{_TOOL} holds one activation, `{_WITNESS_INPUT}`, and not `{found[0].name}`"
        help = "MaxText's code names the dimensions of its activations itself"
        yield lost(message, found[0].span, help=help)


Pair = tuple[str | None, tuple[str, ...]]

_RULES = "logical_axis_rules"
_CUSTOM = "custom_mesh_and_rule"
_MOST_BELOW = 16


def maxtext_rules(
    files: Sequence[tuple[str, str]], folders: Sequence[str], *, is_eval: bool = False
) -> tuple[Pair, ...]:
    """Return the rules that MaxText has in the end.

    Args:
      files: name and text of each file, in the order they were given.
      folders: where files that they name are looked for, beside the places MaxText knows.
      is_eval: return those that the files state for evaluation.
    """
    given = [(Path(name), _load(text)) for name, text in files]
    starts = [place for place, each in enumerate(given) if place == 0 or each[1].get("base_config")]
    config = _config(*given[starts[-1]], given, folders, 0)
    rules: list[Any] = config.get(_RULES) or []
    path = given[starts[-1]][0]
    rest = [each for place, each in enumerate(given) if place not in starts]
    over = [each for each in rest if not _is_custom(each)]
    settings = dict(config)
    for _, values in over:
        settings.update(values)
    model = str(settings.get("model_name") or "default").replace("-Instruct", "")
    if model != "default" and not any(each[0].resolve().parent.name == "models" for each in over):
        found = _look_up(f"models/{model}.yml", path.parent, folders)
        over[:0] = [] if found is None else [_opened(found)]
    if is_eval:
        customs = [*_custom(settings, given, folders, f"{_CUSTOM}_for_eval")]
        stated: list[Any] = settings[f"{_RULES}_for_eval"] if not customs else customs[0][1][_RULES]
        return tuple(_pairs(stated))
    for _, values in over:
        rules = _applied(rules, values.get(_RULES) or [], values.get("override_logical_axis_rules"))
    for _, values in (
        *(each for each in rest if _is_custom(each)),
        *_custom(settings, given, folders, _CUSTOM),
    ):
        rules = values.get(_RULES, rules)
    return tuple(_pairs(rules))


def _load(text: str) -> dict[Any, Any]:
    loaded = load_as_pyyaml(text)
    return loaded if isinstance(loaded, dict) else {}


def _opened(path: Path) -> tuple[Path, dict[Any, Any]]:
    """Return a file that another names, with what it says; nothing where it may not be read."""
    found = None if leads_out(str(path)) else read_source(path)
    return path, _load(found.text) if isinstance(found, SourceFile) else {}


def _config(
    path: Path, values: dict[Any, Any], given: Sequence[Any], folders: Sequence[str], depth: int
) -> dict[Any, Any]:
    """Return a configuration over the one that it is based on: each of its keys replaces."""
    below = values.get("base_config")
    if not isinstance(below, str) or not below or depth > _MOST_BELOW:
        return values
    found = _look_up(below, path.parent, folders)
    if found is not None:
        base = _opened(found)
    else:
        same = [each for each in given if each[0] != path and each[0].name == Path(below).name]
        if not same:
            return values
        base = same[0]
    return {**_config(*base, given, folders, depth + 1), **values}


def _look_up(name: str, folder: Path, folders: Sequence[str]) -> Path | None:
    """Return a file beside another, one folder up, in a folder of ours, or in MaxText's own."""
    absolute = folder.absolute()
    configs = [each for each in (absolute, *absolute.parents) if each.name == "configs"]
    for each in (folder, folder / "..", *map(Path, folders), *configs[:1]):
        if (each / name).is_file():
            return each / name
    return None


def _custom(
    settings: dict[Any, Any], given: Sequence[Any], folders: Sequence[str], key: str
) -> Iterator[Any]:
    """Yield the custom mesh and rule file that the settings name under a key."""
    name = settings.get(key)
    if not isinstance(name, str) or name in ("", "default"):
        return
    for path, _ in reversed(given):
        found = _look_up(f"custom_mesh_and_rule/{name}.yml", path.parent, folders)
        if found is not None:
            yield _opened(found)
            return


def _is_custom(file: tuple[Path, dict[Any, Any]]) -> bool:
    """Say whether a file holds a mesh and rules, and nothing that a model or a run has."""
    own = {"mesh_axes", _RULES}
    beside = {"data_sharding", "context_sharding", "input_data_sharding_logical_axes"}
    return own <= file[1].keys() <= own | beside


def _applied(rules: list[Any], new: list[Any], override: Any) -> list[Any]:
    """Return a list under another: names of the new one leave the old one, and stand at its end."""
    if override is True or (
        isinstance(override, str) and override.lower() in ("true", "yes", "on")
    ):
        return new
    names = {rule[0] for rule in new}
    return [rule for rule in rules if rule[0] not in names] + new


def _pairs(rules: list[Any]) -> Iterator[Pair]:
    for name, axes in rules:
        listed = axes if isinstance(axes, list) else [] if axes in (None, "") else [axes]
        yield name, tuple(str(axis) for axis in listed)
