"""The RE2 library behind three functions; without it, patterns run under `re`.

A set of patterns is one automaton: a path is read once for all of them. A set that runs out of
memory answers "no match", so a last pattern that always matches says that it did not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from shardspec.frontend.patterns.limits import KEPT

MEMORY_BYTES = 64 << 20

_ALWAYS = r"(?s:.*)"


@dataclass(frozen=True, slots=True)
class Re2Set:
    """Patterns compiled together.

    Attributes:
      count: how many; the pattern that always matches comes after them.
    """

    count: int
    compiled: Any = field(compare=False, repr=False)

    def indices(self, text: str) -> list[int] | None:
        """Return which patterns match the whole of `text`, or None when memory ran out."""
        found: list[int] | None = self.compiled.Match(text)
        if found is None:
            return None
        found.remove(self.count)
        return found

    def first(self, text: str) -> int | None:
        """Return the first pattern that matches, `count` for none, None when memory ran out."""
        found = self.compiled.Match(text)
        return None if found is None else min(found)


@lru_cache(maxsize=1)
def has_re2() -> bool:
    """Say whether google-re2 is installed."""
    return find_spec("re2") is not None


@lru_cache(maxsize=KEPT)
def re2_pattern(source: str) -> Any:
    """Return one compiled pattern, or None where RE2 refuses it."""
    import re2

    try:
        return re2.compile(source, _options())
    except re2.error:
        return None


def re2_set(sources: Iterable[str]) -> Re2Set | None:
    """Return patterns compiled together, or None where RE2 refuses them."""
    import re2

    compiled = re2.Set.FullMatchSet(_options())
    try:
        count = len([compiled.Add(source) for source in sources])
        compiled.Add(_ALWAYS)
        compiled.Compile()
    except re2.error:
        return None
    return Re2Set(count, compiled)


def _options() -> Any:
    import re2

    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.log_errors = False
    return options
