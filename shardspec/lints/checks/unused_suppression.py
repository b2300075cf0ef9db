"""A `# shardspec: ignore[...]` silences nothing.

`--fix` removes it. Its finding is gone, or is on another line: a comment applies to its own line,
or to the next one if it is alone on a line. If it stayed, it would hide the finding when it comes
back. Reported only when all targets are checked without `--set`, and only in the spec itself: a
spec that others extend may need its comments for them.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor  # shardspec: ignore[unknown-mesh-axis] the next cluster has it
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    -  - mlp -> tensor  # shardspec: ignore[unknown-mesh-axis] the next cluster has it
    +  - mlp -> tenosr  # shardspec: ignore[unknown-mesh-axis] the next cluster has it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from shardspec.diagnostics import Code, Diagnostic, Excerpt, Label, SourceFile, Span, codes
from shardspec.diagnostics.diagnostic import Edit, Fix
from shardspec.diagnostics.words import listed
from shardspec.language.silencing import Suppression, marked
from shardspec.lints.checks.bad_suppression import is_finding


def unused(
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
