"""The path of one array from that of another: `**/kernel` from `**/lora_a`, wildcard by wildcard.

A wildcard of the wanted path is what the same wildcard of the pattern matched, the first for the
first. Where a pattern has several ways to match, its first wildcards take as little as they can.
Braces that the pattern lacks stand for several paths, in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from shardspec.language.grammar import syntax
from shardspec.language.grammar.syntax import Braces, DoubleStar, GlobText, IntRange, SyntaxFault
from shardspec.language.patterns import glob
from shardspec.language.patterns.glob import Parts, parts_of, paths_of
from shardspec.language.patterns.regex import KEPT

#: Beyond these a pattern takes long to match, one way or another.
MOST_WILDCARDS = 16
MOST_CHARACTERS = 1_000
MOST_ALTERNATIVES = 64
MOST_DIGITS = 16


class _Any:
    """A `**`, with the slash behind it or before it, or alone."""

    def __init__(self, slash: str) -> None:
        """Take where the slash is: `after`, `before`, or ``."""
        self.slash = slash


#: A piece of a pattern: text, or what stands for texts.
_Piece = str | _Any | syntax.Part


class Template(NamedTuple):
    """A pattern, and a path in its wildcards.

    Attributes:
      wanted: text, the position of a wildcard of the pattern, or several texts.
    """

    pattern: tuple[_Piece, ...]
    wanted: tuple[str | int | tuple[str, ...], ...]

    def paths(self, path: str) -> tuple[str, ...]:
        """Return the paths that go with one that the pattern matches, in order."""
        found = matched(self.pattern, path)
        if found is None:
            return ()
        wanted = (found[p] if isinstance(p, int) else p for p in self.wanted)
        choices = ((each,) if isinstance(each, str) else each for each in wanted)
        texts = ("".join(pieces) for pieces in product(*choices))
        paths = ("/".join(p for p in text.split("/") if p != _GAP) for text in texts)
        return tuple(dict.fromkeys(filter(None, paths)))


#: Stands for a component that a `**` without any leaves behind.
_GAP = "\x00"


@lru_cache(maxsize=KEPT)
def template_of(pattern: str, wanted: str) -> Template | SyntaxFault:
    """Return the template of a pattern and of a path, both globs; offsets count in the path.

    >>> made = template_of("**/lora_{a,b}", "**/{kernel,embedding}")
    >>> made.paths("mlp/wi/lora_a")
    ('mlp/wi/kernel', 'mlp/wi/embedding')
    """
    source = glob.glob_regex(wanted)
    if isinstance(source, SyntaxFault):
        return source
    parts, pieces = parts_of(pattern), parts_of(wanted)
    if isinstance(parts, SyntaxFault) or isinstance(pieces, SyntaxFault):
        return SyntaxFault("the pattern cannot be read", 0, len(wanted))
    fault = _fault(parts, pieces, pattern, wanted)
    if fault is not None:
        return fault
    held = [pattern[part.start : part.end] for part in parts if not isinstance(part, GlobText)]
    found: list[str | int | tuple[str, ...]] = []
    for piece in pieces:
        if isinstance(piece, GlobText):
            found.append(piece.text)
            continue
        text = wanted[piece.start : piece.end]
        if text in held:
            at = held.index(text)
            held[at] = ""
            found.append(at)
        elif isinstance(piece, Braces | IntRange):
            found.append(tuple(paths_of((piece,))))
        else:
            message = f"the pattern has fewer `{text}` than this"
            help = "a wildcard here is what the same one of the pattern matched"
            return SyntaxFault(message, piece.start, piece.end, help)
    return Template(_pieces(parts), tuple(found))


@lru_cache(maxsize=KEPT)
def braces_of(pattern: str, texts: tuple[str, ...]) -> str | None:
    """Return the braces of a pattern that stand for these texts alone; None where it has none.

    >>> braces_of("*.lora_{A,B}{,.default}", ("B", "A"))
    '{A,B}'
    """
    parts = parts_of(pattern)
    for part in () if isinstance(parts, SyntaxFault) else parts:
        if not isinstance(part, Braces) or _count(part) != len(texts):
            continue
        if sorted(paths_of((part,))) == sorted(texts):
            return pattern[part.start : part.end]
    return None


def _fault(parts: Parts, pieces: Parts, pattern: str, wanted: str) -> SyntaxFault | None:
    """Return what is too much of a pattern, or of the path in its wildcards."""
    for each in (*parts, *pieces):
        inner = glob.all_parts((each,)) if isinstance(each, Braces) else ()
        if any(isinstance(part, syntax.Star | DoubleStar | syntax.AnyChar) for part in inner):
            help = "write an entry for each alternative"
            return SyntaxFault("a wildcard stands within braces", 0, len(wanted), help)
    if sum(not isinstance(part, GlobText) for part in parts) > MOST_WILDCARDS:
        message = f"the pattern has more than {MOST_WILDCARDS} wildcards"
        return SyntaxFault(message, 0, len(wanted), "write several entries")
    count = max((_count(part) for part in parts if isinstance(part, Braces)), default=1)
    own = (each for each in pieces if wanted[each.start : each.end] not in pattern)
    count = max(count, math.prod(map(_count, own)))
    if count > MOST_ALTERNATIVES:
        message = f"braces stand for {count:,} texts"
        return SyntaxFault(message, 0, len(wanted), f"at most {MOST_ALTERNATIVES}")
    return None


def _count(part: syntax.Part) -> int:
    """Return how many texts a part stands for."""
    if isinstance(part, IntRange):
        return part.count
    if not isinstance(part, Braces):
        return 1
    return sum(math.prod(map(_count, alternative)) for alternative in part.alternatives)


def _pieces(parts: Parts) -> tuple[_Piece, ...]:
    """Return a pattern as text, wildcards, and `**` with the slashes that go with it."""
    pieces: list[_Piece] = []
    atoms = [*glob.atoms_of(parts), ""]
    for at, (atom, following) in enumerate(pairwise(atoms)):
        last = pieces[-1] if pieces else None
        if isinstance(atom, DoubleStar):
            is_below = not following and isinstance(last, str) and last.endswith("/")
            if is_below:
                pieces[-1] = str(last)[:-1]
            pieces.append(_Any("after" if following == "/" else "before" if is_below else ""))
        elif at and atom == "/" and isinstance(atoms[at - 1], DoubleStar):
            continue
        elif isinstance(atom, str) and isinstance(last, str):
            pieces[-1] = f"{last}{atom}"
        else:
            pieces.append(atom)
    return tuple(pieces)


def matched(pieces: Sequence[_Piece], path: str) -> tuple[str, ...] | None:
    """Return what each wildcard stands for in a path; None where the pattern does not match."""
    if len(path) > MOST_CHARACTERS:
        return None
    failed: set[tuple[int, int]] = set()

    def after(at: int, start: int) -> tuple[str, ...] | None:
        """Return what the wildcards from a piece on stand for behind a place of the path."""
        if at == len(pieces):
            return () if start == len(path) else None
        if (at, start) in failed:
            return None
        piece = pieces[at]
        for end, text in _ways(piece, path, start):
            rest = after(at + 1, end)
            if rest is not None:
                return rest if isinstance(piece, str) else (text, *rest)
        failed.add((at, start))
        return None

    return after(0, 0)


def _ways(piece: _Piece, path: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield how far a piece may go from a place, and the text that it then is, shortest first."""
    if isinstance(piece, str):
        if path.startswith(piece, start):
            yield start + len(piece), piece
    elif isinstance(piece, _Any):
        yield from _components(piece.slash, path, start)
    elif isinstance(piece, syntax.Star | syntax.AnyChar):
        slash = path.find("/", start)
        end = len(path) if slash < 0 else slash
        ends = range(start, end + 1)
        ends = ends if isinstance(piece, syntax.Star) else ends[1:2]
        yield from ((each, path[start:each]) for each in ends)
    elif isinstance(piece, IntRange):
        ends = range(start + 1, min(start + MOST_DIGITS, len(path)) + 1)
        yield from ((end, path[start:end]) for end in ends if _is_in(piece, path[start:end]))
    else:
        texts = sorted(paths_of((piece,)), key=len)
        yield from ((start + len(text), text) for text in texts if path.startswith(text, start))


def _is_in(numbers: IntRange, text: str) -> bool:
    """Say whether a text is one of the numbers as they are written."""
    if not (text.isascii() and text.isdecimal()):
        return False
    number = int(text)
    return numbers.first <= number <= numbers.last and str(number).zfill(numbers.width) == text


def _components(slash: str, path: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield the components that a `**` may stand for, from a place of the path."""
    if slash == "after":
        yield start, _GAP
        for at in range(start, len(path)):
            if path[at] == "/":
                yield at + 1, path[start:at]
    elif slash == "before":
        if start == len(path):
            yield start, _GAP
        elif path[start] == "/":
            yield len(path), path[start + 1 :]
    else:
        yield len(path), path[start:] or _GAP
