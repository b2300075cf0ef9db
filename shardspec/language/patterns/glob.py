"""Globs over array paths: what they match, and the paths they stand for.

`*` is any characters of one component, also none. `**` stands for whole components, any number
of them, also none, and a slash beside it goes with it: `**/mlp` matches `mlp` and `a/b/mlp`,
`a/**/b` matches `a/b`, and `a/**` matches `a` and everything below. `{a,b}` is one of several,
`{0..23}` one of the numbers as they are written: without leading zeros, except that
`{00..23}` fills up to two digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from shardspec.language.grammar import syntax
from shardspec.language.grammar.expressions import parse_glob
from shardspec.language.grammar.syntax import Braces, DoubleStar, GlobText, Part, Star, SyntaxFault
from shardspec.language.patterns.regex import KEPT, MAX_LENGTH, Regex, compile_regex, has_re2

Parts = tuple[Part, ...]

MAX_PATHS = 100_000
MAX_CHARACTERS = 20_000_000

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
    if len(text) <= MAX_LENGTH and _PLAIN.fullmatch(text):
        return (text,)
    parts = parts_of(text)
    if isinstance(parts, SyntaxFault):
        return parts
    for part in all_parts(parts):
        if isinstance(part, Star | DoubleStar | syntax.AnyChar):
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
        case Star():
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
