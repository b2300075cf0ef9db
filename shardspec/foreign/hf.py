"""Hugging Face's tensor-parallel plans (`base_model_tp_plan`, `_tp_plan`).

A plan maps names of modules or parameters, with `*` for layer numbers, to styles. `colwise` splits
the output of a `torch.nn.Linear`, dimension 0 of its `[out, in]` weight and its bias; `rowwise`
splits the input, dimension 1, and keeps the bias whole. The plan of a configuration that splits
anything splits the input embeddings over the vocabulary too. A model has the plan of its class,
that of its configuration, and those of the models inside it: `hf_models` puts them together where
the files of the classes are given, and `hf_plans` finds where each belongs among the arrays.
Source: transformers 5.23.0, `transformers.distributed.mixin.DistributedMixin.init_parallel_plans`.

Written is JSON: module -> `colwise`, `rowwise` and their kin. A weight of `torch.nn.Linear` is
[out, in]: `colwise` splits dim 0 of it and of its bias, `rowwise` splits dim 1 and keeps the bias
whole. Numbers in a module's path are `*`. What is not named is whole, but for `embed_tokens`, which
any plan splits over the vocabulary. What stands beside the base model (`lm_head`) is in `_tp_plan`,
the plan of the model's class. Parameters that are no `weight` and no `bias`, such as those of
packed experts, have keys of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, codes
from shardspec.diagnostics.words import by_key, grouped, natural, template
from shardspec.foreign import formats, hf_models
from shardspec.foreign.formats import Answer, NoAnswer, Options, Request, came_from, lost, place
from shardspec.foreign.hf_models import PACKED, PlanEntry, TpPlans, generic, key_regex, partition
from shardspec.foreign.path_entries import PathSections, document, patterns_of
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import Mesh, Param, Params, PartitionSpec

TOOL = "transformers"
DEFAULT_AXIS = "tp"
_INPUT = re.compile(r"(?:^|[./])(?:(?=\w*embed)\w++|shared|wte)[./]")
_HEAD = re.compile(r"(?:.+\.)?lm_head(?:\.\w+)?")


class TpReading(NamedTuple):
    """The plans of a model, and the mesh axis they split over."""

    plans: tuple[hf_models.TpPlan, ...]
    axis: str

    @property
    def entries(self) -> tuple[PlanEntry, ...]:
        """Return the entries of all plans."""
        return tuple(entry for plan in self.plans for entry in plan.entries)


def read(sources: Sequence[SourceFile], options: Options) -> formats.Outcome:
    """Return the spec that says what the plans of a model do."""
    plans, faults = hf_models.chosen_plans(sources, options)
    if any(fault.is_error for fault in faults):
        return None, faults
    plans = tuple(hf_models.with_embedding(plan) for plan in plans)
    doc = "A tensor-parallel plan of Hugging Face transformers"
    return imported(plans, faults, options, TOOL, doc)


def imported(
    plans: tuple[hf_models.TpPlan, ...],
    faults: tuple[Diagnostic, ...],
    options: Options,
    tool: str,
    doc: str,
) -> formats.Outcome:
    """Return the spec that says what plans do.

    Args:
      faults: what is found in their files already.
    """
    if options.params is not None:
        plans, wrong = hf_models.located(plans, [param.path for param in options.params])
        if wrong:
            return None, wrong
    reading = TpReading(plans, _axis(options))
    sections = PathSections()
    if options.params is None:
        _as_written(reading, sections)
    else:
        _for_arrays(reading, options.params, sections)
    faults = (*faults, *_not_carried(reading, options.params, tool), *sections.faults)
    data, comments = document(doc, sections)
    return formats.Imported(data, comments, reading, tool), faults


def _axis(options: Options) -> str:
    """Return the mesh axis that is meant: the only one that splits, `tp`, or one called so."""
    names = [axis for axis, size in options.mesh if size != "1"]
    usual = next((axis for axis in names if axis in ("tp", "model", "tensor")), None)
    return names[0] if len(names) == 1 else usual or DEFAULT_AXIS


# What transformers does.


def answer(reading: TpReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return how transformers splits each parameter."""
    paths = tuple(param.path for param in params)
    plans = TpPlans(hf_models.located(reading.plans, paths)[0], paths)
    return tuple(_answer(plans, reading.axis, param, mesh) for param in params)


def _answer(plans: TpPlans, axis: str, param: Param, mesh: Mesh) -> Answer:
    found = plans.of(param.path)
    if found is None:
        return plans.not_read(param.path) or PartitionSpec(((),) * param.rank)
    _, entry, leaf = found
    return formats.placed(partition(entry.style, leaf, param.rank, axis), param, mesh)


# What the spec says.


def _as_written(reading: TpReading, sections: PathSections) -> None:
    """Add what plans do to linear layers and embeddings, whose ranks are known."""
    keyed = [(*each, plan.root is None) for plan in reading.plans for each in plan.keyed]
    keys = {key for key, _, _ in keyed}
    for key, entry, anywhere in sorted(keyed, key=lambda each: -each[0].count(".")):
        for leaf, rank in _usual_leaves(key, entry, keys):
            dims = partition(entry.style, leaf, rank, reading.axis)
            if not isinstance(dims, NoAnswer) and (any(dims) or _is_longer(key, keys)):
                comment = came_from(entry.span, entry.style)
                pattern = key_regex(key, leaf, anywhere=anywhere)
                sections.override("match", pattern, dims, comment, may_miss=True)


def _usual_leaves(key: str, entry: PlanEntry, keys: Collection[str]) -> tuple[tuple[str, int], ...]:
    """Return the parameters that an entry is about, with their ranks, where no arrays tell."""
    if key.rpartition(".")[0] in keys:
        return (("", 3),)
    if entry.style in hf_models.FIRST or entry.style == "embedding_colwise":
        return (("weight", 2),)
    return (("weight", 2), ("bias", 1))


def _is_longer(key: str, keys: Collection[str]) -> bool:
    """Say whether another key is the end of this one, and would take its parameters."""
    parts = key.split(".")
    return any(".".join(parts[start:]) in keys for start in range(1, len(parts)))


def _for_arrays(reading: TpReading, params: Params, sections: PathSections) -> None:
    """Add what is said of the parameters there are: splits, and what should be replicated."""
    plans = TpPlans(reading.plans, tuple(param.path for param in params))
    groups: dict[tuple[str, str, PlanEntry], list[Param]] = {}
    for param in params:
        found = plans.of(param.path)
        if found is not None:
            key, entry, leaf = found
            is_own = generic(param.path) == key
            groups.setdefault((key, "" if is_own else leaf, entry), []).append(param)
    parameters_first = sorted(groups.items(), key=lambda at: (bool(at[0][1]), -at[0][0].count(".")))
    for (key, leaf, entry), group in parameters_first:
        _group(key, leaf, entry, group, reading.axis, sections)
    dead = dict(plans.unmatched)
    for key, entry in dead.items():
        if not _has_number(key) and not entry.is_added and not _is_tied(key, plans):
            own = (plan for plan in reading.plans if entry in plan.entries)
            may_miss = any(not dict(plan.keyed).keys() <= dead.keys() for plan in own)
            _unmatched(key, entry, plans, reading.axis, sections, may_miss=may_miss)


def _group(
    key: str, leaf: str, entry: PlanEntry, params: list[Param], axis: str, sections: PathSections
) -> None:
    """Add what an entry says of the parameters of one name; unusual ranks by path."""
    split: dict[formats.Dims, list[Param]] = {}
    whole: list[Param] = []
    for param in params:
        own_leaf = generic(param.path).rpartition(".")[2]
        dims = partition(entry.style, own_leaf, param.rank, axis)
        if isinstance(dims, NoAnswer) or not any(dims):
            whole.append(param)
        else:
            split.setdefault(dims, []).append(param)
    comment, pattern = came_from(entry.span, entry.style), key_regex(key, leaf, anywhere=False)
    if not split:
        sections.whole(pattern, _because(entry), comment)
        return
    main = max(split, key=lambda dims: len(split[dims]))
    others = {dims: each for dims, each in split.items() if dims != main}
    for param in whole:
        others.setdefault(((),) * param.rank, []).append(param)
    for dims, each in others.items():
        for how, one in patterns_of([param.path for param in each]):
            sections.override(how, one, dims, comment)
    sections.override("match", pattern, main, comment)


def _because(entry: PlanEntry) -> str:
    where = f"{entry.style} in {place(entry.span)}"
    if entry.style in PACKED:
        return f"{where}: no PartitionSpec gives each device a part of both packed halves"
    return where + (
        "" if hf_models.is_known(entry.style) else ", which is no style of transformers"
    )


def _unmatched(
    key: str, entry: PlanEntry, plans: TpPlans, axis: str, sections: PathSections, *, may_miss: bool
) -> None:
    """Add an entry that names no array: a check of the spec finds it where all of its plan do not.

    Args:
      may_miss: whether other entries of its plan name arrays, so that it is for other layers.
    """
    leaf, rank = _usual_leaves(key, entry, plans.by_key)[0]
    dims = partition(entry.style, leaf, rank, axis)
    comment = came_from(entry.span, f"{entry.style}; it names no array of those given")
    pattern = key_regex(key, leaf, anywhere=False)
    if isinstance(dims, NoAnswer) or not any(dims):
        sections.whole(pattern, _because(entry), comment, may_miss=may_miss)
    else:
        sections.override("match", pattern, dims, comment, may_miss=may_miss)


def _is_tied(key: str, plans: TpPlans) -> bool:
    """Say whether a key is that of output weights which are the input embeddings."""
    has_embedding = any(_INPUT.search(path) for path in plans.paths)
    return has_embedding and _HEAD.fullmatch(key) is not None


def _splits(entry: PlanEntry, axis: str) -> bool:
    dims = partition(entry.style, "weight", 2, axis)
    return not isinstance(dims, NoAnswer) and any(dims)


def _has_number(key: str) -> bool:
    return re.search(r"(?:^|\.)\d+(?:\.|$)", key) is not None


# What it does not say.


def _not_carried(reading: TpReading, params: Params | None, tool: str) -> list[Diagnostic]:
    """Return a finding for each entry that a spec cannot say, or that never matches."""
    faults = []
    if not formats.is_name(reading.axis):
        faults.append(formats.bad(f"`{reading.axis}` is no name of a mesh axis", None))
    paths = tuple(param.path for param in params or ())
    plans = TpPlans(reading.plans, paths)
    dead = {(entry, entry.span) for _, entry in plans.unmatched} if paths else set()
    taken = filter(None, map(plans.of, paths))
    used = {(entry, entry.span) for _, entry, _ in taken}
    for entry in reading.entries:
        place = (entry, entry.span)
        if entry.style in PACKED and place not in dead:
            message = f"`{entry.key}`: {entry.style} gives each device a part of both packed halves"
            help = "no PartitionSpec can, so it is replicated here: keep the halves as two arrays"
            faults.append(lost(message, entry.span, help=help))
        elif paths and place not in dead | used and _splits(entry, reading.axis):
            message = f"`{entry.key}` is a module without parameters of its own: nothing is split"
            help = f"{entry.style} is for one `Linear`; name the modules inside it"
            faults.append(lost(message, entry.span, help=help))
        elif not hf_models.is_known(entry.style):
            message = f"`{entry.style}` is no style of {tool}"
            faults.append(lost(message, entry.span, help=f"`{entry.key}` is replicated here"))
        if _has_number(entry.key):
            message = f"`{entry.key}` never matches: names are looked up with `*` for numbers"
            faults.append(lost(message, entry.span, help="write `*` for the number there"))
        elif place in dead and _is_tied(entry.key, plans):
            message = f"`{entry.key}` names no array: output weights tied to the embeddings are one"
            help = "the array is split as the embeddings are"
            faults.append(lost(message, entry.span, help=help))
    if params is None:
        message = (
            "no arrays are given: weights of 2 dimensions, biases, and 3 dimensions for parameters "
            "of experts are assumed"
        )
        help = "--against ARRAYS goes by the arrays there are"
        faults.append(lost(message, None, help=help))
    return faults


_PREFIX = "model"
_WHOLE = "replicate"
_LINEAR = ("colwise", "rowwise")
#: What is computed beside the base model is wanted whole: logits.
_GATHERED = {"colwise": "colwise_gather_output"}
_PARAMETERS = ("weight", "bias")


def write(request: Request) -> formats.Written:
    """Return the plan over one mesh axis, as far as modules of `Linear` can say it."""
    axis = _axis_of_plan(request)
    if isinstance(axis, Diagnostic):
        return None, (axis,)
    entries: dict[str, str] = {}
    refused: dict[str, list[ParamSharding]] = {}
    for module, shardings in grouped(request.plan.arrays, _unit).items():
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
        return None, (*faults, Diagnostic(codes.CANNOT_HOLD, message, help=help))
    plans = {"base_model_tp_plan": kept | _experts(kept)}
    if heads:
        plans["_tp_plan"] = heads
    text = json.dumps(plans, indent=2) + "\n"
    proved = [s for s in request.plan.arrays if _key(_unit(s)) not in refused]
    faults += formats.losses(request, "a tp_plan", *formats.BY_PATH)
    return text, (*faults, *_proof(text, proved, axis, request))


def _half_split(entries: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Yield a finding for experts of whose parameters some are split and others are whole."""
    owners = _experts({key: style for key, style in entries.items() if style})
    for owner in owners:
        inside = {key: style for key, style in entries.items() if key.startswith(f"{owner}.")}
        whole = [key for key, style in inside.items() if not style and not key.endswith("_bias")]
        if whole:
            message = f"`{whole[0]}` is replicated, and others of `{owner}` are split"
            help = "transformers computes experts on local parts: packed_colwise, if it is packed"
            yield lost(message, None, help=help)


def _axis_of_plan(request: Request) -> str | Diagnostic:
    """Return the mesh axis that the file is about."""
    sizes = request.plan.mesh.sizes
    split = {axis for each in request.plan.arrays for axis in each.mesh_axes}
    used = [axis for axis, size in sizes.items() if size > 1 and axis in split]
    if request.axis is not None and request.axis not in sizes:
        message = f"the mesh has no axis `{request.axis}`: {', '.join(sizes)}"
        return Diagnostic(codes.CANNOT_HOLD, message, help=f"--axis {used[0] if used else 'NAME'}")
    if request.axis is not None or len(used) == 1:
        return request.axis or used[0]
    named = " and ".join(f"`{axis}`" for axis in used)
    message = f"a tp_plan is about one mesh axis, and arrays are split over {named or 'none'}"
    help = f"say which: --axis {used[-1]}" if used else "there is nothing to write"
    return Diagnostic(codes.CANNOT_HOLD, message, help=help)


def _others(request: Request, axis: str) -> Iterator[Diagnostic]:
    """Yield a finding for each other mesh axis that splits arrays."""
    for other in request.plan.mesh.axes:
        found = [s for s in request.plan.arrays if other.name in s.mesh_axes]
        if other.name != axis and other.size > 1 and found:
            message = f"{len(found)} arrays are split over `{other.name}` too, which is left out"
            yield lost(message, other.span, help="FSDP is set apart from the tp_plan over there")


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
    modules = dict.fromkeys(map(_unit, request.plan.arrays))
    outside = (module for module in modules if not module.startswith(f"{_PREFIX}."))
    return tuple(map(_key, outside)) if _is_based(request) else ()


def _is_based(request: Request) -> bool:
    """Say whether there is a base model, with others beside it or not."""
    return any(_parts(each)[0].startswith(f"{_PREFIX}.") for each in request.plan.arrays)


def _parts(sharding: ParamSharding) -> tuple[str, str]:
    """Return the module of an array, and its name there: `weight`, `bias`."""
    module, _, kind = sharding.param.path.replace("/", ".").rpartition(".")
    return module, kind


def _style(shardings: Sequence[ParamSharding], axis: str) -> str | None:
    """Return the style of a module, "" for one that is whole, None for what has no word."""
    name = _parts(shardings[0])[0].rpartition(".")[2]
    if not any(axis in each.mesh_axes for each in shardings):
        return _WHOLE if name == hf_models.EMBEDDING else ""
    styles = ("embedding_rowwise", "embedding_colwise") if "embed" in name else _LINEAR
    for style in styles:
        there = (partition(style, _parts(each)[1], each.param.rank, axis) for each in shardings)
        if [*there] == [_dims(each, axis) for each in shardings]:
            return style
    return None


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
    back, faults = read([source], Options(mesh=((axis, "2"),), names=tuple(names)))
    assert back is not None, f"what was written reads back: {faults}"
    params = tuple(each.param for each in shardings)
    answers = answer(back.reading, params, request.plan.mesh)
    for sharding, theirs in zip(shardings, answers, strict=True):
        ours = PartitionSpec(_dims(sharding, axis))
        if isinstance(theirs, formats.NotRead):
            theirs = PartitionSpec(((),) * sharding.param.rank)  # no entry in all that is written
        if theirs != ours:
            said = f"refuses: {theirs.reason}" if isinstance(theirs, NoAnswer) else str(theirs)
            message = f"`{sharding.param.path}`: shardspec gives {ours}, transformers {said}"
            help = "--lossy writes the file all the same"
            yield Diagnostic(codes.EXPORT_DIFFERS, message, help=help)


def _key(module: str) -> str:
    """Return `layers.*.mlp.up_proj`: numbers as `*`, without the name of the base model."""
    parts = ["*" if part.isdecimal() else part for part in module.split(".")]
    return ".".join(parts[1:] if parts[0] == _PREFIX and len(parts) > 1 else parts)


def _refused(modules: Mapping[str, Sequence[ParamSharding]], axis: str) -> Iterator[Diagnostic]:
    """Yield a finding for modules that differ in numbers alone."""
    alike = by_key((template(key), each) for key, group in modules.items() for each in group)
    for shardings in alike.values():
        first = shardings[0]
        many = f" x{len(shardings)}" if len(shardings) > 1 else ""
        message = (
            f"`{first.param.path}`{many} is {first.partition_spec} over {first.param}: "
            f"neither colwise nor rowwise over `{axis}`"
        )
        yield lost(message, None, help="its module is left out, and so whole over there")
