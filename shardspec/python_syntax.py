"""Python's parser, for one thread at a time.

CPython 3.11 counts the depth of a tree in a place that all threads share: if another thread
parses meanwhile, it ends in a `SystemError` (gh-106905). The filters of warnings are shared, too.
"""

import ast
import threading
import warnings
from typing import Any

_ALONE = threading.Lock()


def parsed(text: str) -> ast.Module:
    """Return the tree of a module; what it warns of stays unsaid.

    Raises:
      SyntaxError, ValueError, RecursionError, MemoryError: as of `ast.parse`.
    """
    tree: ast.Module = _tree(text, "exec")
    return tree


def expression(text: str) -> ast.expr:
    """Return the tree of an expression, raising as `parsed` does."""
    tree: ast.Expression = _tree(text, "eval")
    return tree.body


def _tree(text: str, mode: str) -> Any:
    with _ALONE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode=mode)
