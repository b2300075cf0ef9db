"""A declarative sharding-spec compiler for JAX: rules in, NamedShardings and reasons out.

Importing this loads neither jax nor numpy; `Resolver` loads jax when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardspec.versions import PACKAGE

if TYPE_CHECKING:
    from shardspec.diagnostics import Diagnostic, ShardspecError
    from shardspec.jax_backend.live import LockWarning
    from shardspec.jax_backend.resolver import Resolver
    from shardspec.public import Plan, Spec, load, loads
    from shardspec.report.drawing import Drawing

__all__ = [
    "Diagnostic",
    "Drawing",
    "LockWarning",
    "Plan",
    "Resolver",
    "ShardspecError",
    "Spec",
    "load",
    "loads",
]
__version__ = PACKAGE

_HOMES = {
    "Diagnostic": "shardspec.diagnostics",
    "Drawing": "shardspec.report.drawing",
    "LockWarning": "shardspec.jax_backend.live",
    "Plan": "shardspec.public",
    "Resolver": "shardspec.jax_backend.resolver",
    "ShardspecError": "shardspec.diagnostics",
    "Spec": "shardspec.public",
    "load": "shardspec.public",
    "loads": "shardspec.public",
}


if not TYPE_CHECKING:  # a type checker that sees it takes every name for a public one

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for."""
        if name not in _HOMES:
            raise AttributeError(f"module 'shardspec' has no attribute '{name}'")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
