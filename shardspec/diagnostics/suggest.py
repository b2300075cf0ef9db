"""The nearest known name to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(
    name: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.6
) -> tuple[str, ...]:
    """Return up to `count` of `known` that look like `name`, the nearest first.

    >>> nearest("tenosr", ["data", "tensor"])
    ('tensor',)
    """
    import difflib

    candidates = sorted(set(known))
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    found = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=cutoff)
    return tuple(lowered[match] for match in found)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return "did you mean `x`?", or None when nothing is near."""
    found = nearest(name, known)
    return f"did you mean `{found[0]}`?" if found else None


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Return names in backticks for a message, cut after `limit`.

    >>> listed(["b", "a"])
    '`b`, `a`'
    """
    names = list(names)
    shown = ", ".join(f"`{name}`" for name in names[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown
