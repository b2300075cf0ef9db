"""How a mesh lies on a machine: slices, rings, links, hosts and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic, Severity, Span, codes, labels_at, point, quote
from shardspec.diagnostics.words import counted, described, listed, percent, three_figures
from shardspec.ir.plan import Outcome, ShardingPlan
from shardspec.ir.spec import (
    Hardware,
    MemoryRule,
    Mesh,
    MeshAxis,
    Override,
    Target,
    family,
    shape_text,
)
from shardspec.language.catalogue import catalogue_entry, hardware_names
from shardspec.lints.context import Context
from shardspec.lints.evidence import rules
from shardspec.lints.evidence.rules import placed

if TYPE_CHECKING:
    from shardspec.topology.explanation import AxisExplanation, DcnFact, RingFact

# submesh-tiling


def submesh_tiling(context: Context) -> Iterator[Diagnostic]:
    """Yield why a mesh whose sizes are right cannot be laid on its hardware.

    What a submesh gets wrong by itself is said where sizes are read; this is about the mesh as
    a whole.
    """
    for target in (plan.target for plan in context.all_plans):
        asks = any(axis.submesh is not None or axis.auto for axis in target.mesh.axes)
        if target.hardware is None or not target.is_sound or not asks:
            continue
        from shardspec.topology.placement import place

        fault = place(target)
        if isinstance(fault, Diagnostic):
            yield fault


# crosses-slices


def crosses_slices(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis that runs over DCN unasked."""
    for plan in context.plans:
        hardware = plan.target.hardware
        if hardware is None or hardware.slice_count == 1:
            continue
        from shardspec.topology.explanation import dcn_facts

        placement = placed(plan.target)
        for fact in dcn_facts(placement) if placement is not None else ():
            yield _crosses_slices_finding(fact, plan.target, hardware)


def _crosses_slices_finding(fact: DcnFact, target: Target, hardware: Hardware) -> Diagnostic:
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
        help=_crosses_slices_way_out(fact, target),
        target=target.name,
    )


def _crosses_slices_way_out(fact: DcnFact, target: Target) -> str:
    name, span = fact.axis.name, fact.axis.span
    is_rest = family(target.name) != target.name and span is not None and span.text == "rest"
    across = "rest" if is_rest else fact.across
    if fact.inside == 1:
        return f"if that is intended, write: {quote.size(name, f'{across} @ dcn')}"
    taken = set(target.mesh.names)
    new = next(other for other in ("replica", "outer", f"{name}_dcn") if other not in taken)
    split = f"{quote.size(new, f'{across} @ dcn')} and {quote.size(name, fact.inside)}"
    return f"split it: {split}, and in rules `({new}, {name})` for what may cross"


# slow-ring


def slow_ring(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each submesh that could be turned to lie better."""
    for plan in context.plans:
        target = plan.target
        if all(axis.submesh is None for axis in target.mesh.axes):
            continue
        from shardspec.topology.explanation import ring_fact

        placement = placed(target)
        fact = ring_fact(target, placement) if placement is not None else None
        if fact is not None:
            yield _slow_ring_finding(fact, target)


def _slow_ring_finding(fact: RingFact, target: Target) -> Diagnostic:
    tile = shape_text(fact.axis.submesh or ())
    better = f"submesh {shape_text(fact.tile)}"
    return point(
        codes.SLOW_RING,
        f"`{fact.axis.name}` on target `{target.name}` has {_links(fact.now)} at work as"
        f" submesh {tile}, and {_links(fact.then)} as {better}",
        fact.axis.span,
        "; ".join(map(str, fact.now.runs)),
        notes=tuple(
            f"`{before.name}` then has {_links(after)} instead of {_links(before)}"
            for before, after in fact.slower
        ),
        help=f"write `{better}`: {'; '.join(map(str, fact.then.runs))}",
        target=target.name,
    )


def _links(explained: AxisExplanation) -> str:
    """Return `3 links (~ 135 GB/s)`."""
    if explained.bottleneck == "chip":
        return "the chip's own link"
    count = explained.score.links
    links = f"{three_figures(count).removesuffix('.00')} link{'' if count == 1 else 's'}"
    if explained.bytes_per_s is None:
        return links
    return f"{links} (~ {three_figures(explained.bytes_per_s / 1e9)} GB/s)"


# tensor-over-dcn


#: Rules that are pointed at.
_SHOWN = 3


def tensor_over_dcn(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis over DCN that splits arrays and not the batch."""
    batch = frozenset(axis for rule in rules.batch_rules(context.spec) for axis in rule.mesh_axes)
    if not batch:
        return
    stacked = rules.stacked_axes(context.spec)
    for plan in context.plans:
        batch |= frozenset(plan.mesh.in_parts(batch))
        for crossing in rules.crossing_axes(plan.target):
            if crossing.axis.name not in batch:
                split = tuple(_split(plan, crossing.axis.name, stacked))
                if split:
                    yield _tensor_over_dcn_finding(crossing, plan, split, batch)


def _split(
    plan: ShardingPlan, axis: str, stacked: frozenset[str]
) -> Iterator[tuple[str, Span | None]]:
    """Yield the arrays that an axis splits within a layer, with the rule that does it."""
    for group in plan.alike:
        dim = next((dim for dim in group.dims if axis in dim.mesh_axes), None)
        if dim is not None and dim.taken and not rules.is_stacked(dim.logical_axis or "", stacked):
            yield from ((path, dim.taken.span) for path in group.paths)


def _tensor_over_dcn_finding(
    crossing: rules.Crossing,
    plan: ShardingPlan,
    split: tuple[tuple[str, Span | None], ...],
    batch: frozenset[str],
) -> Diagnostic:
    axis, target = crossing.axis, plan.target
    hardware = target.hardware
    unit = "nodes" if hardware and hardware.chip.platform != "tpu" else "slices"
    spans = list(dict.fromkeys(span for _, span in split))[:_SHOWN]
    notes = [described(path for path, _ in split), crossing.speed]
    return Diagnostic(
        codes.TENSOR_OVER_DCN,
        f"`{axis.name}` = {axis.size} splits arrays and crosses {unit} on target"
        f" `{target.name}`: each layer waits for DCN",
        labels_at((axis.span, f"crosses {unit}"), *((s, "splits arrays over it") for s in spans)),
        tuple(note for note in notes if note),
        _tensor_over_dcn_way_out(
            axis, target, unit, [name for name in target.mesh.names if name in batch]
        ),
        target=target.name,
    )


def _tensor_over_dcn_way_out(axis: MeshAxis, target: Target, unit: str, batch: list[str]) -> str:
    inside = f"keep `{axis.name}` within one of the {unit}"
    if target.hardware is not None:
        inside += f" (up to {target.hardware.devices_per_slice} devices)"
    other = f"{listed(batch)}, which the batch has," if batch else "an axis that the batch has"
    return f"{inside}, and let {other} cross: `@ dcn`"


# fast-link


Speeds = dict[str, "AxisExplanation"]


def fast_link(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target where another order gives the fast link to who needs it."""
    stacked = rules.stacked_axes(context.spec)
    for plan in context.plans:
        hardware = plan.target.hardware
        if hardware is None or hardware.chip.pair_bytes_per_s is None:
            continue
        waited = {
            mesh_axis
            for group in plan.alike
            for dim in group.dims
            for mesh_axis in dim.mesh_axes
            if not rules.is_stacked(dim.logical_axis or "", stacked)
        }
        finding = _fast_link_finding(plan, waited)
        if finding is not None:
            yield finding


def _fast_link_finding(plan: ShardingPlan, waited: set[str]) -> Diagnostic | None:
    """Return the finding of one target; None where no other order is better."""
    target = plan.target
    now = _speeds(target)
    own = next((a for a in target.mesh.axes if _has_chip(now, a) and a.name not in waited), None)
    mesh = Mesh(tuple(sorted(target.mesh.axes, key=lambda axis: axis.name in waited)))
    then = _speeds(replace(target, mesh=mesh)) if own is not None else {}
    faster = [axis for axis in mesh.axes if axis.name in waited and _gain(axis, now, then) > 0]
    slower = [axis for axis in mesh.axes if axis.name in waited and _gain(axis, now, then) < 0]
    if own is None or not faster or slower:
        return None
    gains = ", ".join(
        f"`{axis.name}` {_speed(now, axis)} now, and {_speed(then, axis)} then" for axis in faster
    )
    order = ", ".join(mesh.names)
    return Diagnostic(
        codes.FAST_LINK,
        f"`{own.name}` on target `{target.name}` has the link inside the chips,"
        f" {_speed(now, own)}, and no layer waits for it; `{faster[0].name}` has ICI,"
        f" {_speed(now, faster[0])}",
        labels_at(
            (own.span, "has the fast link"), *((a.span, "is waited for in layers") for a in faster)
        ),
        notes=(f"a ring all-gather on each device, one way: {gains}",),
        help=f"give the mesh axes in this order: {order}; the last chooses first",
        target=target.name,
    )


def _speeds(target: Target) -> Speeds:
    """Return what each mesh axis runs over; nothing where the mesh does not lie on its machine."""
    placement = rules.placed(target)
    if placement is None:
        return {}
    from shardspec.topology.explanation import explain_axes

    return {axis.name: axis for axis in explain_axes(placement)}


def _has_chip(speeds: Speeds, axis: MeshAxis) -> bool:
    found = speeds.get(axis.name)
    return found is not None and any(run.shape == "chip" for run in found.runs)


def _gain(axis: MeshAxis, now: Speeds, then: Speeds) -> float:
    """Return how many bytes/s an axis gathers more."""
    if axis.name not in now or axis.name not in then:
        return 0
    return (then[axis.name].bytes_per_s or 0) - (now[axis.name].bytes_per_s or 0)


def _speed(speeds: Speeds, axis: MeshAxis) -> str:
    return f"{three_figures((speeds[axis.name].bytes_per_s or 0) / 1e9)} GB/s"


# missing-memory


#: Memories that devices of a platform lack.
_LACKS = {"gpu": "unpinned_host"}


def missing_memory(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry with a memory that devices of some targets lack."""
    machines = [(each, each.hardware) for each in context.spec.targets if each.hardware]
    entries: tuple[Override | MemoryRule, ...]
    entries = (*context.spec.overrides, *context.spec.memory)
    for entry in entries:
        lacking = [
            (target, machine)
            for target, machine in machines
            if entry.memory is not None and _LACKS.get(machine.chip.platform) == entry.memory
        ]
        if lacking:
            names = listed(target.name for target, _ in lacking)
            first, machine = lacking[0]
            yield Diagnostic(
                codes.MISSING_MEMORY,
                f"{machine.chip.title} on target {names} has no `{entry.memory}`: its memories are"
                " `device` and `pinned_host`",
                labels_at((entry.span, "JAX refuses it there"), (machine.span, "GPUs")),
                help="write `pinned_host`",
                target=first.name,
            )


# target-name


_PART = re.compile(
    r"(?P<chip>(?<![a-z])[a-z]++[0-9]+[a-z]*|cpu)(?:[-_](?P<size>[0-9]+(?:x[0-9]+)*)(?![\w]))?"
)


def target_name(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose name and hardware disagree."""
    for plan in context.plans:
        target = plan.target
        if target.hardware is None:
            continue
        said = _said(target.name)
        if said is not None:
            chip, size = said
            if not _is_chip(chip, target.hardware) or not _is_size(size, target.hardware):
                yield _target_name_finding(
                    target, target.hardware, f"{chip}-{size}" if size else chip
                )


def _said(name: str) -> tuple[str, str] | None:
    """Return the chip and size that a name says; None for none, and for several."""
    found = [
        (match["chip"], match["size"] or "")
        for match in _PART.finditer(name.lower())
        if match["chip"] in hardware_names()
        and not name[match.start() - 1 : match.start()].isalnum()
    ]
    return found[0] if len(found) == 1 else None


def _is_chip(name: str, hardware: Hardware) -> bool:
    meant = catalogue_entry(hardware_names()[name]).chip.name
    return meant.partition("-")[0] == hardware.chip.name.partition("-")[0]


def _is_size(size: str, hardware: Hardware) -> bool:
    """Say whether a number or topology is some count of what the machine has."""
    if not size:
        return True
    if "x" in size:
        return size == shape_text(hardware.topology)
    slice_chips = math.prod(hardware.topology)
    per_slice = {
        slice_chips,
        hardware.devices_per_slice,
        slice_chips * hardware.chip.cores_per_chip,
        slice_chips * hardware.chip.devices_per_chip,
    }
    return int(size) in {hardware.slice_count} | per_slice | {
        count * hardware.slice_count for count in per_slice
    }


def _target_name_finding(target: Target, hardware: Hardware, said: str) -> Diagnostic:
    return Diagnostic(
        codes.TARGET_NAME,
        f"target `{target.name}` has other hardware than its name says:"
        f" {hardware.chip.title}, {_counts(hardware)}",
        labels_at((hardware.span, _counts(hardware)), (target.span, f"says {said}")),
        help="correct the hardware, or call the target after what it has",
        target=target.name,
    )


def _counts(hardware: Hardware) -> str:
    """Return `32 chips`, `512 chips in 2 slices` or `32 GPUs in 4 nodes`."""
    platform = hardware.chip.platform
    what, unit = {
        "tpu": ("chip", "slice"),
        "gpu": ("GPU", "node"),
        "cpu": ("device", "host"),
    }[platform]
    text = counted(hardware.chip_count, what)
    cores = max(hardware.chip.cores_per_chip, hardware.chip.devices_per_chip)
    if platform == "tpu" and cores > 1:
        text += f" ({hardware.chip_count * cores} cores)"
    if hardware.slice_count > 1:
        text += f" in {counted(hardware.slice_count, unit)}"
    return text


# faster-mesh


#: How much slower the spec's own mesh is before it is worth a word, as a share of the faster.
_SLOWER = 0.10
#: Meshes that are looked at, those most like the spec's own first.
_MOST = 400
#: Faster meshes that are held against the rules before the search ends.
_MOST_HELD = 20


def faster_mesh(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target that has a faster mesh of the same devices."""
    spec = context.spec
    if spec.step is None or spec.levels.severity(codes.FASTER_MESH) is Severity.ALLOW:
        return
    for plan in context.plans:
        if plan.target.hardware is not None:
            yield from _findings(plan)


def _findings(plan: ShardingPlan) -> Iterator[Diagnostic]:
    from shardspec.search.searching import Choice, Question, asked, search

    params = tuple(each.param for each in plan.arrays)
    question = asked(plan.spec, params, plan.target, Choice("mesh", most=_MOST))
    found = search(question) if isinstance(question, Question) else None
    today = found.today if found is not None else None
    if found is None or today is None or not today.seconds or today.unknown:
        return
    unfired = _unfired(plan)
    for row in found.rows[:_MOST_HELD]:
        slower = today.seconds / row.seconds - 1 if row.seconds else 0.0
        if row.fits is False or row.unknown or slower <= _SLOWER:
            return
        if _unfired(found.plan(row)) <= unfired:
            break
    else:
        return
    target, mesh = plan.target, row.candidate.mesh_text
    axes = [axis for axis in target.mesh.axes if axis.span is not None]
    more = percent(slower, 1)
    yield Diagnostic(
        codes.FASTER_MESH,
        f"a step on the mesh of target `{target.name}` is predicted {more} slower than on `{mesh}`",
        labels_at((axes[0].span, f"`{today.candidate.mesh_text}`")) if axes else (),
        notes=_notes(today.seconds, row.seconds, row.time.spread),
        help=f"`shardspec search --target {target.name}` says what it gains and loses; --write"
        " puts the best into the spec",
        target=target.name,
    )


def _notes(now: float, then: float, spread: float) -> tuple[str, ...]:
    unit, scale = ("s", 1.0) if then >= 1 else ("ms", 1e3)
    sides = (three_figures(seconds * scale) for seconds in (now, then))
    times = "~ {} {unit} a step now, and ~ {} {unit} then".format(*sides, unit=unit)
    return (f"{times}; a measured one may be off by {percent(spread, 1)} to either side",)


def _unfired(plan: ShardingPlan) -> set[tuple[str | None, tuple[str, ...]]]:
    """Return the axes with the mesh axes that do not divide them on a mesh."""
    return {
        (dim.logical_axis, attempt.asked)
        for each in (*plan.alike, *plan.activations)
        for dim in each.dims
        for attempt in dim.attempts
        if attempt.outcome is Outcome.INDIVISIBLE
    }
