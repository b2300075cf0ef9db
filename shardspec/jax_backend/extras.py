"""Packages that only some names here need: an absent one says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def required(module: str, *, extra: str, for_what: str) -> Any:
    """Return a module of an optional dependency.

    Args:
      extra: the extra of shardspec that brings it.
      for_what: what cannot be done without it, as the subject of a sentence.

    Raises:
      ImportError: it is not installed; says what is.
    """
    package = module.partition(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = f"{for_what} needs `{package}`: pip install 'shardspec[{extra}]'"
        raise ImportError(message, name=package) from None
    return import_module(module)
