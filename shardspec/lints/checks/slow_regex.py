"""A regex needs backtracking, which can take exponential time.

Patterns run in linear time under RE2 wherever RE2 can express them. Backreferences, lookaround
and a few others need Python's `re`, where one pattern on one path could take longer than the
training run. So they run in a process of their own, within a budget of one second; one that needs
more is SHD231. Most can be written without.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    params:
      're:(?!decoder).*/kernel': _ mlp
    arrays:
      encoder/kernel: bf16[64, 128]

Good:
    -  're:(?!decoder).*/kernel': _ mlp
    +  're:encoder/.*kernel': _ mlp
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.ir.spec import Pattern
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.regex import compile_regex, fallback_reason, ran_out
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each regex that RE2 cannot express, or had no room for."""
    yield from slow(context.spec.patterns)


def slow(patterns: Iterable[Pattern]) -> Iterator[Diagnostic]:
    """Yield a finding for each of `patterns` that RE2 cannot express, or had no room for."""
    for pattern in patterns:
        if pattern.dialect != "regex" or pattern.text in ran_out():
            continue
        compiled = compile_regex(pattern.text)
        if isinstance(compiled, SyntaxFault):
            continue
        reason = compiled.reason or fallback_reason(pattern.text)
        if reason:
            yield point(
                codes.SLOW_REGEX,
                f"regex `{pattern.text}` may backtrack without end: {reason}",
                pattern.span,
                "runs under Python's `re`",
                help="write it without, or as a glob with `*`, `**`, `{a,b}` and `{0..23}`",
            )
