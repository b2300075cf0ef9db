"""What a step took, compared with what was predicted of it: by mesh axis, by line and by rule.

Both sides are rows of one form: what an operation takes of the time of a step on one device. Of a
measured step they sum to what it took, of a predicted one to the prediction, so that a table holds
every second of both once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from shardspec.analysis import step_time as times
from shardspec.analysis.cost import Cost
from shardspec.analysis.traffic import Asker, array_of, asker, askers
from shardspec.diagnostics.words import grouped
from shardspec.ir.plan import ParamSharding
from shardspec.ir.step import Cause, CauseKind, Phase, Place, Step, StepOp

SpentKind = Literal["collective", "matmul", "other", "idle"]
SpentBy = Literal["axis", "line", "rule"]
#: What is to have its line and its rule.
NAMED: tuple[tuple[SpentKind, str], ...] = (("collective", "collectives"), ("matmul", "products"))
#: Whose rule is that no mesh axis splits it.
UNSPLIT = Asker("split by no mesh axis")
#: Operations that multiply.
PRODUCTS = frozenset(("einsum", "convolution", "kernel"))


@dataclass(frozen=True, slots=True)
class Spent:
    """What one operation takes in a step, on one device.

    Attributes:
      what: the collective, the einsum, or the compiler's name.
      askers: the rules that shard it; empty where they are not known.
      seconds: while it runs.
      shown: of the step, what it alone accounts for: a collective what no computation hides.
      runs: in a step.
      flops: in a step; None where they are not known, likewise `bytes`.
      bytes: read and written in a step.
    """

    kind: SpentKind
    what: str
    place: Place
    phase: Phase
    mesh_axes: tuple[str, ...]
    array: str
    askers: tuple[Asker, ...]
    seconds: float
    shown: float
    runs: float
    flops: float | None = None
    bytes: float | None = None

    @property
    def is_explained(self) -> bool:
        """Say whether its line and its rule are known."""
        return self.place.is_known and bool(self.askers)

    def name(self, by: SpentBy) -> str:
        """Return the row of a table that it counts in."""
        if self.kind == "idle":
            return IDLE
        match by:
            case "axis":
                return "+".join(self.mesh_axes) if self.kind == "collective" else "compute"
            case "line":
                return str(self.place) if self.place.is_known else "no line"
            case "rule":
                unknown = "no rule" if self.kind == "other" else "unknown"
                return " + ".join(sorted(map(str, self.askers))) or unknown


IDLE = "nothing runs"


class ComparedRow(NamedTuple):
    """What one row of a table takes of a step.

    Attributes:
      predicted: None where no time is predicted.
      collectives: while they run, hidden or not.
    """

    name: str
    predicted: float | None
    measured: float
    collectives: float

    @property
    def off(self) -> float:
        """Return by how many seconds the prediction is off."""
        return self.measured - (self.predicted or 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured step, and what was predicted of it.

    Attributes:
      run: where it was read from.
      module: the compiled program.
      devices: that were measured.
      steps: complete ones, on each device.
      seconds: that a step takes; `low` and `high` of all devices and steps.
      period: from the start of one step to that of the next; None for a single one.
      predicted_seconds: None where none are predicted.
      unpredicted: collectives that the prediction does not have.
      notes: what is missing, or does not agree.

    Invariants:
      sum: what `measured` shows sums to `seconds`, what `predicted` shows to `predicted_seconds`.
    """

    run: str
    module: str
    devices: int
    steps: int
    seconds: float
    low: float
    high: float
    period: float | None
    predicted_seconds: float | None
    measured: tuple[Spent, ...] = field(repr=False)
    predicted: tuple[Spent, ...] = field(default=(), repr=False)
    unpredicted: tuple[Spent, ...] = ()
    notes: tuple[str, ...] = ()

    def rows(self, by: SpentBy) -> tuple[ComparedRow, ...]:
        """Return both sides of a table, what takes longest first."""
        return self.table(lambda each: each.name(by))

    @property
    def wrong(self) -> tuple[ComparedRow, ...]:
        """Return what the model gets wrong, the most first: operations of a line together."""
        if self.predicted_seconds is None:
            return ()
        return tuple(sorted(self.table(_operation), key=lambda row: -abs(row.off)))

    def table(self, key: Callable[[Spent], str]) -> tuple[ComparedRow, ...]:
        """Return both sides by what each operation counts as."""
        ours, theirs = grouped(self.predicted, key), grouped(self.measured, key)
        is_timed = self.predicted_seconds is not None
        rows = (
            ComparedRow(
                name,
                _shown(ours.get(name, ())) if is_timed else None,
                _shown(theirs.get(name, ())),
                _busy(theirs.get(name, ())),
            )
            for name in dict.fromkeys((*theirs, *ours))
        )
        return tuple(sorted(rows, key=lambda row: -max(row.measured, row.predicted or 0.0)))

    def explained(self, kind: SpentKind) -> float | None:
        """Return the share of the measured time whose line and rule are known; None without any."""
        found = [each for each in self.measured if each.kind == kind]
        whole = sum(each.seconds for each in found)
        known = sum(each.seconds for each in found if each.is_explained)
        return known / whole if whole else None


class RunRow(NamedTuple):
    """What one row of a table took of a step in two runs, in seconds."""

    name: str
    before: float
    after: float


def run_diff(before: Comparison, after: Comparison) -> dict[SpentBy, tuple[RunRow, ...]]:
    """Return what changed from one run to another, by rule, line and mesh axis, the most first."""
    found: dict[SpentBy, tuple[RunRow, ...]] = {}
    for by in ("rule", "line", "axis"):
        old, new = ({row.name: row.measured for row in run.rows(by)} for run in (before, after))
        names = dict.fromkeys((*new, *old))
        rows = (RunRow(name, old.get(name, 0.0), new.get(name, 0.0)) for name in names)
        found[by] = tuple(sorted(rows, key=lambda row: -abs(row.after - row.before)))
    return found


def _operation(each: Spent) -> str:
    if each.kind == "idle" or not each.place.is_known:
        return each.what
    if each.kind == "collective":
        return f"{each.what} over {'+'.join(each.mesh_axes)} at {each.place}"
    return f"{'products' if each.kind == 'matmul' else 'other computation'} at {each.place}"


def _shown(found: Iterable[Spent]) -> float:
    return sum(each.shown for each in found)


def _busy(found: Iterable[Spent]) -> float:
    return sum(each.seconds for each in found if each.kind == "collective")


# predicted


def predicted_of(cost: Cost) -> tuple[Spent, ...]:
    """Return what each operation takes of a predicted step; none where no time is predicted."""
    return tuple(row for _, row in timed_of(cost))


def timed_of(cost: Cost) -> tuple[tuple[int, Spent], ...]:
    """Return what each operation takes, behind the tick at which it starts; see `predicted_of`."""
    step, time, hardware = cost.step, cost.time, cost.target.hardware
    links = times.links_of(cost.plan)
    if step is None or time is None or hardware is None or links is None:
        return ()
    rows = [*_sends(links, step, time), *_ops(cost, step, time)]
    found = [*_as_predicted(rows, time)]
    if waits := time.waits_seconds:
        idle = Spent("idle", "stages wait", Place(), "forward", (), "", (), waits, waits, 1)
        found.append((step.end + 2, idle))
    return tuple(found)


def _as_predicted(
    rows: Sequence[tuple[int, Spent]], time: times.StepTime
) -> Iterator[tuple[int, Spent]]:
    """Yield rows in the same proportions that add up to a prediction.

    Two things are predicted for all rows together: a pipeline's busiest stage, where a row is the
    mean of the stages, and what libraries lose on the links of a mesh axis.
    """

    def key(row: Spent) -> str:
        return _axis(row.mesh_axes) if row.kind == "collective" else ""

    whole = {"": time.compute_seconds, **{each.mesh_axis: each.seconds for each in time.axes}}
    sums: dict[str, float] = {}
    for _, row in rows:
        sums[key(row)] = sums.get(key(row), 0.0) + row.seconds
    for at, row in rows:
        share = whole.get(key(row), 0.0) / (sums[key(row)] or 1.0)
        yield at, replace(row, seconds=row.seconds * share, shown=row.shown * share)


def _axis(axes: Iterable[str]) -> str:
    """Return the name that mesh axes have in a predicted time."""
    return "+".join(sorted(axes))


def _sends(links: times.Links, step: Step, time: times.StepTime) -> Iterator[tuple[int, Spent]]:
    """Yield what collectives take; each exposes of it the share that its mesh axes do."""
    exposed = {each.mesh_axis: each.exposed_seconds / (each.seconds or 1.0) for each in time.axes}
    for each in step.collectives:
        run = links.seconds(each.kind, each.mesh_axes, each.payload_bytes)
        took = (run or 0.0) * each.count * time.scale
        yield (
            each.at,
            Spent(
                "collective",
                str(each.kind),
                each.place,
                each.phase,
                each.axes,
                array_of(each),
                askers(each),
                took,
                took * exposed.get(_axis(each.axes), 0.0),
                each.count,
            ),
        )


def _ops(cost: Cost, step: Step, time: times.StepTime) -> Iterator[tuple[int, Spent]]:
    """Yield what operations take; what all of them take beside their FLOPs goes by what each makes.

    That is the model of `step_work`, an operation at a time.
    """
    hardware = cost.target.hardware
    assert hardware is not None, "a step with a time has a machine"
    chip = hardware.chip
    stream = times.per_device(chip.hbm_bytes_per_s, chip)
    passes = times.constants_of(chip).passes
    arrays = {each.param.path: each for each in cost.plan.arrays}
    for op in step.ops:
        made = passes * times.made_bytes(op) / stream
        took = (max(times.op_seconds(op, chip)) * op.count + made) * time.scale
        rules = rules_of(op, arrays)
        kind: SpentKind = "matmul" if op.kind in PRODUCTS else "other"
        array = array_read(op, step)
        what = op.einsum or op.kind
        sums = op.flops * op.count, times.op_bytes(op) * op.count
        row = Spent(kind, what, op.place, op.phase, (), array, rules, took, took, op.count, *sums)
        yield op.at, row
    update = times.update_bytes(step) / stream * time.scale
    if update:
        what = "the optimizer's update"
        row = Spent("other", what, Place(), "update", (), "", (), update, update, 1)
        yield step.end + 1, row


def array_read(op: StepOp, step: Step) -> str:
    """Return the weight that an operation reads, else an argument; empty where it reads neither."""
    weights = {each.path for each in step.arguments if each.role == "parameter"}
    names = [each.name for each in op.operands if each.name]
    return next((name for name in names if name in weights), next(iter(names), ""))


def rules_of(op: StepOp, arrays: Mapping[str, ParamSharding]) -> tuple[Asker, ...]:
    """Return who asked for the mesh axes that split an operation.

    Args:
      arrays: of the plan, by path.
    """
    known = [each for each in op.because if each.kind is not CauseKind.UNKNOWN]
    for operand in op.operands:
        array = arrays.get(operand.name)
        taken = [dim.taken for dim in array.dims if dim.taken is not None] if array else []
        for attempt in taken:
            named = [axis for axis in attempt.mesh_axes if axis not in {k.mesh_axis for k in known}]
            known += (
                Cause(axis, CauseKind.ARGUMENT, operand.name, attempt=attempt) for axis in named
            )
    if known:
        return tuple(dict.fromkeys(map(asker, known)))
    return () if op.mesh_axes else (UNSPLIT,)
