r"""Signs of a regex in a glob, and of a glob in a regex, written in the language they stand in.

`**/layers_[0-9]+/(wi|wo)` is neither; `**/layers_*/{wi,wo}` is the glob that was meant. What comes
out is a guess, to be tried on the arrays before it is offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: What no path of a model has, so that a glob with it reads like a regex.
REGEX_SIGNS = re.compile(r"\\[dDwWsSbB.]|\[[^\]/]+\]|\([^()]*\|[^()]*\)|\.\+|^\^|\$$")
#: A star behind a letter or a slash, or glob braces, which a regex takes for repetition.
GLOB_SIGNS = re.compile(r"(?<!\\)[\w/]\*|^\*|(?<!\\)\w\{\w*(?:\.\.|,)\w*\}|\{[^{}]*[A-Za-z][^{}]*,")

_MANY = r"\\d[+*]|\\w[+*]|\[(?:[^\]\\]|\\.)+\][+*]"
_ONE_DIGIT = r"\\d(?![+*?{])|\[0-9\](?![+*?{])"
_SET = r"\[[A-Za-z0-9_-]+\](?![+*?{])"
_GROUP = r"\((?:\?:)?[^()]*\)(?![+*?{])"
_REGEX_PART = re.compile(
    rf"(?P<many>{_MANY})|(?P<digit>{_ONE_DIGIT})|(?P<set>{_SET})|(?P<group>{_GROUP})"
    r"|(?P<dot>\\\.)|(?P<above>(?:^|(?<=/))\.[*+](?=/))|(?P<below>(?<=/)\.[*+]$)"
)
_GLOB_PART = re.compile(
    r"(?P<above>(?:^|(?<=/))\*\*/)|(?P<below>(?<=/)\*\*$)|(?P<range>\{\d+\.\.\d+\})"
    r"|(?P<braces>\{[\w.-]+(?:,[\w.-]+)+\})|(?P<star>(?<=[\w/])(?<!\\\w)\*|^\*)"
)
_MOST_OF_A_SET = 16


def as_glob(text: str) -> Iterator[str]:
    r"""Yield the globs that a glob with signs of a regex may have been meant as.

    >>> list(as_glob(r"**/layers_\d+/(wi|wo)[01]/k$"))
    ['**/layers_*/{wi,wo}{0,1}/k']
    """
    first = _REGEX_PART.sub(_glob_part, text.removeprefix("^").removesuffix("$"))
    second = re.sub(r"\.[*+]", "*", first)
    yield from (each for each in dict.fromkeys((first, second)) if each != text)


def _glob_part(found: re.Match[str]) -> str:
    kind, text = found.lastgroup, found[0]
    if kind == "set":
        return _spelt_set(text)
    if kind == "group":
        inner = text.removeprefix("(").removeprefix("?:").removesuffix(")")
        return f"{{{inner.replace('|', ',')}}}" if "|" in inner else inner
    parts = {"many": "*", "digit": "{0..9}", "dot": ".", "above": "**", "below": "**"}
    return parts[kind or ""]


def _spelt_set(text: str) -> str:
    """Return `{0,1,2}` for `[0-2]`; the set itself where it is large."""
    members: list[str] = []
    for first, last, one in re.findall(r"(\w)-(\w)|([\w-])", text[1:-1]):
        members += [one] if one else map(chr, range(ord(first), ord(last) + 1))
    return f"{{{','.join(members)}}}" if 1 < len(members) <= _MOST_OF_A_SET else text


def as_regex(text: str) -> Iterator[str]:
    r"""Yield the regex that a regex with signs of a glob may have been meant as.

    >>> list(as_regex("**/layers_{0..11}/{wi,wo}_*/k"))
    ['(?:.*/)?layers_\\d+/(?:wi|wo)_[^/]*/k']
    """
    regex = _GLOB_PART.sub(_regex_part, text)
    if regex != text:
        yield regex


def _regex_part(found: re.Match[str]) -> str:
    if found.lastgroup == "braces":
        return f"(?:{found[0][1:-1].replace(',', '|')})"
    parts = {"above": "(?:.*/)?", "below": ".*", "range": r"\d+", "star": "[^/]*"}
    return parts[found.lastgroup or ""]
