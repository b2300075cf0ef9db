r"""A regex exceeded its time limit.

What RE2 cannot express (SHD207) runs under Python's `re`, where a pattern that can match in many
ways tries all of them: `(a|a)*b` on forty letters takes days. Each pattern gets a second of the
processor, in a process of its own. One that needs more matches nothing: the arrays it was for are
placed as if it were not there, so this is an error.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      're:(?!decoder)(\w|\w)*/kernel': _ mlp
      '**': _ mlp
    arrays:
      aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/bias: bf16[64, 128]

Good:
    -  're:(?!decoder)(\w|\w)*/kernel': _ mlp
    -  '**': _ mlp
    +  '*/kernel': _ mlp
    -  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/bias: bf16[64, 128]
    +  encoder/kernel: bf16[64, 128]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardspec.diagnostics import Diagnostic, Span, codes, point
from shardspec.ir.spec import Pattern
from shardspec.language.regex import ran_out, unanswered
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each regex of the spec that ran out of its budget."""
    yield from spent(context.spec.patterns)


def spent(patterns: Iterable[Pattern]) -> Iterator[Diagnostic]:
    """Yield a finding for each of `patterns` that ran out of its budget."""
    found = ran_out()
    for pattern in patterns:
        if pattern.dialect == "regex" and pattern.text in found:
            yield _finding(pattern.text, found[pattern.text], pattern.span)


def spent_elsewhere(patterns: Iterable[Pattern]) -> Iterator[Diagnostic]:
    """Yield a finding for each regex that ran out and is none of `patterns`: another tool's."""
    known = {pattern.text for pattern in patterns}
    for text, path in unanswered().items():
        if text not in known:
            yield _finding(text, path, None)


def _finding(text: str, path: str, span: Span | None) -> Diagnostic:
    message = f"regex `{text}` ran out of its time on `{path}`, and is left out"
    help = "write it without what may match in two ways, or as a glob: `*`, `**`, `{a,b}`"
    return point(codes.REGEX_BUDGET, message, span, "matches nothing here", help=help)
