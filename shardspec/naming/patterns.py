"""Arrays with equal names -> few patterns for exactly these.

Numbers become `*` where nothing depends on them, and the front of a path goes where its end tells
the arrays apart: `model.layers.{0..31}.mlp.up_proj.weight` is `*.up_proj.weight`, `wi_{0,1}/kernel`
anywhere is `**/wi_*/kernel`. Patterns that differ in one component are put into braces. What the
patterns then match is asked of the matcher itself; where one takes too much, the arrays of it get
patterns of their own, down to the paths as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from shardspec.diagnostics.words import by_key, numbers_apart, spelt, template
from shardspec.ir.spec import Pattern
from shardspec.resolve.match import PathMatcher

Answer = TypeVar("Answer", bound=Hashable)

_SPECIAL = re.compile(r"[*?{}\\,]|\[(?=[0-9]{1,18}-[0-9]{1,18}\])")
#: A component that says nothing of what stands below: a number, or those of layers.
_NUMBERS = re.compile(r"\*|[0-9]+|\{[0-9.,]+\}")
#: Dots between components, and not those of a range.
_DOTS = re.compile(r"\{[^{}]*+\}|\.")
_LEAST_PARTS = 2
_MOST_PARTS = 5
_MOST_IN_BRACES = 12
_LONGEST = 300


class Group(NamedTuple):
    """A pattern and the paths that it is for."""

    pattern: str
    paths: tuple[str, ...]


def exact(path: str) -> str:
    r"""Return a glob that matches one path, whatever stands in it.

    >>> exact("a{0}/b*"), exact("re:x"), exact("x[0-3]/y[a]")
    ('a\\{0\\}/b\\*', '\\re:x', 'x\\[0-3]/y[a]')
    """
    glob = _SPECIAL.sub(lambda found: f"\\{found.group()}", path)
    return f"\\{glob}" if glob.startswith("re:") else glob


def patterns_for(
    wanted: Mapping[str, Answer], others: Sequence[str]
) -> tuple[tuple[Group, Answer], ...]:
    """Return patterns with their answers; the first that matches a path has the right one.

    Args:
      wanted: the answer for each path, in the order in which they are to be told.
      others: paths that no pattern may match.

    Invariants:
      right: the first pattern that matches a path of `wanted` has its answer.
      none_else: no pattern matches a path of `others`.
    """
    if not wanted:
        return ()
    answers: dict[str, Answer | None] = {**dict.fromkeys(others), **wanted}
    forms = _forms(answers)
    tried = dict.fromkeys(wanted, 0)
    while True:
        made = {path: forms[path][at] for path, at in tried.items()}
        entries = _entries(made, wanted)
        wrong = _wrong(entries, answers)
        if not wrong:
            return tuple(entries)
        left = [path for path in wrong if tried[path] < len(forms[path]) - 1]
        if not left:  # none is more exact than a path itself
            return tuple((Group(exact(path), (path,)), wanted[path]) for path in wanted)
        for path in left:
            tried[path] += 1


def _entries(made: Mapping[str, str], wanted: Mapping[str, Answer]) -> list[tuple[Group, Answer]]:
    """Return patterns, alike ones in braces, those that name most exactly first."""
    groups = by_key(((wanted[path], glob), path) for path, glob in made.items())
    merged: list[tuple[Group, Answer]] = []
    for answer, several in by_key(
        (key[0], (key[1], paths)) for key, paths in groups.items()
    ).items():
        merged += [(group, answer) for group in _in_braces(several)]
    return sorted(merged, key=lambda entry: _looseness(entry[0].pattern))


def _looseness(pattern: str) -> int:
    """Return how much a pattern leaves open: 0 nothing, 1 numbers, 2 what stands before."""
    return 2 if pattern.startswith("*") else 1 if "*" in pattern.replace("\\*", "") else 0


def _wrong(
    entries: Sequence[tuple[Group, Answer]], answers: Mapping[str, Answer | None]
) -> list[str]:
    """Return the paths whose patterns would have to be more exact."""
    matcher = PathMatcher(tuple(Pattern(group.pattern) for group, _ in entries))
    wrong: dict[str, None] = {}
    for path, answer in answers.items():
        at = matcher.first_match(path)
        if at is None and answer is not None:
            wrong[path] = None
        elif at is not None and entries[at][1] != answer:
            wrong |= dict.fromkeys(entries[at][0].paths)
    return list(wrong)


def _forms(answers: Mapping[str, Answer | None]) -> dict[str, list[str]]:
    """Return for each path the patterns that may do for it, the shortest first, itself last."""
    globs = _globs_of(answers, keeps_numbers=False)
    ends: dict[tuple[object, ...], set[Answer | None]] = {}
    for glob, several in by_key((glob, path) for path, glob in globs.items()).items():
        told = {answers[path] for path in several}
        for key, _ in _cuts(glob):
            ends.setdefault(key, set()).update(told)
    short = {
        glob: [text for key, text in _cuts(glob) if len(ends[key]) == 1]
        for glob in dict.fromkeys(globs.values())
    }
    whole = _globs_of(answers, keeps_numbers=True)
    return {path: [*short[glob], glob, whole[path], exact(path)] for path, glob in globs.items()}


def _parts(glob: str) -> tuple[str, list[str]]:
    """Return what joins the components of a glob, and those.

    >>> _parts("b.{0..2}.w"), _parts("a.b/c")
    (('.', ['b', '{0..2}', 'w']), ('/', ['a.b', 'c']))
    """
    if "/" in glob:
        return "/", glob.split("/")
    return ".", _DOTS.sub(lambda dot: "/" if dot[0] == "." else dot[0], glob).split("/")


def _cuts(glob: str) -> Iterator[tuple[tuple[object, ...], str]]:
    """Yield what may be left of a glob, by what has to be alike in other globs to match it too.

    >>> [text for _, text in _cuts("a/b/*/c/d")]
    ['**/c/d', '**/b/*/c/d', 'a/**/c/d']
    """
    mark, parts = _parts(glob)
    gap = "**/" if mark == "/" else "*."
    for front in (0, 1):
        for count in range(_LEAST_PARTS, min(len(parts) - front, _MOST_PARTS + 1)):
            start, end = parts[:front], parts[-count:]
            is_telling = _NUMBERS.fullmatch(end[0]) is None
            if is_telling and (not front or start[0] != "*"):
                text = mark.join((*start, gap + mark.join(end)))
                yield (mark, tuple(start), tuple(end)), text


def _globs_of(answers: Mapping[str, Answer | None], *, keeps_numbers: bool) -> dict[str, str]:
    """Return a glob for each path, `{0..31}` for the layers that have one answer.

    Args:
      keeps_numbers: whether numbers stay that the answer does not depend on; else they are `*`.
    """
    found: dict[str, str] = {}
    for paths in by_key((template(path), path) for path in answers).values():
        rows = {path: tuple(numbers_apart(path)[1::2]) for path in paths}
        found |= _globs(rows, answers, frozenset() if keeps_numbers else _free(rows, answers))
    return found


def _globs(
    rows: Mapping[str, tuple[str, ...]],
    answers: Mapping[str, Answer | None],
    free: Collection[int],
) -> Iterator[tuple[str, str]]:
    """Yield paths of one template, each with a glob for all those of its answer."""
    texts = [exact(text) if text else "" for text in numbers_apart(next(iter(rows)))[::2]]
    for several in by_key((answers[path], path) for path in rows).values():
        numbers = _spelt([rows[path] for path in several], free)
        if numbers is not None:
            glob = _woven(texts, numbers)
            yield from ((path, glob) for path in several)
            continue
        for path in several:
            own = enumerate(rows[path])
            yield path, _woven(texts, ["*" if at in free else number for at, number in own])


def _woven(texts: Sequence[str], numbers: Sequence[str]) -> str:
    return texts[0] + "".join(map("".join, zip(numbers, texts[1:], strict=True)))


def _free(rows: Mapping[str, tuple[str, ...]], answers: Mapping[str, Answer | None]) -> set[int]:
    """Return the places of the numbers that vary and on which no answer depends."""
    columns = list(zip(*rows.values(), strict=True))
    kept = list(range(len(columns)))
    free = set()
    for place, numbers in enumerate(columns):
        if len(set(numbers)) == 1:
            continue
        rest = [each for each in kept if each != place]
        told: dict[tuple[str, ...], set[Answer | None]] = {}
        for path, row in rows.items():
            told.setdefault(tuple(row[at] for at in rest), set()).add(answers[path])
        if all(len(each) == 1 for each in told.values()):
            kept = rest
            free.add(place)
    return free


def _spelt(rows: Sequence[tuple[str, ...]], free: Collection[int]) -> list[str] | None:
    """Return the numbers of paths of one answer, `{0..22}` for several; None where some lack."""
    columns = list(zip(*rows, strict=True))
    options = [
        ["*"] if at in free else sorted(set(column), key=lambda text: (int(text), text))
        for at, column in enumerate(columns)
    ]
    told = {tuple("*" if at in free else each for at, each in enumerate(row)) for row in rows}
    if math.prod(map(len, options)) != len(told):
        return None
    return [spelt(each) for each in options]


def _in_braces(several: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Group]:
    """Yield patterns that differ in one component as one."""
    rows: list[_Row] = [(*_parts(glob), tuple(paths)) for glob, paths in several]
    longest = max(len(parts) for _, parts, _ in rows)
    for place in range(1, longest + 1):
        rows = list(_joined(rows, place))
    for mark, parts, paths in rows:
        yield Group(mark.join(parts), paths)


_Row = tuple[str, list[str], tuple[str, ...]]


def _joined(rows: Sequence[_Row], place: int) -> Iterator[_Row]:
    """Yield rows, those together that differ in the component at `-place` alone."""

    def apart(row: _Row) -> Hashable:
        mark, parts, _ = row
        if len(parts) < place or parts[-place] in ("**", "*") or "\\" in parts[-place]:
            return mark, tuple(parts)
        return mark, tuple(parts[:-place]), tuple(parts[len(parts) - place + 1 :])

    for group in _runs(rows, apart):
        mark, parts, paths = group[0]
        if len(group) == 1:
            yield mark, parts, paths
            continue
        options = ",".join(dict.fromkeys(each[1][-place] for each in group))
        merged = [*parts]
        merged[-place] = f"{{{options}}}" if "," in options else options
        yield mark, merged, tuple(path for each in group for path in each[2])


def _runs(rows: Sequence[_Row], key: Callable[[_Row], Hashable]) -> Iterator[list[_Row]]:
    """Yield rows of one key, as many together as one line can hold."""
    for group in by_key((key(row), row) for row in rows).values():
        run: list[_Row] = []
        for row in group:
            length = sum(len(".".join(each[1])) for each in (*run, row))
            if run and (len(run) >= _MOST_IN_BRACES or length > _LONGEST):
                yield run
                run = []
            run.append(row)
        yield run
