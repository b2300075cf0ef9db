"""A prediction beside what the compiler made of the same step: by mesh axes, and in memory.

A plan's promise is broken where the program does not fit, where its traffic is another than was
predicted, or where it goes over mesh axes that nobody predicted. What was predicted is bytes by
mesh axes, never kinds or counts: compilers combine collectives, split them, and turn some into
others that send as much.

Known faults of compilers are looked for in a compiled program. An entry of `miscompiles.json` is a
chain of operations, the last first, that is wrong where the devices which an all-reduce adds up
have taken different slices: element by element it then adds what does not belong together. Which
slice a device takes is worked out from its number. Where that cannot be done, nothing is reported;
a sum over devices that took the same slice is right.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.analysis.memory import WAY_OUT, has_room, room_text
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import binary_bytes, counted, grouped, percent, seconds_text
from shardspec.ir import step as steps
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import Mesh
from shardspec.ir.step import Collective, Place
from shardspec.programs.calls import Estimate, Ref, by_line, step_cycles
from shardspec.programs.hlo import Computation, Instruction, Program
from shardspec.programs.known import Known
from shardspec.programs.members import members_of, slices_of
from shardspec.programs.memory import NO_ROOM, CompiledMemory, HeldValue
from shardspec.programs.reading import ReadProgram
from shardspec.records import Data, data_of, picked, record_of
from shardspec.report.cost_json import uncounted
from shardspec.versions import PACKAGE, VERIFY_JSON

#: What gives an array another form and no other values.
_FORMS = frozenset(("bitcast", "copy", "reshape", "transpose", "convert"))
#: How far a value is followed through fusions and forms.
_FARTHEST = 40
#: How many operations behind one another a slice's place is worked out from.
_DEEPEST = 12


class KnownFault(NamedTuple):
    """An entry of `miscompiles.json`.

    Attributes:
      chain: operations, each made of the next; the first adds up over devices, the second slices.
      effect: what the program computes in place of what was asked for.
      compiler: that makes such programs, and the version that does not.
      source: the public report.
    """

    name: str
    chain: tuple[str, ...]
    effect: str
    compiler: str
    source: str


class Miscompiled(NamedTuple):
    """A known fault in a program.

    Attributes:
      place: the user's line of the operation.
    """

    fault: KnownFault
    place: Place

    def __str__(self) -> str:
        """Return what is wrong, with its line and source."""
        fault = self.fault
        where = f"{self.place}: " if self.place.is_known else ""
        return f"{where}the program {fault.effect} ({fault.compiler}: {fault.source})"


class _At(NamedTuple):
    """An instruction, and the fusions that it is in, with the computations that call them."""

    body: Computation
    instruction: Instruction
    outer: tuple[tuple[Computation, Instruction], ...] = ()


@cache
def known_faults() -> tuple[KnownFault, ...]:
    """Return the entries of `miscompiles.json`."""
    text = files("shardspec.programs").joinpath("miscompiles.json").read_text("utf-8")
    return tuple(record_of(KnownFault, each) for each in json.loads(text))


def miscompiled(program: ReadProgram, mesh: Mesh) -> tuple[Miscompiled, ...]:
    """Return the known faults that a compiled program has."""
    own = program.calls.program
    found = (
        Miscompiled(fault, program.made(Ref(body.name, each.name))[0])
        for body in own.computations.values()
        for each in body.instructions.values()
        for fault in known_faults()
        if each.operation == fault.chain[0] and _has(own, mesh, _At(body, each), fault)
    )
    return tuple(dict.fromkeys(found))


def _has(program: Program, mesh: Mesh, at: _At, fault: KnownFault) -> bool:
    """Say whether a chain of operations ends here, and other slices are added up."""
    chain = [at]
    for operation in fault.chain[1:]:
        source = _operand(program, chain[-1], 0)
        if source is None or source.instruction.operation != operation:
            return False
        chain.append(source)
    return _adds_other_slices(program, mesh, at.instruction, chain[1])


def _adds_other_slices(program: Program, mesh: Mesh, reduce: Instruction, cut: _At) -> bool:
    """Say whether devices that are added up take slices of several elements at other places."""
    slices = slices_of(mesh, program.partitions)
    members = None if slices is None or len(slices.firsts) > 1 else members_of(reduce, slices)
    if members is None:
        return False
    sizes = cut.instruction.numbers("dynamic_slice_sizes")
    for dim, size in enumerate(sizes):
        if size < 2:
            continue
        for group in members.groups:
            places = {_number(program, _operand(program, cut, 1 + dim), each) for each in group}
            if None not in places and len(places) > 1:
                return True
    return False


def _operand(program: Program, at: _At, number: int) -> _At | None:
    """Return what computes an operand, through fusions and what only gives it another form."""
    names = at.instruction.operands
    if number >= len(names):
        return None
    return _source(program, at.body, names[number], at.outer)


def _source(
    program: Program,
    body: Computation,
    name: str,
    outer: tuple[tuple[Computation, Instruction], ...],
) -> _At | None:
    for _ in range(_FARTHEST):
        found = body.instructions.get(name)
        if found is None:
            return None
        if found.operation == "parameter" and outer:
            body, site = outer[-1]
            outer, at = outer[:-1], int(found.stated) if found.stated.isdigit() else -1
            if not 0 <= at < len(site.operands):
                return None
            name = site.operands[at]
        elif found.operation == "fusion" and found.called:
            inner = program.computations.get(found.called[0])
            if inner is None or inner.root is None:
                return None
            outer, body, name = (*outer, (body, found)), inner, inner.root.name
        elif found.operation in _FORMS and found.operands:
            name = found.operands[0]
        else:
            return _At(body, found, outer)
    return None


def _number(program: Program, at: _At | None, device: int, depth: int = 0) -> int | None:
    """Return a whole number that a device works out of its own; None where that is not known."""
    if at is None or depth > _DEEPEST:
        return None
    each = at.instruction
    if each.operation == "partition-id":
        return device
    if each.operation == "constant":
        values = _constants(each.stated)
        return values[0] if len(values) == 1 else None
    if each.operation == "dynamic-slice":
        table = _operand(program, at, 0)
        place = _number(program, _operand(program, at, 1), device, depth + 1)
        is_table = table is not None and table.instruction.operation == "constant"
        values = _constants(table.instruction.stated) if table is not None and is_table else ()
        return values[place] if place is not None and 0 <= place < len(values) else None
    parts = [
        _number(program, _operand(program, at, number), device, depth + 1)
        for number in range(len(each.operands))
    ]
    return _worked_out(each.operation, [part for part in parts if part is not None], len(parts))


def _worked_out(operation: str, parts: Sequence[int], count: int) -> int | None:
    if operation == "clamp" and len(parts) == count == 3:
        return max(parts[0], min(parts[1], parts[2]))
    if len(parts) != count or count != 2:
        return None
    left, right = parts
    found = {
        "add": left + right,
        "subtract": left - right,
        "multiply": left * right,
        "and": left & right,
        "minimum": min(left, right),
        "maximum": max(left, right),
        "divide": left // right if right > 0 else None,
        "remainder": left % right if right > 0 else None,
    }
    return found.get(operation)


def _constants(stated: str) -> tuple[int, ...]:
    """Return the whole numbers that a constant is; none where it is something else."""
    parts = [each.strip() for each in stated.strip("{} ").split(",")]
    return tuple(map(int, parts)) if all(each.isdigit() for each in parts) else ()


#: The share of all bytes that may go over mesh axes without a prediction.
UNPREDICTED_SHARE = 0.01
#: Collectives that are named although nobody predicted them, and arrays that are named of what
#: does not fit.
_MOST = 3
#: Operations that are named of those that take longest.
_MOST_OPERATIONS = 5
#: An error of this share of what a device has is not worth a word.
_SMALL_ERROR = 0.01
#: Below this share of all compiled bytes, mesh axes have no row, and nothing is told of what goes
#: over them unpredicted; JSON has all of it.
_LEAST_SHARE = 0.0005

Row = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class AxisProof:
    """What one device sends over some mesh axes in a step, by both."""

    mesh_axes: tuple[str, ...]
    predicted: int
    compiled: int

    @property
    def difference(self) -> int:
        """Return by how many bytes they differ."""
        return abs(self.predicted - self.compiled)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The same step, compiled with more flags.

    Attributes:
      sent: bytes that one device sends, by mesh axes.
      held: bytes that one device holds; None where that is not known.
      refusal: the compiler's words where it gives no program so, or gave up on it.
    """

    flags: str
    sent: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    held: int | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """A prediction, and the compiler's program.

    Attributes:
      step: the compiled one, each collective with the causes that the prediction knows.
      compiler: its name and version.
      seconds: that the compile took.
      refusal: the compiler's words where it gave up: no code is made of the program.
      tolerance: the share of all compiled bytes by which the prediction may differ.
      places: the user's lines of the largest values that the program holds, by their names.
      estimates: what operations take, by the compiler; none unless it generated code and says so.
      kept_from: the day of the compile, where it was not made anew.
      flags: that the compiler had, by the variable that they are in.
      what_if: what more flags change, where that was asked for.
      miscompiled: known faults of compilers that the program has.
      program: that the compiler made.

    Invariants:
      each: the rows hold every byte of both programs once.
    """

    cost: Cost
    step: steps.Step = field(repr=False)
    memory: CompiledMemory | None
    compiler: str
    seconds: float
    refusal: str = ""
    tolerance: float = 0.1
    places: Mapping[str, steps.Place] = field(default_factory=dict, repr=False)
    estimates: tuple[Estimate, ...] = field(default=(), repr=False)
    kept_from: str = ""
    flags: tuple[tuple[str, str], ...] = ()
    what_if: WhatIf | None = None
    miscompiled: tuple[Miscompiled, ...] = ()
    program: ReadProgram | None = field(default=None, repr=False, compare=False)

    @property
    def rows(self) -> tuple[AxisProof, ...]:
        """Return both by mesh axes, the most bytes first."""
        predicted = steps.wire_bytes(self.cost.step.collectives if self.cost.step else ())
        compiled = steps.wire_bytes(self.step.collectives)
        names = dict.fromkeys((*predicted, *compiled))
        rows = (AxisProof(each, predicted.get(each, 0), compiled.get(each, 0)) for each in names)
        return tuple(sorted(rows, key=lambda row: -max(row.compiled, row.predicted)))

    @property
    def predicted_bytes(self) -> int:
        """Return what one device sends in a step, by the prediction."""
        return _bytes(self.cost.step.collectives if self.cost.step else ())

    @property
    def compiled_bytes(self) -> int:
        """Return what one device sends in a step, by the compiler."""
        return _bytes(self.step.collectives)

    @property
    def difference(self) -> float:
        """Return the sum of the differences, over all compiled bytes."""
        differs, whole = sum(row.difference for row in self.rows), self.compiled_bytes
        return differs / whole if whole else float(differs > 0)

    @property
    def unpredicted(self) -> tuple[steps.Collective, ...]:
        """Return what the compiler sends over mesh axes that were not predicted, most first."""
        new = {row.mesh_axes for row in self.rows if not row.predicted}
        found = (each for each in self.step.collectives if each.axes in new)
        return tuple(sorted(found, key=lambda each: -each.wire_bytes))

    @property
    def unknown(self) -> tuple[steps.Unknown, ...]:
        """Return what neither the prediction nor the program can count."""
        predicted = () if self.cost.step is None else self.cost.step.unknown
        return tuple(dict.fromkeys((*self.step.unknown, *predicted)))

    def _is_open(self, each: steps.Unknown) -> bool:
        """Say whether something unknown touches what the proof states: bytes sent, and memory.

        What a prediction does not know of memory, the program tells.
        """
        is_told = self.memory is not None and each not in self.step.unknown
        return "sends" in each.figures or ("memory" in each.figures and not is_told)

    @property
    def fits(self) -> bool | None:
        """Say whether a device has room, None where its memory is not known."""
        if NO_ROOM in self.refusal:
            return False
        if self.memory is None:
            return None
        is_partial = bool(self.step.uncounted("memory"))
        return has_room(self.memory.bytes, self.cost.memory.hbm_bytes, is_partial=is_partial)

    @property
    def seconds_per_cycle(self) -> float | None:
        """Return how long a cycle is, None where the catalogue has no clock of the chip."""
        hardware = self.cost.target.hardware
        clock = None if hardware is None else hardware.chip.clock_hz
        return 1 / clock if clock else None

    @property
    def estimated_seconds(self) -> float | None:
        """Return what all operations take in a step by the compiler's own estimate."""
        if not self.estimates or self.seconds_per_cycle is None:
            return None
        return step_cycles(self.estimates) * self.seconds_per_cycle

    def __str__(self) -> str:
        """Return what `shardspec verify` prints."""
        return "\n".join(proof_lines(self))

    @property
    def faults(self) -> tuple[str, ...]:
        """Return why the step is not proved; none where it is."""
        return tuple(self._faults())

    def _faults(self) -> Iterator[str]:
        missing = sum(map(self._is_open, self.unknown))
        if missing:
            yield f"{counted(missing, 'operation')} {'is' if missing == 1 else 'are'} unknown"
        if self.fits is False:
            yield "it does not fit"
        if self.refusal and NO_ROOM not in self.refusal:
            yield f"{self.compiler} refuses it"
        if self.miscompiled:
            yield "the compiler made a wrong program of it"
        if self.difference > self.tolerance:
            differs, most = percent(self.difference, 1), percent(self.tolerance, 1)
            yield f"{differs} of the compiled bytes differ, more than the tolerance of {most}"
        whole = self.compiled_bytes
        for row in self.rows:
            share = row.compiled / whole if whole else 0.0
            if not row.predicted and share > UNPREDICTED_SHARE:
                axes = " and ".join(row.mesh_axes)
                yield f"{percent(share, 1)} of the bytes go over {axes}, which was not predicted"


def proof_lines(proof: Proof) -> Iterator[str]:
    """Yield a prediction and the program side by side, and what comes of it."""
    rows = [(proof.cost.target.name, "predicted", "compiled", ""), *rows_of(proof)]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for name, predicted, compiled, about in rows:
        line = f"{name:<{widths[0]}}   {predicted:>{widths[1]}}   {compiled:>{widths[2]}}   {about}"
        yield line.rstrip()
    yield from _more(proof)
    if proof.kept_from or proof.flags:
        yield made_text(proof)
    if proof.what_if is not None:
        yield from _what_if(proof, proof.what_if)
    yield verdict(proof)
    yield from _onward(proof)


def made_text(proof: Proof) -> str:
    """Return when a program was made, where it was kept, and with which flags."""
    when = f"kept from {proof.kept_from}" if proof.kept_from else "compiled"
    return f"{when}, {', '.join(f'{name} {value}' for name, value in proof.flags) or 'no flags'}"


def _what_if(proof: Proof, other: WhatIf) -> Iterator[str]:
    """Yield what more flags change in bytes and memory."""
    yield f"with {other.flags}:"
    if other.refusal:
        yield f"  {other.refusal.strip().partition(chr(10))[0]}"
    today = {row.mesh_axes: row.compiled for row in proof.rows}
    pairs: list[tuple[str, int | None, int | None]] = [
        (" + ".join(axes), today.get(axes, 0), other.sent.get(axes, 0))
        for axes in dict.fromkeys((*today, *other.sent))
        if other.sent or not other.refusal
    ]
    pairs.append(("memory", None if proof.memory is None else proof.memory.bytes, other.held))
    rows = []
    for name, before, after in pairs:
        if before is not None and after is not None:
            change = "no change" if before == after else _change(before, after)
            change = change if before else "new"
            rows.append((name, f"x {binary_bytes(before)}", f"x {binary_bytes(after)}", change))
    yield from columns(rows, right=(1, 2), indent=2)


def closing_lines(proofs: Sequence[Proof | str]) -> Iterator[str]:
    """Yield a table of several targets, a row each.

    Args:
      proofs: in place of a proof, the name of a target that there is no program for.
    """
    yield from columns(
        [_TITLES, *map(_closing, proofs)], right=(1, 2, 3, 4), indent=0, is_prose=True
    )


_TITLES = ("target", "predicted", "compiled", "differs", "holds", "")


def _closing(proof: Proof | str) -> tuple[str, ...]:
    if isinstance(proof, str):
        return proof, "", "", "", "", "no program"
    ours, theirs = binary_bytes(proof.predicted_bytes), binary_bytes(proof.compiled_bytes)
    held = "not known" if proof.memory is None else f"x {binary_bytes(proof.memory.bytes)}"
    came = f"not proved: {'; '.join(proof.faults)}" if proof.faults else "proved"
    differs = percent(proof.difference, 1)
    return proof.cost.target.name, f"~ {ours}", f"x {theirs}", differs, held, came


def verdict(proof: Proof) -> str:
    """Return the last line: whether the step is proved, and by how much."""
    if proof.faults:
        return f"not proved: {'; '.join(proof.faults)}"
    room = "it fits" if proof.fits else "whether it fits is not known"
    if not (proof.predicted_bytes or proof.compiled_bytes):
        return f"proved: {room}, and nothing is sent, as predicted"
    return f"proved: {room}, and {percent(proof.difference, 1)} of the compiled bytes differ"


def _onward(proof: Proof) -> Iterator[str]:
    """Yield what to do: where there is no room, or where a program differs by its bytes alone."""
    if proof.fits is False:
        yield WAY_OUT
    share = math.ceil(proof.difference * 100)
    if proof.fits and proof.faults and share <= 100 and not replace(proof, tolerance=1.0).faults:
        yield f"it fits; `--tolerance {share}%` accepts the difference"


def rows_of(proof: Proof) -> Iterator[Row]:
    """Yield what is shown of a proof: a name, the prediction, the program, and how they differ."""
    least = _LEAST_SHARE * max(proof.compiled_bytes, 1)
    shown = [row for row in proof.rows if max(row.compiled, row.predicted) >= least]
    for row in shown or proof.rows:
        name = " + ".join(row.mesh_axes)
        predicted, compiled = binary_bytes(row.predicted), binary_bytes(row.compiled)
        yield name, f"~ {predicted}", f"x {compiled}", _change(row.predicted, row.compiled)
    held = proof.cost.memory.total
    predicted = f"{held.mark} {binary_bytes(held.bytes)}"
    if proof.memory is None:
        yield "memory", predicted, "not known", ""
    else:
        yield "memory", predicted, f"x {binary_bytes(proof.memory.bytes)}", _room(proof)
    estimated, time = proof.estimated_seconds, proof.cost.time
    if estimated is not None:
        ours = 0.0 if time is None else time.compute_seconds
        predicted = f"~ {seconds_text(ours)}" if ours else "not known"
        change = f"{(estimated - ours) / ours * 100:+.1f} %" if ours else ""
        yield "compute", predicted, f"x~ {seconds_text(estimated)}", change


def _change(predicted: int, compiled: int) -> str:
    if not predicted:
        return "not predicted"
    return f"{(compiled - predicted) / predicted * 100:+.1f} %"


def _room(proof: Proof) -> str:
    room = proof.cost.memory.hbm_bytes
    if room is None:
        return ""
    told = room_text(room, proof.cost.memory.hbm_share)
    if proof.fits is None:
        return f"of {told}, unknown whether it fits"
    return f"{'does not fit' if proof.fits is False else 'fits'} {told}{_beyond(proof)}"


def _beyond(proof: Proof) -> str:
    """Return how much more a program holds than predicted, where that is beyond the interval."""
    held = proof.cost.memory
    if proof.memory is None or held.interval is None or not held.total.bytes:
        return ""
    more = proof.memory.bytes - held.interval.high
    if more <= _SMALL_ERROR * (held.hbm_bytes or 0):
        return ""
    return f", {proof.memory.bytes / held.total.bytes:.3g} times the prediction"


def _more(proof: Proof) -> Iterator[str]:
    yield from unknown_lines(proof)
    least = _LEAST_SHARE * proof.compiled_bytes
    told = [(_bytes(sent), words) for words, sent in grouped(proof.unpredicted, _told).items()]
    for size, words in sorted(told, key=lambda each: -each[0])[:_MOST]:
        if size < least:
            break
        share = percent(size, proof.compiled_bytes or 1)
        yield f"not predicted: {words}, {binary_bytes(size)} ({share})"
    if proof.difference > proof.tolerance:
        yield from _differing(proof)
    if proof.fits is False and proof.memory is not None:
        yield from _held_lines(proof, proof.memory.largest)
    if proof.refusal:
        first = proof.refusal.strip().partition("\n")[0]
        yield f"{proof.compiler}: {first}"
    if proof.estimated_seconds is not None:
        yield from _longest(proof)
    for fault in proof.miscompiled:
        yield f"wrong program: {fault}"
    for note in proof.step.notes:
        yield f"note: {note}"


def _held_lines(proof: Proof, held: Sequence[HeldValue]) -> Iterator[str]:
    """Yield the largest values of the peak; those of one shape and line are one."""
    alike = grouped(held, lambda each: (each.shape, str(proof.places.get(each.name, ""))))
    for (shape, place), values in [*alike.items()][:_MOST]:
        times = f" x{len(values)}" if len(values) > 1 else ""
        size = binary_bytes(sum(each.bytes for each in values))
        yield f"held at the peak: {shape}{times} {size}{f', {place}' if place else ''}"


def unknown_lines(proof: Proof) -> Iterator[str]:
    """Yield what cannot be counted, each with its line: in the program, and before it was one."""
    predicted = () if proof.cost.step is None else proof.cost.step.unknown
    for what, unknown in (
        ("unknown", proof.step.unknown),
        ("unknown in the prediction", predicted),
    ):
        for text, count in Counter(map(str, unknown)).items():
            yield f"{what}: {text}" if count == 1 else f"{what}: {text} ({count} operations)"


def _longest(proof: Proof) -> Iterator[str]:
    """Yield the operations that take longest by the compiler's estimate, those of a line in one."""
    whole = step_cycles(proof.estimates)
    rows = []
    for group in by_line(proof.estimates)[:_MOST_OPERATIONS]:
        cycles, times = step_cycles(group), sum(each.count for each in group)
        seconds = seconds_text(cycles * (proof.seconds_per_cycle or 0.0))
        share, first = percent(cycles, whole or 1), group[0]
        rows.append(
            (f"x~ {seconds}", share, f"x{times:g}", first.what, str(first.place), first.phase)
        )
    yield f"takes longest, by {proof.compiler}:"
    yield from columns(rows, right=(0, 1, 2), paths=3)


def _differing(proof: Proof) -> Iterator[str]:
    """Yield the lines of the code that differ most, over mesh axes with a prediction."""
    ours = grouped(proof.cost.step.collectives if proof.cost.step else (), _where)
    theirs = grouped(proof.step.collectives, _where)
    known = {" and ".join(row.mesh_axes) for row in proof.rows if row.predicted}
    sizes = {
        each: (_bytes(ours.get(each, ())), _bytes(theirs.get(each, ())))
        for each in dict.fromkeys((*ours, *theirs))
        if each[0] in known
    }
    most = sorted(sizes.items(), key=lambda item: -abs(item[1][0] - item[1][1]))
    for (axes, place), (predicted, compiled) in most[:_MOST]:
        if predicted != compiled:
            pair = f"~ {binary_bytes(predicted)} predicted, x {binary_bytes(compiled)} compiled"
            yield f"differs: over {axes}, {place}: {pair}"


def _where(sent: steps.Collective) -> tuple[str, str]:
    return " and ".join(sent.axes), str(sent.place)


def _bytes(sent: Iterable[steps.Collective]) -> int:
    return sum(each.wire_bytes for each in sent)


def _told(sent: steps.Collective) -> str:
    axes = " and ".join(sent.axes)
    causes = ", ".join(dict.fromkeys(filter(None, map(rule_of, sent.because))))
    carries = f", {sent.carries}" if sent.carries.name else ""
    return f"{sent.kind} over {axes}, {sent.place}{carries}{f', {causes}' if causes else ''}"


def rule_of(cause: steps.Cause) -> str:
    """Return the rule that it comes from, and where the spec says it."""
    if cause.span is None:
        return ""
    rule = "" if cause.rule is None else f"{cause.rule} "
    return f"{rule}({cause.span.place})"


def with_causes(compiled: steps.Step, cost: Cost) -> steps.Step:
    """Return a compiled step whose collectives have what the prediction knows of them.

    Where nothing was predicted at the line of one, the plan says why a weight or a gradient lies
    along an axis, or what computes at the line why it is split.
    """
    arrays = {each.param.path: each for each in cost.plan.arrays}
    step = cost.step or steps.Step("spec", compiled.mesh)
    split = {
        (op.place.own, cause.mesh_axis): cause for op in reversed(step.ops) for cause in op.because
    }

    def of_array(carried: steps.Carried, axis: str) -> steps.Cause | None:
        array = arrays.get(carried.name) if carried.kind in ("weight", "gradient") else None
        return None if array is None else _of_array(array, axis)

    def at_line(place: steps.Place, axis: str) -> steps.Cause | None:
        return split.get((place.own, axis)) if place.is_known else None

    known = Known(step, of_array, at_line)
    return replace(compiled, collectives=tuple(map(known.explained, compiled.collectives)))


def _of_array(array: ParamSharding, axis: str) -> steps.Cause | None:
    for number, dim in enumerate(array.dims):
        taken = [each for each in dim.attempts if axis in each.mesh_axes]
        if axis in dim.mesh_axes and taken:
            kind, name = steps.CauseKind.ARGUMENT, dim.logical_axis
            return steps.Cause(
                axis, kind, array.param.path, number, logical_axis=name, attempt=taken[-1]
            )
    return None


def proof_markdown(proofs: Sequence[Proof | str]) -> str:
    """Return a table for a pull request, of one target or of several.

    Args:
      proofs: in place of a proof, the name of a target that there is no program for.
    """
    lines = ["| target | | predicted | compiled | |", "|---|---|---:|---:|---|"]
    for proof in proofs:
        if isinstance(proof, str):
            lines.append(f"| {proof} | no program | | | |")
            continue
        name = proof.cost.target.name
        lines += (f"| {name} | {' | '.join(row)} |" for row in rows_of(proof))
        lines += (f"| {name} | {line} | | | |" for line in unknown_lines(proof))
        if proof.kept_from or proof.flags:
            lines.append(f"| {name} | {made_text(proof)} | | | |")
        lines.append(f"| {name} | {verdict(proof)} | | {proof.compiler} | |")
    return "\n".join(lines)


def proof_json(proofs: Sequence[Proof | str]) -> str:
    """Return all of it as JSON, `shardspec.verify/1`; see `proof_markdown`."""
    data = {
        "schema": VERIFY_JSON,
        "made_by": f"shardspec {PACKAGE}",
        "targets": [_data(proof) for proof in proofs if not isinstance(proof, str)],
        "without_program": [proof for proof in proofs if isinstance(proof, str)],
    }
    return json.dumps(data, indent=2)


# data


def _data(proof: Proof) -> Data:
    memory, held = proof.memory, proof.cost.memory
    return {
        "target": proof.cost.target.name,
        "compiler": proof.compiler,
        "kept_from": proof.kept_from or None,
        "flags": dict(proof.flags),
        "proved": not proof.faults,
        **picked(proof, "faults tolerance difference"),
        "axes": [
            picked(row, "mesh_axes predicted_bytes=predicted compiled_bytes=compiled")
            for row in proof.rows
        ],
        "memory": {
            **picked(held, "predicted_bytes=total.bytes predicted_basis=total.basis"),
            "compiled_bytes": memory and memory.bytes,
            "arguments_bytes": memory and memory.argument_bytes,
            "temporaries_bytes": memory and memory.temporary_bytes,
            "hbm_bytes": held.hbm_bytes,
            "fits": proof.fits,
        },
        "time": _time(proof),
        "not_predicted": [_sent(each) for each in proof.unpredicted],
        "unknown": [data_of(uncounted(each)) for each in proof.unknown],
        "refusal": proof.refusal or None,
        "notes": list(proof.step.notes),
        "miscompiled": [data_of(each) for each in proof.miscompiled],
        "what_if": None if proof.what_if is None else _what_if_data(proof.what_if),
    }


def _what_if_data(other: WhatIf) -> Data:
    return {
        "flags": other.flags,
        "axes": [
            {"mesh_axes": list(axes), "compiled_bytes": sent} for axes, sent in other.sent.items()
        ],
        "memory_bytes": other.held,
        "refusal": other.refusal or None,
    }


def _time(proof: Proof) -> Data | None:
    """Return what operations take by the compiler's own estimate; None where it states none."""
    cycle = proof.seconds_per_cycle
    if proof.estimated_seconds is None or cycle is None:
        return None
    time = proof.cost.time
    return {
        "predicted_compute_seconds": None if time is None else time.compute_seconds,
        "estimated_compute_seconds": proof.estimated_seconds,
        "operations": [
            {
                "operation": group[0].what,
                "place": _line(group[0].place),
                "phase": group[0].phase,
                "runs": sum(each.count for each in group),
                "estimated_seconds": step_cycles(group) * cycle,
            }
            for group in by_line(proof.estimates)
        ],
    }


def _line(place: Place) -> Data:
    via = {} if place.via is None else {"via": f"{place.via[0]}:{place.via[1]}"}
    return {**picked(place, "file line"), **via}


def _sent(each: Collective) -> Data:
    return {
        **picked(each, "kind mesh_axes wire_bytes"),
        "place": _line(each.place),
        "carries": str(each.carries),
        "because": [rule_of(cause) for cause in each.because if rule_of(cause)],
    }
