"""A captured step beside its prediction: each operation with its line, its array and its rule.

An operation of a capture has the name of an instruction. The program that the capture carries, or
else the one that the target's compiler makes of the step, says what that is and at which line of
the code; the trace of the step says why. What the program does not have stays a row by its name.

How fast a machine is, by a run that was captured on it: a calibration, as measuring gives one.

A product counts by the median of its runs, a collective by the device that came to it last, which
waited for nobody. A run has the sizes that its step has: a table of products is filled in between
with the nearest of them, and what stands behind each figure is how many operations were measured.
"""

from __future__ import annotations

import math
import re
import statistics
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import PurePath

from shardspec.analysis import comparison
from shardspec.analysis.comparison import IDLE, OTHERS, PRODUCTS, Asker, Comparison, Spent, askers
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.step_time import matmul_seconds, matmul_sizes
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import binary_bytes, by_key, counted, grouped, percent
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Spread
from shardspec.ir.operations import IN_HLO
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import Chip, Mesh, Target
from shardspec.ir.step import CauseKind, Collective, CollectiveKind, Phase, Place, Step, StepOp
from shardspec.language.calibration import calibrated_chip
from shardspec.programs import captures
from shardspec.programs.calls import Ref, called_by
from shardspec.programs.captures import Capture, Steps, Told, steps_of
from shardspec.programs.hlo import Instruction, Program, number, program_of
from shardspec.programs.known import Known
from shardspec.programs.op_names import einsum_in, is_library, phase_of, place_of, shown
from shardspec.programs.operations import Traffic, target_of
from shardspec.programs.proof import with_causes
from shardspec.programs.reading import Parts, ReadProgram, read

#: What devices a program names.
_IOTA = re.compile(r"<=\[([\d,]{1,200})\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*+\},?)++)\}")
_MESH = re.compile(r"replica_groups=@?\w*mesh\[([^\[\]]{1,1000})\]")
_SOURCE = re.compile(r"(.{1,400}):(\d{1,7})$")
#: Operations that only call others, and that move data beside what computes.
_CALLERS = frozenset(("while", "conditional", "call"))
_COPIES = ("copy-start", "async-start", "slice-start", "send", "recv")
#: What JAX calls collectives, and a compiler may, too.
_AS_IN_JAX = ("psum", "ppermute", "pmax", "pmin")
#: What multiplies, by the names that compilers give; where there is no program.
_PRODUCT_NAMES = re.compile(r"dot|conv(?!ert)|gemm|matmul")
#: Hops from the end of a collective back to its start.
_MOST_HOPS = 8
#: Programs of one name that are looked at.
_MOST_PROGRAMS = 8
_UNKNOWN = Asker(OTHERS[CauseKind.UNKNOWN])
#: The share of time, or of bytes, that is worth a note.
_MUCH = 0.05


def program_for(text: str, mesh: Mesh) -> Program:
    """Return the program of a text that does not say for how many devices it is.

    It is for as many as it names; one that names none sends nothing, and is for those of the mesh.
    """
    program = program_of(text)
    if program.partitions > 1:
        return program
    named = [math.prod(map(number, each.split(","))) for each in _IOTA.findall(text)]
    of_mesh = (re.findall(r"=(\d{1,9})", each) for each in _MESH.findall(text))
    named += [math.prod(map(number, sizes)) for sizes in of_mesh]
    listed = (re.findall(r"\d+", each) for each in _LISTED.findall(text))
    named += [max(map(number, each)) + 1 for each in listed if each]
    return replace(program, partitions=max(named) if named else mesh.device_count)


def on_paths(program: Program, known: Iterable[str]) -> Program:
    """Return a program whose files are those that a trace knows, where their ends agree.

    A run may be captured where the code lies in another folder.
    """
    by_name = by_key((PurePath(each).name, each) for each in dict.fromkeys(known) if each)

    def here(file: str) -> str:
        found = [] if is_library(file) else by_name.get(PurePath(file).name, [])
        if not found or shown(file) in found:
            return file
        return max(found, key=lambda each: _same_end(each, file))

    names = {file: here(file) for file in {frame.file for frame, _ in program.frames.values()}}
    pairs = program.frames.items()
    frames = {at: (frame._replace(file=names[frame.file]), by) for at, (frame, by) in pairs}
    return replace(program, frames=frames)


def _same_end(one: str, other: str) -> int:
    pairs = zip(reversed(PurePath(one).parts), reversed(PurePath(other).parts), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), 99)


def files_of(step: Step | None) -> tuple[str, ...]:
    """Return the files of a step's lines, those of helpers included."""
    ops, sends = ((), ()) if step is None else (step.ops, step.collectives)
    places = (*(op.place for op in ops), *(sent.place for sent in sends))
    return tuple(dict.fromkeys(file for place in places for file in (place.file, place.own[0])))


def module_of(capture: Capture) -> str:
    """Return the module of a capture that is the step: the one whose operations take longest."""
    return next(iter(captures.modules_of(capture)), "")


def programs_of(capture: Capture, module: str) -> dict[str, bytes]:
    """Return the program that a capture carries of a module; without a number, all of its name."""
    if module in capture.programs:
        return {module: capture.programs[module]}
    stem = module.partition("(")[0]
    found = {
        name: each for name, each in capture.programs.items() if name.partition("(")[0] == stem
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[1]))[:_MOST_PROGRAMS])


def program_in(
    capture: Capture,
    module: str,
    texts: Iterable[str],
    mesh: Mesh,
    step: Step | None = None,
) -> ReadProgram | None:
    """Return the program of a module: of several the one that has most of its operations.

    Args:
      step: that is predicted, whose files and arguments it has.

    Raises:
      ValueError: it is for another mesh.
    """
    ran = Counter(each.op for each in capture.events if each.module == module)
    best, most = None, 0
    for text in texts:
        program = on_paths(program_for(text, mesh), files_of(step))
        has = {name for body in program.computations.values() for name in body.instructions}
        covered = sum(count for op, count in ran.items() if op in has)
        best, most = (program, covered) if covered > most else (best, most)
    found = None if best is None else read(best, mesh, () if step is None else step.arguments)
    if isinstance(found, Diagnostic):
        raise ValueError(f"the program of {module} is not of this mesh: {found.message}")
    return found


def compared(
    capture: Capture, module: str, program: ReadProgram | None, cost: Cost, *, is_own: bool = True
) -> Comparison:
    """Return a captured step beside its prediction.

    Args:
      cost: the model's, of the traced step.
      is_own: whether the capture carries the program.
    """
    joined = Joined(cost, capture, module, program)
    steps = captures.steps_of(capture, module, joined.rank, joined.name)
    rows = [row for op, took in steps.ops.items() for row in joined.rows(op, took)]
    if steps.idle:
        idle = (steps.idle, steps.idle, 1.0)
        rows.append(Spent("idle", IDLE, Place(), "forward", (), "", (), *idle))
    predicted = comparison.predicted_of(cost)
    return Comparison(
        capture.name,
        module,
        len(steps.devices),
        steps.count,
        steps.seconds,
        min(steps.times),
        max(steps.times),
        steps.period,
        cost.time.step_seconds if predicted and cost.time is not None else None,
        tuple(sorted(rows, key=lambda row: -row.shown)),
        predicted,
        tuple(joined.unpredicted(rows)),
        (*capture.notes, *steps.notes, *_notes(joined, steps, is_own=is_own)),
    )


@dataclass(slots=True)
class Joined:
    """A program, a prediction of the same step, and what the capture says of operations."""

    cost: Cost
    capture: Capture
    module: str
    program: ReadProgram | None
    parts: Parts | None = None
    refs: dict[str, Ref] = field(default_factory=dict)
    causes: dict[int, Collective] = field(default_factory=dict)
    channels: dict[str, Ref] = field(default_factory=dict)
    ops: dict[tuple[str, int], list[StepOp]] = field(default_factory=dict)
    new: set[int] = field(default_factory=set)
    arrays: dict[str, ParamSharding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        step = self.cost.step
        known = () if step is None else step.ops
        self.arrays = {each.param.path: each for each in self.cost.plan.arrays}
        self.ops = by_key((op.place.own, op) for op in known)
        if self.program is None:
            return
        self.parts = self.program.parts()
        program = self.program.calls.program
        for body in program.computations.values():
            for name in body.instructions:
                self.refs.setdefault(name, Ref(body.name, name))
        for body, _ in self.program.calls.unfused():
            self.refs |= {name: Ref(body.name, name) for name in body.instructions}
        own = self.program.step.collectives
        told = with_causes(self.program.step, self.cost).collectives
        self.causes = {id(each): one for each, one in zip(own, told, strict=True)}
        traced = Known(step) if step is not None else None
        self.new = {
            id(one) for each, one in zip(own, told, strict=True)
            if traced is not None and not traced.has(each)
        }  # fmt: skip
        for ref in self.parts.sends:
            found = self.program.calls.instruction(ref)
            if found is not None and found.attribute("channel_id"):
                self.channels.setdefault(found.attribute("channel_id"), ref)

    # what an operation is

    def instruction(self, op: str) -> tuple[Ref, Instruction] | None:
        """Return the instruction of a name; of the end of something, that of its start."""
        ref = self.refs.get(op)
        calls = None if self.program is None else self.program.calls
        found = None if ref is None or calls is None else calls.instruction(ref)
        if ref is None or found is None or calls is None or self.parts is None:
            return None
        for _ in range(_MOST_HOPS):
            is_end = found.operation.endswith(("-done", "-update")) and found.operands
            if found.operation == "recv-done" and found.operands:
                ref = Ref(ref.computation, found.operands[0])
                begun = calls.instruction(ref)
                ref = ref if begun is None else self.parts.other_end(ref, begun)
            elif is_end:
                ref = Ref(ref.computation, found.operands[0])
            else:
                break
            found = calls.instruction(ref) or found
        return ref, found

    def name(self, op: str) -> str:
        """Return the name of what began an operation: its own, but of the end of something."""
        at = self.instruction(op)
        return op if at is None else at[0].name

    def inner(self, ref: Ref, each: Instruction) -> Iterator[Ref]:
        """Yield an instruction and all that a fusion or an asynchronous call of it is made of."""
        yield ref
        if each.operation in ("while", "conditional", "call") or self.program is None:
            return
        calls = self.program.calls
        for name in called_by(each):
            for body in calls.within(name):
                for one in calls.program.computations[body].instructions.values():
                    yield Ref(body, one.name)
                    if target_of(one) == "AsyncCollectiveDone":
                        yield from self._begun(body, one)

    def _begun(self, body: str, done: Instruction) -> Iterator[Ref]:
        assert self.program is not None, "an instruction is of a program"
        for name in done.operands:
            part = self.program.calls.instruction(Ref(body, name))
            found = None if part is None else self.channels.get(part.attribute("channel_id"))
            if found is not None:
                yield found

    def sends(self, op: str) -> tuple[Collective, ...]:
        """Return what an operation sends, each with its causes."""
        at = self.instruction(op)
        if at is None or self.parts is None:
            return ()
        refs = dict.fromkeys(self.inner(*at))
        return tuple(each for ref in refs for each in self.parts.sends.get(ref, ()))

    def product(self, op: str) -> StepOp | None:
        """Return the product that takes most of an operation; None where it multiplies nothing."""
        at = self.instruction(op)
        if at is None or self.parts is None:
            return None
        found = (self.parts.ops.get(ref) for ref in self.inner(*at))
        products = [each for each in found if each is not None and each.kind in PRODUCTS]
        return max(products, key=lambda each: each.flops, default=None)

    def rank(self, op: str) -> captures.Rank:
        """Return what an instant counts for while the operation runs."""
        at = self.instruction(op)
        if at is None:
            kind = _kind_of_name(op)
            return captures.MOVES if kind == "collective" else captures.COMPUTES
        if at[1].operation in _CALLERS and not self.sends(op):
            return captures.CALLS
        moves = at[1].operation in _COPIES or bool(self.sends(op))
        return captures.MOVES if moves and self.product(op) is None else captures.COMPUTES

    # rows

    def rows(self, op: str, took: captures.Took) -> Iterator[Spent]:
        """Yield what an operation takes; arrays that are sent together share it by their bytes."""
        at = self.instruction(op)
        if at is None or self.program is None:
            yield self._by_name(op, took)
            return
        product, sends = self.product(op), self.sends(op)
        what, place, phase = self.program.told(*at)
        if product is not None:
            yield self._product(product.flops, what, place, phase, took)
        elif sends:
            whole = sum(each.payload_bytes for each in sends) or 1
            for each in sends:
                share = each.payload_bytes / whole
                yield self._sent(
                    each, captures.Took(took.seconds * share, took.shown * share, took.runs)
                )
        else:
            yield Spent("other", what, place, phase, (), "", (), *took)

    def _sent(self, each: Collective, took: captures.Took) -> Spent:
        told = self.causes.get(id(each), each)
        rules = tuple(one for one in askers(told) if one != _UNKNOWN)
        is_whole = len(rules) == len(askers(told))
        return Spent(
            "collective",
            str(each.kind),
            told.place,
            told.phase,
            told.axes,
            comparison.array_of(told),
            rules if is_whole else (),
            *took,
        )

    def _product(
        self, flops: float, what: str, place: Place, phase: Phase, took: captures.Took
    ) -> Spent:
        """Return the row of a product, with what the trace knows of the likest at its line."""
        at_line = [op for op in self.ops.get(place.own, []) if op.kind in PRODUCTS]

        def unlike(op: StepOp) -> tuple[bool, bool, float]:
            return op.place.shown != place.shown, op.phase != phase, abs(op.flops - flops)

        like = min(at_line, key=unlike, default=None)
        rules = () if like is None else comparison.rules_of(like, self.arrays)
        likely = at_line if like is None else [like, *at_line]
        step = self.cost.step
        arrays = (comparison.array_read(op, step) for op in likely if step is not None)
        array = next((name for name in arrays if name), "")
        what = what if like is None else like.einsum or what
        return Spent("matmul", what, place, phase, (), array, rules, *took)

    def _by_name(self, op: str, took: captures.Took) -> Spent:
        """Return the row of what no program has, with the line that the capture states."""
        told = self.capture.told.get((self.module, op), Told())
        source = _SOURCE.match(told.source)
        frames = [(source[1], number(source[2]))] if source else []
        place, phase = place_of(frames, told.op_name), phase_of(told.op_name) or "forward"
        kind = _kind_of_name(op)
        what = einsum_in(place) or op or "of no operation of the step"
        if kind == "matmul":
            return self._product(0.0, what, place, phase, took)
        axes = ("unknown axes",) if kind == "collective" else ()
        return Spent(kind, what, place, phase, axes, "", (), *took)

    def unpredicted(self, rows: Iterable[Spent]) -> Iterator[Spent]:
        """Yield the measured collectives that the trace of the step does not have."""
        own = () if self.program is None else self.program.step.collectives
        new = (one for each in own if id(one := self.causes[id(each)]) in self.new)
        keys = {(each.axes, each.place, str(each.kind)) for each in new}
        found = (row for row in rows if (row.mesh_axes, row.place, row.what) in keys)
        yield from sorted(found, key=lambda row: -row.seconds)


def _kind_of_name(op: str) -> comparison.SpentKind:
    """Return what an operation is by its name alone."""
    stem = op.rstrip(string.digits).removesuffix(".").removesuffix("_").replace("_", "-")
    if stem.startswith((*IN_HLO, *_AS_IN_JAX)):
        return "collective"
    return "matmul" if _PRODUCT_NAMES.search(op) else "other"


def _notes(joined: Joined, steps: captures.Steps, *, is_own: bool) -> Iterator[str]:
    """Yield what is missing in a capture, and where it does not agree with the prediction."""
    mesh, program = joined.cost.target.mesh, joined.program
    if others := _other_chips(joined.capture, joined.cost.target):
        yield f"it ran on {others}, and the target is {joined.cost.target.hardware}"
    if len(steps.devices) < mesh.device_count:
        of = f"{len(steps.devices):,} of {counted(mesh.device_count, 'device')}"
        yield f"the capture has {of}; where it ran on several hosts, give the folder with all files"
    yield from captures.told_of_others(captures.modules_of(joined.capture), joined.module)
    if program is None:
        yield _without_program(joined.capture)
        return
    unknown = (op for op in steps.ops if op and joined.instruction(op) is None)
    lost = sum(steps.ops[op].shown for op in unknown)
    if lost > _MUCH * steps.seconds:
        whose = "of the capture" if is_own else "that the compiler of the target makes"
        share = percent(lost, steps.seconds)
        yield f"{share} of the step is of operations that the program {whose} does not have"
    yield from _other_step(joined, program)
    ran = {at[0] for op in steps.ops if (at := joined.instruction(op)) is not None}
    ran |= {ref for op in steps.ops if (at := joined.instruction(op)) for ref in joined.inner(*at)}
    assert joined.parts is not None, "a program has parts"
    sending = [ref for ref in joined.parts.sends if ref.computation in program.calls.times]
    missing = [ref for ref in sending if ref not in ran]
    if missing:
        yield (
            f"{len(missing)} of {counted(len(sending), 'collective')} of the program"
            f" {'is' if len(missing) == 1 else 'are'} not in the capture, first {missing[0].name}"
        )


def _other_chips(capture: Capture, target: Target) -> str:
    """Return on which chips a run was, if they are others than those of a target."""
    if target.hardware is None:
        return ""
    ours = [each.casefold() for each in target.hardware.chip.device_kinds]
    known = {*ours, *(each.partition(" ")[0] for each in ours)}  # the chip, or who makes it
    return " and ".join(each for each in capture.kinds if each.casefold() not in known)


def _without_program(capture: Capture) -> str:
    """Return what is missing in a trace in JSON, and which file beside it has it."""
    told = (
        "the run has no compiled program, and no compiler made one: mesh axes, lines and rules of"
        " most operations are unknown"
    )
    beside = captures.planes_beside(capture.name)
    return f"{told}; `{beside[0]}` beside it has the program" if beside else told


def _other_step(joined: Joined, program: ReadProgram) -> Iterator[str]:
    """Yield that the program of a capture is of another step than the one that is predicted."""
    step, entry = joined.cost.step, program.calls.program.entry
    if step is None or entry is None:
        return
    held = (each.arrays[0] for each in entry.parameters.values() if each.arrays)
    ours = Counter((each.array.dtype, each.array.shard_shape) for each in step.arguments)
    theirs = Counter((each.dtype, each.shape) for each in held)
    other = sum((theirs - ours).values())
    if other:
        dtype, shape = next(iter(theirs - ours))
        first = f"{dtype}[{', '.join(map(str, shape))}]"
        yield (
            f"{other} of {counted(sum(theirs.values()), 'argument')} of the captured program"
            f" {'has' if other == 1 else 'have'} another shape than predicted, first {first}:"
            " is it this step, with this layout?"
        )
    sent = sum(each.wire_bytes for each in program.step.collectives)
    said = sum(each.wire_bytes for each in step.collectives)
    if abs(sent - said) > 2 * _MUCH * max(sent, said):
        yield f"the captured program sends {binary_bytes(sent)}, predicted are {binary_bytes(said)}"


#: Sizes of a table along one side, those that take longest.
_MOST_SIZES = 8
#: A copy smaller than this says how long it takes to begin, and not how fast memory is.
_LEAST_BYTES = 1 << 16
#: A share is more than nothing.
_LEAST_SHARE = 1e-3
_Sizes = tuple[int, int, int]


def calibration_of_run(
    capture: Capture, module: str, program: ReadProgram, plan: ShardingPlan, date: str
) -> Calibration:
    """Return what a run says of the machine of a plan's target.

    Raises:
      ValueError: it is of another kind of device, or has nothing that a calibration holds.
    """
    hardware = plan.target.hardware
    assert hardware is not None, "whoever asks knows the machine"
    ran = {each.rpartition("/")[2].partition(":")[0].lower() for each in _devices(capture)}
    if ran != {hardware.chip.platform}:
        kinds = " and ".join(sorted(each.upper() for each in ran))
        raise ValueError(f"it is of a {kinds}, and target `{plan.target.name}` of {hardware}")
    if others := _other_chips(capture, plan.target):
        raise ValueError(f"it ran on {others}, and target `{plan.target.name}` is {hardware}")
    joined = Joined(cost_of(plan), capture, module, program)
    steps = steps_of(capture, module, joined.rank, joined.name)
    ran_on = f"{counted(len(steps.devices), 'device')}, {counted(steps.count, 'step')}"
    found = Calibration(
        hardware.chip.name,
        hardware.chip.device_kinds[0],
        date,
        f"a run of {module} on {ran_on}",
        machine=hardware.machine,
        mesh=str(plan.mesh),
        curves=tuple(_curves(joined, steps)),
        exposed=_exposed(joined, steps),
    )
    found = _with_matmuls(found, joined, steps, hardware.chip)
    if not (found.curves or found.matmuls):
        raise ValueError("it has no product and no collective whose sizes the program states")
    return found


def _devices(capture: Capture) -> set[str]:
    return {each.device for each in capture.events}


# products


def _with_matmuls(made: Calibration, joined: Joined, steps: Steps, chip: Chip) -> Calibration:
    runs: dict[str, dict[_Sizes, list[float]]] = {}
    for op, times in steps.once.items():
        found = joined.product(op)
        sizes = None if found is None else matmul_sizes(replace(found, kind="einsum"))
        if found is not None and sizes is not None:
            m, k, n = (max(1, round(each)) for each in sizes)
            runs.setdefault(found.dtype, {}).setdefault((m, k, n), []).extend(times)
    if chip.bf16_flops_per_s is None:
        peaks = {
            dtype: max(2 * math.prod(at) / statistics.median(took) for at, took in held.items())
            for dtype, held in runs.items()
        }
        made = replace(made, flops_per_s=tuple(peaks.items()))
    if chip.hbm_bytes_per_s is None:
        made = replace(made, hbm_bytes_per_s=_memory(joined, steps))
        if made.hbm_bytes_per_s is None:
            return made
    own = calibrated_chip(chip, made)
    tables = (_table(dtype, held, own) for dtype, held in runs.items())
    return replace(made, matmuls=tuple(tables))


def _memory(joined: Joined, steps: Steps) -> Spread | None:
    """Return how fast operations that multiply and send nothing read and write."""
    assert joined.program is not None, "a calibration is of a program"
    calls = joined.program.calls
    traffic, speeds = Traffic(calls, is_tpu=False), []
    for op, times in steps.once.items():
        at = joined.instruction(op)
        body = None if at is None else calls.program.computations.get(at[0].computation)
        if at is None or body is None or joined.sends(op) or joined.product(op) is not None:
            continue
        moved, took = traffic.of(body, at[1]), statistics.median(times)
        if moved >= _LEAST_BYTES and took > 0:
            speeds.append(moved / took)
    return _spread(speeds) if speeds else None


def _table(dtype: str, runs: dict[_Sizes, list[float]], chip: Chip) -> MatmulTable:
    """Return a table over the sizes that take longest; between them it has the nearest."""
    shares = {
        at: min(1.0, matmul_seconds(chip, dtype, *at) / statistics.median(took))
        for at, took in runs.items()
    }
    sides = tuple(_sides(runs, side) for side in range(3))

    def nearest(at: tuple[int, ...]) -> float:
        return shares[min(shares, key=lambda each: (_apart(each, at), each))]

    filled = (max(_LEAST_SHARE, float(f"{nearest(at):.3g}")) for at in product(*sides))
    count = sum(map(len, runs.values()))
    spreads = ((max(took) - min(took)) / statistics.median(took) for took in runs.values())
    spread = statistics.median(spreads)
    m, k, n = sides
    return MatmulTable(dtype, m, k, n, tuple(filled), spread, count)


def _sides(runs: dict[_Sizes, list[float]], side: int) -> tuple[int, ...]:
    """Return the sizes along one side of a table."""
    times = grouped(runs, lambda at: at[side])
    took = {size: sum(sum(runs[at]) for at in held) for size, held in times.items()}
    return tuple(sorted(sorted(took, key=lambda size: -took[size])[:_MOST_SIZES]))


def _apart(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(one, other, strict=True))


# collectives


def _curves(joined: Joined, steps: Steps) -> Iterator[Curve]:
    """Yield how long each kind of collective takes over its mesh axes, by what it carries."""
    found: list[tuple[tuple[CollectiveKind, tuple[str, ...], int], float]] = []
    for op, times in steps.once.items():
        sends = joined.sends(op)
        ways = {(each.kind, each.axes) for each in sends}
        if len(ways) == 1 and joined.product(op) is None:
            size = sum(each.payload_bytes for each in sends)
            found += (((sends[0].kind, sends[0].axes, size), took) for took in times if took > 0)
    kinds = grouped(by_key(found).items(), lambda item: item[0][:2])
    for (kind, axes), held in kinds.items():
        rows = sorted((size, _spread(times)) for (_, _, size), times in held if size)
        if rows:
            yield Curve(kind, axes, tuple(row[0] for row in rows), tuple(row[1] for row in rows))


def _exposed(joined: Joined, steps: Steps) -> Spread | None:
    """Return which share of the collectives shows in the time of a step."""
    sent = [(op, took) for op, took in steps.ops.items() if joined.sends(op) and took.seconds]
    whole = sum(took.seconds for _, took in sent)
    if not whole:
        return None
    shares = [max(_LEAST_SHARE, took.shown / took.seconds) for _, took in sent]
    mean = max(_LEAST_SHARE, sum(took.shown for _, took in sent) / whole)
    count = sum(len(steps.once.get(op, ())) for op, _ in sent)
    return Spread(min(max(mean, min(shares)), max(shares)), min(shares), max(shares), count)


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))
