"""A compiler that answers at once, in place of the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pytest

from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.cache import Compiled

Answer = Callable[[bytes, Any, compiling.Compiling], Compiled]


def answer(monkeypatch: pytest.MonkeyPatch, made: Answer | Compiled) -> None:
    """Let every compile end so; what a function raises is raised once the program is wanted."""
    monkeypatch.setattr(compiling, "Compile", answering(made))


def answering(made: Answer | Compiled) -> type:
    """Return a class in the place of `Compile`."""

    class Fake:
        def __init__(self, target: Any, how: compiling.Compiling, order: str = "t5x") -> None:
            compiling.compiler_of(compiling._hardware(target))
            self.target, self.how, self.module = target, how, b""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *error: object) -> None: ...

        def give(self, module: bytes) -> None:
            self.module = module

        def result(self, tell: Any) -> Compiled:
            if isinstance(made, Compiled):
                return made
            return made(self.module, self.target, self.how)

    return Fake
