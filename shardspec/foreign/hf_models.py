"""The classes in files of transformers: which of their parts are models with plans of their own.

A model of several parts makes them in `__init__`: `self.vision_tower =
AutoModel.from_config(config.vision_config)`. Read are the calls whose result `self` binds and the
part of the configuration that each gets; what a call does is known by its name alone.

A model has the plan of its class and, if it is a base model, that of its configuration; a module
directly inside that is a model itself adds its own, with its name in front.
Source: transformers 5.23.0, `DistributedMixin.init_parallel_plans`.

Meant are the plans that are named, those that fit, or all there are. Each belongs to a module, and
an array has the entry of one.

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

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.foreign import python_text
from shardspec.foreign.formats import Dims, NoAnswer, NotRead, Options, ambiguous, bad, lost
from shardspec.foreign.python_text import NamedValues, dotted_name, is_python, read_scopes
from shardspec.foreign.values import Node
from shardspec.ir.spec import Params

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
    fits = [
        (index, _root_fits(plan, names)) for index, plan in enumerate(plans) if plan.root is None
    ]
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


def _root_fits(plan: TpPlan, names: Iterable[str]) -> Counter[str]:
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


#: Bases that are known to have no plan of their own, and to make no modules.
_ROOTS = ("PreTrainedModel", "PreTrainedConfig", "PretrainedConfig", "GenerationMixin", "object")
_TEXT = "get_text_config"


class Child(NamedTuple):
    """A module that `__init__` binds to a name of `self`.

    Attributes:
      made_by: the call: `nn.Linear`, `AutoModel.from_config`.
      config: the part of the configuration it gets: "" for all of it, `text_config`; None for none.
    """

    name: str
    made_by: str
    config: str | None


class HfClass(NamedTuple):
    """A class as it stands in its file.

    Attributes:
      config: the class of its configuration, where an annotation or `config_class` says it.
      children: what its own `__init__` binds; None where it has none.
    """

    name: str
    bases: tuple[str, ...]
    config: str | None = None
    children: tuple[Child, ...] | None = None


class HfClasses(NamedTuple):
    """All classes of some files.

    Attributes:
      values: what they bind: `LlamaConfig.base_model_tp_plan`.
    """

    by_name: Mapping[str, HfClass]
    values: Mapping[str, Node]

    def line(self, name: str) -> Iterator[HfClass]:
        """Yield a class and those of its bases that the files have."""
        pending, seen = [name], set()
        while pending:
            current = pending.pop(0)
            if current in self.by_name and current not in seen:
                seen.add(current)
                yield self.by_name[current]
                pending[:0] = self.by_name[current].bases

    def value(self, name: str, attribute: str) -> Node | None:
        """Return what a class or the nearest of its bases binds."""
        found = (self.values.get(f"{each.name}.{attribute}") for each in self.line(name))
        return next((node for node in found if node is not None), None)

    def config_of(self, name: str) -> str | None:
        """Return the class of the configuration of a model."""
        return next((each.config for each in self.line(name) if each.config is not None), None)

    def children_of(self, name: str) -> dict[str, Child]:
        """Return the modules of a model, those of its bases first."""
        found: dict[str, Child] = {}
        for each in reversed(list(self.line(name))):
            found |= {child.name: child for child in each.children or ()}
        return found

    def is_model(self, name: str) -> bool:
        """Say whether a class of these files is a model, which may have a plan."""
        bases = [base for each in self.line(name) for base in each.bases]
        return any(base.endswith("PreTrainedModel") for base in bases)

    def is_embedding(self, made_by: str) -> bool:
        """Say whether a call makes a `torch.nn.Embedding`."""
        names = [made_by, *(base for each in self.line(made_by) for base in each.bases)]
        return any(name.rpartition(".")[2].endswith("Embedding") for name in names)

    def strange_base(self, name: str) -> str | None:
        """Return a base that no file has, and that may have a plan."""
        bases = [base for each in self.line(name) for base in each.bases]
        others = (base for base in bases if base not in self.by_name and base not in _ROOTS)
        endings = ("Config", "Model", "ForCausalLM", "ForConditionalGeneration")
        return next((base for base in others if base.endswith(endings)), None)

    def models_of(self, config: str) -> list[str]:
        """Return the models whose configuration is of this class, and that are no heads."""
        named = [name for name in self.by_name if name.endswith("Model") and self.is_model(name)]
        models = [name for name in named if not name.endswith("PreTrainedModel")]
        return [name for name in models if self.config_of(name) == config]

    def part(self, config: str, part: str) -> str | None:
        """Return the class of a part of a configuration, None where no file says it."""
        current: str | None = config
        for step in part.split(".") if part else ():
            if current is None:
                return None
            current = self._step(current, step)
        return current

    def _step(self, config: str, step: str) -> str | None:
        parts: dict[str, str] = {}
        for attribute in ("sub_configs", "sub_configs_defaults"):
            node = self.value(config, attribute)
            if node is not None and node.kind == "mapping":
                parts |= {key.text: named for key, item in node.pairs if (named := _class_in(item))}
        if step == _TEXT:
            return parts.get("text_config", config)
        return parts.get(step)


def _class_in(item: Node) -> str | None:
    """Return the class of `LlamaConfig` or `SubConfigSpec(config_class=LlamaConfig)`."""
    if item.kind == "call":
        item = dict(item.keywords).get("config_class", item)
    is_class = item.kind == "name" and item.last_name != "AutoConfig"
    return item.last_name if is_class else None


def read_classes(sources: Sequence[SourceFile]) -> HfClasses:
    """Return the classes of the Python files among these."""
    classes: dict[str, HfClass] = {}
    values: dict[str, Node] = {}
    for source in sources:
        if not is_python(source):
            continue
        found = python_text.parse_python(source, lambda tree: tuple(_classes(tree)))
        bindings = read_scopes(source)
        if not isinstance(found, Diagnostic) and not isinstance(bindings, Diagnostic):
            classes |= {each.name: each for each in found}
            values |= {each.name: each.value for each in bindings}
    return HfClasses(classes, values)


def _classes(tree: ast.Module) -> Iterator[HfClass]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            bases = tuple(filter(None, map(dotted_name, statement.bases)))
            functions = (each for each in statement.body if isinstance(each, ast.FunctionDef))
            init = next((each for each in functions if each.name == "__init__"), None)
            children = None if init is None else _Init(init).children()
            yield HfClass(statement.name, bases, _config(statement), children)


def _config(statement: ast.ClassDef) -> str | None:
    """Return what `config: X` or `config_class = X` says."""
    for each in statement.body:
        if isinstance(each, ast.AnnAssign) and dotted_name(each.target) == "config":
            return dotted_name(each.annotation)
        if isinstance(each, ast.Assign) and dotted_name(each.targets[0]) == "config_class":
            return dotted_name(each.value)
    return None


class _Init:
    """Reads one `__init__`."""

    def __init__(self, init: ast.FunctionDef) -> None:
        self.body = init.body
        arguments = [each.arg for each in init.args.args[1:2]]
        self.configs: dict[str, str] = dict.fromkeys((*arguments, "config", "self.config"), "")

    def children(self) -> tuple[Child, ...]:
        """Return what `self` has at the end."""
        found: dict[str, Child] = {}
        for target, value in _assigned(self.body):
            part = self._part(value)
            if part is not None:
                self.configs[target] = part
                continue
            name = target.removeprefix("self.")
            if name == target or "." in name:
                continue
            child = self._child(name, value)
            if child is not None:
                found.setdefault(name, child)
            elif not isinstance(value, ast.IfExp):
                found.pop(name, None)
        return tuple(found.values())

    def _part(self, value: ast.expr) -> str | None:
        """Return which part of the configuration a value is."""
        if isinstance(value, ast.Call):
            called = dotted_name(value.func) or ""
            owner, _, name = called.rpartition(".")
            if name == _TEXT and owner in self.configs:
                return f"{self.configs[owner]}.{_TEXT}".lstrip(".")
            if name == "deepcopy" and value.args:
                return self._part(value.args[0])
            return None
        dotted = dotted_name(value)
        if dotted in self.configs:
            return self.configs[dotted]
        owner, _, name = (dotted or "").rpartition(".")
        if owner in self.configs and (name.endswith("config") or name in ("encoder", "decoder")):
            return f"{self.configs[owner]}.{name}".lstrip(".")
        return None

    def _child(self, name: str, value: ast.expr) -> Child | None:
        if isinstance(value, ast.IfExp):
            return self._child(name, value.body) or self._child(name, value.orelse)
        called = dotted_name(value.func) if isinstance(value, ast.Call) else None
        if called is None or not isinstance(value, ast.Call):
            return None
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
        parts = (self._part(each) for each in given)
        return Child(name, called, next((part for part in parts if part is not None), None))


def _assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is bound in order, inside `if`, `for`, `with` and `try` too."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                name = dotted_name(target)
                if name is not None:
                    yield name, statement.value
        elif isinstance(statement, ast.If | ast.For | ast.With | ast.Try):
            inner = [each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt)]
            yield from _assigned(inner)


_DEEPEST = 20
_MADE = ("from_config", "_from_config", "from_pretrained")


def whole_plan(
    classes: HfClasses, model: str, names: frozenset[str] | None = None
) -> tuple[TpPlan, tuple[Diagnostic, ...]]:
    """Return the plan of a model with those of all its parts, and what of them cannot be read.

    Args:
      names: dotted names of the arrays there are; parts without any are not made.
    """
    composing = _Composing(classes, names)
    entries = composing.model(model, classes.config_of(model))
    unread = tuple(composing.unread)
    return TpPlan(tuple(entries.values()), "whole", model, "", unread), tuple(composing.faults)


def _fits(classes: HfClasses, model: str, names: frozenset[str], depth: int = 0) -> bool:
    """Say whether the modules of a model are called as these arrays, dotted names, are."""
    children = classes.children_of(model)
    inside: dict[str, set[str]] = {}
    for name in names:
        first, _, rest = name.partition(".")
        inside.setdefault(first, set()).add(rest)
    if not inside.keys() <= children.keys():
        return False
    made = ((_made(children[first])[0], rest) for first, rest in inside.items())
    models = ((name, frozenset(rest)) for name, rest in made if classes.is_model(name))
    return depth > _DEEPEST or all(_fits(classes, *each, depth + 1) for each in models)


def _made(child: Child) -> tuple[str, bool]:
    """Return the class of a module, and whether a configuration alone says which it is."""
    name, _, how = child.made_by.rpartition(".")
    return (name, True) if how in _MADE else (child.made_by, False)


@dataclass(slots=True)
class _Composing:
    classes: HfClasses
    names: frozenset[str] | None = None
    unread: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)

    def model(
        self, model: str, config: str | None, prefix: str = "", depth: int = 0
    ) -> dict[str, PlanEntry]:
        """Return the entries of a model, by their key in the outermost one."""
        strange = self.classes.strange_base(model)
        if strange is not None:
            self.unread.append((prefix, f"`{model}` is a `{strange}`, whose file is not given"))
        entries = self._own(model, "_tp_plan")
        children = self.classes.children_of(model)
        base = self.classes.value(model, "base_model_prefix")
        if base is None or base.text not in children:
            entries |= self._configured(config, prefix)
            embedding = children.get(EMBEDDING)
            if entries and embedding and self.classes.is_embedding(embedding.made_by):
                added = embedding_beside(next(iter(entries.values())))
                entries = {EMBEDDING: added, **entries}
        found = {joined(prefix, key): entry for key, entry in entries.items()}
        for child in children.values():
            if depth < _DEEPEST and self._is_made(joined(prefix, child.name)):
                found |= self._child(child, config, joined(prefix, child.name), depth)
        return {key: replace(entry, key=key) for key, entry in found.items()}

    def _is_made(self, prefix: str) -> bool:
        names = self.names
        return names is None or any(name.startswith(f"{prefix}.") for name in names)

    def _own(self, name: str, attribute: str) -> dict[str, PlanEntry]:
        node = self.classes.value(name, attribute)
        if node is None or node.kind == "nothing":
            return {}
        entries, faults = plan_entries(node)
        self.faults += faults
        return {entry.key: entry for entry in entries}

    def _configured(self, config: str | None, prefix: str) -> dict[str, PlanEntry]:
        if config is None or config not in self.classes.by_name:
            called = f"`{config}`" if config else "the class of the configuration"
            self.unread.append((prefix, f"{called} is in none of the files"))
            return {}
        strange = self.classes.strange_base(config)
        own = self.classes.value(config, "base_model_tp_plan")
        if strange is not None and own is None:
            self.unread.append((prefix, f"`{config}` is a `{strange}`, whose file is not given"))
        return self._own(config, "base_model_tp_plan")

    def _child(
        self, child: Child, config: str | None, prefix: str, depth: int
    ) -> dict[str, PlanEntry]:
        """Return what a module adds to the plan of the model around it."""
        name, is_configured = _made(child)
        own = None
        if child.config is not None and config is not None:
            own = self.classes.part(config, child.config)
        if name.startswith("Auto"):
            return self._auto(child, own, prefix, depth)
        if name in self.classes.by_name:
            if not self.classes.is_model(name):
                return {}
            return self.model(name, own or self.classes.config_of(name), prefix, depth + 1)
        if is_configured or (child.config is not None and name.endswith(("Model", "ForCausalLM"))):
            self.unread.append((prefix, f"`{prefix}` is a `{name}`, whose file is not given"))
        return {}

    def _auto(
        self, child: Child, config: str | None, prefix: str, depth: int
    ) -> dict[str, PlanEntry]:
        if config is None or config not in self.classes.by_name:
            part = f"config.{child.config}" if child.config else "its configuration"
            called = f" (`{config}`)" if config else ""
            reason = f"`{prefix}` is the model of `{part}`{called}, whose file is not given"
        else:
            models = self.classes.models_of(config)
            if len(models) == 1:
                return self.model(models[0], config, prefix, depth + 1)
            reason = f"`{prefix}` is the model of `{config}`, and no file says which class that is"
        self.unread.append((prefix, reason))
        return {}


_KINDS: dict[str, Kind] = {
    "base_model_tp_plan": "base",
    "_tp_plan": "class",
    "tp_plan": "whole",
}

Faults = tuple[Diagnostic, ...]
File = tuple[SourceFile, NamedValues]


def chosen_plans(
    sources: Sequence[SourceFile], options: Options
) -> tuple[tuple[TpPlan, ...], Faults]:
    """Return the plans that are named, or that fit the arrays, or all there are."""
    files: list[File] = []
    for source in sources:
        values = python_text.read_named_values(source)
        if isinstance(values, tuple):
            return (), values
        files.append((source, values))
    classes = read_classes(sources)
    names = options.names or ((options.name,) if options.name is not None else ())
    if names:
        return _named(files, classes, names, options.params)
    if options.params is not None:
        found = _fitting(classes, options.params)
        if found is not None:
            return found
    return _of_files(files, options.params)


def _named(
    files: Sequence[File], classes: HfClasses, names: Sequence[str], params: Params | None
) -> tuple[tuple[TpPlan, ...], Faults]:
    """Return the plans of `--name NAME` or `--name NAME=MODULE`, one for each."""
    plans: list[TpPlan] = []
    faults: list[Diagnostic] = []
    for each in names:
        name, is_placed, root = each.partition("=")
        if classes.is_model(name) and classes.children_of(name):
            paths, modules = _generic_paths(params), classes.children_of(name)
            is_own = all(path.partition(".")[0] in modules for path in paths or ())
            plan, wrong = whole_plan(classes, name, paths if is_own else None)
            plan = plan._replace(root=None)
        else:
            known = (plan for file in files for plan in _candidates(*file))
            found = [plan for plan in known if name in (plan.name, plan.name.rpartition(".")[0])]
            if not found:
                source = files[0][0]
                said = ", ".join(f"`{source.name}`" for source, _ in files)
                faults.append(bad(f"{said} has no plan of `{name}`", source.whole, help=FORM))
                continue
            plan, wrong = _readable(found[0])
        faults += wrong
        plans.append(plan._replace(root=generic(root).strip(".")) if is_placed else plan)
    return tuple(plans), tuple(faults)


class _Candidate(NamedTuple):
    """A value of a file that may be a plan."""

    name: str
    node: Node


def _candidates(source: SourceFile, values: NamedValues) -> Iterator[_Candidate]:
    """Yield the plans of a file; None stands for no plan."""
    if values.root is not None and _is_plan(values.root):
        yield _Candidate("", values.root)
        return
    named = values.named if values.root is None else _sections(values.root)
    for name, node in named:
        if name.rpartition(".")[2] in _KINDS and node.kind != "nothing":
            yield _Candidate(name, node)


def _readable(found: _Candidate) -> tuple[TpPlan, Faults]:
    entries, faults = plan_entries(found.node)
    kind = _KINDS.get(found.name.rpartition(".")[2], "base")
    is_whole = any(entry.key.startswith(("model.", "lm_head")) for entry in entries)
    return TpPlan(entries, "whole" if not found.name and is_whole else kind, found.name), faults


def _fitting(classes: HfClasses, params: Params) -> tuple[tuple[TpPlan, ...], Faults] | None:
    """Return the plan of the model whose modules are called as the arrays; None if none is."""
    paths = _generic_paths(params) or frozenset()
    models = (name for name in classes.by_name if classes.is_model(name))
    fitting = [name for name in models if _fits(classes, name, paths)]
    found = [(name, *whole_plan(classes, name, paths)) for name in fitting]
    found = [each for each in found if each[1].entries or each[1].unread or each[2]]
    if not found:
        return None
    best: dict[object, tuple[str, TpPlan, Faults]] = {}
    for name, plan, faults in found:
        plans = TpPlans((plan,), tuple(param.path for param in params))
        dead = {key for key, _ in plans.unmatched}
        alive = frozenset((e.key, e.style) for e in plan.entries if e.key not in dead)
        known = best.get((alive, plan.unread))
        if known is None or len(plan.entries) < len(known[1].entries):
            best[alive, plan.unread] = (name, plan, faults)
    if len(best) > 1:
        listed = ", ".join(f"`{name}`" for name, _, _ in best.values())
        first, second = list(best.values())[:2]
        span = (second[1].entries or first[1].entries)[0].span if second[1].entries else None
        message = f"{len(best)} models have modules called as the arrays are: {listed}"
        return (), (ambiguous(message, span, f"say which: --name {first[0]}"),)
    _, plan, faults = next(iter(best.values()))
    return (plan,), faults


def _generic_paths(params: Params | None) -> frozenset[str] | None:
    return None if params is None else frozenset(generic(param.path) for param in params)


def _of_files(files: Sequence[File], params: Params | None) -> tuple[tuple[TpPlan, ...], Faults]:
    """Return the plans of all files; several of one file only where arrays tell them apart."""
    plans: list[TpPlan] = []
    faults: list[Diagnostic] = []
    for source, values in files:
        found = list({each.node: each for each in _candidates(source, values)}.values())
        if not found:
            message = f"`{source.name}` has no tensor-parallel plan"
            return (), (bad(message, source.whole, help=FORM),)
        # Sections of a configuration, or a class and its base, are one model's.
        names = sorted(each.name for each in found)
        is_one = params is not None or names == ["_tp_plan", "base_model_tp_plan"]
        if len(found) > 1 and not (is_one and values.root is not None):
            listed = ", ".join(f"`{each.name}`" for each in found[:10])
            message = f"`{source.name}` has {len(found)} plans: {listed}"
            help = f"say which, each with --name: --name {found[0].name}"
            return (), (ambiguous(message, found[1].node.span, help),)
        for each in found:
            plan, wrong = _readable(each)
            faults += wrong
            if len(found) > 1 and params is not None and not names_any(plan, params):
                if plan.entries:
                    message = f"`{plan.name}` names none of the arrays, and is left out"
                    help = f"--name {plan.name} keeps it"
                    faults.append(lost(message, each.node.span, help=help))
                continue
            plans.append(plan)
    return tuple(plans), tuple(faults)


def names_any(plan: TpPlan, params: Params) -> bool:
    """Say whether a plan names any of some arrays."""
    placed_plan, _ = located([plan], [param.path for param in params])
    plans = TpPlans(placed_plan, tuple(param.path for param in params))
    return len(plans.unmatched) < len(plan.entries)


def _sections(root: Node, prefix: str = "") -> list[tuple[str, Node]]:
    """Return what a configuration holds at its top and one level below, by dotted names."""
    found: list[tuple[str, Node]] = []
    for key, value in root.pairs:
        found.append((prefix + key.text, value))
        if not prefix and value.kind == "mapping":
            found += _sections(value, f"{key.text}.")
    return found


def _is_plan(node: Node) -> bool:
    are_texts = node.has_names and all(item.kind == "text" for item in node.items)
    return are_texts and any(is_known(item.text) for item in node.items)
