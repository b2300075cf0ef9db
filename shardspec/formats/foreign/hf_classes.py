"""The classes in files of transformers: which of their parts are models with plans of their own.

A model of several parts makes them in `__init__`: `self.vision_tower =
AutoModel.from_config(config.vision_config)`. Read are the calls whose result `self` binds and the
part of the configuration that each gets; what a call does is known by its name alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.named_values import is_python
from shardspec.formats.foreign.node import Node
from shardspec.formats.foreign.python_scopes import read_scopes
from shardspec.formats.foreign.python_text import dotted_name, parse_python

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


@dataclass(frozen=True, slots=True)
class HfClass:
    """A class as it stands in its file.

    Attributes:
      config: the class of its configuration, where an annotation or `config_class` says it.
      children: what its own `__init__` binds; None where it has none.
    """

    name: str
    bases: tuple[str, ...]
    config: str | None = None
    children: tuple[Child, ...] | None = None


@dataclass(frozen=True, slots=True)
class HfClasses:
    """All classes of some files.

    Attributes:
      values: what they bind: `LlamaConfig.base_model_tp_plan`.
    """

    by_name: Mapping[str, HfClass] = field(default_factory=dict)
    values: Mapping[str, Node] = field(default_factory=dict)

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
        return next(
            (
                base
                for base in bases
                if base not in self.by_name
                and base.endswith(("Config", "Model", "ForCausalLM", "ForConditionalGeneration"))
                and base not in _ROOTS
            ),
            None,
        )

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
                pairs = zip(node.keys, node.items, strict=True)
                parts |= {key.text: named for key, item in pairs if (named := _class_in(item))}
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
        found = parse_python(source, lambda tree: tuple(_classes(tree)))
        bindings = read_scopes(source)
        if not isinstance(found, Diagnostic) and not isinstance(bindings, Diagnostic):
            classes |= {each.name: each for each in found}
            values |= {each.name: each.value for each in bindings}
    return HfClasses(classes, values)


def _classes(tree: ast.Module) -> Iterator[HfClass]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            bases = tuple(filter(None, map(dotted_name, statement.bases)))
            init = next((each for each in statement.body if _is_init(each)), None)
            children = _Init(init).children() if isinstance(init, ast.FunctionDef) else None
            yield HfClass(statement.name, bases, _config(statement), children)


def _is_init(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and statement.name == "__init__"


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
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                name = dotted_name(target)
                if name is not None:
                    yield name, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            name = dotted_name(statement.target)
            if name is not None:
                yield name, statement.value
        elif isinstance(statement, ast.If | ast.For | ast.With | ast.Try):
            inner = [each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt)]
            yield from _assigned(inner)
