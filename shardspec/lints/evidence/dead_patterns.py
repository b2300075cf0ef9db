"""Why patterns match nothing: one reason that several share, or a slip in one of its names.

A plan of another tool that is read for the wrong module, or a manifest with another root, makes
every pattern dead at once: the paths have `model.` before what the patterns name. Or a spec names
parts that no path has. What is offered is tried on the arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.diagnostics.suggest import is_slip, nearest
from shardspec.ir.spec import Pattern
from shardspec.lints.evidence.spellings import is_linear
from shardspec.resolve.match import path_matcher

_SEPARATORS = {
    "glob": re.compile(r"([/.])"),
    "regex": re.compile(r"(\[\./\]|\[/\.\]|\\[./]|/)"),
}
_NAME = re.compile(r"[\w-]+")
#: So many names at the start of a pattern may stand in the place of others.
_MOST_BEFORE = 2


class Reason(NamedTuple):
    """Why patterns match nothing; equal for those that have it in common.

    Attributes:
      is_moved: whether they match behind other first names.
    """

    why: str
    help: str
    is_moved: bool = True


class _Moved(NamedTuple):
    """A pattern without its first names, which may match behind other ones."""

    at: int
    before: str
    rest: Pattern
    anywhere: Pattern


def reasons(patterns: Sequence[Pattern], paths: Sequence[str]) -> tuple[Reason | None, ...]:
    """Return why each pattern matches none of the paths, where others may share that."""
    moved = [each for at, pattern in enumerate(patterns) for each in _moved(at, pattern)]
    first = _first_matches([each.anywhere for each in moved], paths)
    found: list[Reason | None] = [None] * len(patterns)
    for each, path in zip(moved, first, strict=True):
        if path is not None and found[each.at] is None:
            found[each.at] = _behind(each, path)
    names = _names(paths) if None in found else frozenset()
    return tuple(
        _without_name(pattern, names) if reason is None else reason
        for pattern, reason in zip(patterns, found, strict=True)
    )


def _moved(at: int, pattern: Pattern) -> Iterator[_Moved]:
    parts = _SEPARATORS[pattern.dialect].split(pattern.text)
    for count in range(_MOST_BEFORE + 1):
        before, after = parts[: 2 * count], parts[2 * count :]
        if len(after) < (3 if count else 1) or not all(map(_NAME.fullmatch, before[::2])):
            return
        if _NAME.fullmatch(after[0]):
            text = "".join(after)
            if pattern.dialect == "regex":
                anywhere = Pattern(f"(?:.*[./])?(?:{text})", "regex")
            else:
                anywhere = Pattern(f"*.{text}" if after[1:2] == ["."] else f"**/{text}")
            if pattern.dialect == "glob" or is_linear(anywhere):
                rest = Pattern(text, pattern.dialect)
                yield _Moved(at, ".".join(before[::2]), rest, anywhere)


def _behind(moved: _Moved, path: str) -> Reason:
    """Return the reason that a path has other names before what a pattern is about."""
    matcher = path_matcher((moved.rest,))
    starts = (0, *(found.end() for found in re.finditer(r"[/.]", path)))
    start = next((at for at in starts if matcher.first_match(path[at:]) is not None), 0)
    mark = path[start - 1] if start else "." if "/" not in path else "/"
    theirs = re.sub(r"\d+", "*", path[:start])
    ours = "".join(f"{name}{mark}" for name in moved.before.split(".") if name)
    if not ours:
        why = f"the paths begin with `{theirs}`, and the patterns do not"
        return Reason(why, f"put `{theirs}` before each pattern")
    if not theirs:
        why = f"the patterns begin with `{ours}`, and the paths do not"
        return Reason(why, f"take `{ours}` out of each pattern")
    why = f"the patterns begin with `{ours}`, and the paths with `{theirs}`"
    return Reason(why, f"write `{theirs}` for `{ours}` in each pattern")


def _without_name(pattern: Pattern, names: frozenset[str]) -> Reason | None:
    missing = next((name for name in _own_names(pattern) if name not in names), None)
    if missing is None:
        return None
    near = nearest(missing, names)
    help = f"the nearest name is `{near[0]}`; " if near else ""
    help += "if only some models have it, make the patterns `optional`"
    return Reason(f"no path has the name `{missing}`", help, is_moved=False)


def slips(patterns: Sequence[Pattern], paths: Sequence[str]) -> tuple[str | None, ...]:
    """Return, for each pattern, how it is spelt with a name that is a slip put right."""
    names = _names(paths) if patterns else frozenset()
    meant = [
        (at, replace(pattern, text=_respelt(pattern, name, near)))
        for at, pattern in enumerate(patterns)
        for name in _own_names(pattern)
        if name not in names
        for near in nearest(name, names)
        if is_slip(name, near)
    ]
    found: list[str | None] = [None] * len(patterns)
    first = _first_matches([pattern for _, pattern in meant], paths)
    for (at, pattern), path in zip(meant, first, strict=True):
        if path is not None:
            found[at] = str(pattern)
    return tuple(found)


def _respelt(pattern: Pattern, name: str, near: str) -> str:
    parts = _SEPARATORS[pattern.dialect].split(pattern.text)
    return "".join(near if part == name else part for part in parts)


def _first_matches(patterns: Sequence[Pattern], paths: Sequence[str]) -> list[str | None]:
    """Return the first path that each pattern matches."""
    found: list[str | None] = [None] * len(patterns)
    matcher = path_matcher(tuple(patterns))
    for path in paths if patterns else ():
        for at in matcher.all_matches(path):
            found[at] = found[at] or path
    return found


def _own_names(pattern: Pattern) -> Iterator[str]:
    """Yield the components of a pattern that are plain names."""
    parts = _SEPARATORS[pattern.dialect].split(pattern.text)[::2]
    yield from (part for part in parts if _NAME.fullmatch(part) and not part.isdecimal())


def _names(paths: Sequence[str]) -> frozenset[str]:
    return frozenset(name for path in paths for name in re.split(r"[/.]", path))
