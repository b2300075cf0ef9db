"""The entries of a spec: their patterns, the axes of their rules, and where a name stands in them.

A file may be one line, and each of its entries may have a finding: nothing here copies the text
of a span, and the search for a name goes from the end that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from shardspec.diagnostics import Edit, Fix, Span, quote, words
from shardspec.ir.spec import LogicalAxes, Override, Param, Pattern, Spec, axis_of
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.reading import is_dsl, looks_like_dsl
from shardspec.language.regex import compile_regex
from shardspec.lints.context import Context
from shardspec.resolve.match import PathMatcher, path_matcher
from shardspec.resolve.state import MOMENTS, moment_name

_JOINS = "-."

#: How far before an alternative the axis of its rule is looked for: a file may be one line.
_FARTHEST = 20_000


class Entry(NamedTuple):
    """One pattern, and what it says about the arrays that it matches.

    Attributes:
      answer: equal for two entries that say the same.
    """

    section: str
    pattern: Pattern
    answer: tuple[object, ...]


@dataclass(frozen=True)
class Section:
    """The entries of one section, in order: the first that matches an array decides on it.

    Attributes:
      paths: of all arrays.
      own: the positions of those that the spec itself has.
    """

    entries: tuple[Entry, ...]
    paths: tuple[str, ...]
    own: frozenset[int]

    @cached_property
    def matcher(self) -> PathMatcher:
        """Return the matcher of all entries."""
        return path_matcher(tuple(entry.pattern for entry in self.entries))

    @cached_property
    def matches(self) -> tuple[tuple[int, ...], ...]:
        """Return the positions of the entries that match each of the arrays."""
        if not self.entries:
            return ((),) * len(self.paths)
        return tuple(map(self.matcher.all_matches, self.paths))


def sections(context: Context) -> tuple[Section, ...]:
    """Return overrides, and the entries of `params:` and of the sections that change no names.

    Those are `scan:`, `replicate:`, `derive:`, `memory:` and `training:`, in this order. Beside its
    arrays, `memory:` is about their optimizer state.
    """
    return context.once(_sections)


def _sections(context: Context) -> tuple[Section, ...]:
    spec = context.spec
    overrides = ((each, _answer(each)) for each in spec.overrides)

    def paths(entries: list[Entry]) -> tuple[str, ...]:
        is_of_memory = entries and entries[0].section == "memory"
        if not is_of_memory:
            return context.paths
        moments = (moment_name(path, at) for path in context.paths for at in range(len(MOMENTS)))
        return (*context.paths, *moments)

    found = (
        [Entry("override", each.pattern, answer) for each, answer in overrides],
        [Entry("params", each.pattern, each.logical_axes) for each in spec.path_rules],
        [Entry("scan", each.pattern, each.axes) for each in spec.scans],
        [Entry("replicate", each.pattern, ()) for each in spec.replicate],
        [Entry("derive", each.pattern, (each.parent, str(each))) for each in spec.derives],
        [Entry("memory", each.pattern, ((each.memory,),)) for each in spec.memory],
        [Entry("training", each.pattern, ((each.training,),)) for each in spec.training],
    )
    return tuple(
        Section(
            tuple(entries),
            paths(entries),
            frozenset(at for at, each in enumerate(entries) if context.is_own(each.pattern.span)),
        )
        for entries in found
    )


def _answer(entry: Override) -> LogicalAxes | tuple[tuple[object, ...], ...]:
    """Return what an override says of an array: equal for those that say the same."""
    if entry.partition is None:
        return entry.logical_axes or ()
    return (*entry.partition, *entry.sums) if entry.sums.mesh_axes else entry.partition


class LoneAxis(NamedTuple):
    """A logical axis that rules of the spec itself are for, and nothing has.

    Attributes:
      places: its name in each of the rules.
      meant: the axis that it is a slip for: one that is in use and that no rule places.
    """

    name: str
    places: tuple[Span | None, ...]
    meant: str | None


def lone_axes(context: Context) -> tuple[LoneAxis, ...]:
    """Return the axes of rules that nothing has; none of a spec without names.

    A base is for other specs too: of its rules those whose axis is a slip count, of a preset none.
    """
    if not context.first and not context.spec.path_rules:
        return ()
    known = _with_parts(context.axes_heard_of)
    in_base = _with_parts(context.axes_in_use.union(context.axes, context.spec.axes_of_code))
    places: dict[str, dict[Span | None, None]] = {}
    for rule in context.spec.axis_rules:
        axis, span = rule.logical_axis, rule.span
        is_of_preset = span is not None and span.source.is_preset
        if axis not in (known if context.is_own(span) else in_base) and not is_of_preset:
            places.setdefault(axis, {}).setdefault(_left_side(rule.span, axis))
    placed = context.axes_in_rules
    missed = words.index_of((context.axes_in_use | context.axes.keys()) - placed if places else ())
    found = []
    for axis, spans in places.items():
        slips = (each for each in missed.alike(axis) if words.is_slip(axis, each))
        meant = next(slips, None)
        if meant is not None or any(context.is_own(span) for span in spans):
            found.append(LoneAxis(axis, tuple(spans), meant))
    return tuple(found)


def _with_parts(names: frozenset[str]) -> frozenset[str]:
    """Return names with the axes whose parts they are."""
    return names | {axis_of(name) for name in names}


def respelling(context: Context, lone: LoneAxis) -> Fix | None:
    """Return the fix that writes the nearest name; what it then places may be placed already."""
    fix = words.respelt(lone.places, lone.name, context.axes_heard_of)
    if lone.meant is not None and (fix is None or fix.edits[0].text != lone.meant):
        return words.respelt(lone.places, lone.name, [lone.meant], may_be_sure=False)
    if fix is None:
        return None
    name = fix.edits[0].text
    is_free = name in context.axes_stated and name not in context.axes_in_rules
    return fix if is_free else fix._replace(is_sure=False)


def _left_side(span: Span | None, axis: str) -> Span | None:
    """Return the place of a rule's axis, which stands before its alternative on the line."""
    if span is None:
        return None
    farthest = max(span.start - _FARTHEST, 0)
    line = max(span.source.text.rfind("\n", farthest, span.start) + 1, farthest)
    before = Span(span.source, line, span.start)
    found = last_word(before, axis)
    return span if found == before else found


def first_word(span: Span, word: str) -> Span:
    """Return where `word` first stands as a whole word in `span`; all of it if nowhere."""
    text, start = span.source.text, span.start
    while word and (start := text.find(word, start, span.end)) >= 0:
        if _stands_alone(span, start, start + len(word)):
            return Span(span.source, start, start + len(word))
        start += 1
    return span


def last_word(span: Span, word: str) -> Span:
    """Return where `word` last stands as a whole word in `span`; all of it if nowhere."""
    text, end = span.source.text, span.end
    while word and (start := text.rfind(word, span.start, end)) >= 0:
        if _stands_alone(span, start, start + len(word)):
            return Span(span.source, start, start + len(word))
        end = start + len(word) - 1
    return span


def _stands_alone(span: Span, start: int, end: int) -> bool:
    text = span.source.text
    before = text[start - 1] if start > span.start else ""
    after, second = text[end : min(end + 1, span.end)], text[end + 1 : min(end + 2, span.end)]
    if before and (_is_letter(before) or before in _JOINS):
        return False
    return not _is_letter(after) and not (after and after in _JOINS and _is_letter(second))


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


# The line for `params:` that would name arrays, where their paths and sizes allow one answer.


def proposed_names(spec: Spec, params: Sequence[Param]) -> str | None:
    """Return the names that fit all of some arrays, `embed mlp`; None where there are several.

    Those in the types of `arrays:` come first: they do not name the arrays of code.
    """
    from shardspec.naming.proposing import proposed_names

    stated = {each.path: each.logical_axes for each in spec.params if each.logical_axes}
    listed = {stated.get(param.path) for param in params}
    only = listed.pop() if len(listed) == 1 else None
    if only is not None and all(len(only) == len(param.shape) for param in params):
        return " ".join(name or "_" for name in only)
    axes = (axis for axis in spec.logical_axes if axis_of(axis.name) == axis.name)
    sizes = {axis.name: axis.size for axis in axes if axis.size is not None}
    names = proposed_names(params, sizes) if sizes else None
    return None if names is None else " ".join(name or "_" for name in names)


def params_line(spec: Spec, params: Sequence[Param]) -> str | None:
    """Return an entry of `params:` for exactly these arrays: `"decoder/wi/kernel": embed mlp`."""
    glob = _glob([param.path for param in params])
    names = None if glob is None else proposed_names(spec, params)
    return None if names is None or glob is None else quote.pattern(glob, names)


def _glob(paths: Sequence[str]) -> str | None:
    """Return one glob for exactly some paths; None where no line could hold it."""
    from shardspec.naming.patterns import exact

    if not all(path.isprintable() for path in paths):
        return None
    if len(paths) == 1:
        return exact(paths[0])
    is_plain = all(path == exact(path) for path in paths)
    alike = {words.template(path) for path in paths}
    return (
        words.collapsed(sorted(paths, key=words.natural)) if is_plain and len(alike) == 1 else None
    )


# What a pattern may have been meant as that matches nothing, or too little.
#
# A glob behind `re:`, a regex without it, a path without its beginning, `\d` for a layer number.
# `**/layers_[0-9]+/(wi|wo)` is neither glob nor regex; `**/layers_*/{wi,wo}` is the glob that was
# meant. `layer_\d` has room for one digit only; `layer_\d\d`, `layer_1\d` and `layer_1?\d` count
# digits on purpose. What comes out is a guess: each is tried on the arrays, so that what is offered
# works.


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
            text = f"{each.name} matches {words.described(having)}{how}"
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
