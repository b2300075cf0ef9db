"""Optimizer state, known by its types and by the names of its fields.

It is what optax keeps, the Variables of an `nnx.Optimizer`, and mappings that have the fields of a
state of optax, which is what NNX, and whatever writes checkpoints as dicts, makes of one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from shardspec.jax_backend.trees import is_box, is_optimizer_variable, remembered

#: Names that nothing but optimizer state has.
STATE_NAMES = frozenset(("opt_state", "optimizer_state", "param_states"))

#: The field by which a mapping may be a state of optax.
COUNT = "count"

#: States of optax that are not called so.
_STATES = frozenset(("ApplyEvery", "WeightDecaySchedule"))


def is_state(node: Any) -> bool:
    """Say whether a node is optimizer state, whatever it is called."""
    test = _state_test(type(node))
    return test is not None and test(node)


def is_spread_out(node: Any) -> bool:
    """Say whether a mapping has the fields of a state of optax."""
    return COUNT in node and frozenset(map(str, node)) in optax_fields()


def names_state(node: Any) -> bool:
    """Say whether a node calls one of its children optimizer state."""
    test = _names_test(type(node))
    return test is not None and test(node)


def may_be_state(kind: type) -> bool:
    """Say whether a node of a type is optimizer state, or might call a child so, by its fields."""
    is_state = is_optimizer_variable(kind) or is_of_optax(kind)
    return is_state or not STATE_NAMES.isdisjoint(_fields(kind))


def is_of_optax(kind: type) -> bool:
    """Say whether a type is one that optax keeps its state in."""
    if not issubclass(kind, tuple) or kind.__module__.partition(".")[0] != "optax":
        return False
    return kind.__name__.endswith("State") or kind.__name__ in _STATES


def optax_fields() -> frozenset[frozenset[str]]:
    """Return the fields of each state of optax that counts its steps beside other arrays."""
    if "optax" not in sys.modules:
        return frozenset()
    return _optax_fields(tuple(name for name in [*sys.modules] if name.startswith("optax.")))


@lru_cache(maxsize=1)
def _optax_fields(names: tuple[str, ...]) -> frozenset[frozenset[str]]:
    modules = [sys.modules[name] for name in names]
    kinds = {kind for each in modules for kind in vars(each).values() if isinstance(kind, type)}
    found = (frozenset(_fields(kind)) for kind in kinds if is_of_optax(kind))
    return frozenset(fields for fields in found if COUNT in fields and len(fields) > 1)


def _fields(kind: type) -> tuple[str, ...]:
    return (*getattr(kind, "__dataclass_fields__", ()), *getattr(kind, "_fields", ()))


@remembered
def _state_test(kind: type) -> Callable[[Any], bool] | None:
    """Return what says whether a node of a type is optimizer state; None where none is."""
    if is_box(kind):
        return _always if is_optimizer_variable(kind) else None
    if is_of_optax(kind):
        return _always
    return is_spread_out if issubclass(kind, Mapping) else None


def _always(_: Any) -> bool:
    return True


@remembered
def _names_test(kind: type) -> Callable[[Any], bool] | None:
    if issubclass(kind, Mapping):
        return lambda node: not STATE_NAMES.isdisjoint(node)
    return None if STATE_NAMES.isdisjoint(_fields(kind)) else _always
