"""What a step sends or computes in vain, and how it is told of.

A collective is judged by what reads it. A gather whose only readers are operations that its mesh
axis splits in nothing has served no one: the devices of the axis all do the same work on what they
have gathered, each of them all of it. A gather of FSDP is no such thing: there the mesh axis that
splits the weight splits the examples, too, and each device works on its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, TypeVar

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large
from shardspec.analysis.traffic import group
from shardspec.diagnostics import Span
from shardspec.diagnostics.words import binary_bytes, counted, grouped, percent, three_figures
from shardspec.ir import step as steps
from shardspec.ir.spec import Mesh, PartitionSpec

Found = TypeVar("Found")
_SHOWN = 5
_PAIR = 2


class IdleGather(NamedTuple):
    """A gather over a mesh axis that splits nothing of what reads it.

    Attributes:
      cause: why the mesh axis splits what is gathered.
      ops: the products that read it, if any do.
      saved: the bytes that a device would not send without this mesh axis in it.
    """

    collective: steps.Collective
    cause: steps.Cause
    ops: tuple[steps.StepOp, ...]
    saved: int

    @property
    def is_weight(self) -> bool:
        """Say whether a weight is gathered that the spec splits, for its own sake.

        Where a constraint asks for a product whole, XLA may gather the weight of the product.
        """
        each = self.collective
        is_own = each.forced_by is None or moved(each).name == each.carries.name
        return each.carries.kind == "weight" and self.cause.attempt is not None and is_own


def idle_gathers(step: steps.Step) -> Iterator[IdleGather]:
    """Yield every gather of a step whose readers all do the same work on what is gathered."""
    ops = {op.at: op for op in step.ops}
    for each in step.collectives:
        reshard = each.reshard
        if each.kind is not steps.CollectiveKind.ALL_GATHER or reshard is None or not reshard.works:
            continue
        readers = tuple(ops[at] for at in reshard.works if at in ops)
        for cause in each.because:
            axis = cause.mesh_axis
            if reshard.shared_over is not None and axis not in reshard.shared_over:
                yield IdleGather(each, cause, readers, saved_bytes(each, axis, step.mesh))


def told_gathers(step: steps.Step) -> tuple[IdleGather, ...]:
    """Return those that SHD504 and SHD505 tell of."""
    return tuple(
        each
        for each in idle_gathers(step)
        if each.is_weight or each.collective.forced_by is not None
    )


def saved_bytes(each: steps.Collective, axis: str, mesh: Mesh) -> int:
    """Return what a device would send less in a step if a gather did without a mesh axis."""
    if each.reshard is not None and each.reshard.has_parts:
        return each.wire_bytes
    ways = mesh.sizes[axis]
    rest = mesh.ways(name for name in each.mesh_axes if name != axis)
    left = steps.ring_bytes(each.kind, each.payload_bytes // ways, rest)
    return max(0, round((each.wire_bytes_per_run - left) * each.count))


class Seats(NamedTuple):
    """The operands of a product that reads a weight, by letter.

    Attributes:
      own: the letters of the weight; `letters` are those of `other`, what it is multiplied with.
    """

    weight: steps.StepArray
    own: str
    other: steps.StepArray
    letters: str
    result: str


def seats_of(op: steps.StepOp, weights: Collection[str]) -> Seats | None:
    """Return the operands of a product of two that reads one of some weights; else None."""
    inputs, _, result = op.einsum.partition("->")
    letters = inputs.split(",")
    if not result or [len(each) for each in letters] != [len(e.shape) for e in op.operands]:
        return None
    at = next((at for at, each in enumerate(op.operands) if each.name in weights), None)
    if at is None or len(letters) != _PAIR:
        return None
    return Seats(op.operands[at], letters[at], op.operands[1 - at], letters[1 - at], result)


def places_by(
    found: Iterable[Found], told: Callable[[Found], tuple[PartitionSpec, steps.StepOp]]
) -> Iterator[tuple[str, str]]:
    """Yield how products are to be sharded, with their lines: `model.py:7 and model.py:9`."""
    for spec, pairs in grouped(map(told, found), lambda pair: str(pair[0])).items():
        yield spec, " and ".join(list(dict.fromkeys(str(op.place) for _, op in pairs))[:_SHOWN])


def wasted_flops(ops: Iterable[steps.StepOp], ways: int) -> float:
    """Return the FLOPs of a device in a step that other devices do as well."""
    once = {op.at: op for op in ops}
    return sum(op.flops * op.count for op in once.values()) * (ways - 1) / ways


def is_large_traffic(size: int, step: steps.Step) -> bool:
    """Say whether so many bytes are large of what a device sends in a step."""
    return is_large(size, sum(step.wire_bytes.values()))


def large_groups(
    found: Iterable[Found],
    key: Callable[[Found], object],
    size: Callable[[Found], int],
    step: steps.Step,
) -> Iterator[list[Found]]:
    """Yield what has one key in common, where its bytes are large of what a device sends."""
    for alike in grouped(found, key).values():
        if is_large_traffic(sum(map(size, alike)), step):
            yield alike


def reshards(step: steps.Step) -> Iterator[tuple[steps.Reshard, tuple[steps.Collective, ...]]]:
    """Yield every reshard of a step with the collectives that it consists of."""
    moves = (each for each in step.collectives if each.reshard is not None)
    for parts in grouped(moves, lambda each: each.reshard).values():
        if parts[0].reshard is not None:
            yield parts[0].reshard, tuple(parts)


def moved(each: steps.Collective) -> steps.StepArray:
    """Return the array that a reshard moves, whatever XLA sends for it."""
    own = None if each.reshard is None else each.reshard.array
    return each.array if own is None else own


def spans_of(collectives: Iterable[steps.Collective]) -> tuple[tuple[Span | None, str], ...]:
    """Return where the spec says of their mesh axes that they lie so."""
    causes = (cause for each in collectives for cause in each.because)
    return tuple((cause.span, f"`{cause.mesh_axis}` comes from here") for cause in causes)


def sent_lines(collectives: Iterable[steps.Collective]) -> tuple[str, ...]:
    """Return a line for each of what is sent most, and one for the rest.

    As "1.75 GiB  x32  weight layers/wi, model.py:71".
    """
    rows = group(collectives)
    lines = [
        f"{binary_bytes(row.wire_bytes)}  x{times(row.count)}"
        f"  {placed(str(row.carries[0]), row.places[0])}"
        for row in rows[:_SHOWN]
    ]
    rest = rows[_SHOWN:]
    if rest:
        size = binary_bytes(sum(row.wire_bytes for row in rest))
        lines.append(f"{size}  in {counted(len(rest), 'other row')}")
    return tuple(lines)


def repeats(op: steps.StepOp, mesh: Mesh) -> dict[str, int]:
    """Return the mesh axes whose devices repeat each other's work in an operation: how many do.

    An axis that splits nothing of it, or only as many ways as a dimension has: of sixteen devices
    over eight heads, each two compute the same.
    """
    shared: dict[str, int] = {}
    for array in (*op.operands, op.result):
        for axis, ways in _taken(array, mesh).items():
            shared[axis] = max(shared.get(axis, 1), ways)
    sizes = mesh.sizes
    alike = {name: 1 if name in op.mesh_axes else size for name, size in sizes.items()}
    alike |= {name: sizes[name] // min(ways, sizes[name]) for name, ways in shared.items()}
    return {name: ways for name, ways in alike.items() if ways > 1}


def _taken(array: steps.StepArray, mesh: Mesh) -> dict[str, int]:
    """Return how many ways each mesh axis splits an array: fewer than it has, where parts do."""
    taken: dict[str, int] = {}
    for size, part, axes in zip(array.shape, array.shard_shape, array.split.dims, strict=True):
        ways = -(-size // max(part, 1))
        for axis in axes:
            own = mesh.sizes[axis] * ways // mesh.ways(axes)
            taken[axis] = taken.get(axis, 1) * max(own, 1)
    return taken


def placed(what: str, place: object) -> str:
    """Return what is computed or sent at a line: `weight wi, model.py:71`; an einsum, as a product.

    Attention multiplies for each example and each head: both operands and the result have these.

    >>> placed("bte,ef->btf", "model.py:71"), placed("bthd,bshd->bhts", "model.py:53")[:33]
    ('product at model.py:71 (bte,ef->btf)', 'attention product at model.py:53 ')
    """
    inputs, arrow, result = what.partition("->")
    if not arrow:
        return f"{what}, {place}"
    shared = set(result).intersection(*map(set, inputs.split(",")))
    return f"{'attention ' if len(shared) > 1 else ''}product at {place} ({what})"


def product(op: steps.StepOp) -> str:
    """Return what a product is called, with its line."""
    return placed(op.einsum or op.kind, op.place)


def op_lines(ops: Iterable[steps.StepOp], whole: float) -> tuple[str, ...]:
    """Return the lines that compute most: "4 %  x32  product at model.py:71 (bte,ef->btf)".

    Args:
      whole: the FLOPs of the step.
    """
    sums: dict[str, tuple[float, float]] = {}
    for op in ops:
        key = product(op)
        flops, count = sums.get(key, (0.0, 0.0))
        sums[key] = (flops + op.flops * op.count, count + op.count)
    order = sorted(sums.items(), key=lambda item: -item[1][0])
    lines = [
        f"{percent(flops, whole)}  x{times(count)}  {key}" for key, (flops, count) in order[:_SHOWN]
    ]
    rest = order[_SHOWN:]
    if rest:
        share = percent(sum(flops for _, (flops, _) in rest), whole)
        lines.append(f"{share}  in {counted(len(rest), 'other line')}")
    return tuple(lines)


def searchable(help: str, cost: Cost) -> str:
    """Return help with the lines that a search found, or the command that looks for one.

    Of a step that was not traced from code, it is as it was.
    """
    if cost.step is None or cost.step.source != "code":
        return help
    cure = cost.step.cure
    if cure is not None and not cure.lines:
        return f"{help}; `shardspec search` found no line to add"
    if cure is not None:
        shown = [_added(each) for each in cure.lines[:_SHOWN]]
        more = len(cure.lines) - len(shown)
        rest = [counted(more, "other line")] if more > 0 else []
        added = " and ".join([*shown, *rest])
        return f"add {added}, which `shardspec search` found: {cure.gain}; or {help}"
    over = " --over constraints" if cost.plan.spec.step is not None else ""
    span = cost.target.span if cost.step.called else None
    spec = "SPEC" if span is None else shlex.quote(span.source.name)
    command = f"shardspec search {spec} --step {cost.step.called or 'MODULE:FUNCTION'}{over}"
    return f"{help}; `{command}` looks for the line to add"


def _added(line: steps.Added) -> str:
    place = f"{line.file}:{line.line}" if line.line else line.file
    return f"`{line.text}` at {place}" if line.text else f"a constraint at {place}"


def times(count: float) -> str:
    """Return how often: `32`, or `2.5` for an average."""
    return f"{count:.0f}" if count == int(count) else three_figures(count)


def per_step(size: float) -> str:
    """Return `1.75 GiB per device and step`."""
    return f"{binary_bytes(size)} per device and step"
