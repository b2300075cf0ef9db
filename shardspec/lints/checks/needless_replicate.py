"""An entry of `replicate:` matches only arrays that are sharded.

Remove the entry. It does not replicate an array, only rules do that: it tells the gate `coverage:`
not to count an array that is replicated. Here every array that it matches is sharded on every
target, so the entry would only hide a later mistake.

Bad:
    shardspec: 1
    mesh: {data: 8}
    replicate:
      - {path: mlp/*, because: "small"}
    rules:
      - embed -> data
    arrays:
      mlp/kernel: bf16[embed=4096 _=64]

Good:
    -  - embed -> data
    +  - embed -> none
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import by_key, described
from shardspec.ir.spec import Replicate
from shardspec.lints.context import Context
from shardspec.resolve.match import path_matcher


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry of the spec itself whose arrays are all split."""
    entries, plans = context.spec.replicate, context.shared_plans
    if not entries or not plans:
        return
    whole = {
        path
        for plan in plans
        for arrays in plan.alike
        if arrays.is_replicated
        for path in arrays.paths
    }
    matcher = path_matcher(tuple(entry.pattern for entry in entries))
    matched = by_key((at, path) for path in context.paths for at in matcher.all_matches(path))
    for position, paths in sorted(matched.items()):
        if context.is_own(entries[position].pattern.span) and whole.isdisjoint(paths):
            yield _finding(entries[position], paths, len(plans))


def _finding(entry: Replicate, paths: list[str], targets: int) -> Diagnostic:
    where = " on every target" if targets > 1 else ""
    return point(
        codes.NEEDLESS_REPLICATE,
        f"`{entry.pattern}` allows replication, but every array it matches is sharded{where}",
        entry.pattern.span or entry.span,
        "allows nothing",
        notes=(described(paths),),
        help="remove it; to replicate the arrays, give their axes a rule `AXIS -> none`",
    )
