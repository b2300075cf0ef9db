"""A declarative sharding-spec compiler for JAX: rules in, NamedShardings and reasons out.

Importing this loads neither jax nor numpy; `Resolver` loads jax when it is first used. The public
names are those of `__init__.pyi`, for type checkers and for this module alike.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from shardspec.versions import PACKAGE

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
#: Where a public name lives, which is loaded when it is first asked for.
_HOMES = {
    name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.MULTILINE)
}
__all__ = sorted(_HOMES)
__version__ = PACKAGE


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'shardspec' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
