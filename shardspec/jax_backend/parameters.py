"""The parameters among what a step is called with, for a spec that is still to be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.spec import Params
from shardspec.jax_backend.arguments import argument_names
from shardspec.jax_backend.entry_point import Call
from shardspec.jax_backend.step.trace import CACHES
from shardspec.jax_backend.train_state import contents_of
from shardspec.jax_backend.trees import params_of


def parameters_of(call: Call) -> Params:
    """Return the parameters that a step gets: those of a train state, else the largest tree.

    Optimizer state, caches, and what is an array by itself are none.

    Raises:
      ShardspecError: there are none.
    """
    found = max(_trees(call), key=_bytes, default=())
    if not found:
        message = "the step is given no tree of parameters"
        help = "name the arrays themselves: `--arrays MODULE:FUNCTION`"
        raise ShardspecError((Diagnostic(codes.BAD_STEP, message, help=help),))
    return found


def _trees(call: Call) -> Iterator[Params]:
    names = argument_names(call.function, len(call.args), list(call.kwargs))
    trees: Sequence[Any] = (*call.args, *call.kwargs.values())
    for name, tree in zip(names, trees, strict=True):
        held = contents_of(tree)
        if held.held is not None:
            yield params_of(held.held.params)
        elif not held.states and name not in CACHES:
            params = params_of(tree)
            if any(param.path for param in params):
                yield params


def _bytes(params: Params) -> int:
    return sum(param.bytes or 0 for param in params)
