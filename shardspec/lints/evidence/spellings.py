r"""What a pattern may have been meant as that matches nothing, or too little.

A glob behind `re:`, a regex without it, a path without its beginning, `\d` for a layer number.
`**/layers_[0-9]+/(wi|wo)` is neither glob nor regex; `**/layers_*/{wi,wo}` is the glob that was
meant. `layer_\d` has room for one digit only; `layer_\d\d`, `layer_1\d` and `layer_1?\d` count
digits on purpose. What comes out is a guess: each is tried on the arrays, so that what is offered
works.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Edit, Fix, Span
from shardspec.diagnostics.words import described
from shardspec.ir.spec import Pattern
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.regex import compile_regex
from shardspec.language.reading import is_dsl, looks_like_dsl
from shardspec.resolve.match import path_matcher

_LIKE_A_GLOB = re.compile(r"[*?{]")
#: A star behind a letter or a slash, which a regex would repeat.
_GLOB_STAR = re.compile(r"(?<!\\)[\w/]\*")
#: What YAML takes for something else: at the start, or in a flow, or before a blank.
_NEEDS_QUOTES = re.compile(r"^[*&!%@`|>?\[\]{}#,-]|[\[\]{},]|: | #")
_LIKE_A_REGEX = re.compile(r"\.[*+?]|\\[dDwWsSb.]|\[[^\[\]/]+\]|\([^()]*\)|^\^|\$$")

#: What no path of a model has, so that a glob with it reads like a regex.
_REGEX_SIGNS = re.compile(r"\\[dDwWsSbB.]|\[[^\[\]/]+\]|\([^()|]*+\|[^()]*+\)|\.\+|^\^|\$$")
#: A star behind a letter or a slash, or glob braces, which a regex takes for repetition.
_GLOB_SIGNS = re.compile(
    r"(?<!\\)[\w/]\*|^\*|(?<!\\)\w\{\w*(?:\.\.|,)\w*\}|\{[^{}A-Za-z]*+[A-Za-z][^{},]*+,"
)

_MANY = r"\\d[+*]|\\w[+*]|\[(?:[^\[\]\\]|\\.)++\][+*]"
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

#: An escape, a set, or any other character.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_LONE_DIGIT = frozenset({r"\d", "[0-9]", r"[\d]"})
_DIGITS = re.compile(r"[0-9]|\\d|\[(?:\\d|[0-9-])+\]")
_QUANTIFIERS = frozenset("*+?{")
_AROUND = frozenset("()?:*+}")


class Spelling(NamedTuple):
    """Another way to write a pattern.

    Attributes:
      name: what to call it: "`**/wi`" or "as a glob it".
      how: what to do for it, where the name does not say so.
      looks: what the pattern looks like, where that is worth saying even if it matches nothing.
    """

    pattern: Pattern
    name: str
    how: str = ""
    looks: str = ""


def spellings(pattern: Pattern) -> tuple[Spelling, ...]:
    """Return what else a pattern could be, the likeliest first; none may run without end."""
    return tuple(each for each in _candidates(pattern) if _is_safe(each.pattern))


def readings(pattern: Pattern) -> tuple[Spelling, ...]:
    """Return what a pattern with signs of the other dialect could be, the likeliest first."""
    return tuple(each for each in _readings(pattern) if _is_safe(each.pattern))


class Offer(NamedTuple):
    """A spelling that matches arrays, what to say of it, and those arrays."""

    spelling: Spelling
    text: str
    paths: tuple[str, ...]


def working(patterns: Sequence[Pattern], paths: Sequence[str]) -> tuple[Offer | None, ...]:
    """Return, for each pattern, another spelling that matches; one walk over the paths."""
    offers = [(at, each) for at, pattern in enumerate(patterns) for each in spellings(pattern)]
    matched: list[list[str]] = [[] for _ in offers]
    matcher = path_matcher(tuple(each.pattern for _, each in offers))
    for path in paths if offers else ():
        for index in matcher.all_matches(path):
            matched[index].append(path)
    found: list[Offer | None] = [None] * len(patterns)
    for (at, each), having in zip(offers, matched, strict=True):
        if having and found[at] is None:
            how = f": {each.how}" if each.how else ""
            text = f"{each.name} matches {described(having)}{how}"
            found[at] = Offer(each, text, tuple(having))
    return tuple(found)


def fix_for(pattern: Pattern, spelling: Spelling) -> Fix | None:
    """Return the edit that writes a pattern in another way, where that is a plain one."""
    new = spelling.pattern
    if pattern.span is None or pattern.span.text.strip("'\"") != pattern.text:
        return None
    start = pattern.span.start + pattern.span.text.index(pattern.text)
    span = Span(pattern.span.source, start, start + len(pattern.text))
    if new.dialect == pattern.dialect:
        text = _quoted(new.text, span)
        return None if text is None else Fix(f"write `{new}`", (Edit(span, text),))
    mark = Span(span.source, max(0, span.start - 3), span.start)
    quote = span.source.text[mark.start - 1 : mark.start]
    if new.text == pattern.text and mark.text == "re:" and quote in {"'", '"'}:
        return Fix("drop `re:`", (Edit(mark, ""),))
    return None


def _quoted(text: str, span: Span) -> str | None:
    """Return a pattern as it may stand at `span`: in quotes where YAML would not read it bare."""
    before = span.source.text[max(0, span.start - 1) : span.start]
    if before in {"'", '"'} or is_dsl(span.source) or not _NEEDS_QUOTES.search(text):
        return text
    return None if "'" in text or before == ":" else f"'{text}'"


def looks(pattern: Pattern) -> str | None:
    """Return which other kind of pattern this looks like, and how to make it one."""
    found = (f"it looks like {e.looks}: {e.how}" for e in spellings(pattern) if e.looks)
    return next(found, None)


def _candidates(pattern: Pattern) -> Iterator[Spelling]:
    text = pattern.text
    if pattern.dialect == "glob":
        deep = text.removesuffix("/*") + "/**" if text.endswith("/*") else None
        for each in (deep, None if text.startswith("**") else f"**/{text}"):
            if each is not None:
                yield Spelling(Pattern(each), f"`{each}`")
        if _LIKE_A_REGEX.search(text):
            yield Spelling(Pattern(text, "regex"), "as a regex it", _as_regex(pattern), "a regex")
        yield from _readings(pattern)
        return
    if _LIKE_A_GLOB.search(text):
        looks = "a glob" if _GLOB_STAR.search(text) else ""
        yield Spelling(Pattern(text), "as a glob it", _as_glob(pattern), looks)
    ends = single_digits(text)
    if ends:
        wide = widened(text, ends)
        yield Spelling(Pattern(wide, "regex"), f"the regex `{wide}`")
    if not text.startswith((".*", "^", "(.*", "(?")):
        below = f".*/{f'(?:{text})' if '|' in text else text}"
        yield Spelling(Pattern(below, "regex"), f"the regex `{below}`")
    yield from _readings(pattern)


def _readings(pattern: Pattern) -> Iterator[Spelling]:
    text = pattern.text
    if pattern.dialect == "glob" and _REGEX_SIGNS.search(text):
        yield Spelling(Pattern(text, "regex"), "as a regex it", _as_regex(pattern))
        yield from (Spelling(Pattern(each), f"the glob `{each}`") for each in as_glob(text))
    if pattern.dialect == "regex" and _GLOB_SIGNS.search(text):
        yield Spelling(Pattern(text), "as a glob it", _as_glob(pattern))
        for each in as_regex(text):
            yield Spelling(Pattern(each, "regex"), f"the regex `{each}`")


def _is_safe(pattern: Pattern) -> bool:
    return pattern.dialect == "glob" or is_linear(pattern)


def is_linear(pattern: Pattern) -> bool:
    """Say whether a pattern is a regex that more room cannot make slow."""
    if pattern.dialect != "regex":
        return False
    compiled = compile_regex(pattern.text)
    return not isinstance(compiled, SyntaxFault) and compiled.engine == "re2"


def _as_glob(pattern: Pattern) -> str:
    """Return how to make a glob of a regex where it stands."""
    before = _text_before(pattern)
    if re.search(r"""match["']?\s*:\s*["']?$""", before):
        return "write `path:` for `match:`"
    return 'drop the `re` before `"`' if before.endswith('re"') else "drop `re:`"


def _as_regex(pattern: Pattern) -> str:
    """Return how to make a regex of a glob where it stands."""
    if re.search(r"""path["']?\s*:\s*["']?$""", _text_before(pattern)):
        return "write `match:` for `path:`"
    source = pattern.span.source if pattern.span is not None else None
    if source is not None and (source.name.endswith(".shard") or looks_like_dsl(source.text)):
        return f'write `re"{pattern.text}"`'
    return "put `re:` before it"


def _text_before(pattern: Pattern) -> str:
    span = pattern.span
    return "" if span is None else span.source.text[max(0, span.start - 24) : span.start]


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
        if texts[at] in _LONE_DIGIT
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
