"""The modules of the package, each read and parsed once for all tests that look at code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shardspec"
MODULES = tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def text_of(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a module as it is parsed."""
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, in the order of `ast.walk`."""
    return tuple(ast.walk(tree_of(path)))
