"""A mesh axis crosses slices or nodes without `@ dcn`.

Give the part that crosses an axis of its own, so that the rules decide what may cross. Now part of
each group is in another slice (on GPUs: another node), and every collective over the axis waits for
the network between them, which is many times slower than the links inside. Not reported: an axis
that uses only the network of GPU nodes, because it has no other place.

Bad:
    shardspec: 1
    hardware: 2 * tpu v5e 4x4
    mesh: {data: rest, tensor: 4}
    rules:
      - batch -> data
      - mlp -> tensor
    activations:
      hidden: batch mlp

Good:
    -mesh: {data: rest, tensor: 4}
    +mesh: {replica: 2 @ dcn, data: rest, tensor: 4}
    -  - batch -> data
    +  - batch -> (replica, data)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.ir.spec import Hardware, Target, family
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import placed

if TYPE_CHECKING:
    from shardspec.topology.placement import DcnFact


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis that runs over DCN unasked."""
    for plan in context.plans:
        hardware = plan.target.hardware
        if hardware is None or hardware.slice_count == 1:
            continue
        from shardspec.topology.placement import dcn_facts

        placement = placed(plan.target)
        for fact in dcn_facts(placement) if placement is not None else ():
            yield _finding(fact, plan.target, hardware)


def _finding(fact: DcnFact, target: Target, hardware: Hardware) -> Diagnostic:
    unit = "slices" if hardware.chip.platform == "tpu" else "nodes"
    axis = fact.axis
    return Diagnostic(
        codes.CROSSES_SLICES,
        f"`{axis.name}` = {axis.size} crosses {unit} on target `{target.name}`, and does not say"
        " `@ dcn`",
        labels_at(
            (axis.span, f"in {fact.across} {unit}, {fact.inside} in each"),
            (hardware.span, f"{hardware.slice_count} {unit}"),
        ),
        help=_way_out(fact, target),
        target=target.name,
    )


def _way_out(fact: DcnFact, target: Target) -> str:
    name, span = fact.axis.name, fact.axis.span
    is_rest = family(target.name) != target.name and span is not None and span.text == "rest"
    across = "rest" if is_rest else fact.across
    if fact.inside == 1:
        return f"if that is intended, write: {quote.size(name, f'{across} @ dcn')}"
    taken = set(target.mesh.names)
    new = next(other for other in ("replica", "outer", f"{name}_dcn") if other not in taken)
    split = f"{quote.size(new, f'{across} @ dcn')} and {quote.size(name, fact.inside)}"
    return f"split it: {split}, and in rules `({new}, {name})` for what may cross"
