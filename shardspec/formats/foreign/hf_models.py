"""The whole plan of a model of transformers, put together from the files of its classes.

A model has the plan of its class and, if it is a base model, that of its configuration; a module
directly inside that is a model itself adds its own, with its name in front.
Source: transformers 5.23.0, `DistributedMixin.init_parallel_plans`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardspec.diagnostics import Diagnostic
from shardspec.formats.foreign.hf_classes import Child, HfClasses
from shardspec.formats.foreign.hf_plans import EMBEDDING, TpPlan, joined, plan_entries
from shardspec.formats.foreign.tp_styles import PlanEntry

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


def fitting_models(classes: HfClasses, names: frozenset[str]) -> Iterator[str]:
    """Yield the models whose modules are called as the arrays are.

    Args:
      names: dotted names of all arrays.
    """
    for name in classes.by_name:
        if classes.is_model(name) and _fits(classes, name, names):
            yield name


def _fits(classes: HfClasses, model: str, names: frozenset[str], depth: int = 0) -> bool:
    children = classes.children_of(model)
    inside: dict[str, set[str]] = {}
    for name in names:
        first, _, rest = name.partition(".")
        inside.setdefault(first, set()).add(rest)
    if not inside.keys() <= children.keys():
        return False
    made = ((_made(children[first])[0], rest) for first, rest in inside.items())
    return depth > _DEEPEST or all(
        _fits(classes, name, frozenset(rest), depth + 1)
        for name, rest in made
        if classes.is_model(name)
    )


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
                entries = self._with_embedding(entries)
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

    def _with_embedding(self, entries: dict[str, PlanEntry]) -> dict[str, PlanEntry]:
        span = next(iter(entries.values())).span
        added = PlanEntry(EMBEDDING, "embedding_rowwise", span, is_added=True)
        return {EMBEDDING: added, **entries}

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
            self.unread.append((prefix, reason))
            return {}
        models = self.classes.models_of(config)
        if len(models) == 1:
            return self.model(models[0], config, prefix, depth + 1)
        reason = f"`{prefix}` is the model of `{config}`, and no file says which class that is"
        self.unread.append((prefix, reason))
        return {}
