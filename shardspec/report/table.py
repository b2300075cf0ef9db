"""The plan as a table: layers that agree in everything are one row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shardspec.analysis.coverage import coverage
from shardspec.diagnostics import Diagnostic, words
from shardspec.diagnostics.lines import Tone, Tones, columns
from shardspec.diagnostics.words import binary_bytes, counted, natural
from shardspec.ir.plan import DimSharding, ParamSharding, Sharding, ShardingPlan
from shardspec.ir.spec import Mesh, PartitionSpec, Sums, Target, target_text
from shardspec.records import Data

if TYPE_CHECKING:
    from shardspec.analysis.step_memory import StepMemory

_HEADINGS = ("array", "shape", "spec", "shard", "per device", "rules")


#: An array with the numbers in its path.
_Member = tuple[list[str], ParamSharding]


class Row(NamedTuple):
    """Arrays with one shape, dtype, answer and reason."""

    name: str
    shardings: tuple[ParamSharding, ...]

    @property
    def first(self) -> ParamSharding:
        """Return the array that stands for all."""
        return self.shardings[0]

    @property
    def per_device_bytes(self) -> int:
        """Return the bytes on one device of all of them."""
        return self.first.per_device_bytes * len(self.shardings)


def rows(plan: ShardingPlan) -> tuple[Row, ...]:
    """Return the arrays of a plan, collapsed, in natural order."""
    found = []
    for texts, members in words.by_template(plan.arrays, lambda each: each.param.path).items():
        for group in _alike(members):
            group.sort(key=lambda member: list(map(int, member[0])))
            numbers, shardings = zip(*group, strict=True)
            found.append(Row(_row_name(texts, numbers, shardings[0].param.path), shardings))
    return tuple(sorted(found, key=lambda row: natural(row.first.param.path)))


def _alike(members: list[_Member]) -> Iterable[list[_Member]]:
    """Return arrays of one template in rows; mostly they are one, which is seen at a glance."""
    first = members[0][1]
    if all(each.dims is first.dims and each.matched is first.matched for _, each in members) and (
        len({(each.param.dtype, each.origin, each.placed) for _, each in members}) == 1
    ):
        return (members,)
    return words.grouped(members, lambda member: _answer(member[1])).values()


def _answer(each: ParamSharding) -> tuple[object, ...]:
    return each.param.dtype, each.dims, each.origin, each.matched, each.placed


def _row_name(texts: Sequence[str], numbers: Sequence[list[str]], first: str) -> str:
    """Return the paths of a row as one, with their count where they are several."""
    if len(numbers) == 1:
        return first
    return f"{words.with_ranges(texts, numbers) or first + ' ..'} x{len(numbers)}"


def table(
    plan: ShardingPlan, *, is_whole: bool = True, findings: Iterable[Diagnostic] = ()
) -> Iterator[str]:
    """Yield the lines of the table: heading, rows, total, and what to notice.

    Args:
      is_whole: whether the plan has all that a device holds; only then is it said how much more
        its caches may hold.
      findings: the arrays that they are about stand out, where there are colours.
    """
    yield from heading(plan)
    yield ""
    shown = rows(plan)
    lines = [_HEADINGS, *(_cells(row, plan) for row in shown)]
    lines.append(("total", "", "", "", f"= {binary_bytes(plan.per_device_bytes)}", ""))
    if any(row.first.memory_kind for row in shown):
        lines.append(("in host memory", "", "", "", f"= {binary_bytes(plan.host_bytes)}", ""))
    loud = _loudest(findings)
    tones: list[Tones] = [{}, *(_tones(row, loud) for row in shown)]
    tones += [{}] * (len(lines) - len(tones))
    yield from columns(lines, right=(4,), paths=0, tones=tones)
    yield f"  {summary(plan)}"
    if is_whole and any(row.first.param.is_cache for row in shown):
        from shardspec.analysis.step_memory import room_lines  # start-up pays for what it reads

        yield from (f"  {line}" for line in room_lines(plan))
    if plan.activations:
        yield ""
        yield from _activations(plan)


def _loudest(findings: Iterable[Diagnostic]) -> dict[str, Tone]:
    """Return the tone of each array that a finding is about: an error beats a warning."""
    found: dict[str, Tone] = {}
    for finding in sorted(findings, key=lambda each: each.is_error):
        found |= dict.fromkeys(finding.arrays, "error" if finding.is_error else "warning")
    return found


def _tones(row: Row, loud: Mapping[str, Tone]) -> Tones:
    """Return what stands out of a row: findings about its arrays, and whether they are whole."""
    found: dict[int, Tone] = {2: "whole" if row.first.is_replicated else "split"}
    told = {loud.get(each.param.path) for each in row.shardings} if loud else {None}
    name: Tone | None = "error" if "error" in told else "warning" if "warning" in told else None
    return found if name is None else {0: name, **found}


def memory_lines(plans: Iterable[ShardingPlan]) -> Iterator[str]:
    """Yield what a device of each target holds, whether it fits, and how much is left; as `cost`.

    Targets that agree share a line. There is none where it would say no more than the total: of
    parameters alone, in a memory whose size is not known.
    """
    from shardspec.analysis.step_memory import step_memory  # start-up pays for what it reads

    plans = [plan for plan in plans if plan.arrays]
    found = [(plan.name, step_memory(plan)) for plan in plans]
    if all(each.hbm_bytes is None and _is_bare(each) for _, each in found):
        return
    rows = words.by_key((_memory_cells(each), name) for name, each in found).items()
    yield ""
    is_padded = any(map(_is_padded, plans, (each for _, each in found)))
    padded = ", with arrays padded to tiles" if is_padded else ""
    yield f"  memory of a device, without activations{padded}"
    cells = ((words.listed(names).replace("`", ""), *cells) for cells, names in rows)
    yield from columns(cells, right=(1,))


def _is_padded(plan: ShardingPlan, memory: StepMemory) -> bool:
    """Say whether the tiles of a TPU show in the bytes of parameters."""
    own = [each for each in plan.alike if not each.first.param.is_cache]
    bare = sum(each.device_bytes for each in own if each.memory_kind is None)
    return binary_bytes(memory.parameters.bytes) != binary_bytes(bare)


def _is_bare(memory: StepMemory) -> bool:
    """Say whether only parameters count."""
    return memory.total.bytes == memory.parameters.bytes and memory.host is None


def _memory_cells(memory: StepMemory) -> tuple[str, ...]:
    parts = [
        f"{name} {part.mark} {binary_bytes(part.bytes)}"
        for name, part in memory.parts.items()
        if part.bytes
    ]
    from shardspec.analysis.memory import room_text

    counted = "parameters alone" if _is_bare(memory) else "   ".join(parts)
    if memory.host is not None:
        counted += f"   in host memory {memory.host.mark} {binary_bytes(memory.host.bytes)}"
    total = f"{memory.total.mark} {binary_bytes(memory.total.bytes)}"
    if memory.hbm_bytes is None:
        return (total, "", "", counted)
    left = memory.hbm_bytes - memory.total.bytes
    if left < 0:
        said = f"DOES NOT FIT, {binary_bytes(-left)} too much"
    else:
        said = (
            f"{'may fit' if memory.total.basis == 'floor' else 'fits'}, {binary_bytes(left)} left"
        )
    return (total, f"of {room_text(memory.hbm_bytes, memory.hbm_share)}", said, counted)


def _activations(plan: ShardingPlan) -> Iterator[str]:
    """Yield the named activations: names, sizes where they are known, and the spec."""
    lines = [("activation", "names", "spec")]
    for sharding in plan.activations:
        names = " ".join(_named_size(dim) for dim in sharding.dims)
        lines.append((sharding.activation.name, names, layout_text(sharding)))
    yield from columns(lines)


def _named_size(dim: DimSharding) -> str:
    name = dim.logical_axis or "_"
    return name if dim.size is None else f"{name}={dim.size}"


def heading(plan: ShardingPlan) -> Iterator[str]:
    """Yield the two lines that say what this is a plan of."""
    alike = [group for group in plan.alike if not group.first.param.is_cache]
    elements = sum(math.prod(group.shape) * group.count for group in alike)
    arrays = sum(group.count for group in alike)
    count = f"{counted(arrays, 'array')}, {words.element_count(elements)} elements"
    caches = len(plan.arrays) - arrays
    count += f", {counted(caches, 'cache')}" if caches else ""
    model = f"{plan.spec.source.name}   {count}"
    phase = f"phase {plan.spec.phase}, " if plan.spec.phase else ""
    yield f"{model}       {phase}{target_title(plan.target)}"
    asked = [
        f"{axis.name} = {axis.span.text}"
        for axis in plan.mesh.axes
        if axis.span is not None and (axis.submesh or axis.auto or axis.over)
    ]
    asked += [f"{axis.name} over DCN" for axis in plan.mesh.axes if axis.network == "dcn"]
    asked += ["devices as listed"] if plan.target.devices else []
    asked += typed(plan.mesh)
    remarks = f"   ({', '.join(asked)})" if asked else ""
    yield f"mesh {plan.mesh.heading}{remarks}"


def typed(mesh: Mesh) -> list[str]:
    """Return `model explicit` for each mesh axis that is not left to the compiler."""
    return [f"{axis.name} {axis.axis_type}" for axis in mesh.axes if axis.axis_type != "auto"]


def target_title(target: Target) -> str:
    """Return `target v4-512: TPU v4 4x8x8, 256 chips`."""
    if target.hardware is None:
        return f"target {target.name}: {counted(target.mesh.device_count, 'device')}"
    return f"target {target.name}: {target.hardware.title}"


def _cells(row: Row, plan: ShardingPlan) -> tuple[str, ...]:
    first = row.first
    return (
        row.name,
        str(first.param),
        layout_text(first),
        str(list(first.shard_shape)),
        binary_bytes(row.per_device_bytes),
        rules_text(first, plan),
    )


def spec_text(spec: PartitionSpec) -> str:
    """Return `model, data`, `-` for a whole dimension, `replicated` where all are whole."""
    if not any(spec.dims):
        return f"replicated{spec.sums}" if spec.is_replicated else str(spec.sums).strip()
    return f"{', '.join(target_text(dim) if dim else '-' for dim in spec.dims)}{spec.sums}"


def layout_text(sharding: Sharding) -> str:
    """Return what `spec_text` does, and the memory where that is not the device's own."""
    memory = sharding.memory_kind
    return f"{spec_text(sharding.partition_spec)}{f' in {memory}' if memory else ''}"


def rules_text(sharding: ParamSharding, plan: ShardingPlan) -> str:
    """Return the lines of the rules that placed each dimension."""
    places = []
    for dim in sharding.dims:
        taken = dim.taken
        span = taken.span if taken and taken.mesh_axes else None
        if span is not None:
            own = span.source == plan.spec.source
            places.append(f":{span.line}" if own else span.place)
    return " ".join(dict.fromkeys(places))


def summary(plan: ShardingPlan) -> str:
    """Return `0 unnamed, 0 uneven, 171 replicated (0.002 % of bytes)`."""
    if not plan.arrays:
        return "no arrays"
    found = coverage(plan)
    share = words.percent(found.replicated_bytes, found.total_bytes)
    whole = f"{len(found.replicated)} replicated ({share} of bytes)"
    padded = plan.padded
    more = words.binary_bytes(sum(each.padding_bytes for each in padded))
    more = f", {len(padded)} padded (+{more})" if padded else ""
    return f"{len(found.unnamed)} unnamed, {len(found.uneven)} uneven, {whole}{more}"


def entries_data(spec: PartitionSpec) -> list[str | list[str] | None]:
    """Return an answer as JSON data, as JAX has it: a name, a list of them or None."""
    return [None if not dim else dim[0] if len(dim) == 1 else list(dim) for dim in spec.dims]


def beside_data(sums: Sums, memory: str | None) -> Data:
    """Return the mesh axes of sums, and the memory that is not the device's own, where stated."""
    found: Data = {kind: list(axes) for kind, axes in sums._asdict().items() if axes}
    return found if memory is None else {**found, "memory": memory}
