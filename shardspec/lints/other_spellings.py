r"""What a pattern that matches nothing may have been meant as.

A glob behind `re:`, a regex without it, a path without its beginning, `\d` for a layer number.
Each is tried on the arrays, so that what is offered works.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardspec.diagnostics import Edit, Fix, Span
from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.patterns.regex import compile_regex
from shardspec.frontend.reading import is_dsl, looks_like_dsl
from shardspec.ir.grouping import described
from shardspec.ir.spec import Pattern
from shardspec.lints.digit_places import single_digits, widened
from shardspec.lints.translated import GLOB_SIGNS, REGEX_SIGNS, as_glob, as_regex
from shardspec.resolve.match import path_matcher

_GLOB_SIGNS = re.compile(r"[*?{]")
#: A star behind a letter or a slash, which a regex would repeat.
_GLOB_STAR = re.compile(r"(?<!\\)[\w/]\*")
#: What YAML takes for something else: at the start, or in a flow, or before a blank.
_NEEDS_QUOTES = re.compile(r"^[*&!%@`|>?\[\]{}#,-]|[\[\]{},]|: | #")
_REGEX_SIGNS = re.compile(r"\.[*+?]|\\[dDwWsSb.]|\[[^\]/]+\]|\([^()]*\)|^\^|\$$")


@dataclass(frozen=True, slots=True)
class Spelling:
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
        if _REGEX_SIGNS.search(text):
            yield Spelling(Pattern(text, "regex"), "as a regex it", _as_regex(pattern), "a regex")
        yield from _readings(pattern)
        return
    if _GLOB_SIGNS.search(text):
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
    if pattern.dialect == "glob" and REGEX_SIGNS.search(text):
        yield Spelling(Pattern(text, "regex"), "as a regex it", _as_regex(pattern))
        yield from (Spelling(Pattern(each), f"the glob `{each}`") for each in as_glob(text))
    if pattern.dialect == "regex" and GLOB_SIGNS.search(text):
        yield Spelling(Pattern(text), "as a glob it", _as_glob(pattern))
        for each in as_regex(text):
            yield Spelling(Pattern(each, "regex"), f"the regex `{each}`")


def _is_safe(pattern: Pattern) -> bool:
    if pattern.dialect == "glob":
        return True
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
