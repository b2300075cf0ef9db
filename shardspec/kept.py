"""Answers of a method that are worked out once, and kept as long as their object lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Owner = TypeVar("Owner")
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")

_NOTHING = object()


def kept(
    method: Callable[Concatenate[Owner, Asked], Answer],
) -> Callable[Concatenate[Owner, Asked], Answer]:
    """Return a method that gives the same answer to the same arguments, which can be hashed.

    The object keeps its answers in `_kept`, a dict of its own.
    """

    @functools.wraps(method)
    def asked(self: Owner, *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        answers: dict[object, Any] = self._kept  # type: ignore[attr-defined]
        key = (method, args, *kwargs.items()) if kwargs else (method, args)
        found: Any = answers.get(key, _NOTHING)
        if found is _NOTHING:
            found = answers[key] = method(self, *args, **kwargs)
        return found  # type: ignore[no-any-return]

    return asked  # type: ignore[return-value]
