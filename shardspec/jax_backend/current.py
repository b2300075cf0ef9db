"""The resolver that code is under, where it has none at hand: `shardspec.constrain`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes

Tree = TypeVar("Tree")


class Constraining(Protocol):
    """What a `Resolver` is asked for here."""

    def constrain(
        self,
        x: Any,
        names: Any = None,
        *,
        activation: str | None = None,
        name: str | None = None,
        mapped: Any = None,
    ) -> Any:
        """Return an array with a constraint."""


#: The resolvers whose `with` blocks code is in, the innermost last.
_CURRENT: ContextVar[tuple[Constraining, ...]] = ContextVar("shardspec.current", default=())
#: The resolver that code was last constrained by here.
_USED: list[Constraining] = []


def enter(resolver: Constraining) -> None:
    """Begin a `with` block."""
    _become((*_CURRENT.get(), resolver))


def leave() -> None:
    """End the innermost `with` block."""
    _become(_CURRENT.get()[:-1])


def _become(around: tuple[Constraining, ...]) -> None:
    """Make the last resolver the current one.

    JAX keeps what it has traced, and does not ask under which resolver: where code was constrained
    by another one before, it forgets all.
    """
    if around and _USED and _USED[0] != around[-1]:
        jax.clear_caches()
        _USED.clear()
    _CURRENT.set(around)


def constrain(
    x: Tree,
    names: Any = None,
    *,
    activation: str | None = None,
    name: str | None = None,
    mapped: Any = None,
) -> Tree:
    """Return `x` with a sharding constraint by the resolver whose `with` block this runs in.

    For code that is not given a resolver. Where `--step` traces it, it is under that of the spec.

        with resolver:
            loss = train_step(state, batch)  # calls `shardspec.constrain(x, "batch embed")`

    Args:
      x: an array, or a tree of them; see `Resolver.constrain` for the other arguments.

    Raises:
      ShardspecError: it runs in no such block, or as `Resolver.constrain` does.
    """
    around = _CURRENT.get()
    if not around:
        message = "`shardspec.constrain` runs under no resolver"
        help = "call the step in `with resolver:`, or call `resolver.constrain`"
        raise ShardspecError((Diagnostic(codes.BAD_STEP, message, help=help),))
    _USED[:] = around[-1:]
    found: Tree = around[-1].constrain(x, names, activation=activation, name=name, mapped=mapped)
    return found
