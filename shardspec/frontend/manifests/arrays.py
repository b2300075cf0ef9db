"""What every reader gives back, and the two ways in which a file can be no good."""

from __future__ import annotations

from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span
from shardspec.diagnostics.codes import (
    BAD_CHECKPOINT,
    BAD_MANIFEST,
    DUPLICATE_ARRAY,
    UNSAFE_MANIFEST,
)
from shardspec.diagnostics.diagnostic import point
from shardspec.ir.param import Param, Params
from shardspec.ir.partition import PartitionSpec

#: A file that lists more is damaged or hostile: the largest models have some 100,000.
MOST_ARRAYS = 1_000_000


class Arrays(NamedTuple):
    """The arrays that a file lists or holds.

    Attributes:
      partitions: path and PartitionSpec of the arrays whose layout the file states (T5X, Orbax).
      sources: the texts among the files that were read; spans of `params` lie in them.
    """

    params: Params = ()
    partitions: tuple[tuple[str, PartitionSpec], ...] = ()
    sources: tuple[SourceFile, ...] = ()


Outcome = tuple[Arrays, tuple[Diagnostic, ...]]


def in_bytes(number: int) -> str:
    """Return a number of bytes for a message.

    >>> in_bytes(1), in_bytes(20_000)
    ('1 byte', '20,000 bytes')
    """
    return f"{number:,} byte{'' if number == 1 else 's'}"


def refused(*diagnostics: Diagnostic) -> Outcome:
    """Return no arrays, and why."""
    return Arrays(), diagnostics


def damaged(message: str, span: Span | None = None, help: str | None = None) -> Diagnostic:
    """Return the finding for a file that breaks the rules of its own format."""
    return point(BAD_CHECKPOINT, message, span, help=help or "is it whole? fetch or save it again")


def foreign(message: str, help: str) -> Diagnostic:
    """Return the finding for a sound file that holds no arrays we can name."""
    return point(BAD_CHECKPOINT, message, None, help=help)


def unsafe(message: str, help: str) -> Diagnostic:
    """Return the finding for a file that cannot be read without running what is in it."""
    return point(UNSAFE_MANIFEST, message, None, help=help)


def no_dtype(path: str, dtype: str, name: str) -> Diagnostic:
    """Return the finding for an array whose elements are of no dtype we know."""
    message = f"`{path}` in `{name}` has the dtype `{dtype}`, which shardspec does not know"
    return point(BAD_MANIFEST, message, None, help="list the arrays in a manifest: docs/arrays.md")


def distinct(params: Params, name: str) -> tuple[Params, tuple[Diagnostic, ...]]:
    """Return the first of the arrays that share a path, and a finding for each other one."""
    by_path: dict[str, Param] = {}
    found = []
    for param in params:
        first = by_path.setdefault(param.path, param)
        if first is not param:
            found.append(_twice(first, param, name))
    return (tuple(by_path.values()), tuple(found)) if found else (params, ())


def _twice(first: Param, second: Param, name: str) -> Diagnostic:
    labels = [Label(second.span, "stands for it again")] if second.span else []
    if first.span and second.span and first.span != second.span:
        labels.append(Label(first.span, "stands for it first", primary=False))
    message = f"two arrays of `{name}` have the path `{second.path}`: {first} and {second}"
    help = "take one of the two out; the first counts"
    return Diagnostic(DUPLICATE_ARRAY, message, tuple(labels), help=help)
