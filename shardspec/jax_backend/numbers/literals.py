"""Import a user's modules with smaller numbers written in them.

Most code has its sizes written in it: `EMBED = 4096`. A step that is run small needs small ones. A
module is read as ever, and in its syntax tree an integer that is a size of the step gets the small
size. Nothing is written, and Python's own cache of compiled modules is neither read nor filled.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from shardspec.jax_backend.numbers.sizes import SmallSizes
from shardspec.programs.op_names import is_library, shown

_MOST_MODULES = 1000
#: What a share or a number of tokens is called beyond which experts drop them.
_CAPACITY = re.compile(r"capacity", re.IGNORECASE)
#: What code counts with, and what a number is called that stands in it.
_RANGE = "range"


@dataclass(frozen=True, slots=True)
class Written:
    """A size that is written in code, and what it became.

    Attributes:
      name: of what it is assigned to, where it is.
    """

    file: str
    line: int
    name: str
    size: int
    small: int

    def __str__(self) -> str:
        """Return `train.py:8 EMBED = 4096 (64)`."""
        name = f"{self.name} = " if self.name else ""
        return f"{shown(self.file)}:{self.line} {name}{self.size} ({self.small})"


@dataclass
class SmallerCode(importlib.abc.MetaPathFinder):
    """An importer of the user's modules.

    Attributes:
      sizes: the small size for each.
      room: how many times capacities become larger.
      written: what was replaced, in the order of imports.
      rooms: the lines of those capacities.
    """

    sizes: SmallSizes
    room: int = 1
    written: list[Written] = field(default_factory=list)
    rooms: list[str] = field(default_factory=list)

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how a module of the user's is imported; None of all others."""
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        file = None if found is None else found.origin
        if found is None or file is None or not is_users(file):
            return None
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=_Loader(name, file, self),
            submodule_search_locations=found.submodule_search_locations,
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, file: str, finder: SmallerCode) -> None:
        super().__init__(name, file)
        self._finder = finder

    def get_code(self, fullname: str) -> CodeType:
        """Return the code with its numbers replaced."""
        tree = ast.parse(Path(self.path).read_bytes(), self.path)
        if self._finder.room > 1:
            for each in _capacities(tree):
                _enlarge(each, self._finder.room)
                self._finder.rooms.append(f"{shown(self.path)}:{each.lineno}")
        smaller = _Smaller(self.path, self._finder.sizes)
        made: Any = smaller.visit(tree)
        code = self.source_to_code(made, self.path)
        self._finder.written += smaller.written
        return code


class _Smaller(ast.NodeTransformer):
    """Replaces sizes in a tree, and notes each with the name it is assigned to."""

    def __init__(self, file: str, sizes: SmallSizes) -> None:
        self.file = file
        self.sizes = sizes
        self.written: list[Written] = []
        self._names: dict[int, str] = {}

    def visit(self, node: ast.AST) -> Any:
        """Return the tree with its sizes replaced."""
        if isinstance(node, ast.Module):
            self._names = dict(pair for each in ast.walk(node) for pair in _named(each))
        return super().visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Return the small size for a size."""
        name, size = self._names.get(id(node), ""), node.value
        small = self.sizes.named(size, name) if type(size) is int else None
        if small is None or type(size) is not int:
            return node
        self.written.append(Written(self.file, node.lineno, name, size, small))
        return ast.copy_location(ast.Constant(small), node)


def states_capacity(module: str) -> bool:
    """Say whether a module, or one of the user's that it is made of, states a capacity."""
    return any(next(_capacities(tree), None) is not None for tree in _trees(module))


def _capacities(tree: ast.AST) -> Iterator[ast.Assign]:
    """Yield what assigns a capacity that is computed: `capacity = int(FACTOR * tokens / EXPERTS)`.

    A capacity that is a number is a size, as of an array.
    """
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and len(each.targets) == 1:
            name = getattr(each.targets[0], "id", "")
            is_computed = isinstance(each.value, ast.BinOp | ast.Call | ast.IfExp)
            if is_computed and _CAPACITY.search(name):
                yield each


def _enlarge(assignment: ast.Assign, times: int) -> None:
    """Multiply what an assignment assigns."""
    made = ast.BinOp(assignment.value, ast.Mult(), ast.Constant(times))
    assignment.value = ast.fix_missing_locations(ast.copy_location(made, assignment.value))


def loops_written(module: str) -> Iterator[str]:
    """Yield what the numbers are called that a module counts to: `for i in range(N)`.

    Args:
      module: its name; those of the user's that it is made of are read, too.
    """
    yield _RANGE
    for tree in _trees(module):
        for each in ast.walk(tree):
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == _RANGE:
                names = (getattr(arg, "id", getattr(arg, "attr", "")) for arg in each.args)
                yield from filter(None, names)


def _trees(module: str) -> Iterator[ast.AST]:
    """Yield the syntax trees of a module and of those of the user's that its names come from."""
    waiting, seen = [module], set[str]()
    while waiting and len(seen) < _MOST_MODULES:
        name = waiting.pop()
        found = sys.modules.get(name) if name not in seen else None
        seen.add(name)
        file = getattr(found, "__file__", None) or ""
        if found is None or not is_users(file):
            continue
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            yield ast.parse(Path(file).read_bytes(), file)
        for value in list(vars(found).values()):
            owner = value.__name__ if isinstance(value, ModuleType) else _owner(value)
            waiting += [owner] if isinstance(owner, str) else []


def _owner(value: Any) -> Any:
    with contextlib.suppress(Exception):  # any object may stand in a module
        return getattr(value, "__module__", None)
    return None


def _named(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the identity of each value that a node assigns or passes, and what it is called."""
    pairs: list[tuple[Any, ast.AST | None]] = []
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
    elif isinstance(node, ast.AnnAssign):
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.keyword):
        pairs = [(node.arg, node.value)]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == _RANGE:
        pairs = [(_RANGE, each) for each in node.args]
    elif isinstance(node, ast.Dict):
        keys = (getattr(each, "value", None) for each in node.keys)
        pairs = list(zip(keys, node.values, strict=True))
    elif isinstance(node, ast.arguments):
        plain = [*node.posonlyargs, *node.args][-len(node.defaults) or None :]
        pairs = [(each.arg, value) for each, value in zip(plain, node.defaults, strict=False)]
        own = zip(node.kwonlyargs, node.kw_defaults, strict=True)
        pairs += [(each.arg, value) for each, value in own]
    for target, value in pairs:
        name = getattr(target, "id", getattr(target, "attr", target))
        if isinstance(name, str) and isinstance(value, ast.Constant):
            yield id(value), name


def is_users(file: str) -> bool:
    """Say whether a file is source of the user's, and of no package that is installed."""
    is_installed = "site-packages" in file or "dist-packages" in file
    return file.endswith(".py") and not is_installed and not is_library(os.path.abspath(file))


def numbers_written(module: str) -> Iterator[tuple[str, int]]:
    """Yield the integers that are written in a module and those of the user's that it is made of.

    Each with what it is called.
    """
    for tree in _trees(module):
        names = dict(pair for each in ast.walk(tree) for pair in _named(each))
        for each in ast.walk(tree):
            if isinstance(each, ast.Constant) and type(each.value) is int:
                yield names.get(id(each), ""), each.value


@contextlib.contextmanager
def smaller_code(sizes: SmallSizes, room: int = 1) -> Iterator[SmallerCode]:
    """Import the user's modules anew, with small sizes; afterwards they are as they were.

    Args:
      room: how many times capacities become larger.
    """
    kept = {
        name: module
        for name, module in list(sys.modules.items())
        if name != "__main__" and is_users(getattr(module, "__file__", None) or "")
    }
    finder = SmallerCode(sizes, room)
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield finder
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if is_users(getattr(module, "__file__", None) or "") and name != "__main__":
                del sys.modules[name]
        sys.modules.update(kept)
