"""A comment looks like a suppression but silences nothing.

The form is `# shardspec: ignore[SHD302] why`: one finding or several, by id or name, in square
brackets. Behind an entry it speaks for that line, alone on a line for the next one.
`# shardspec: ignore-file[SHD302] why` speaks for the whole file, and stands alone on a line above
the first entry.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      # shardspec: ignore dead-rule
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp=128]

Good:
    -  # shardspec: ignore dead-rule
    -  - mlp -> tensor
    +  # shardspec: ignore[dead-rule] the next cluster has no such axis
    +  - mlp -> tensor | tensor
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Edit, Fix, SourceFile, Span, codes, point
from shardspec.diagnostics.codes import fault_found, known
from shardspec.diagnostics.words import did_you_mean, respelt
from shardspec.language.silencing import marked

_FORM = "`# shardspec: ignore[SHD302] why`"
_ATTEMPT = re.compile(r"#[ \t]*shardspec[ \t]*:[ \t]*([\w-]+)[ \t]*[:=(\[]?[ \t]*")
_WORD = re.compile(r"([\w-]+)")
_NEXT = re.compile(r"[ \t]*(?:,[ \t]*|(?=SHD))([\w-]+)")


def is_finding(name: str) -> bool:
    """Say whether `name` is the id or name of a finding."""
    return any(name in (code.id, code.name) for code in codes.ALL)


def bad(source: SourceFile) -> Iterator[Diagnostic]:
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
