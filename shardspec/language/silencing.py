"""What findings are silenced, or louder, and where: by the project, and by comments.

`[tool.shardspec.lints]` of a pyproject.toml says what a project wants to hear. TOML comes without
positions, so the place of a fault is looked for in the text: the key below its header, or the
header.

Comments that silence a finding where it stands: `# shardspec: ignore[SHD302] reason`.

Behind an entry such a comment is about that line, alone on a line about the next line below that
is no comment; the line of a finding is that of its primary label. `ignore-file[...]` above the
first entry is about the whole file. What is a comment, the reader of the file says: a `#` in
quotes is none. Files without such a comment are not looked at twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, codes, point
from shardspec.diagnostics.codes import NOTHING_ASKED, WORDS, LevelTable, fault_found, known
from shardspec.diagnostics.words import did_you_mean, grouped
from shardspec.language.files import leads_out, read_source, veiled
from shardspec.language.reading import is_dsl

_HEADER = re.compile(r"^[ \t]*\[[ \t]*tool\.shardspec(?:\.lints)?[ \t]*\]", re.MULTILINE)
_OPTIONS = ("select", "ignore", "pedantic")
_WHERE = re.compile(r"\(at line (\d+), column (\d+)\)")
_AS_IN = 'as in `SHD203 = "allow"`'


def project_levels(spec: str) -> tuple[LevelTable, tuple[Diagnostic, ...]]:
    """Return what `[tool.shardspec.lints]` asks for, of the nearest pyproject.toml above a spec.

    One that says nothing of shardspec is passed by.

    Args:
      spec: a path, or `-` for a text that has none: the project of this folder counts.
    """
    folder = Path(os.path.abspath(spec)).parent
    for above in (folder, *folder.parents):
        file = above / "pyproject.toml"
        if not os.path.isfile(file):  # False also where the path is too long for one
            continue

        source = read_source(file, name=os.path.relpath(file))
        if isinstance(source, Diagnostic):
            return NOTHING_ASKED, (source,)
        table, faults = read_project(source)
        if faults and leads_out(str(file)):
            faults = tuple(veiled(faults, f"cat {os.path.realpath(file)}"))
        if table is not None or faults:
            return table or NOTHING_ASKED, faults
    return NOTHING_ASKED, ()


def read_project(source: SourceFile) -> tuple[LevelTable | None, tuple[Diagnostic, ...]]:
    """Return what a pyproject.toml asks for; None where it has no table of ours at all."""
    if "shardspec" not in source.text:
        return None, ()
    import tomllib

    try:
        tool = tomllib.loads(source.text).get("tool")
    except tomllib.TOMLDecodeError as error:
        return None, (_not_toml(source, str(error)),)
    except RecursionError:
        return None, (_not_toml(source, "it is nested too deep"),)
    own = tool.get("shardspec") if isinstance(tool, dict) else None
    if not isinstance(own, dict):
        return None, ()
    lints = own.get("lints", {})
    if not isinstance(lints, dict):
        message, place = "`[tool.shardspec] lints` should be a table", _place(source, "lints")
        return LevelTable(), (point(codes.WRONG_TYPE, message, place, help=_AS_IN),)
    return _table(lints), tuple(_faults(lints, source))


def _table(lints: dict[str, Any]) -> LevelTable:
    """Return what of the table can be followed."""
    settings = tuple(
        (finding, WORDS[level])
        for finding, level in lints.items()
        if finding not in _OPTIONS and known(finding) and isinstance(level, str) and level in WORDS
    )
    select, ignore = (tuple(filter(known, _texts(lints.get(key)))) for key in ("select", "ignore"))
    return LevelTable(settings, select, ignore, lints.get("pedantic") is True)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _faults(lints: dict[str, Any], source: SourceFile) -> Iterator[Diagnostic]:
    for key, value in lints.items():
        if key == "pedantic":
            if not isinstance(value, bool):
                yield _wrong(key, "`true` or `false`", value, source)
        elif key in _OPTIONS:
            if not isinstance(value, list) or len(_texts(value)) != len(value):
                yield _wrong(key, 'a list of findings, as in `["SHD3"]`', value, source)
            yield from (_unknown(each, source) for each in _texts(value) if not known(each))
            if key == "ignore":
                yield from _not_silenced(_texts(value), source)
        elif not known(key):
            yield _unknown(key, source)
        elif not isinstance(value, str) or value not in WORDS:
            yield _wrong(key, "`allow`, `warn` or `error`", value, source)
        elif value != "error":
            yield from _not_silenced((key,), source)


def _not_silenced(names: Iterable[str], source: SourceFile) -> Iterator[Diagnostic]:
    yield from filter(None, (fault_found(name, _place(source, name)) for name in names))


def _wrong(key: str, wanted: str, value: object, source: SourceFile) -> Diagnostic:
    shown = f"`{value}`" if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    message = f"`{key}` should be {wanted}, and is {shown.replace('True', 'true')}"
    return point(codes.WRONG_TYPE, message, _place(source, key), help=_AS_IN)


def _unknown(name: str, source: SourceFile) -> Diagnostic:
    names = (*_OPTIONS, *(code.name for code in codes.ALL))
    near = None if name.startswith("SHD") else did_you_mean(name, names)
    help = near or "an id, a name or the start of an id; `shardspec explain --list` shows them all"
    message = f"no finding is called `{name}`"
    return point(codes.UNKNOWN_LINT, message, _place(source, name), help=help)


def _place(source: SourceFile, word: str) -> Span:
    """Return where a word of the table stands; its header where that cannot be told."""
    headers = list(_HEADER.finditer(source.text))
    header = next((each for each in headers if "lints" in each[0]), headers[0] if headers else None)
    start = header.end() if header else 0
    following = re.compile(r"^[ \t]*\[", re.MULTILINE).search(source.text, start)
    end = following.start() if following else len(source.text)
    words = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])").finditer(source.text, start, end)
    found = next((w for w in words if "#" not in _before(source.text, w.start())), header)
    return Span(source, *found.span()) if found else source.whole


def _not_toml(source: SourceFile, why: str) -> Diagnostic:
    found, span = _WHERE.search(why), source.whole
    why = why.partition(" (at ")[0]
    if found:
        lines = source.text.splitlines(keepends=True)
        at = sum(map(len, lines[: int(found[1]) - 1])) + int(found[2]) - 1
        at = min(at, max(len(source.text) - 1, 0))
        span = Span(source, at, min(at + 1, len(source.text)))
    help = "shardspec reads `[tool.shardspec]` of the pyproject.toml above a spec"
    return point(codes.SYNTAX, f"this is not TOML: {why[:1].lower()}{why[1:]}", span, help=help)


_MARK = re.compile(r"#[ \t]*shardspec[ \t]*:[ \t]*(?=[A-Za-z])")
_SUPPRESSION = re.compile(r"(ignore|ignore-file)\[[ \t]*([\w-]+(?:[ \t]*,[ \t]*[\w-]+)*)[ \t]*\]")
_WORD = re.compile(r"[\w-]+")


class Suppression(NamedTuple):
    """One comment that silences findings.

    Attributes:
      findings: ids and names, each with its place; unknown ones too.
      line: the line that it is about; None for the whole file.
      span: from its `#` to its `]`.
      comment: all of the comment that it is part of.
    """

    findings: tuple[Excerpt, ...]
    line: int | None
    span: Span
    comment: Span


class Marked(NamedTuple):
    """The comments of a file that speak to shardspec.

    Attributes:
      nearly: comments that look like one, as (span from `shardspec:` on, whether it is a whole
        one in the wrong place).
    """

    suppressions: tuple[Suppression, ...] = ()
    nearly: tuple[tuple[Span, bool], ...] = ()


def suppressed(diagnostics: Iterable[Diagnostic]) -> tuple[tuple[Diagnostic, ...], frozenset[Span]]:
    """Return the findings that no comment silences, and where names stand that silenced others."""
    kept: list[Diagnostic] = []
    used: set[Span] = set()
    for diagnostic in diagnostics:
        names = tuple(_silencers(diagnostic))
        used.update(name.span for name in names)
        if not names:
            kept.append(diagnostic)
    return tuple(kept), frozenset(used)


def _silencers(diagnostic: Diagnostic) -> Iterator[Excerpt]:
    label = diagnostic.primary
    if label is None or diagnostic.code.is_fault:
        return
    by_line = _by_line(label.span.source)
    if by_line:
        named = (diagnostic.code.id, diagnostic.code.name)
        for suppression in (*by_line.get(None, ()), *by_line.get(label.span.line, ())):
            yield from (each for each in suppression.findings if each.text in named)


@lru_cache(maxsize=16)
def _by_line(source: SourceFile) -> dict[int | None, list[Suppression]]:
    return grouped(marked(source).suppressions, lambda suppression: suppression.line)


@lru_cache(maxsize=16)
def marked(source: SourceFile) -> Marked:
    """Return the suppressions of a file, and the comments that are nearly one."""
    if not _MARK.search(source.text):
        return Marked()
    comments, first_entry = _comments(source)
    own = {c.line for c in comments if not _before(source.text, c.start).strip()}
    below: dict[int, int] = {}  # the first line below each that holds no comment alone
    for line in sorted(own, reverse=True):
        below[line] = below.get(line + 1, line + 1)
    suppressions: list[Suppression] = []
    nearly: list[tuple[Span, bool]] = []
    for comment in comments:
        for span in _directives(comment):
            found = _SUPPRESSION.match(source.text, _after_mark(span), span.end)
            if found is None:
                if is_nearly(span):
                    nearly.append((span, False))
            elif found[1] == "ignore":
                about = below.get(comment.line, comment.line)
                suppressions.append(_suppression(found, span, comment, about))
            elif comment.line in own and comment.start < first_entry:
                suppressions.append(_suppression(found, span, comment, None))
            else:
                nearly.append((Span(source, span.start, found.end()), True))
    return Marked(tuple(suppressions), tuple(nearly))


def _comments(source: SourceFile) -> tuple[tuple[Span, ...], int]:
    """Return the comments of a file, and where its first entry starts; none if unreadable."""
    text, end = source.text, len(source.text)
    if is_dsl(source):
        from shardspec.language.dsl_text.layout import lay_out

        layout = lay_out(text)
        spans = tuple((comment.start, comment.end) for comment in layout.comments)
        first = layout.statements[0].start if layout.statements else end
    else:
        from shardspec.language.yaml_text.comments import comment_spans
        from shardspec.language.yaml_text.reader import read_yaml

        reading, _ = read_yaml(source, with_comments=False)
        if reading is None:
            return (), 0
        spans = tuple(comment_spans(reading.source_map))
        first = min((key.span.start for key in reading.source_map.keys.values()), default=end)
    stops = ((start, start + len(text[start:stop].rstrip())) for start, stop in spans)
    return tuple(Span(source, start, stop) for start, stop in stops), first


def _before(text: str, at: int) -> str:
    """Return what stands before an offset on its line."""
    return text[text.rfind("\n", 0, at) + 1 : at]


def _directives(comment: Span) -> Iterator[Span]:
    """Yield each part of a comment that begins with `# shardspec:`."""
    text = comment.source.text
    starts = [found.start() for found in _MARK.finditer(text, comment.start, comment.end)]
    for start, end in pairwise((*starts, comment.end)):
        yield Span(comment.source, start, start + len(text[start:end].rstrip()))


def _after_mark(span: Span) -> int:
    found = _MARK.match(span.source.text, span.start, span.end)
    return found.end() if found else span.end


def _suppression(found: re.Match[str], span: Span, comment: Span, line: int | None) -> Suppression:
    source = span.source
    words = _WORD.finditer(source.text, *found.span(2))
    findings = tuple(Excerpt(word[0], Span(source, *word.span()), word.start()) for word in words)
    return Suppression(findings, line, Span(source, span.start, found.end()), comment)


#: What other tools call it.
_VERBS = frozenset(
    {"allow", "disable", "expect", "ignore", "ignore-file", "ignore-line", "ignore-next-line"}
    | {"noqa", "nolint", "off", "skip", "suppress"}
)


def is_nearly(span: Span) -> bool:
    """Say whether what stands behind `# shardspec:` was meant to silence something."""
    rest = span.source.text[_after_mark(span) : span.end]
    word = _WORD.match(rest)
    return word is not None and (word[0].lower() in _VERBS or rest[word.end() :][:1] in ("[", "("))
