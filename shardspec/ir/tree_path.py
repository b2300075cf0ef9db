"""One path for one array, live or saved: the keys from the root of its tree, `/`-joined.

The collection `params` of a Linen variables dict adds no component, as in T5X, so one spec
serves Linen, NNX and plain trees. Other collections keep their name: `batch_stats/bn/mean`.
"""

from __future__ import annotations

from collections.abc import Sequence

#: The one component that is dropped, at the root only.
PARAMS = "params"


def tree_path(components: Sequence[str]) -> str:
    """Return the path of the array under these keys.

    >>> tree_path(["params", "mlp", "kernel"]), tree_path(["batch_stats", "mean"])
    ('mlp/kernel', 'batch_stats/mean')
    """
    return rooted("/".join(components))


def rooted(path: str) -> str:
    """Return a path from the root of a tree without the collection that adds no component.

    >>> rooted("params/mlp/wi"), rooted("params")
    ('mlp/wi', 'params')
    """
    return path.removeprefix(f"{PARAMS}/")
