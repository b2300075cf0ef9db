"""Hugging Face's tensor-parallel plans (`base_model_tp_plan`, `_tp_plan`).

A plan maps names of modules or parameters, with `*` for layer numbers, to styles. `colwise` splits
the output of a `torch.nn.Linear`, dimension 0 of its `[out, in]` weight and its bias; `rowwise`
splits the input, dimension 1, and keeps the bias whole. A plan that splits anything splits the
input embeddings over the vocabulary too. Keys are relative to the base model, which a checkpoint
calls `model.` or otherwise: any prefix is accepted; parts may be joined by `.` or `/`.
Source: transformers 5.23.0, `transformers.distributed.mixin.DistributedMixin.init_parallel_plans`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.imported import (
    Answer,
    Imported,
    NoAnswer,
    Options,
    Outcome,
    ambiguous,
    bad,
    came_from,
    is_name,
    lost,
    placed,
)
from shardspec.formats.foreign.named_values import read_named_values
from shardspec.formats.foreign.node import Node
from shardspec.formats.foreign.path_overrides import PathSections, document, patterns_of
from shardspec.formats.foreign.rules import Dims
from shardspec.formats.foreign.tp_styles import (
    FIRST,
    PACKED,
    Plan,
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
_PLANS = ("base_model_tp_plan", "_tp_plan", "tp_plan")
_FORM = 'a plan: {"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}'
_EMBEDDING = "embed_tokens"


@dataclass(frozen=True, slots=True)
class TpReading:
    """A plan, and the mesh axis it splits over."""

    entries: tuple[PlanEntry, ...]
    axis: str


def read(sources: Sequence[SourceFile], options: Options) -> Outcome:
    """Return the spec that says what a plan does; the plans of several files are one."""
    entries: dict[str, PlanEntry] = {}
    for source in sources:
        plan = _plan(source, options.name)
        if isinstance(plan, tuple):
            return None, plan
        read_plan, faults = _entries(plan)
        if faults:
            return None, faults
        entries |= {entry.key: entry for entry in read_plan}
    if entries and _EMBEDDING not in entries:
        first = next(iter(entries.values()))
        added = PlanEntry(_EMBEDDING, "embedding_rowwise", first.span)
        entries = {_EMBEDDING: added, **entries}
    reading = TpReading(tuple(entries.values()), _axis(options))
    sections = PathSections()
    if options.params is None:
        _as_written(reading, sections)
    else:
        _for_arrays(reading, options.params, sections)
    faults = (*_not_carried(reading, options.params), *sections.faults)
    data, comments = document("A tensor-parallel plan of Hugging Face transformers", sections)
    return Imported(data, comments, reading, TOOL), faults


def _axis(options: Options) -> str:
    """Return the mesh axis that is meant: the only one that splits, `tp`, or one called so."""
    names = [axis for axis, size in options.mesh if size != "1"]
    usual = next((axis for axis in names if axis in ("tp", "model", "tensor")), None)
    return names[0] if len(names) == 1 else usual or DEFAULT_AXIS


def _plan(source: SourceFile, name: str | None) -> Node | tuple[Diagnostic, ...]:
    """Return the plan of a file: the only one, or that of the class or section that is named."""
    values = read_named_values(source)
    if isinstance(values, tuple):
        return values
    if name is None and values.root is not None and _is_plan(values.root):
        return values.root
    named = values.named if values.root is None else _sections(values.root)
    plans = [each for each in named if each[0].rpartition(".")[2] in _PLANS]
    plans = [each for each in plans if each[1].kind != "nothing"]
    if name is not None:
        plans = [each for each in plans if name in (each[0], each[0].rpartition(".")[0])]
    if not plans:
        what = f"no plan of `{name}`" if name is not None else "no tensor-parallel plan"
        return (bad(f"`{source.name}` has {what}", source.whole, help=_FORM),)
    if len({each[1] for each in plans}) > 1:
        listed = ", ".join(f"`{each[0]}`" for each in plans[:10])
        message = f"`{source.name}` has {len(plans)} plans: {listed}"
        return (ambiguous(message, plans[1][1].span, f"say which: --name {plans[0][0]}"),)
    return plans[0][1]


def _sections(root: Node, prefix: str = "") -> list[tuple[str, Node]]:
    """Return what a configuration holds at its top and one level below, by dotted names."""
    found: list[tuple[str, Node]] = []
    for key, value in zip(root.keys, root.items, strict=False):
        found.append((prefix + key.text, value))
        if not prefix and value.kind == "mapping":
            found += _sections(value, f"{key.text}.")
    return found


def _is_plan(node: Node) -> bool:
    return (
        node.kind == "mapping"
        and bool(node.items)
        and all(key.kind == "text" for key in node.keys)
        and all(item.kind == "text" for item in node.items)
        and any(is_known(item.text) for item in node.items)
    )


def _entries(node: Node) -> tuple[tuple[PlanEntry, ...], tuple[Diagnostic, ...]]:
    if node.kind != "mapping":
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return (), (bad(f"the plan cannot be read: {why}", node.span, help=_FORM),)
    entries: list[PlanEntry] = []
    faults: list[Diagnostic] = []
    for key, value in zip(node.keys, node.items, strict=True):
        wrong = next((each for each in (key, value) if each.kind != "text"), None)
        if wrong is not None:
            why = wrong.text if wrong.kind in ("unreadable", "name") else wrong.described()
            message = f"a plan maps names to styles, and this is neither: {why}"
            faults.append(bad(message, wrong.span, help=_FORM))
        else:
            entries.append(PlanEntry(key.text, value.text, key.span))
    return tuple(entries), tuple(faults)


def answer(reading: TpReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return how transformers splits each parameter."""
    plan = Plan(reading.entries)
    return tuple(_answer(plan, reading.axis, param, mesh) for param in params)


def _answer(plan: Plan, axis: str, param: Param, mesh: Mesh) -> Answer:
    found = plan.of(param.path)
    if found is None:
        return PartitionSpec(((),) * param.rank)
    entry, leaf = found
    dims = partition(entry.style, leaf, param.rank, axis)
    return dims if isinstance(dims, NoAnswer) else placed(dims, param, mesh)


def _as_written(reading: TpReading, sections: PathSections) -> None:
    """Add what a plan does to linear layers and embeddings, whose ranks are known."""
    keys = {entry.key for entry in reading.entries}
    for entry in sorted(reading.entries, key=lambda each: -each.key.count(".")):
        assert entry.span is not None
        leaves: tuple[tuple[str, int], ...] = (("weight", 2), ("bias", 1))
        if entry.key.rpartition(".")[0] in keys:
            leaves = (("", 3),)
        elif entry.style in FIRST or entry.style == "embedding_colwise":
            leaves = (("weight", 2),)
        for leaf, rank in leaves:
            dims = partition(entry.style, leaf, rank, reading.axis)
            if not isinstance(dims, NoAnswer) and (any(dims) or _is_longer(entry.key, keys)):
                comment = came_from(entry.span, entry.style)
                sections.override("match", key_regex(entry.key, leaf), dims, comment)


def _is_longer(key: str, keys: Collection[str]) -> bool:
    """Say whether another key is the end of this one, and would take its parameters."""
    parts = key.split(".")
    return any(".".join(parts[start:]) in keys for start in range(1, len(parts)))


def _for_arrays(reading: TpReading, params: Params, sections: PathSections) -> None:
    """Add overrides for the parameters there are; a rank that is not the usual one by name."""
    plan = Plan(reading.entries)
    groups: dict[tuple[PlanEntry, str, bool], dict[Dims, list[Param]]] = {}
    for param in params:
        found = plan.of(param.path)
        if found is None:
            continue
        entry, leaf = found
        dims = partition(entry.style, leaf, param.rank, reading.axis)
        if isinstance(dims, NoAnswer):
            continue
        is_bare = not generic(param.path).endswith(f"{entry.key}.{leaf}")
        group = groups.setdefault((entry, leaf, not is_bare), {})
        group.setdefault(dims, []).append(param)
    keys = plan.by_key.keys()
    for (entry, leaf, is_module), split in sorted(groups.items(), key=_longest_first):
        assert entry.span is not None
        if not any(any(dims) for dims in split) and not _is_longer(entry.key, keys):
            continue
        comment = came_from(entry.span, entry.style)
        main = max(split, key=lambda dims: len(split[dims]))
        for dims, others in split.items():
            if dims != main:
                for key, pattern in patterns_of([param.path for param in others]):
                    sections.override(key, pattern, dims, comment)
        pattern = key_regex(entry.key, leaf if is_module else "")
        sections.override("match", pattern, main, comment)


def _longest_first(group: tuple[tuple[PlanEntry, str, bool], object]) -> tuple[bool, int]:
    entry, _, is_module = group[0]
    return is_module, -entry.key.count(".")


def _not_carried(reading: TpReading, params: Params | None) -> list[Diagnostic]:
    """Return a finding for each entry that a spec cannot say, or that never matches."""
    faults = []
    if not is_name(reading.axis):
        faults.append(bad(f"`{reading.axis}` is no name of a mesh axis", None))
    for entry in reading.entries:
        if entry.style in PACKED:
            message = f"`{entry.key}`: {entry.style} gives each device a part of both packed halves"
            help = "no PartitionSpec says that, so it is whole here: keep the halves as two arrays"
            faults.append(lost(message, entry.span, help=help))
        elif not is_known(entry.style):
            message = f"`{entry.style}` is no style of transformers"
            faults.append(lost(message, entry.span, help=f"`{entry.key}` is whole here"))
        if re.search(r"(?:^|\.)\d+(?:\.|$)", entry.key):
            message = f"`{entry.key}` never matches: names are looked up with `*` for numbers"
            faults.append(lost(message, entry.span, help="write `*` for the number there"))
    if params is None:
        message = (
            "no arrays are given: weights of 2 dimensions, biases, and 3 dimensions for parameters "
            "of experts are assumed"
        )
        help = "--against ARRAYS goes by the arrays there are"
        faults.append(lost(message, None, help=help))
    return faults
