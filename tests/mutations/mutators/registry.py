"""Every mutator, in the order of reports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from tests.mutations.mutators import documents, machines, matching, measuring, naming, ordering
from tests.mutations.subjects import Subject
from tests.mutations.text import Mistake

Mutator = Callable[[Subject], Iterator[Mistake]]

MUTATORS: tuple[Mutator, ...] = (
    *naming.MUTATORS,
    *ordering.MUTATORS,
    *matching.MUTATORS,
    *machines.MUTATORS,
    *measuring.MUTATORS,
    *documents.MUTATORS,
)


def title(mutator: Mutator) -> str:
    """Return what a report calls a mutator: the first line of its docstring."""
    return (inspect.getdoc(mutator) or "").splitlines()[0].removesuffix(".")
