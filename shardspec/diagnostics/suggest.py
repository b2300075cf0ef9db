"""The nearest known name to a misspelt one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shardspec.diagnostics.name_index import index_of


def nearest(
    name: str,
    known: Iterable[str],
    *,
    without: Collection[str] = (),
    count: int = 1,
    cutoff: float = 0.6,
) -> tuple[str, ...]:
    """Return up to `count` of `known` that look like `name`, the nearest first.

    Args:
      known: of one frozenset, however often it is asked, the index is made once.
      without: those of `known` that are not meant.

    >>> nearest("tenosr", ["data", "tensor"])
    ('tensor',)
    """
    import difflib

    candidates = index_of(known).alike(name, without)
    lowered = {candidate.lower(): candidate for candidate in reversed(candidates)}
    found = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=cutoff)
    return tuple(lowered[match] for match in found)


def did_you_mean(name: str, known: Iterable[str], *, without: Collection[str] = ()) -> str | None:
    """Return "did you mean `x`?", or None when nothing is near."""
    found = nearest(name, known, without=without)
    return f"did you mean `{found[0]}`?" if found else None


def named(noun: str, names: Collection[str]) -> str:
    """Return what is listed with its noun.

    >>> named("target", ["a"]), named("target", ["a", "b"])
    ('target `a`', 'targets `a`, `b`')
    """
    return f"{noun}{'s' if len(names) > 1 else ''} {listed(names)}"


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Return names in backticks for a message, cut after `limit`.

    >>> listed(["b", "a"])
    '`b`, `a`'
    """
    names = list(names)
    shown = ", ".join(f"`{name}`" for name in names[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown
