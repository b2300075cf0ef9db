"""Tensor-parallel plans, each with the module that it belongs to: which entry an array has.

Source of styles and of which parameters a key is about: transformers 5.23.0,
`transformers.distributed.tensor_parallel` (styles) and `.parallel_utils`
(`replace_layer_number_by_wildcard`, `_get_parameter_plan`); names of styles that only 4.x has, from
`transformers.integrations.tensor_parallel` at 0017fdb.

A plan of a configuration is relative to the module that is made of it: `layers.*` of a text model
is `model.language_model.layers.*` of the whole. Where a plan belongs is its root. A root that is
not said is the one place under which most keys of the plan name arrays. Arrays that no key names
are whole, if a plan that was read speaks for them; else nothing is known of them.
Source: transformers 5.23.0, `DistributedMixin.init_parallel_plans`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from shardspec.diagnostics import Diagnostic, Span
from shardspec.foreign.formats import Dims, NoAnswer, NotRead, ambiguous, bad
from shardspec.foreign.values import Node

COLUMN = frozenset(("colwise", "colwise_rep", "colwise_gather_output", "local_colwise"))
ROW = frozenset(("rowwise", "rowwise_rep", "rowwise_split_input", "local_rowwise"))
PACKED = frozenset(("packed_colwise", "packed_rowwise", "local_packed_colwise",
                    "local_packed_rowwise"))  # fmt: skip
FIRST = frozenset(("embedding_rowwise", "grouped_gemm"))
WHOLE = frozenset((
    "replicate", "sequence_parallel", "gather", "local", "isolated", "all_reduce",
    "replicated_with_grad_allreduce", "mla_kv_a_proj", "moe_tp_experts", "moe_identity_expert",
    "local_params", "ep_router", "ep_dispatch_experts",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One key of a plan with its style.

    Attributes:
      is_added: whether transformers adds it, and the plan does not say it.
    """

    key: str
    style: str
    span: Span = field(compare=False, repr=False)
    is_added: bool = False


def is_known(style: str) -> bool:
    """Say whether transformers has a style of this name."""
    known = (COLUMN, ROW, PACKED, FIRST, WHOLE, ("embedding_colwise",))
    return any(style in styles for styles in known)


def partition(style: str, leaf: str, rank: int, axis: str) -> Dims | NoAnswer:
    """Return how a style splits a parameter.

    Args:
      leaf: the last part of its name, such as `weight`.
    """
    whole: Dims = ((),) * rank
    if style in WHOLE or rank == 0:
        return whole
    if style in COLUMN:
        dim = max(rank - 2, 0)
    elif style in ROW:
        if leaf == "bias":
            return whole
        dim = rank - 1
    elif style in FIRST:
        dim = 0
    elif style == "embedding_colwise" and rank > 1:
        dim = 1
    elif style in PACKED:
        reason = f"`{style}` splits each of two packed halves, and no PartitionSpec says that"
        return NoAnswer(reason, refuses=False)
    else:
        return NoAnswer(f"`{style}` is no style it knows (ValueError)")
    return (*whole[:dim], (axis,), *whole[dim + 1 :])


def generic(path: str) -> str:
    """Return a name with `*` for layer numbers, as transformers looks it up.

    >>> generic("model/layers/3/mlp/up_proj/weight")
    'model.layers.*.mlp.up_proj.weight'
    """
    dotted = path.replace("/", ".")
    return re.sub(r"\.\d+(\.|$)", lambda found: ".*" + found.group(1), dotted)


def key_regex(key: str, leaf: str = "", *, anywhere: bool = True) -> str:
    r"""Return the regex of a key, or of a parameter of the module it names.

    Args:
      anywhere: whether other modules may stand before it.

    >>> key_regex("layers.*.mlp.up_proj", "weight")
    '(?:.+[./])?layers[./]\\d+[./]mlp[./]up_proj[./]weight'
    """
    parts = [*key.split("."), *([leaf] if leaf else [])]
    texts = (r"\d+" if part == "*" else re.escape(part) for part in parts)
    return ("(?:.+[./])?" if anywhere else "") + "[./]".join(texts)


Kind = Literal["base", "class", "whole"]

EMBEDDING = "embed_tokens"
FORM = 'a plan: {"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}'
_CLASS_PLAN = "the `_tp_plan` of the model's class, which may split them, is not among the files"
_CLASS_HELP = "give the modeling file, too"
_PART_HELP = "give its configuration, too: FILE, or --name CONFIG={root} where the file has it"


class TpPlan(NamedTuple):
    """One plan.

    Attributes:
      entries: their keys are relative to the root.
      kind: `base` of a configuration; `class` of a model's class; `whole`: all there is of a model.
      name: what it is called in its file.
      root: the module it belongs to, dotted, "" for the model; None where that is not known.
      unread: modules whose plans are not read, relative to the root, each with the reason.
    """

    entries: tuple[PlanEntry, ...]
    kind: Kind = "base"
    name: str = ""
    root: str | None = None
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def keyed(self) -> tuple[tuple[str, PlanEntry], ...]:
        """Return the entries by their whole keys."""
        return tuple((joined(self.root or "", entry.key), entry) for entry in self.entries)


def plan_entries(node: Node) -> tuple[tuple[PlanEntry, ...], tuple[Diagnostic, ...]]:
    """Return the entries of a plan, and what in it is none."""
    if node.kind != "mapping":
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return (), (bad(f"the plan cannot be read: {why}", node.span, help=FORM),)
    entries: list[PlanEntry] = []
    faults: list[Diagnostic] = []
    for key, value in node.pairs:
        wrong = next((each for each in (key, value) if each.kind != "text"), None)
        if wrong is not None:
            why = wrong.text if wrong.kind in ("unreadable", "name") else wrong.described()
            message = f"a plan maps names to styles, and this is neither: {why}"
            faults.append(bad(message, wrong.span, help=FORM))
        else:
            entries.append(PlanEntry(key.text, value.text, key.span))
    return tuple(entries), tuple(faults)


def joined(*parts: str) -> str:
    """Return dotted names as one.

    >>> joined("", "model", "norm")
    'model.norm'
    """
    return ".".join(filter(None, parts))


def with_embedding(plan: TpPlan) -> TpPlan:
    """Return a plan of a configuration with the entry that transformers adds to it."""
    named = any(entry.key == EMBEDDING for entry in plan.entries)
    if plan.kind != "base" or not plan.entries or named:
        return plan
    return plan._replace(entries=(embedding_beside(plan.entries[0]), *plan.entries))


def embedding_beside(entry: PlanEntry) -> PlanEntry:
    """Return the entry that transformers adds to a plan which has this one."""
    return PlanEntry(EMBEDDING, "embedding_rowwise", entry.span, is_added=True)


def located(
    plans: Sequence[TpPlan], paths: Iterable[str]
) -> tuple[tuple[TpPlan, ...], tuple[Diagnostic, ...]]:
    """Return the plans with their roots, and a finding for each that fits several places alike."""
    names = {generic(path) for path in paths}
    taken = {plan.root for plan in plans if plan.root is not None}
    roots: dict[int, str] = {}
    faults: list[Diagnostic] = []
    fits = [(index, _fits(plan, names)) for index, plan in enumerate(plans) if plan.root is None]
    for index, found in sorted(fits, key=lambda each: -max(each[1].values(), default=0)):
        plan = plans[index]
        free = Counter({root: count for root, count in found.items() if root not in taken})
        best = free.most_common(2) or [("", 0)]
        if plan.kind == "whole" and free[""] == best[0][1]:
            best = [("", best[0][1])]
        if len(best) == 2 and best[0][1] == best[1][1]:
            faults.append(_several(plan, best[0][0], best[1][0]))
        roots[index] = best[0][0]
        if plan.kind == "base":
            taken.add(best[0][0])
    placed = (plan._replace(root=roots.get(at, plan.root)) for at, plan in enumerate(plans))
    return tuple(placed), tuple(faults)


def _fits(plan: TpPlan, names: Iterable[str]) -> Counter[str]:
    """Return how many keys of a plan name something under each root."""
    keys = {entry.key for entry in plan.entries}
    found: dict[str, set[str]] = {}
    for name in names:
        module = name.rpartition(".")[0]
        for text in (name, module):
            for root, key in _splits(text):
                if key in keys:
                    found.setdefault(root, set()).add(key)
    shortest_first = sorted(found, key=lambda root: (root.count("."), root))
    return Counter({root: len(found[root]) for root in shortest_first})


def _splits(name: str) -> Iterable[tuple[str, str]]:
    parts = name.split(".") if name else []
    for at in range(len(parts)):
        yield ".".join(parts[:at]), ".".join(parts[at:])


def _several(plan: TpPlan, one: str, other: str) -> Diagnostic:
    called = f"`{plan.name}`" if plan.name else "the plan"
    places = " and ".join(f"those under `{root}`" if root else "all" for root in (one, other))
    message = f"{called} fits the arrays in two places alike: {places}"
    span = plan.entries[0].span if plan.entries else None
    help = f"say where it belongs: --name {plan.name}={one or '.'}; twice, if to both"
    return ambiguous(message, span, help)


@dataclass(frozen=True)
class TpPlans:
    """Plans with their roots, looked up as transformers does: the parameter, then its module."""

    plans: tuple[TpPlan, ...]
    paths: tuple[str, ...] = field(default=(), repr=False)

    @cached_property
    def by_key(self) -> Mapping[str, PlanEntry]:
        """Return the entries by their whole key; the inner model's come last and count."""
        outer_first = sorted(self.plans, key=lambda plan: len(plan.root or ""))
        return {key: entry for plan in outer_first for key, entry in plan.keyed}

    def of(self, path: str) -> tuple[str, PlanEntry, str] | None:
        """Return the whole key of an array, its entry, and the last part of its name."""
        name = generic(path)
        module, _, leaf = name.rpartition(".")
        for key in (name, module):
            if key in self.by_key:
                return key, self.by_key[key], leaf
        return None

    @cached_property
    def unmatched(self) -> tuple[tuple[str, PlanEntry], ...]:
        """Return the entries whose key names no array, and no module of any."""
        names = {name for path in self.paths for name in _above(generic(path))}
        return tuple(each for each in self.by_key.items() if each[0] not in names)

    def not_read(self, path: str) -> NotRead | None:
        """Return why it is not known what transformers does to an array without an entry."""
        name = generic(path)
        for plan in self.plans:
            for part, reason in plan.unread:
                place = joined(plan.root or "", part)
                if _is_in(name, place):
                    return NotRead(place, reason, _PART_HELP.format(root=place))
        owners = [plan for plan in self.plans if _is_in(name, plan.root or "")]
        if not owners:
            roots = sorted({plan.root or "" for plan in self.plans})
            return NotRead(f"all but {', '.join(roots)}", _CLASS_PLAN, _CLASS_HELP)
        owner = max(owners, key=lambda plan: len(plan.root or ""))
        root = owner.root or ""
        rest = name.removeprefix(root).removeprefix(".")
        part = joined(root, rest.partition(".")[0])
        if owner.kind == "base" and part.endswith("head"):
            return NotRead(part, _CLASS_PLAN, _CLASS_HELP)
        is_named = any(_is_in(key, part) for key in self.by_key)
        if owner.kind == "whole" or part not in self._numbered or is_named:
            return None
        reason = f"`{part}` may be a model with a plan of its own, and none is read"
        return NotRead(part, reason, _PART_HELP.format(root=part))

    @cached_property
    def _numbered(self) -> frozenset[str]:
        """Return the modules that have numbered layers somewhere inside."""
        names = {generic(path) for path in self.paths}
        found = {name[: at.start()] for name in names for at in re.finditer(r"\.\*\.", name)}
        return frozenset(above for name in found for above in _above(name))


def _above(name: str) -> Iterable[str]:
    """Yield a dotted name and those of the modules around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _is_in(name: str, module: str) -> bool:
    return not module or name == module or name.startswith(f"{module}.")
