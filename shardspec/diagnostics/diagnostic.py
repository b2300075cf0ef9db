"""A fault as a value: what, where, why it matters, and the way out.

Fixes -> new texts: spans replaced, and nothing else changed. A fix is taken whole or not at all. Of
two that touch the same characters the first is taken, and the other has its turn when the new text
has been looked at.
"""

from __future__ import annotations

from bisect import bisect, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial
from typing import Literal, NamedTuple, TypeVar

from shardspec.diagnostics.quote import is_marked, spelt


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One text with the name to show for it.

    Attributes:
      name: as the user wrote it: a relative path, `-`, or `preset:t5x/2d`.
      text: the decoded text, without a byte order mark.
      included_from: the place that pulled this file in, e.g. an `extends:` entry.
      is_outside: whether it lies outside the project, so that its lines are not shown.
    """

    name: str
    text: str = field(repr=False)
    included_from: Span | None = field(default=None, repr=False)
    is_outside: bool = field(default=False, repr=False)

    @property
    def is_preset(self) -> bool:
        """Say whether it is a preset, which comes with shardspec."""
        return self.name.startswith("preset:")

    @property
    def whole(self) -> Span:
        """Return the span of the first line: for findings about the file itself."""
        end = self.text.find("\n")
        return Span(self, 0, len(self.text) if end < 0 else end)

    def lines(self) -> Iterator[tuple[str, Span]]:
        """Yield each line, without what ends it, and its place."""
        start = 0
        for text in self.text.split("\n"):
            yield text, Span(self, start, start + len(text))
            start += len(text) + 1

    def line_span(self, line: int) -> Span:
        """Return where line number `line` (from 1) stands, without its line break."""
        start = _line_starts(self.text)[line - 1]
        end = self.text.find("\n", start)
        return Span(self, start, len(self.text) if end < 0 else end)

    def line_text(self, line: int) -> str:
        """Return line number `line` (from 1), without its line break."""
        return self.line_span(line).text.rstrip("\r")


@lru_cache(maxsize=32)
def _line_starts(text: str) -> tuple[int, ...]:
    """Return the offset of the first character of every line."""
    starts, at = [0], text.find("\n")
    while at >= 0:
        starts.append(at + 1)
        at = text.find("\n", at + 1)
    return tuple(starts)


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters `[start, end)` of one source.

    Invariants:
      in_bounds: 0 <= start <= end <= len(source.text).
    """

    source: SourceFile
    start: int
    end: int

    @property
    def text(self) -> str:
        """Return the characters under the span."""
        return self.source.text[self.start : self.end]

    @property
    def line(self) -> int:
        """Return the line of the first character, counted from 1."""
        return bisect_right(_line_starts(self.source.text), self.start)

    @property
    def column(self) -> int:
        """Return the column of the first character, counted in characters from 1."""
        return self.start - _line_starts(self.source.text)[self.line - 1] + 1

    @property
    def place(self) -> str:
        """Return `name:line`: what reports show beside a fact."""
        return f"{self.source.name}:{self.line}"

    def __contains__(self, other: Span) -> bool:
        """Say whether another span is within this one."""
        return self.source is other.source and self.start <= other.start and other.end <= self.end

    def __str__(self) -> str:
        """Return `name:line:column`, which terminals turn into a link."""
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A value read from a file, with the way back from its characters to the file's.

    A quoted scalar starts one character after its span; after an escape or a line fold the
    characters of the value no longer line up with those of the file. `start` is the offset
    of the value's first character where they do line up, else None, and then every part of
    the value points at the whole of it.
    """

    text: str
    span: Span = field(compare=False, repr=False)
    start: int | None = field(default=None, compare=False, repr=False)

    def at(self, start: int, end: int) -> Span:
        """Return the span of `text[start:end]`, or of the whole where that is not known."""
        if self.start is None:
            return self.span
        return Span(self.span.source, self.start + start, self.start + end)

    def part(self, start: int, end: int) -> Excerpt:
        """Return `text[start:end]` as an excerpt of its own."""
        inner = None if self.start is None else self.start + start
        return Excerpt(self.text[start:end], self.at(start, end), inner)


def excerpt_of(text: str, name: str = "<string>") -> Excerpt:
    """Return `text` as an excerpt of a source that holds nothing else."""
    return Excerpt(text, Span(SourceFile(name, text), 0, len(text)), 0)


def printable(text: str) -> str:
    r"""Return `text` with each character that does not print as its escape: `\x1b`, `\n`.

    >>> print(printable("a\x1b[31m"), printable("é 層"))
    a\x1b[31m é 層
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def printable_json(text: str) -> str:
    r"""Return JSON with each character that does not print as the escape that JSON has for it.

    >>> print(printable_json('"\u202e\U000e0001"'))
    "\u202e\udb40\udc01"
    """
    lines = text.split("\n")
    if all(line.isprintable() for line in lines):
        return text
    import json

    return "\n".join(
        "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line) for line in lines
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


Read = TypeVar("Read")


class Severity(StrEnum):
    """How loud a finding is. `lints:` in a spec may change it."""

    ALLOW = "allow"
    WARNING = "warning"
    ERROR = "error"


#: When a check runs: on plans, after all that ask about paths, on a step that was traced.
Stage = Literal["plan", "last", "step"]


@dataclass(frozen=True, slots=True)
class Code:
    """The identity of one kind of finding.

    Attributes:
      id: `SHD` and three digits; the first digit is the family (see `diagnostics.codes`).
      name: kebab-case, what `lints:` in a spec says.
      severity: how loud it is unless the spec says otherwise.
      summary: one line, without a full stop.
      is_pedantic: whether it is only said when asked for: by `--pedantic`, or a level of its own.
      is_fault: whether something was not read, not resolved or not counted because of it. No level
        and no comment changes how loud it is: every figure would rest on what was dropped.
      runs: when its check runs, where it has one; None where others ask for the finding.
      is_idle: whether it says that nothing uses what stands at its place.
      is_alone: whether it says that there is nothing to say, and goes where there is something.
      loses_entry: whether the entry of the document that it is in was dropped.
      explained_by: the sections of which any lost entry explains it.
      explained_by_name: those of which a lost entry explains it that has the name of its subject.
      explained_in_entry: whether it is explained where the entry that it points at was lost.
      outranked_by: the ids of findings that say the same of the same arrays, and more.
      outranked_here: of those that say the same of the same place, and more.
      outranked_on_target: of the errors that make it needless on their target.
    """

    id: str
    summary: str
    severity: Severity
    name: str = ""
    is_pedantic: bool = False
    is_fault: bool = False
    runs: Stage | None = field(default="plan", compare=False)
    is_idle: bool = field(default=False, compare=False)
    is_alone: bool = field(default=False, compare=False)
    loses_entry: bool = field(default=False, compare=False)
    explained_by: frozenset[str] = field(default=frozenset(), compare=False)
    explained_by_name: frozenset[str] = field(default=frozenset(), compare=False)
    explained_in_entry: bool = field(default=False, compare=False)
    outranked_by: tuple[str, ...] = field(default=(), compare=False)
    outranked_here: tuple[str, ...] = field(default=(), compare=False)
    outranked_on_target: tuple[str, ...] = field(default=(), compare=False)

    @property
    def outrankers(self) -> tuple[str, ...]:
        """Return the ids of all findings that may make it needless."""
        return (*self.outranked_by, *self.outranked_here, *self.outranked_on_target)


@dataclass(frozen=True, slots=True)
class Label:
    """A piece of source text and what to say about it.

    Attributes:
      primary: the culprit (`^^^`); the others show the cause (`---`).
    """

    span: Span
    text: str = ""
    primary: bool = True


class Edit(NamedTuple):
    """Text in place of the characters under a span; of an empty span, an insertion."""

    span: Span
    text: str


class Fix(NamedTuple):
    """A way out that a machine can take: edits of the source text that change nothing else.

    Attributes:
      title: what it does, imperative: "replace `tenosr` by `tensor`".
      is_sure: whether it is what the author meant beyond doubt, and keeps every other answer.
        The others are offered, and applied only under `--unsafe-fixes`.
    """

    title: str
    edits: tuple[Edit, ...]
    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding.

    Attributes:
      message: the fact, in one line, with names in backticks and numbers.
      labels: places in the source; exactly one is primary, or there is none at all.
      notes: further facts, e.g. how many arrays it touches and the bytes it costs.
      help: what would work.
      level: the severity that the spec chose, or None for the code's own.
      target: the one target it is about; None where it is about more.
      fix: the help as edits, where a machine can make them.
      section: the section of the document it is about, by its key: `rules`, `axes`.
      subject: what it is about, by name: a logical axis, a mesh axis; of a fault that takes a
        section away as a whole, the key of that section.
      entry: of a fault of reading, the entry of the document that was dropped because of it.
      arrays: the paths of the arrays it is about, where other findings are about arrays, too.
      bytes: what a device holds of them, where that is most; None where no size matters.

    Invariants:
      one_primary: labels hold one primary label, or are empty.
      unmarked: no text has marks of `quote`; what it quotes is as its file spells it.
    """

    code: Code
    message: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    level: Severity | None = None
    target: str | None = None
    fix: Fix | None = None
    section: str | None = None
    subject: str | None = None
    entry: Span | None = field(default=None, repr=False, compare=False)
    arrays: tuple[str, ...] = field(default=(), repr=False)
    bytes: int | None = None

    def __post_init__(self) -> None:
        primary = sum(label.primary for label in self.labels)
        assert primary == bool(self.labels), f"{self.code.id} has {primary} primary labels"
        texts = (self.message, self.help or "", *self.notes, *(each.text for each in self.labels))
        if any(map(is_marked, texts)):
            is_dsl = self.primary is not None and self.primary.span.source.name.endswith(".shard")
            found = self.spelt(is_dsl=is_dsl)
            for name in ("message", "labels", "notes", "help", "fix"):
                object.__setattr__(self, name, getattr(found, name))

    @property
    def severity(self) -> Severity:
        """Return how loud this finding is."""
        return self.code.severity if self.level is None else self.level

    @property
    def primary(self) -> Label | None:
        """Return the label of the culprit."""
        return next((label for label in self.labels if label.primary), None)

    @property
    def is_error(self) -> bool:
        """Say whether this finding makes a run fail."""
        return self.severity is Severity.ERROR

    def __str__(self) -> str:
        """Return it with its place, notes and help, and without the text of the source."""
        place = f"{self.primary.span}: " if self.primary else ""
        lines = [printable(f"{place}{self.severity}[{self.code.id}]: {self.message}")]
        remarks = [f"  = note: {note}" for note in self.notes]
        remarks += [f"  = help: {self.help}"] if self.help else []
        for remark in remarks:
            first, *more = map(printable, remark.split("\n"))
            lines += [first, *(f"          {line}" for line in more)]
        return "\n".join(lines)

    def spelt(self, *, is_dsl: bool) -> Diagnostic:
        """Return the same finding, which quotes the language as the DSL has it, or as YAML."""
        spell = partial(spelt, is_dsl=is_dsl)
        return replace(
            self,
            message=spell(self.message),
            labels=tuple(replace(label, text=spell(label.text)) for label in self.labels),
            notes=tuple(map(spell, self.notes)),
            help=self.help and spell(self.help),
            fix=self.fix and self.fix._replace(title=spell(self.fix.title)),
        )

    def with_level(self, level: Severity) -> Diagnostic:
        """Return the same finding, as loud as `level`."""
        return replace(self, level=level)


def point(
    code: Code,
    message: str,
    span: Span | None,
    label: str = "",
    *,
    notes: tuple[str, ...] = (),
    help: str | None = None,
    target: str | None = None,
    fix: Fix | None = None,
    section: str | None = None,
    subject: str | None = None,
    arrays: tuple[str, ...] = (),
    bytes: int | None = None,
) -> Diagnostic:
    """Return a diagnostic with one label, or none: the common case."""
    labels = () if span is None else (Label(span, label),)
    return Diagnostic(
        code,
        message,
        labels,
        notes,
        help,
        target=target,
        fix=fix,
        section=section,
        subject=subject,
        arrays=arrays,
        bytes=bytes,
    )


def parted(found: Iterable[Read | Diagnostic]) -> tuple[tuple[Read, ...], tuple[Diagnostic, ...]]:
    """Return what was read, and what could not be."""
    each_one = tuple(found)
    faults = tuple(each for each in each_one if isinstance(each, Diagnostic))
    return tuple(each for each in each_one if not isinstance(each, Diagnostic)), faults


def labels_at(*places: tuple[Span | None, str]) -> tuple[Label, ...]:
    """Return a label for each place that is known, one for a place; the first is the culprit."""
    texts: dict[Span, str] = {}
    for span, text in places:
        if span is not None:
            texts.setdefault(span, text)
    return tuple(Label(span, text, primary=not at) for at, (span, text) in enumerate(texts.items()))


def sort_key(diagnostic: Diagnostic) -> tuple[str, int, str, str]:
    """Return the key that puts diagnostics in reading order: by file, place, then code."""
    label = diagnostic.primary
    if label is None:
        return ("", -1, diagnostic.code.id, diagnostic.message)
    return (label.span.source.name, label.span.start, diagnostic.code.id, diagnostic.message)


class Edited(NamedTuple):
    """The texts after some fixes.

    Attributes:
      texts: by name of the source, of those that changed.
      taken, left: the fixes that are in these texts, and those that stood in their way.
    """

    texts: Mapping[str, str]
    taken: tuple[Fix, ...]
    left: tuple[Fix, ...]


def apply(fixes: Iterable[Fix]) -> Edited:
    """Return the texts of all sources that the fixes edit, after as many of them as can be.

    Invariants:
      outside: what no edit of a taken fix covers is in the new text as it was, in order.
      line ends: an edit of a text with CRLF brings no bare LF.
    """
    taken: list[Fix] = []
    left: list[Fix] = []
    edits: dict[str, list[Edit]] = {}
    for fix in dict.fromkeys(fixes):
        if any(_is_taken(each, edits.get(each.span.source.name, [])) for each in fix.edits):
            left.append(fix)
            continue
        taken.append(fix)
        for each in fix.edits:
            insort(edits.setdefault(each.span.source.name, []), each, key=_order)
    texts = {name: "".join(_pieces(each)) for name, each in edits.items()}
    return Edited(texts, tuple(taken), tuple(left))


def _order(edit: Edit) -> tuple[int, int]:
    return edit.span.start, edit.span.end


def _is_taken(edit: Edit, others: list[Edit]) -> bool:
    """Say whether an edit touches one of `others`, which are in order and apart from each other."""
    at = bisect(others, _order(edit), key=_order)
    return any(_touch(edit, other) for other in others[max(at - 1, 0) : at + 1])


def _touch(one: Edit, other: Edit) -> bool:
    """Say whether two edits cover a character both, or meet in one place."""
    first, second = sorted((one.span, other.span), key=lambda span: (span.start, span.end))
    return second.start < first.end or (second.start == first.end and _is_empty(one, other))


def _is_empty(*edits: Edit) -> bool:
    return any(each.span.start == each.span.end for each in edits)


def _pieces(edits: list[Edit]) -> Iterator[str]:
    text = edits[0].span.source.text
    has_crlf, at = "\r\n" in text, 0
    for edit in edits:
        yield text[at : edit.span.start]
        yield edit.text.replace("\n", "\r\n") if has_crlf else edit.text
        at = edit.span.end
    yield text[at:]
