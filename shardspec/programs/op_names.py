"""What JAX calls the operations of a program, and where in the user's code they stand.

A name says what was being done, `jit(step)/jvp()/layers/dot_general`, in a lowered program as in a
compiled one; beside it are the frames of Python that asked for it, innermost first. A frame of a
library is of no use to a user, so the place is the first frame outside of those that JAX code is
written with.

The innermost frame of the user's is a helper's where a model has one: `dense` of `linears.py`
computes each product of each layer, and its line says nothing. So a line is shown at the line that
calls it if it is called in several places, and if each of these calls computes no more than one
product. A block of several products is no helper, in however many places it is called, as layers
are that are written out. JAX leaves frames out where a function is traced once for many calls. A
caller that is further out in other stacks of a line is therefore none of it, and not shown.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from shardspec.ir.step import Phase, Place

#: Packages that user code calls and that never are the user's code.
_LIBRARIES = frozenset(
    (
        *("jax", "jaxlib", "flax", "optax", "equinox", "haiku", "orbax", "chex", "shardspec"),
        *("click", "numpy", "einops", "jaxtyping", "beartype", "penzai", "qwix", "distrax"),
        *("transformer_engine", "tokamax", "jax_triton"),
    )
)
_PACKAGES = re.compile(r"(?:site|dist)-packages[/\\]([^/\\]+)")
#: How many folders above the working one still are near.
_NEAR = 2
#: Parts of a name that JAX adds, and that tell a reader nothing.
_MACHINERY = re.compile(
    r"^(?:jit\(.*\)|jvp\(\)|transpose\(jvp\(\)\)|while|body|cond|closed_call|checkpoint|remat\d*"
    r"|rematted_computation|branch_\d+_fun|custom_[jv][jv]p(?:_call)?|shard_map|scan|pjit)$"
)
#: What `Resolver.constrain` calls the scope of a constraint, before the names that it was given.
CONSTRAINED = "shardspec:"
#: What a lowered `step:` calls the scope of operations that are one kernel on a device.
KERNEL = "shardspec.kernel"
_WRAPPED = re.compile(r"^(?:transpose|jvp|vmap)\((.*)\)$")


def place_of(frames: Iterable[tuple[str, int]], name: str) -> Place:
    """Return the user's line; unknown where no frame is the user's.

    Args:
      frames: file and line, innermost first.
    """
    file, line = next((frame for frame in frames if not is_library(frame[0])), ("", 0))
    return Place(shown(file), line, scope(name)) if file else Place(scope=scope(name))


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Say whether a file belongs to Python or to a package that models are written with."""
    found = _PACKAGES.search(file)
    if found:
        return found.group(1).partition(".")[0] in _LIBRARIES
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = (sysconfig.get_path("stdlib"), here)
    return file.startswith("<") or any(file.startswith(folder + os.sep) for folder in folders)


def is_users(file: str) -> bool:
    """Say whether a file is source of the user's, and of no package that is installed."""
    is_source = file.endswith(".py") and not _PACKAGES.search(file)
    return is_source and not is_library(os.path.abspath(file))


def shown(file: str) -> str:
    """Return the path as a user would write it: from the working folder, if it lies near that.

    Of an installed package it begins with the package.
    """
    return _shown(file, os.getcwd())


@lru_cache(maxsize=4096)
def _shown(file: str, folder: str) -> str:
    from_here = os.path.relpath(file, folder)
    if not from_here.startswith(os.pardir):
        return from_here
    found = _PACKAGES.search(file)
    if found:
        return file[found.start(1) :]
    return from_here if from_here.split(os.sep).count(os.pardir) <= _NEAR else file


@lru_cache(maxsize=65536)
def scope(name: str) -> str:
    """Return the parts of an operation's name that the user gave, or that tell an einsum."""
    parts = [_unwrapped(part) for part in split_name(name)[:-1]]
    kept = (part for part in parts if part and not _MACHINERY.match(part))
    return "/".join(part for part in kept if not part.startswith(CONSTRAINED))


def constraint_scope(names: str) -> str:
    """Return the scope of a constraint by these names, or by the name of an activation.

    >>> constraint_names(f"jit(step)/{constraint_scope('decoder/out')}/sharding_constraint")
    'decoder/out'
    """
    return f"{CONSTRAINED}[{names}]" if "/" in names else f"{CONSTRAINED}{names}"


def einsum_in(place: Place) -> str:
    """Return the einsum in whose name an operation runs, empty where there is none."""
    return next((part for part in reversed(place.scope.split("/")) if "->" in part), "")


def constraint_names(name: str) -> str:
    """Return the names that `Resolver.constrain` was given for an operation, or none."""
    parts = [_unwrapped(part) for part in split_name(name)]
    found = [part for part in parts if part.startswith(CONSTRAINED)]
    names = found[-1].removeprefix(CONSTRAINED) if found else ""
    return names[1:-1] if names.startswith("[") and names.endswith("]") else names


def _unwrapped(part: str) -> str:
    """Return a part of a name without the transformations around it.

    >>> _unwrapped("transpose(jvp(bte,ev->btv))")
    'bte,ev->btv'
    """
    found = _WRAPPED.match(part)
    while found:
        part = found.group(1)
        found = _WRAPPED.match(part)
    return part


def split_name(name: str) -> list[str]:
    """Return the parts of an operation's name: `/` inside brackets does not divide."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(name):
        depth += (letter in "([") - (letter in ")]")
        if letter == "/" and depth <= 0:
            parts.append(name[start:at])
            start = at + 1
    return [*parts, name[start:]]


def phase_of(name: str) -> Phase | None:
    """Return the phase that JAX's own words in a name tell, None where they tell none."""
    if "rematted_computation" in name:
        return "remat"
    if "transpose(" in name:
        return "backward"
    return "forward" if "jvp(" in name else None


#: What JAX calls operations that are worth a line of their own, each in its helper.
_PRODUCTS = frozenset(
    ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general", "pallas_call")
)
#: Frames of the user's that are looked at: JAX notes ten of a function.
_DEEPEST = 16
#: The frames by which a call is known, and those of helpers that call each other.
_NEAREST, _HELPERS = 6, 9


class Frame(NamedTuple):
    """A frame of Python: where its code calls the next one; columns count from 0."""

    file: str
    line: int
    column: int = 0

    @property
    def at(self) -> tuple[str, int]:
        """Return its file and line."""
        return self.file, self.line


#: Frames of the user's, the innermost first.
Stack = tuple[Frame, ...]


def stack_of(frames: Iterable[Frame]) -> Stack:
    """Return the frames of the user's; those of one line that follow each other are one.

    Args:
      frames: the innermost first.
    """
    return tuple(islice(_own(frames), _DEEPEST))


def _own(frames: Iterable[Frame]) -> Iterator[Frame]:
    before = None
    for frame in frames:
        if frame.file and not is_library(frame.file) and frame.at != before:
            before = frame.at
            yield frame


def is_product(name: str) -> bool:
    """Say whether an operation of this name is one that a helper may compute."""
    return name.rpartition("/")[2] in _PRODUCTS


class Callers:
    """The helpers of a program, by the stacks of its operations."""

    def __init__(self, operations: Iterable[tuple[Stack, str]] = ()) -> None:
        """Note who calls what.

        Args:
          operations: their stacks and names.
        """
        found = dict.fromkeys((stack, is_product(name)) for stack, name in operations)
        self._callers: defaultdict[tuple[str, int], set[Frame]] = defaultdict(set)
        self._products: defaultdict[Stack, set[Frame]] = defaultdict(set)
        further: defaultdict[tuple[str, int], set[Frame]] = defaultdict(set)
        for stack, is_one in found:
            for at, frame in enumerate(stack[:-1]):
                self._callers[frame.at].add(stack[at + 1])
                further[frame.at].update(stack[at + 2 :])
                if is_one:
                    self._products[_call(stack, at)].add(frame)
        for line, own in further.items():
            self._callers[line] -= own

    def place(self, stack: Stack, name: str) -> Place:
        """Return the line of an operation: its own, or the one that calls the helper it is in.

        Args:
          name: what JAX calls the operation.
        """
        if not stack:
            return Place(scope=scope(name))
        own, at = stack[0], self.shown(stack)
        file, line, _ = stack[at]
        return Place(shown(file), line, scope(name), (shown(own.file), own.line) if at else None)

    def shown(self, stack: Stack) -> int:
        """Return which frame is shown: the first, or the one that calls the outermost helper."""
        found = 0
        for at, frame in enumerate(stack[: min(len(stack) - 1, _HELPERS)]):
            if len(self._products.get(_call(stack, at), ())) > 1:
                break
            callers = self._callers.get(frame.at, ())
            if len(callers) > 1 and stack[at + 1] in callers:
                found = at + 1
        return found


def _call(stack: Stack, at: int) -> Stack:
    """Return what tells the call of a frame from other calls: the nearest frames around it."""
    return stack[at + 1 : at + 1 + _NEAREST]
