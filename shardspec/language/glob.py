"""Globs over array paths: what they match, and the paths they stand for.

`*` is any characters of one component, also none. `**` stands for whole components, any number
of them, also none, and a slash beside it goes with it: `**/mlp` matches `mlp` and `a/b/mlp`,
`a/**/b` matches `a/b`, and `a/**` matches `a` and everything below. `{a,b}` is one of several,
`{0..23}` one of the numbers as they are written: without leading zeros, except that
`{00..23}` fills up to two digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from shardspec.language.grammar import syntax
from shardspec.language.grammar.expressions import parse_glob
from shardspec.language.grammar.syntax import Braces, DoubleStar, GlobText, Part, SyntaxFault
from shardspec.language.regex import KEPT, MAX_LENGTH, Regex, compile_regex, has_re2

Parts = tuple[Part, ...]

MAX_PATHS = 100_000
MAX_CHARACTERS = 20_000_000

#: A range as regexes and shells write it; `\\[0-3]` is a path with these characters.
_RANGE_IN_BRACKETS = re.compile(r"(?<!\\)\[([0-9]{1,18})-([0-9]{1,18})\]")
_ABOVE = "(?:[^/]*/)*"
_BELOW = "(?:/[^/]*)*"
_ANY_PATH = "(?s:.*)"


#: One path: no sign means anything in it.
_PLAIN = re.compile(r"[\w./-]+")


def expand(text: str) -> tuple[str, ...] | SyntaxFault:
    """Return the paths that a glob of braces and ranges stands for, in natural order.

    >>> expand("layers_{0..2}/wi_{0,1}")[:3]
    ('layers_0/wi_0', 'layers_0/wi_1', 'layers_1/wi_0')
    """
    if found := _RANGE_IN_BRACKETS.search(text[:MAX_LENGTH]):
        message = f"`{found[0]}` is not a range"
        return SyntaxFault(message, *found.span(), f"write `{{{found[1]}..{found[2]}}}`")
    if len(text) <= MAX_LENGTH and _PLAIN.fullmatch(text):
        return (text,)
    parts = parts_of(text)
    if isinstance(parts, SyntaxFault):
        return parts
    for part in all_parts(parts):
        if isinstance(part, syntax.Star | DoubleStar | syntax.AnyChar):
            wildcard = text[part.start : part.end]
            message = f"an array needs a path, not a pattern: `{wildcard}` matches many"
            help = "spell the paths out, with `{a,b}` and `{0..23}` where they repeat"
            return SyntaxFault(message, part.start, part.end, help)
    count, characters = _volume(parts)
    if count > MAX_PATHS or characters > MAX_CHARACTERS:
        many = f"{count:,}" if count < 10**12 else "more than a million million"
        message = f"this stands for {many} paths, more than can be listed"
        return SyntaxFault(message, 0, len(text), f"at most {MAX_PATHS:,} paths an entry")
    return tuple(paths_of(parts))


@lru_cache(maxsize=KEPT)
def compile_glob(text: str) -> Regex | SyntaxFault:
    """Return a glob ready to match whole paths.

    >>> compile_glob("**/wi_{0,1}/kernel").matches("decoder/mlp/wi_1/kernel")
    True
    """
    source = glob_regex(text)
    if isinstance(source, SyntaxFault):
        return source
    if not source.isascii() or not has_re2():
        return compile_regex(source)
    return Regex(source, "re2")


@lru_cache(maxsize=KEPT)
def glob_regex(text: str) -> str | SyntaxFault:
    """Return the Python regex that matches, under `fullmatch`, what a glob matches.

    >>> glob_regex("decoder/layers_{0..23}/*/kernel")
    'decoder/layers_(?:[0-9]|1[0-9]|2[0-3])/[^/]*/kernel'
    >>> glob_regex("**/mlp")
    '(?:[^/]*/)*mlp'
    """
    parts = parts_of(text)
    if isinstance(parts, SyntaxFault):
        return parts
    if parts == (DoubleStar(),):
        return _ANY_PATH
    source = _regex(parts, opens=True, closes=True)
    if isinstance(source, DoubleStar):
        message = "`**` is all of an alternative, with no slash to go with it"
        help = "write `{**/a,b}` or `{a/**,b}`, or a pattern of its own"
        return SyntaxFault(message, source.start, source.end, help)
    if len(source) > MAX_LENGTH:
        return SyntaxFault("the glob is too long", 0, len(text), "split it in two")
    return source


def glob_literal(text: str) -> str | None:
    """Return the one path that a glob matches, where it is a path itself."""
    if not any(special in text for special in "*?{}\\"):
        return text or None
    parts = parts_of(text)
    if not isinstance(parts, SyntaxFault) and all(isinstance(part, GlobText) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, GlobText))
    return None


def range_regex(low: int, high: int, width: int = 0) -> str:
    """Return a regex of the numbers from `low` to `high`, both included.

    Numbers shorter than `width` digits are filled up with zeros. The numbers are cut into runs of
    equal length, and each run into blocks that share a prefix and let every digit after it run
    free. So the regex grows with the number of digits, never with the number of numbers.

    >>> range_regex(0, 23)
    '(?:[0-9]|1[0-9]|2[0-3])'
    >>> range_regex(8, 11, width=3)
    '(?:00[8-9]|01[0-1])'
    """
    runs = _equal_lengths(low, high, width)
    return f"(?:{'|'.join(block for ends in runs for block in _blocks(*ends))})"


def parts_of(text: str) -> Parts | SyntaxFault:
    """Return the parts of a glob, once it is known to be of a sane size."""
    if len(text) > MAX_LENGTH:
        message = f"a glob of {len(text):,} characters is too long"
        return SyntaxFault(message, 0, len(text), f"at most {MAX_LENGTH:,} characters")
    parsed = parse_glob(text)
    return parsed if isinstance(parsed, SyntaxFault) else parsed.parts


def _regex(parts: Parts, *, opens: bool, closes: bool) -> str | DoubleStar:
    """Return the regex of a sequence, or the `**` that has no place.

    `opens` says that a component begins where the sequence begins, `closes` that one ends there.
    """
    atoms = tuple(atoms_of(parts))
    sources: list[str] = []
    for at, atom in enumerate(atoms):
        before = atoms[at - 1] == "/" if at else opens
        after = atoms[at + 1] == "/" if at + 1 < len(atoms) else closes
        if isinstance(atom, DoubleStar):
            is_last = at + 1 == len(atoms)
            if not (before and after and _put_double_star(sources, is_last=is_last)):
                return atom
        elif atom != "/" or not _is_taken(atoms, at, sources):
            source = _source(atom, before, after)
            if isinstance(source, DoubleStar):
                return source
            sources.append(source)
    return "".join(sources)


def _put_double_star(sources: list[str], *, is_last: bool) -> bool:
    """Add a `**` that takes the slash before it, or else the one after; False without either."""
    if sources[-1:] == ["/"]:
        sources.pop()
        if sources[-1:] != [_BELOW]:
            sources.append(_BELOW)
    elif not is_last:
        if sources[-1:] != [_ABOVE]:
            sources.append(_ABOVE)
    elif sources == [_ABOVE]:
        sources[:] = [_ANY_PATH]
    else:
        return False
    return True


def _is_taken(atoms: tuple[Part | str, ...], at: int, sources: list[str]) -> bool:
    """Say whether the slash at `at` went with the `**` before it."""
    return at > 0 and isinstance(atoms[at - 1], DoubleStar) and sources[-1] == _ABOVE


def atoms_of(parts: Parts) -> Iterator[Part | str]:
    """Yield the parts with literals cut at slashes: text, and `/` on its own."""
    for part in parts:
        if isinstance(part, GlobText):
            yield from (piece for piece in re.split("(/)", part.text) if piece)
        else:
            yield part


def _source(atom: Part | str, before: bool, after: bool) -> str | DoubleStar:
    match atom:
        case str():
            return re.escape(atom)
        case syntax.Star():
            return "[^/]*"
        case syntax.AnyChar():
            return "[^/]"
        case syntax.IntRange(first=first, last=last, width=width):
            return range_regex(first, last, width)
        case Braces(alternatives=alternatives):
            sources = [_regex(each, opens=before, closes=after) for each in alternatives]
            fault = next((each for each in sources if isinstance(each, DoubleStar)), None)
            return fault or f"(?:{'|'.join(map(str, sources))})"
    raise AssertionError(atom)


def all_parts(parts: Parts) -> Iterator[Part]:
    """Yield the parts of a sequence, and those within its braces."""
    for part in parts:
        yield part
        if isinstance(part, Braces):
            for alternative in part.alternatives:
                yield from all_parts(alternative)


def _volume(parts: Parts) -> tuple[int, int]:
    """Return how many paths a sequence without wildcards stands for, and their characters."""
    count, characters = 1, 0
    for part in parts:
        part_count, part_characters = _part_volume(part)
        characters = characters * part_count + part_characters * count
        count *= part_count
    return count, characters


def _part_volume(part: Part) -> tuple[int, int]:
    match part:
        case GlobText(text=text):
            return 1, len(text)
        case syntax.IntRange(last=last):
            return part.count, part.count * len(str(last))
        case Braces(alternatives=alternatives):
            volumes = [_volume(alternative) for alternative in alternatives]
            return sum(count for count, _ in volumes), sum(total for _, total in volumes)
    return 1, 1


def paths_of(parts: Parts) -> Iterator[str]:
    """Return the paths that a sequence of text, braces and ranges stands for."""
    return map("".join, product(*(tuple(_texts(part)) for part in parts)))


def _texts(part: Part) -> Iterator[str]:
    match part:
        case GlobText(text=text):
            yield text
        case syntax.IntRange():
            yield from part.texts
        case Braces(alternatives=alternatives):
            for alternative in alternatives:
                yield from paths_of(alternative)


def _equal_lengths(low: int, high: int, width: int) -> Iterator[tuple[str, str]]:
    """Yield first and last number of each run of numbers with the same count of digits."""
    while low <= high:
        digits = max(len(str(low)), width)
        end = min(high, 10**digits - 1)
        yield str(low).zfill(digits), str(end).zfill(digits)
        low = end + 1


def _blocks(low: str, high: str) -> Iterator[str]:
    """Yield regexes that together match the numbers from `low` to `high`, of one length."""
    if low == high:
        yield low
        return
    shared = [a == b for a, b in zip(low, high, strict=True)].index(False)
    prefix, free = low[:shared], len(low) - shared - 1
    first, last = int(low[shared]), int(high[shared])
    if low[shared + 1 :].strip("0"):
        yield from (f"{prefix}{block}" for block in _blocks(low[shared:], low[shared] + "9" * free))
        first += 1
    above = high[shared + 1 :].strip("9")
    if above:
        last -= 1
    if first <= last:
        yield f"{prefix}{_digits(first, last)}{_free(free)}"
    if above:
        last_run = _blocks(high[shared] + "0" * free, high[shared:])
        yield from (f"{prefix}{block}" for block in last_run)


def _digits(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _free(count: int) -> str:
    return "" if count == 0 else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"


# The path of one array from that of another: `**/kernel` from `**/lora_a`, wildcard by wildcard.
#
# A wildcard of the wanted path is what the same wildcard of the pattern matched, the first for the
# first. Where a pattern has several ways to match, its first wildcards take as little as they can.
# Braces that the pattern lacks stand for several paths, in order.


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
    source = glob_regex(wanted)
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
        elif isinstance(piece, Braces | syntax.IntRange):
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
        inner = all_parts((each,)) if isinstance(each, Braces) else ()
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
    if isinstance(part, syntax.IntRange):
        return part.count
    if not isinstance(part, Braces):
        return 1
    return sum(math.prod(map(_count, alternative)) for alternative in part.alternatives)


def _pieces(parts: Parts) -> tuple[_Piece, ...]:
    """Return a pattern as text, wildcards, and `**` with the slashes that go with it."""
    pieces: list[_Piece] = []
    atoms = [*atoms_of(parts), ""]
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
    elif isinstance(piece, syntax.IntRange):
        ends = range(start + 1, min(start + MOST_DIGITS, len(path)) + 1)
        yield from ((end, path[start:end]) for end in ends if _is_in(piece, path[start:end]))
    else:
        texts = sorted(paths_of((piece,)), key=len)
        yield from ((start + len(text), text) for text in texts if path.startswith(text, start))


def _is_in(numbers: syntax.IntRange, text: str) -> bool:
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
