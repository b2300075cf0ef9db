r"""Where a regex has room for one digit only, and what it would be with room for more.

`layer_\d` is such a place. `layer_\d\d`, `layer_1\d` and `layer_1?\d` are not: they count
digits on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.patterns.regex import compile_regex

#: An escape, a set, or any other character.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_ONE_DIGIT = frozenset({r"\d", "[0-9]", r"[\d]"})
_DIGITS = re.compile(r"[0-9]|\\d|\[(?:\\d|[0-9-])+\]")
_QUANTIFIERS = frozenset("*+?{")
_AROUND = frozenset("()?:*+}")


def single_digits(regex: str) -> tuple[int, ...]:
    r"""Return where a lone `\d` or `[0-9]` ends, for each that a regex has.

    >>> single_digits(r"layer_\d/wi_[0-9]/k"), single_digits(r"layer_1\d/wi_\d+")
    ((8, 17), ())
    """
    tokens = list(_TOKEN.finditer(regex))
    texts = [token[0] for token in tokens]
    return tuple(
        token.end()
        for at, token in enumerate(tokens)
        if texts[at] in _ONE_DIGIT
        and not (texts[at + 1 : at + 2] and texts[at + 1] in _QUANTIFIERS)
        and not _is_digit(reversed(texts[:at]))
        and not _is_digit(texts[at + 1 :])
    )


def _is_digit(texts: Iterable[str]) -> bool:
    """Say whether the first that is no group or quantifier stands for a digit."""
    found = next((text for text in texts if text not in _AROUND), "")
    return _DIGITS.fullmatch(found) is not None


def widened(regex: str, ends: Iterable[int]) -> str:
    r"""Return a regex with room for more digits at some of its places.

    >>> widened(r"layer_\d/k", [8])
    'layer_\\d+/k'
    """
    for end in sorted(ends, reverse=True):
        regex = f"{regex[:end]}+{regex[end:]}"
    return regex


def least_widened(regex: str, ends: Iterable[int], paths: Iterable[str]) -> str:
    """Return a regex with room at no more places than it takes to match all of `paths`."""
    paths, needed = tuple(paths), tuple(ends)
    for end in needed:
        fewer = tuple(other for other in needed if other != end)
        compiled = compile_regex(widened(regex, fewer))
        if not isinstance(compiled, SyntaxFault) and all(map(compiled.matches, paths)):
            needed = fewer
    return widened(regex, needed)
