"""A fallback is never tried: on every target, an alternative before it always fires.

It has no effect today. It may be for a machine to come, and then it does no harm; but it may also
hide that the first choice was to be another. A `none` that is never reached keeps the next size
that does not divide from being an error (SHD301).

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> model | data
      - embed -> data
    arrays:
      mlp/wi/kernel: bf16[embed=64 mlp=128]

Good:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> model
      - embed -> data
    arrays:
      mlp/wi/kernel: bf16[embed=64 mlp=128]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Edit, Fix, Label, Span
from shardspec.diagnostics.codes import FALLBACK_NEVER_REACHED as CODE
from shardspec.diagnostics.suggest import listed
from shardspec.ir.plan import Outcome
from shardspec.ir.spec import AxisRule, target_text
from shardspec.lints.context import Context
from shardspec.lints.rule_fates import Fate, idle_rules


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each alternative that is not once tried where it could fire."""
    for fate in idle_rules(context):
        if set(+fate.outcomes) <= {Outcome.ABSENT}:
            yield _finding(fate, context)


def _finding(fate: Fate, context: Context) -> Diagnostic:
    span = fate.rule.span
    labels = [] if span is None else [Label(span, "never tried")]
    for other in dict.fromkeys(rule.span for rule in fate.winners):
        if other is not None and other != span:
            labels.append(Label(other, "fires first", primary=False))
    before = listed(dict.fromkeys(target_text(rule.mesh_axes) for rule in fate.winners), limit=3)
    verb = "fires" if len({rule.mesh_axes for rule in fate.winners}) == 1 else "fire"
    count = len(context.plans)
    fix = _fix(span, context.spec.axis_rules)
    loss = ", and a size that does not divide is an error" if fate.rule.is_none else ""
    return Diagnostic(
        CODE,
        f"`{fate.text}` is never tried{f' on any of {count} targets' if count > 1 else ''}:"
        f" {before} before it always {verb}",
        tuple(labels[:4]),
        notes=(fate.subjects(),),
        help=f"take it out: every answer stays as it is{loss}",
        fix=fix,
    )


def _fix(span: Span | None, rules: tuple[AxisRule, ...]) -> Fix | None:
    """Return the edit that takes an alternative out, where one stands before it in its rule."""
    if span is None:
        return None
    for rule in rules:
        before = rule.span
        if before is not None and before.source is span.source and before.end < span.start:
            between = Span(span.source, before.end, span.start)
            if re.fullmatch(r"[ \t]*\|[ \t]*", between.text):
                gone = Span(span.source, before.end, span.end)
                return Fix(f"take out `{gone.text.strip()}`", (Edit(gone, ""),))
    return None
