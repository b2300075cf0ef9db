"""The page of each finding, found by name: `lints/<name>.py` holds it as its docstring.

Findings that the readers report have a module without a check, so that every code has one page
in one place. A page is read from the source, not imported: that a reader asks what a finding
means should not load what finds it.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

from shardspec.diagnostics import Code


def page(code: Code) -> str:
    """Return the docstring of the module that documents `code`."""
    name = code.name.replace("-", "_")
    source = Path(__file__).with_name(f"{name}.py")
    if source.is_file():
        return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    module = import_module(f"shardspec.lints.{name}")  # where only compiled files are installed
    return inspect.cleandoc(module.__doc__ or "")
