"""The page of each finding, found by name: `lints/<name>.py` holds it as its docstring.

Findings that the readers report have a module without a check, so that every code has one page
in one place.
"""

from __future__ import annotations

import inspect
from importlib import import_module

from shardspec.diagnostics import Code


def page(code: Code) -> str:
    """Return the docstring of the module that documents `code`."""
    module = import_module(f"shardspec.lints.{code.name.replace('-', '_')}")
    return inspect.cleandoc(module.__doc__ or "")
