"""Steps in rows: what one sends, how two costs differ, and measured time next to predicted time.

What a step sends is in rows by operation, mesh axis, line of the code, rule of the spec or array.
A table answers one question. In each of them every byte is in one row: what several mesh axes, and
so several rules, send together has a row of its own. Arrays of layers that differ in a number
alone are one, as in the table of `compile`.

Two costs of one step show what a change of the spec does to it, and the rules that did it. A rule
is known by its text: one that another replaces is gone on one side and new on the other.

Measured and predicted time are rows of one form: what an operation takes of the time of a step on
one device. Measured rows sum to what the step took, predicted ones to the prediction, so that a
table holds every second of both once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self, get_args

from shardspec.analysis import step_time as times
from shardspec.analysis.cost import Cost
from shardspec.analysis.step_memory import MARKS
from shardspec.diagnostics.words import as_one, by_key, grouped, natural, template
from shardspec.ir import step as ir_step
from shardspec.ir.plan import Attempt, Kind, ParamSharding
from shardspec.ir.spec import target_text
from shardspec.ir.step import Carried, Cause, CauseKind, Collective, Phase, Place, Step, StepOp

By = Literal["op", "axis", "line", "rule", "array"]
BY: tuple[By, ...] = get_args(By)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked for a mesh axis: a line of the spec, a line of the code, or nobody.

    Attributes:
      text: the rule as it is written, `heads -> tensor`; or what asked, where that is no rule.
      place: where that stands, `spec.yaml:14`, `preset:t5x/2d:9`; empty where it stands nowhere.
    """

    text: str
    place: str = ""

    def __str__(self) -> str:
        """Return `heads -> tensor spec.yaml:14`."""
        return f"{self.text} {self.place}" if self.place else self.text


#: What asked, where it is no line of the spec.
OTHERS = {
    CauseKind.ARGUMENT: "sharding of an argument",
    CauseKind.CONSTRAINT: "constraint",
    CauseKind.RESULT: "sharding of a result",
    CauseKind.WRITTEN: "written so",
    CauseKind.PROPAGATED: "chosen by XLA; no rule or constraint requires it",
    CauseKind.UNKNOWN: "unknown",
}


def asker(cause: Cause) -> Asker:
    """Return who asked for the mesh axis of a cause.

    What came by way of operations counts as asked for where it started, if a line of the spec
    placed it there.
    """
    if cause.attempt is not None:
        place = cause.span.place if cause.span is not None else ""
        return Asker(_asked(cause.attempt), place)
    text = OTHERS[cause.kind]
    if cause.array and cause.kind is not CauseKind.UNKNOWN:
        text = f"{text}: {template(cause.array)}"
    return Asker(text, str(cause.place) if cause.place.is_known else "")


def _asked(attempt: Attempt) -> str:
    if attempt.kind in {Kind.RULE, Kind.ANY}:
        return str(attempt)
    what = {Kind.STATED: "override", Kind.ZERO: "state", Kind.PARENT: "parent"}.get(
        attempt.kind, "unread rule"
    )
    return f"{what} -> {target_text(attempt.asked)}"


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """What is sent for one reason, as the question of its table has it.

    Attributes:
      name: what the row is of; empty in a table of operations, where all the rest says it.
      collectives: the heaviest first.
    """

    name: str
    collectives: tuple[Collective, ...]

    @property
    def wire_bytes(self) -> int:
        """Return what one device sends in a step."""
        return sum(each.wire_bytes for each in self.collectives)

    @property
    def count(self) -> float:
        """Return how often something is sent in a step."""
        return sum(each.count for each in self.collectives)

    @property
    def kinds(self) -> tuple[ir_step.CollectiveKind, ...]:
        """Return what kinds of collectives there are, the heaviest first."""
        return tuple(dict.fromkeys(each.kind for each in self.collectives))

    @property
    def mesh_axes(self) -> tuple[tuple[str, ...], ...]:
        """Return over which mesh axes they go, the heaviest first."""
        return tuple(dict.fromkeys(each.axes for each in self.collectives))

    @property
    def places(self) -> tuple[Place, ...]:
        """Return the lines of the code, the heaviest first."""
        return tuple(dict.fromkeys(each.place for each in self.collectives))

    @property
    def carries(self) -> tuple[str, ...]:
        """Return what is carried, layers as one, the heaviest first."""
        by_layer = grouped(
            (each.carries for each in self.collectives),
            lambda each: (each.kind, _shape_of_name(each)),
        )
        return tuple(_carried_as_one(found) for found in by_layer.values())

    @property
    def askers(self) -> tuple[tuple[Asker, ...], ...]:
        """Return who asked, for the mesh axes of a collective together, the heaviest first."""
        return tuple(dict.fromkeys(askers(each) for each in self.collectives))

    @property
    def propagated_bytes(self) -> int:
        """Return how much of it goes over mesh axes that came by way of operations."""
        return sum(
            each.wire_bytes
            for each in self.collectives
            if any(cause.kind is CauseKind.PROPAGATED for cause in each.because)
        )


def askers(collective: Collective) -> tuple[Asker, ...]:
    """Return who asked for the mesh axes of a collective, each once."""
    found = tuple(dict.fromkeys(map(asker, collective.because)))
    return found or (Asker(OTHERS[CauseKind.UNKNOWN]),)


def array_of(collective: Collective) -> str:
    """Return what a table of arrays counts a collective under.

    A weight, its gradient and its optimizer state are one array; what else is carried counts by
    its own name.
    """
    carried = collective.carries
    if carried.kind in ("weight", "gradient", "state") and carried.name:
        return carried.name
    return str(carried)


def names_in(collective: Collective) -> set[str]:
    """Return the arrays that a collective carries, or that asked for it."""
    return {collective.carries.name, *(cause.array for cause in collective.because)} - {""}


def of_arrays(
    collectives: Iterable[Collective], arrays: Collection[str] | None
) -> tuple[Collective, ...]:
    """Return those that have to do with some arrays; all of them, where None are named."""
    return tuple(
        each for each in collectives if arrays is None or not names_in(each).isdisjoint(arrays)
    )


def group(collectives: Iterable[Collective], by: By = "op") -> tuple[TrafficRow, ...]:
    """Return the rows of a table, the heaviest first.

    Invariants:
      whole: the wire bytes of the rows sum to those of the collectives, and so do the counts.
    """
    heaviest_first = sorted(collectives, key=lambda each: (-each.wire_bytes, each.at))
    groups = grouped(heaviest_first, _KEYS[by])
    rows = [TrafficRow(_name(by, found), tuple(found)) for found in groups.values()]
    return tuple(sorted(rows, key=lambda row: (-row.wire_bytes, natural(row.name))))


def _sender(each: Collective) -> Hashable:
    """Return what the collectives of one row agree in: forward and backward are one, and layers."""
    carried = (each.carries.kind, _shape_of_name(each.carries))
    return each.kind, each.axes, each.place.shown, carried, frozenset(askers(each)), _forced(each)


def _forced(each: Collective) -> Hashable:
    return None if each.forced_by is None else (each.forced_by.kind, each.forced_by.place)


_KEYS: dict[By, Callable[[Collective], Hashable]] = {
    "op": _sender,
    "axis": lambda each: each.axes,
    "line": lambda each: each.place.shown,
    "rule": lambda each: frozenset(askers(each)),
    "array": lambda each: template(array_of(each)),
}


def _name(by: By, found: list[Collective]) -> str:
    first = found[0]
    match by:
        case "op":
            return ""
        case "axis":
            return "+".join(first.axes)
        case "line":
            return str(first.place)
        case "rule":
            return " + ".join(map(str, askers(first)))
        case "array":
            return as_one({array_of(each) for each in found}, " ..")


def _shape_of_name(carried: Carried) -> str:
    """Return a name with the numbers of layers left out; an einsum has none."""
    return carried.name if carried.kind == "einsum" else template(carried.name)


def _carried_as_one(found: list[Carried]) -> str:
    name = as_one({each.name for each in found}, " ..") if found[0].name else ""
    return str(Carried(found[0].kind, name))


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
    rows = [*_sends(links, step, time), *_ops(cost, step, time), *_beside(step, time)]
    found = [*_as_predicted(rows, time)]
    if waits := time.waits_seconds:
        idle = Spent("idle", "stages wait", Place(), "forward", (), "", (), waits, waits, 1)
        found.append((step.end + 2, idle))
    return tuple(found)


def _beside(step: Step, time: times.StepTime) -> Iterator[tuple[int, Spent]]:
    """Yield what no operation takes: the link to the host, and what slices wait for each other."""
    for each in time.axes:
        if each.mesh_axis in (times.HOST, times.SLICES):
            name, took = each.mesh_axis, (each.seconds, each.exposed_seconds)
            yield (
                step.end + 1,
                Spent("collective", name, Place(), "update", (name,), "", (), *took, 1),
            )


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


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after.

    Attributes:
      places: where the spec says it, on either side; the same place once.
    """

    name: str
    before: float
    after: float
    places: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Say whether nothing changed."""
        return self.before == self.after

    @property
    def more(self) -> float:
        """Return how much there is more, negative for less."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class CostDiff:
    """What one step costs on one target under two specs.

    Invariants:
      whole: the changes of the mesh axes sum to that of what is sent, and so do those of the rules.
    """

    target: str
    before: Cost
    after: Cost

    @classmethod
    def of(cls, target: str, before: Cost, after: Cost) -> Self:
        """Return both sides on one basis: the model's, unless a compiler answered for both."""
        diff = cls(target, before, after)
        return diff if before.basis == after.basis else diff.by_model

    @property
    def by_model(self) -> Self:
        """Return both sides by the model, which says the same wherever it is asked."""
        before, after = self.before.predicted or self.before, self.after.predicted or self.after
        return replace(self, before=before, after=after)

    @property
    def mark(self) -> str:
        """Return how well both sides are known, `x` by a compiler and `~` by the model."""
        return MARKS[self.after.basis]

    @property
    def memory(self) -> Change:
        """Return the bytes that a device holds at the peak."""
        return Change("memory", self.before.memory.total.bytes, self.after.memory.total.bytes)

    @property
    def parts(self) -> tuple[Change, ...]:
        """Return the parts of the memory that changed, the largest change first."""
        old, new = self.before.memory.parts, self.after.memory.parts
        return changes(
            {name: part.bytes for name, part in old.items()},
            {name: part.bytes for name, part in new.items()},
        )

    @property
    def seconds(self) -> Change | None:
        """Return how long a step takes; None where one side is not known."""
        old, new = self.before.time, self.after.time
        if old is None or new is None:
            return None
        return Change("time", old.step_seconds, new.step_seconds)

    @property
    def flops(self) -> Change:
        """Return the FLOPs of a step on all devices."""
        return Change("FLOPs", self.before.flops or 0, self.after.flops or 0)

    @property
    def sent(self) -> Change:
        """Return the bytes that one device sends in a step."""
        old, new = (sum(sizes.values()) for sizes in self._by_axis)
        return Change("sends", old, new)

    @property
    def axes(self) -> tuple[Change, ...]:
        """Return what is sent over each mesh axis that changed, the largest change first."""
        return changes(*self._by_axis)

    @property
    def rules(self) -> tuple[Change, ...]:
        """Return what each rule sends, of those that changed, the largest change first."""
        old, new = (dict(_by_rule(cost)) for cost in (self.before, self.after))
        found = []
        for name in dict.fromkeys((*new, *old)):
            sides = [side[name] for side in (old, new) if name in side]
            before, after = (side[name].wire_bytes if name in side else 0 for side in (old, new))
            places = dict.fromkeys(place for row in sides for place in _places(row))
            found.append(Change(name, before, after, tuple(places)))
        return _sorted(found)

    @property
    def is_same(self) -> bool:
        """Say whether a step costs what it did."""
        figures = (self.memory, self.seconds, self.flops, self.sent)
        is_same = all(each is None or each.is_same for each in figures) and not self.unknown
        return is_same and not (self.parts or self.axes or self.rules)

    @property
    def unknown(self) -> tuple[ir_step.Unknown, ...]:
        """Return what could not be counted on either side: nothing is certain to be the same."""
        steps = (cost.step for cost in (self.before, self.after) if cost.step is not None)
        return tuple(dict.fromkeys(each for step in steps for each in step.unknown))

    @property
    def _by_axis(self) -> tuple[dict[str, int], dict[str, int]]:
        return _by_axis(self.before), _by_axis(self.after)


def _by_axis(cost: Cost) -> dict[str, int]:
    sent = cost.step.wire_bytes if cost.step else {}
    return {"+".join(axes): size for axes, size in sent.items()}


def changes(old: Mapping[str, float], new: Mapping[str, float]) -> tuple[Change, ...]:
    """Return the figures that changed, by name, the largest change first."""
    names = dict.fromkeys((*new, *old))
    return _sorted(Change(name, old.get(name, 0), new.get(name, 0)) for name in names)


def _sorted(changes: Iterable[Change]) -> tuple[Change, ...]:
    found = [each for each in changes if not each.is_same]
    return tuple(sorted(found, key=lambda each: (-abs(each.more), each.name)))


def _by_rule(cost: Cost) -> Iterator[tuple[str, TrafficRow]]:
    """Yield the rows of the table by rule, each with the texts of its rules."""
    rows = group(cost.step.collectives if cost.step else (), "rule")
    named = ((sorted(asker.text for asker in askers(row.collectives[0])), row) for row in rows)
    for name, alike in by_key((" + ".join(texts), row) for texts, row in named).items():
        yield name, TrafficRow(name, tuple(each for row in alike for each in row.collectives))


def _places(row: TrafficRow) -> list[str]:
    found = (asker.place for asked in row.askers for asker in asked if asker.place)
    return list(dict.fromkeys(found))
