"""More bytes are replicated than the gate `coverage:` allows.

`coverage: {max_replicated_bytes: 2%}` is a promise of a whole spec, in bytes per device and share
of the model, on every target. An array counts where no mesh axis of more than one device splits
it, whatever the reason, also where a rule says `none`; split by one axis and repeated over the
others, it does not count. What is meant to be whole is named under `replicate:`, with the reason.

Bad:
    shardspec: 1
    mesh: {data: 8}
    coverage: {max_replicated_bytes: 2%}
    rules:
      - embed -> data
      - buckets -> none
    arrays:
      mlp/kernel: bf16[embed=4096 _=512]
      relpos/embedding: bf16[buckets=2048 _=64]

Good:
     coverage: {max_replicated_bytes: 2%}
    +replicate:
    +  - {path: relpos/*, because: "every head reads all of it, and it is small"}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.analysis.coverage import Coverage, limit_bytes
from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import binary_bytes, counted, named, percent
from shardspec.ir.spec import CoverageGate
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import largest, only


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each set of arrays that is too much; targets that agree share one."""
    gate = context.spec.coverage
    if gate is None:
        return
    cases: dict[tuple[str, ...], tuple[Coverage, list[str]]] = {}
    for plan in context.shared_plans:
        covered = context.covered[plan.target.name]
        if covered.counted_bytes > limit_bytes(gate, covered.total_bytes):
            paths = tuple(sharding.param.path for sharding in covered.counted)
            cases.setdefault(paths, (covered, []))[1].append(plan.target.name)
    for covered, targets in cases.values():
        yield _finding(gate, covered, targets)


def _finding(gate: CoverageGate, covered: Coverage, targets: list[str]) -> Diagnostic:
    total, whole = covered.total_bytes, covered.counted_bytes
    limit = limit_bytes(gate, total)
    yaml, dsl = "`replicate: [{path: ..., because: ...}]`", '`replicate ... because "..."`'
    return point(
        codes.REPLICATED_OVER_BUDGET,
        f"{binary_bytes(whole)} of arrays, {percent(whole, total)} of the model, are replicated on"
        f" {named('target', targets)}",
        gate.span,
        f"allows {binary_bytes(limit)}",
        notes=(
            f"{counted(len(covered.counted), 'array')}: {binary_bytes(whole - limit)} per device"
            " too much",
            *largest((sharding.param.path, sharding.param.bytes) for sharding in covered.counted),
            *_allowed(covered),
        ),
        help=f"split them; or name those that should be replicated, {quote.either(yaml, dsl)};"
        f" or {quote.word('max_replicated_bytes', _enough(gate, whole, total), 'coverage ')}",
        target=only(targets),
    )


def _allowed(covered: Coverage) -> Iterator[str]:
    if covered.allowed:
        yield (
            f"{counted(len(covered.allowed), 'array')} more, {binary_bytes(covered.allowed_bytes)},"
            " by `replicate`"
        )


def _enough(gate: CoverageGate, whole: int, total: int) -> str:
    """Return a limit, as the gate spells it, that would not be exceeded."""
    if gate.max_share is None:
        kibibytes = -(-whole // 1024)
        return f"{kibibytes} KiB" if kibibytes < 1024 else f"{-(-kibibytes // 1024)} MiB"
    return f"{-(-1000 * whole // total) / 10:g}%"
