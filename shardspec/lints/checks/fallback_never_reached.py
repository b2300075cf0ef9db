"""A fallback is never tried, because an earlier alternative always fires.

It has no effect on the targets of this spec. It is harmless if it is for another machine; otherwise
the order of the alternatives may be wrong. A `none` that is never reached keeps the next size that
does not divide from being an error (SHD301).

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - mlp -> model | data
      - embed -> data
    arrays:
      mlp/wi/kernel: bf16[embed=64 mlp=128]

Good:
    -  - mlp -> model | data
    +  - mlp -> model
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.words import listed
from shardspec.ir.plan import Outcome
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import RuleUse, idle_rules, on_targets, without_fallback


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each alternative that is not once tried where it could fire."""
    for use in idle_rules(context):
        if set(+use.outcomes) <= {Outcome.ABSENT}:
            yield _finding(use, len(context.plans))


def _finding(use: RuleUse, targets: int) -> Diagnostic:
    before = dict.fromkeys(rule.right for rule in use.winners)
    verb = "fires" if len(before) == 1 else "fire"
    loss = ", and a size that does not divide is an error" if use.rule.is_none else ""
    return Diagnostic(
        codes.FALLBACK_NEVER_REACHED,
        f"`{use}` is never tried{on_targets(targets)}: {listed(before, limit=3)} before it always"
        f" {verb}",
        use.labels("never tried"),
        notes=(use.note(),),
        help=f"remove it: no sharding changes{loss}",
        fix=without_fallback(use.rule.span),
    )
