"""The folder that several paths share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile


def shared(paths: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the components that all of `paths` begin with.

    >>> shared([("layers", "mlp", "wi"), ("layers", "mlp", "wo")])
    ('layers', 'mlp')
    """
    columns = zip(*paths, strict=False)
    return tuple(column[0] for column in takewhile(lambda each: len(set(each)) == 1, columns))
