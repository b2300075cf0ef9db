"""Hugging Face's tensor-parallel plans (`base_model_tp_plan`, `_tp_plan`).

A plan maps names of modules or parameters, with `*` for layer numbers, to styles. `colwise` splits
the output of a `torch.nn.Linear`, dimension 0 of its `[out, in]` weight and its bias; `rowwise`
splits the input, dimension 1, and keeps the bias whole. The plan of a configuration that splits
anything splits the input embeddings over the vocabulary too. A model has the plan of its class,
that of its configuration, and those of the models inside it: `hf_models` puts them together where
the files of the classes are given, and `hf_plans` finds where each belongs among the arrays.
Source: transformers 5.23.0, `transformers.distributed.mixin.DistributedMixin.init_parallel_plans`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.hf_plans import (
    TpPlan,
    TpPlans,
    joined,
    located,
    with_embedding,
)
from shardspec.formats.foreign.hf_selection import chosen_plans
from shardspec.formats.foreign.imported import (
    Answer,
    Imported,
    NoAnswer,
    Options,
    Outcome,
    bad,
    came_from,
    is_name,
    lost,
    place,
    placed,
)
from shardspec.formats.foreign.path_overrides import PathSections, document, patterns_of
from shardspec.formats.foreign.rules import Dims
from shardspec.formats.foreign.tp_styles import (
    FIRST,
    PACKED,
    PlanEntry,
    generic,
    is_known,
    key_regex,
    partition,
)
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import Param, Params
from shardspec.ir.partition import PartitionSpec

TOOL = "transformers"
DEFAULT_AXIS = "tp"
_INPUT = re.compile(r"(?:^|[./])(?:\w*embed\w*|shared|wte)[./]")
_HEAD = re.compile(r"(?:.+\.)?lm_head(?:\.\w+)?")


@dataclass(frozen=True, slots=True)
class TpReading:
    """The plans of a model, and the mesh axis they split over."""

    plans: tuple[TpPlan, ...]
    axis: str

    @property
    def entries(self) -> tuple[PlanEntry, ...]:
        """Return the entries of all plans."""
        return tuple(entry for plan in self.plans for entry in plan.entries)


def read(sources: Sequence[SourceFile], options: Options) -> Outcome:
    """Return the spec that says what the plans of a model do."""
    plans, faults = chosen_plans(sources, options)
    if any(fault.is_error for fault in faults):
        return None, faults
    plans = tuple(with_embedding(plan) for plan in plans)
    if options.params is not None:
        plans, wrong = located(plans, [param.path for param in options.params])
        if wrong:
            return None, wrong
    reading = TpReading(plans, _axis(options))
    sections = PathSections()
    if options.params is None:
        _as_written(reading, sections)
    else:
        _for_arrays(reading, options.params, sections)
    faults = (*faults, *_not_carried(reading, options.params), *sections.faults)
    data, comments = document("A tensor-parallel plan of Hugging Face transformers", sections)
    return Imported(data, comments, reading, TOOL), faults


def _axis(options: Options) -> str:
    """Return the mesh axis that is meant: the only one that splits, `tp`, or one called so."""
    names = [axis for axis, size in options.mesh if size != "1"]
    usual = next((axis for axis in names if axis in ("tp", "model", "tensor")), None)
    return names[0] if len(names) == 1 else usual or DEFAULT_AXIS


# What transformers does.


def answer(reading: TpReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return how transformers splits each parameter."""
    paths = tuple(param.path for param in params)
    plans = TpPlans(located(reading.plans, paths)[0], paths)
    return tuple(_answer(plans, reading.axis, param, mesh) for param in params)


def _answer(plans: TpPlans, axis: str, param: Param, mesh: Mesh) -> Answer:
    found = plans.of(param.path)
    if found is None:
        return plans.not_read(param.path) or PartitionSpec(((),) * param.rank)
    _, entry, leaf = found
    dims = partition(entry.style, leaf, param.rank, axis)
    return dims if isinstance(dims, NoAnswer) else placed(dims, param, mesh)


# What the spec says.


def _as_written(reading: TpReading, sections: PathSections) -> None:
    """Add what plans do to linear layers and embeddings, whose ranks are known."""
    keyed = [
        (joined(plan.root or "", entry.key), entry, plan.root is None)
        for plan in reading.plans
        for entry in plan.entries
    ]
    keys = {key for key, _, _ in keyed}
    for key, entry, anywhere in sorted(keyed, key=lambda each: -each[0].count(".")):
        assert entry.span is not None
        for leaf, rank in _usual_leaves(key, entry, keys):
            dims = partition(entry.style, leaf, rank, reading.axis)
            if not isinstance(dims, NoAnswer) and (any(dims) or _is_longer(key, keys)):
                comment = came_from(entry.span, entry.style)
                sections.override("match", key_regex(key, leaf, anywhere=anywhere), dims, comment)


def _usual_leaves(key: str, entry: PlanEntry, keys: Collection[str]) -> tuple[tuple[str, int], ...]:
    """Return the parameters that an entry is about, with their ranks, where no arrays tell."""
    if key.rpartition(".")[0] in keys:
        return (("", 3),)
    if entry.style in FIRST or entry.style == "embedding_colwise":
        return (("weight", 2),)
    return (("weight", 2), ("bias", 1))


def _is_longer(key: str, keys: Collection[str]) -> bool:
    """Say whether another key is the end of this one, and would take its parameters."""
    parts = key.split(".")
    return any(".".join(parts[start:]) in keys for start in range(1, len(parts)))


def _for_arrays(reading: TpReading, params: Params, sections: PathSections) -> None:
    """Add what is said of the parameters there are: splits, and what is meant to be whole."""
    plans = TpPlans(reading.plans, tuple(param.path for param in params))
    groups: dict[tuple[str, str, PlanEntry], list[Param]] = {}
    for param in params:
        found = plans.of(param.path)
        if found is not None:
            key, entry, leaf = found
            is_own = generic(param.path) == key
            groups.setdefault((key, "" if is_own else leaf, entry), []).append(param)
    for (key, leaf, entry), group in sorted(groups.items(), key=_parameters_first):
        _group(key, leaf, entry, group, reading.axis, sections)
    for key, entry in plans.unmatched:
        if not _has_number(key) and not entry.is_added and not _is_tied(key, plans):
            _unmatched(key, entry, plans, reading.axis, sections)


def _parameters_first(group: tuple[tuple[str, str, PlanEntry], object]) -> tuple[bool, int]:
    key, leaf, _ = group[0]
    return bool(leaf), -key.count(".")


def _group(
    key: str, leaf: str, entry: PlanEntry, params: list[Param], axis: str, sections: PathSections
) -> None:
    """Add what an entry says of the parameters of one name; unusual ranks by path."""
    assert entry.span is not None
    split: dict[Dims, list[Param]] = {}
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
    assert entry.span is not None
    where = f"{entry.style} in {place(entry.span)}"
    if entry.style in PACKED:
        return f"{where}: no PartitionSpec gives each device a part of both packed halves"
    return where if is_known(entry.style) else f"{where}, which is no style of transformers"


def _unmatched(
    key: str, entry: PlanEntry, plans: TpPlans, axis: str, sections: PathSections
) -> None:
    """Add an entry that names no array as it is, so that a check of the spec finds it."""
    assert entry.span is not None
    leaf, rank = _usual_leaves(key, entry, plans.by_key)[0]
    dims = partition(entry.style, leaf, rank, axis)
    comment = came_from(entry.span, entry.style)
    pattern = key_regex(key, leaf, anywhere=False)
    if isinstance(dims, NoAnswer) or not any(dims):
        sections.whole(pattern, _because(entry), comment)
    else:
        sections.override("match", pattern, dims, comment)


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


def _not_carried(reading: TpReading, params: Params | None) -> list[Diagnostic]:
    """Return a finding for each entry that a spec cannot say, or that never matches."""
    faults = []
    if not is_name(reading.axis):
        faults.append(bad(f"`{reading.axis}` is no name of a mesh axis", None))
    paths = tuple(param.path for param in params or ())
    plans = TpPlans(reading.plans, paths)
    dead = {id(entry) for _, entry in plans.unmatched} if paths else set()
    used = {id(found[1]) for path in paths if (found := plans.of(path)) is not None}
    for entry in reading.entries:
        if entry.style in PACKED and id(entry) not in dead:
            message = f"`{entry.key}`: {entry.style} gives each device a part of both packed halves"
            help = "no PartitionSpec says that, so it is whole here: keep the halves as two arrays"
            faults.append(lost(message, entry.span, help=help))
        elif paths and id(entry) not in dead | used and _splits(entry, reading.axis):
            message = f"`{entry.key}` is a module without parameters of its own: nothing is split"
            help = f"{entry.style} is for one `Linear`; name the modules inside it"
            faults.append(lost(message, entry.span, help=help))
        elif not is_known(entry.style):
            message = f"`{entry.style}` is no style of transformers"
            faults.append(lost(message, entry.span, help=f"`{entry.key}` is whole here"))
        if _has_number(entry.key):
            message = f"`{entry.key}` never matches: names are looked up with `*` for numbers"
            faults.append(lost(message, entry.span, help="write `*` for the number there"))
        elif id(entry) in dead and _is_tied(entry.key, plans):
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
