"""What is read of JAX in one way for all of its versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax._src import config, mesh

#: The settings that have the mesh of the context, with devices and without.
_OWNER: Any = mesh if hasattr(mesh, "device_context") else config
DEVICE_CONTEXT: Any = getattr(_OWNER, "device_context", None)
AXES_CONTEXT: Any = getattr(_OWNER, "abstract_mesh_context_manager", None)


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return how many values of a scan are the same in each turn, and how many it carries.

    What it takes a part of for each turn, or stacks, has one dimension more outside of its body.
    """
    body = equation.params["jaxpr"]
    carried = _of_one_rank(equation.outvars, body.out_avals)
    return _of_one_rank(equation.invars, body.in_avals) - carried, carried


def made_manual(equation: Any) -> frozenset[str]:
    """Return the mesh axes that a `shard_map` makes manual, without those that are so around it.

    The first versions of jax 0.10 list both.
    """
    params = equation.params
    if "newly_manual_axes" in params:
        return frozenset(params["newly_manual_axes"])
    return frozenset(params["manual_axes"]) - frozenset(params["mesh"].manual_axes)


def _of_one_rank(outside: Iterable[Any], inside: Iterable[Any]) -> int:
    return sum(len(v.aval.shape) == len(a.shape) for v, a in zip(outside, inside, strict=True))
