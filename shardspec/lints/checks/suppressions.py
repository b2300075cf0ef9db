"""Comments that silence findings, and a spec with nothing to check."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from shardspec.diagnostics import (
    Code,
    Diagnostic,
    Edit,
    Excerpt,
    Fix,
    Label,
    SourceFile,
    Span,
    codes,
    point,
    quote,
)
from shardspec.diagnostics.levels import fault_found, known
from shardspec.diagnostics.words import did_you_mean, listed, respelt
from shardspec.ir.spec import Params, Spec, Target
from shardspec.language.silencing import Suppression, marked

# unused-suppression


def unused_suppression(
    source: SourceFile, used: Collection[Span], unasked: Iterable[Code] = ()
) -> Iterator[Diagnostic]:
    """Yield a finding for each suppression of a file with names that silence nothing.

    Args:
      used: where the names stand that do.
      unasked: the findings that nobody has looked for: those of a step, where there is none.
    """
    others = {name for code in unasked for name in (code.id, code.name)}
    for suppression in marked(source).suppressions:
        asked = (each for each in suppression.findings if each.text not in others)
        idle = [each for each in asked if each.span not in used and is_finding(each.text)]
        if idle:
            yield _finding(suppression, idle)


def _finding(suppression: Suppression, idle: list[Excerpt]) -> Diagnostic:
    where = "in this file" if suppression.line is None else f"on line {suppression.line}"
    names = listed(dict.fromkeys(each.text for each in idle))
    is_whole = len(idle) == len(suppression.findings)
    labels = tuple(Label(each.span, "", at == 0) for at, each in enumerate(idle))
    if is_whole:
        labels = (Label(suppression.span, "silences nothing"),)
        fix = Fix("remove the comment", (_without_comment(suppression),), is_sure=True)
    else:
        fix = Fix(f"remove {names}", (_without_names(suppression, idle),), is_sure=True)
    return Diagnostic(
        codes.UNUSED_SUPPRESSION,
        f"there is no {names} {where} to ignore",
        labels,
        help="remove it (`--fix`), or put it on the line that the finding points at",
        fix=fix,
    )


def _without_names(suppression: Suppression, idle: list[Excerpt]) -> Edit:
    first, last = suppression.findings[0].span, suppression.findings[-1].span
    kept = [each.text for each in suppression.findings if each not in idle]
    return Edit(Span(first.source, first.start, last.end), ", ".join(kept))


def _without_comment(suppression: Suppression) -> Edit:
    """Return the edit that removes the comment, and the line where nothing else is on it."""
    span, comment = suppression.span, suppression.comment
    text = comment.source.text
    start, end = span.start, comment.end
    following = text.find("# shardspec:", span.end, end)
    if following >= 0:
        return Edit(Span(comment.source, start, following), "")
    line = text.rfind("\n", 0, start) + 1
    before = text[line:start].rstrip()
    if before:
        return Edit(Span(comment.source, line + len(before), end), "")
    newline = text.find("\n", end)
    if newline >= 0:
        return Edit(Span(comment.source, line, newline + 1), "")
    return Edit(Span(comment.source, len(text[:line].rstrip("\r\n")), end), "")


# bad-suppression


_FORM = "`# shardspec: ignore[SHD302] why`"
_ATTEMPT = re.compile(r"#[ \t]*shardspec[ \t]*:[ \t]*([\w-]+)[ \t]*[:=(\[]?[ \t]*")
_WORD = re.compile(r"([\w-]+)")
_NEXT = re.compile(r"[ \t]*(?:,[ \t]*|(?=SHD))([\w-]+)")


def is_finding(name: str) -> bool:
    """Say whether `name` is the id or name of a finding."""
    return any(name in (code.id, code.name) for code in codes.ALL)


def bad_suppression(source: SourceFile) -> Iterator[Diagnostic]:
    """Yield a finding for each comment that is nearly one, and each name that is no finding."""
    comments = marked(source)
    for span, is_misplaced in comments.nearly:
        yield _misplaced(span) if is_misplaced else _malformed(span)
    for suppression in comments.suppressions:
        for name in suppression.findings:
            if not is_finding(name.text):
                yield _unknown(name.text, name.span)
            elif fault := fault_found(name.text, name.span):
                yield fault


def _misplaced(span: Span) -> Diagnostic:
    return point(
        codes.BAD_SUPPRESSION,
        "put `ignore-file` on a line of its own above the first entry",
        span,
        "silences nothing here",
        help=f"move it to the top; for one line, {_FORM}",
    )


def _malformed(span: Span) -> Diagnostic:
    names = _named(span)
    written = f"`# shardspec: {_verb(span)}[{', '.join(names[0])}] why`" if names else _FORM
    fix = None
    if names:
        form = f"# shardspec: {_verb(span)}[{', '.join(names[0])}]"
        edit = Edit(Span(span.source, span.start, names[1]), form)
        fix = Fix(f"write `{form}`", (edit,), is_sure=True)
    return point(
        codes.BAD_SUPPRESSION,
        "this comment is not a suppression: put the findings in square brackets",
        span,
        "silences nothing",
        help=f"write {written}",
        fix=fix,
    )


def _verb(span: Span) -> str:
    found = _ATTEMPT.match(span.text)
    return "ignore-file" if found and found[1].lower() == "ignore-file" else "ignore"


def _named(span: Span) -> tuple[tuple[str, ...], int] | None:
    """Return the findings that a comment names in some other form, and where they end."""
    begun = _ATTEMPT.match(span.text)
    if begun is None:
        return None
    names: list[str] = []
    at = begun.end()
    while (word := (_NEXT.match if names else _WORD.match)(span.text, at)) and is_finding(word[1]):
        names.append(word[1])
        at = word.end()
    closing = re.compile(r"[ \t]*[\])]").match(span.text, at)
    return (tuple(names), span.start + (closing.end() if closing else at)) if names else None


def _unknown(name: str, span: Span) -> Diagnostic:
    names = [each for code in codes.ALL for each in (code.id, code.name)]
    whole = f"`{name}` is the start of several: name each in full" if known(name) else None
    near = None if name.startswith("SHD") else did_you_mean(name, names)
    return point(
        codes.UNKNOWN_LINT,
        f"no finding is called `{name}`",
        span,
        help=whole or near or "`shardspec explain --list` shows them all",
        fix=None if name.startswith("SHD") else respelt([span], name, names),
    )


# nothing-checked


def nothing_checked(spec: Spec, params: Params, targets: Sequence[Target]) -> Iterator[Diagnostic]:
    """Yield a finding where there are targets, and neither arrays nor activations for them."""
    if not targets or params or spec.activations:
        return
    yield point(
        codes.NOTHING_CHECKED,
        "only the text was checked: there are no arrays",
        targets[0].span,
        "nothing uses it",
        help=f"add {quote.section('arrays:')} or {quote.section('manifest:')}, or pass --arrays"
        " FILE (or `package.module:function`);"
        f" for rules that only code uses, {quote.setting('lints', ('nothing-checked', 'allow'))}",
    )
