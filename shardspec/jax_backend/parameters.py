"""The parameters and caches a step is called with, for a spec that is still to be written."""

from __future__ import annotations

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
#: How Flax begins the names of the arrays of a cache.
_CACHED = "cached_"
#: What random keys are made of, whose first size is no number of rows.
_KEY = "u32"


class StepArrays(NamedTuple):
    """What a step is called with.

    Attributes:
      caches: what a step that serves reads and returns; empty for any other step.
      rows: how many rows the other arguments of such a step have.
    """

    params: Params
    caches: Params = ()
    rows: frozenset[int] = frozenset()


def arrays_of(call: Call, resolver: Resolver) -> StepArrays:
    """Return the parameters that a step gets: those of a train state, else the largest tree.

    Optimizer state, caches, and what is an array by itself are none. A step serves if it gets
    caches, has no optimizer state and computes no gradients. A cache is called so, or the step
    returns it with new values.

    Raises:
      ShardspecError: there are no parameters.
    """
    names = argument_names(call.function, len(call.args), list(call.kwargs))
    found = [contents_of(tree) for tree in (*call.args, *call.kwargs.values())]
    back = None if any(e.held or e.states for e in found) else _returned(call, resolver)
    trees: list[Params] = []
    caches: list[Param] = []
    for name, tree, each in zip(names, (*call.args, *call.kwargs.values()), found, strict=True):
        every = () if each.states else params_of(each.held.params if each.held else tree)
        own = [param for param in every if _is_cache(name, param, back or frozenset())]
        caches += own
        trees.append(tuple(param for param in every if param not in own))
    params = max((tree for tree in trees if any(p.path for p in tree)), key=_bytes, default=())
    if not params:
        message = "the step is given no tree of parameters"
        help = "name the arrays themselves: `--arrays MODULE:FUNCTION`"
        raise ShardspecError((Diagnostic(codes.BAD_STEP, message, help=help),))
    known = {param.path for param in params}
    caches = [each for each in caches if each.rank and each.path not in known]
    if back is None or not caches:
        return StepArrays(params)
    others = (p for tree in trees if tree is not params for p in tree if p.dtype != _KEY)
    rows = frozenset(param.shape[0] for param in others if param.rank)
    return StepArrays(params, tuple(caches), rows)


def _bytes(params: Params) -> int:
    return sum(param.bytes or 0 for param in params)


def _is_cache(argument: str, param: Param, back: frozenset[object]) -> bool:
    """Say whether an array is called a cache, or comes back from the step with new values."""
    parts = param.path.split("/")
    if argument in CACHES or not CACHES.isdisjoint(parts) or parts[-1].startswith(_CACHED):
        return True
    path = f"{argument}/{param.path}"
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
