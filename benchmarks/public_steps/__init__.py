"""Steps of public code, predicted and compiled.

    python -m benchmarks.public_steps FOLDER            # all, into data/public_steps.json
    python -m benchmarks.public_steps FOLDER lm1b vit   # some
    python -m benchmarks.public_steps --table           # the table of docs/verify.md

FOLDER has a checkout of each repository, `OWNER+NAME`, at the commit that its file names. Models
are imported from there, as published; what is here builds one training or serving step around
each, with its own rules where it has some. Each step was written before it was predicted for the
first time, and is not changed afterwards: `first` in a row is that prediction. Some repositories
need `ml_collections`, `einops`, `flatbuffers` and `typeguard==2.13.3` on the path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shardspec import Resolver

#: A step and its arguments.
Built = tuple[Callable[..., Any], tuple[Any, ...]]


def placed(tree: Any, shardings: Any) -> Any:
    """Return shapes with the shardings of a tree of the same structure."""
    return jax.tree.map(
        lambda each, at: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=at), tree, shardings
    )


@dataclass(frozen=True, slots=True)
class Public:
    """A step of public code.

    Attributes:
      name: of the step: `lm1b`.
      repository: `google/flax`.
      commit: of the checkout.
      folder: in which its modules are.
      what: in a few words.
      spec: with each machine as a target.
      build: gives the step, with its modules importable.
    """

    name: str
    repository: str
    commit: str
    folder: str
    what: str
    spec: str
    build: Callable[[Resolver], Built]

    @contextmanager
    def importable(self, checkouts: Path) -> Iterator[None]:
        """Make the modules of the repository importable, and forget them afterwards."""
        path = checkouts / self.repository.replace("/", "+") / self.folder
        if not path.is_dir():
            raise SystemExit(f"{self.name}: there is no {path}")
        before = set(sys.modules)
        sys.path.insert(0, str(path))
        try:
            yield
        finally:
            sys.path.remove(str(path))
            new = {name: sys.modules[name] for name in set(sys.modules) - before}
            for name in [each for each, module in new.items() if _is_below(module, path)]:
                del sys.modules[name]


def _is_below(module: Any, path: Path) -> bool:
    """Return whether a module, or a package without a file of its own, is in a folder."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(str(place).startswith(str(path)) for place in places)
