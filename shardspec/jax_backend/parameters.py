"""The parameters and caches a step is called with, for a spec that is still to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.spec import Param, Params
from shardspec.jax_backend.arguments import argument_names
from shardspec.jax_backend.entry_point import Call
from shardspec.jax_backend.equations import equations_of, is_transposed
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.trace import CACHES, program_of
from shardspec.jax_backend.train_state import contents_of
from shardspec.jax_backend.trees import params_of

#: The least rank of an array that is a cache because the step returns it anew: positions have less.
_LEAST_RANK = 3
#: Parts of arguments that are caches; `kv` is a projection, too.
_PARTS = CACHES - {"kv"}
#: How Flax begins the names of the arrays of a cache.
_CACHED = "cached_"
#: What random keys are made of, whose first size is no number of rows.
_KEY = "u32"


class StepArrays(NamedTuple):
    """What a step is called with.

    Attributes:
      is_serving: whether the step reads caches, and computes no gradients.
      caches: those of such a step that are parts of arguments: arrays by themselves have no path.
      rows: how many rows the other arguments of such a step have.
    """

    params: Params
    is_serving: bool = False
    caches: Params = ()
    rows: frozenset[int] = frozenset()


def arrays_of(call: Call, resolver: Resolver) -> StepArrays:
    """Return the parameters that a step gets: those that it trains, else the largest tree.

    A step may train several models, each with its state, and a part of one: what is frozen of that
    has arrays in the same modules. Optimizer state, caches, and what is an
    array by itself are none. A step serves if it gets caches, has no optimizer state and computes
    no gradients. A cache is called so, or the step returns it with new values.

    Raises:
      ShardspecError: there are no parameters.
    """
    names = argument_names(call.function, len(call.args), list(call.kwargs))
    found = [contents_of(tree) for tree in (*call.args, *call.kwargs.values())]
    back = None if any(e.held or e.states for e in found) else _returned(call, resolver)
    trees: list[Params] = []
    states: list[Param] = []
    caches: list[Param] = []
    for name, tree, each in zip(names, (*call.args, *call.kwargs.values()), found, strict=True):
        every = () if each.states else params_of(each.held.params if each.held else tree)
        own = [param for param in every if _is_cache(name, param, back)]
        caches += own
        states += params_of(tree) if each.states else ()
        trees.append(tuple(param for param in every if param not in own))
    named = sorted((t for t in trees if any(p.path for p in t)), key=_bytes, reverse=True)
    held = [tree for tree, each in zip(trees, found, strict=True) if each.held]
    # a tree that has the arrays of another one holds moments of these
    by_hand = [t for t in named if _is_trained(t, [p for o in trees if o is not t for p in o])][:1]
    trained = [t for t in named if t in held or _is_trained(t, states)]
    trained = trained or by_hand or named[:1]
    inside = {module for tree in trained for module in _modules(tree)}
    params = _together([*trained, *(t for t in named if not inside.isdisjoint(_modules(t)))])
    if not params:
        message = "the step is given no tree of parameters"
        help = "name the arrays themselves: `--arrays MODULE:FUNCTION`"
        raise ShardspecError((Diagnostic(codes.BAD_STEP, message, help=help),))
    known = {param.path: param.shape for param in params}
    caches = [each for each in caches if each.rank and known.get(each.path) != each.shape]
    # moments say that code trains which cannot be traced yet
    if back is None or not caches or (by_hand and not back):
        return StepArrays(params)
    by_path = {each.path: each for each in reversed(caches) if each.path not in known}
    caches = [each for path, each in reversed(by_path.items()) if path]
    others = (p for tree in trees if tree is not named[0] for p in tree if p.dtype != _KEY)
    rows = frozenset(param.shape[0] for param in others if param.rank)
    return StepArrays(params, True, tuple(caches), rows)


def _modules(params: Params) -> set[str]:
    """Return the modules that arrays are in; none of what is at the top."""
    return {each.path.rpartition("/")[0] for each in params} - {""}


def _together(trees: Sequence[Params]) -> Params:
    """Return the arrays of several models; of those with one path, that of the largest model."""
    every: dict[str, Param] = {}
    for tree in trees:
        for param in tree:
            every.setdefault(param.path, param)
    return tuple(every.values())


def _is_trained(params: Params, states: Sequence[Param]) -> bool:
    """Say whether optimizer state has an array for a parameter."""
    first = max(params, key=lambda each: each.bytes)
    end = f"/{first.path}"
    return any(each.shape == first.shape and each.path.endswith(end) for each in states)


def _bytes(params: Params) -> int:
    return sum(param.bytes or 0 for param in params)


def _is_cache(argument: str, param: Param, back: frozenset[object] | None) -> bool:
    """Say whether an array is called a cache, or comes back from the step with new values."""
    if argument in CACHES or back is None:
        return argument in CACHES
    parts = param.path.split("/")
    if not _PARTS.isdisjoint(parts) or parts[-1].startswith(_CACHED):
        return True
    path = f"{argument}/{param.path}".rstrip("/")
    return param.rank >= _LEAST_RANK and not back.isdisjoint(
        ((param.path, param.shape), (path, param.shape))
    )


def _returned(call: Call, resolver: Resolver) -> frozenset[object] | None:
    """Return the arguments that a step returns with new values; None where it has gradients."""
    try:
        program = program_of(resolver, *call)
    except Exception:  # the code wants a spec that is still to be written: names have to do
        return frozenset()
    jaxpr = program.jaxpr.jaxpr
    if any(map(is_transposed, equations_of(jaxpr))):
        return None
    return frozenset(
        (program.given[at].path, program.given[at].shape)
        for result, at in program.passed_on
        if jaxpr.outvars[result] is not jaxpr.invars[at]
    )
