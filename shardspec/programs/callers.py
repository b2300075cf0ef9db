"""The line of the user's code at which an operation is shown, where a helper computes it.

Beside each operation are the frames of Python that asked for it. The innermost one of the user's is
a helper's where a model has one: `dense` of `linears.py` computes each product of each layer, and
its line says nothing. So a line is shown at the line that calls it if it is called in several
places, and if each of these calls computes no more than one product. A block of several products
is no helper, in however many places it is called, as layers are that are written out.

JAX leaves frames out where a function is traced once for many calls. A caller that is further out
in other stacks of a line is therefore none of it, and not shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from shardspec.ir.step import Place
from shardspec.programs.op_names import is_library, scope, shown

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
