"""Predict how long a step takes: operations, memory traffic and exposed collectives.

An operation takes the longer of two times: its FLOPs at the peak, or its bytes to and from memory.
Both are divided by the share of the roofline that its local shape and dtype reach (`efficiency`).
Its result goes to memory and back several times more, for norms, activation functions and residuals
that no program states. The optimizer reads and writes its arrays once. A collective takes the time
of its walk over the links (`topology.walk`). Computation hides a part of it; the rest is exposed.

    step = compute + sum of what is exposed

The model has few constants, `FITTED`, each with its range. The host, and losses over many slices,
are not modelled. `spread` is the expected error of the prediction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from shardspec.diagnostics.words import seconds_text
from shardspec.ir import step as steps
from shardspec.ir.calibration import Calibration, MatmulTable
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Chip, Target, array_bytes
from shardspec.kept import kept
from shardspec.topology.placement import Placement, placed, slices_of
from shardspec.topology.walk import Leg, legs, start_seconds, walk_seconds

#: Bytes that a share of them is taken of.
_MANY = 1 << 20
#: What a collective carries: what lets it run beside computation differs.
Carries = Literal["activations", "weights", "gradients"]
_CARRIES: dict[steps.CarriedKind, Carries] = {
    "weight": "weights",
    "state": "weights",
    "gradient": "gradients",
}


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants that are fitted to measurements, because no datasheet has them.

    Matmuls take what the compiler estimates for them (`Chip.calibration`), with no constant.

    Attributes:
      narrow: the time of a matmul of 8-bit numbers by that of its estimate or its share of the
        peak: what is scaled and rounded on the way.
      kernel: the time of attention in a kernel by that of its FLOPs at the peak for bf16.
      passes: how often what an operation makes goes to or from memory, in other operations.
      shown: the time that collectives add to a step, by what the links alone would take.
      slices: what each doubling of the slices of TPUs adds to a step that sends between them, as a
        share of it: they wait for the slowest.
      carrying: of those that carry something else, where that differs: what a product waits for
        is hidden less than weights that are known ahead. Over 1 where libraries reach less than
        the speed of the links, and nothing hides it.
    """

    narrow: float
    kernel: float
    passes: float
    shown: float
    slices: float
    carrying: tuple[tuple[Carries, float], ...] = ()

    def shown_of(self, send: Send) -> float:
        """Return the share of a collective that shows, by what it carries."""
        return dict(self.carrying).get(send.carries, self.shown)


#: Source: `benchmarks/fit_constants.py`, on 43 public measurements of decoders of 4B and more on
#: TPU (MaxText, axlearn). Mean error with a row's model left out 6.5 %, with its chip 6.6 %.
#: Behind each the range of nine in ten fits on models drawn anew. The best fit is 1.09, 2.74, 6.6
#: and 0.48, for an error of 5.4 % in place of 5.7 %; by these the table of submeshes has one pair
#: more in its order (docs/measured.md).
FITTED = Constants(
    narrow=1.11,  # 0.95 to 1.2
    kernel=2.70,  # 2.4 to 4.7: one model alone has sequences long enough to tell
    passes=5.5,  # 3.3 to 7.7
    shown=0.60,  # 0.3 to 0.9: less of one of these two is more of the other
    slices=0.015,  # 0.006 to 0.047: the same model on one slice and on 2 to 32 more
)
#: Of GPUs. Matmuls take the catalogue's share of the peak, on the cores that their tiles keep busy.
#: Source: `kernel` and `passes` on 18 public JAX steps of models of 1B and more (MaxText, Paxml,
#: T5X, axlearn; mean error 7.5 %); 9 passes are estimated from what Korthikanti
#: et al. (arXiv 2205.05198, table 4) measure of norms and dropout on A100. What a product waits for
#: is hidden by nothing and takes 1.25 times what NVLink alone would: the rows of nanotron's Llama
#: 1B on 8 H100 over 2, 4 and 8 ways of tensor parallelism then have nearly one error
#: (`benchmarks/layouts.py`).
ON_GPU = replace(FITTED, kernel=1.8, passes=9.0, slices=0.0, carrying=(("activations", 1.25),))


def constants_of(chip: Chip) -> Constants:
    """Return the constants of a kind of machine."""
    return ON_GPU if chip.platform == "gpu" else FITTED


#: The tiles of a matmul on GPUs, with the share of the peak of each: a larger one reads less.
#: Source: NVIDIA, Matrix Multiplication Background User's Guide, parts 3 and 4.
_TILES = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.95),
    (256, 64, 0.9),
    (128, 64, 0.8),
    (64, 64, 0.65),
)
#: Into how many parts a sum is cut.
_PARTS = (1, 2, 4)
#: What a tile's start and end take, in terms of its sum.
_TILE_START = 32


#: The name of the link to the host beside mesh axes. What an update needs of the host shows whole,
#: and what the backward pass needs is hidden as weights are: no measurement says how well.
HOST = "link to the host"
#: Likewise, of what slices wait for each other.
SLICES = "waits between slices"


#: How far a measured step lies from such a model where it has not seen its like.
#: Source: four in five of these left-out errors are within 12 %; of 18 on GPUs, which are of four
#: models alone, within 21 %. Of CPUs, whose devices share all, a guess.
SPREAD = {"tpu": 0.15, "gpu": 0.30, "cpu": 0.50}


@dataclass(frozen=True, slots=True)
class AxisTime:
    """The time of the collectives over one mesh axis in a step.

    Attributes:
      mesh_axis: several that go together are joined: `data+expert`.
      exposed_seconds: of it, what no computation hides.

    Invariants:
      exposed: exposed_seconds <= seconds.
    """

    mesh_axis: str
    seconds: float
    exposed_seconds: float

    def __str__(self) -> str:
        """Return `tensor ~ 2.29 s, all exposed`."""
        return self.text("~")

    def text(self, mark: str) -> str:
        """Return `tensor x~ 2.29 s, all exposed`, with the mark of its basis."""
        exposed = seconds_text(self.exposed_seconds)
        if self.exposed_seconds >= self.seconds:
            exposed = "all"
        said = f", {exposed} exposed" if self.exposed_seconds else ", hidden"
        return f"{self.mesh_axis} {mark} {seconds_text(self.seconds)}{said}"


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted time of a step and its parts.

    Attributes:
      compute_seconds: of all operations, those that wait for memory included.
      hbm_seconds: of it, operations whose bytes take longer than their FLOPs.
      axes: the collectives by mesh axes, in the order of the program; last the link to the host,
        and what slices wait for each other.
      waits_seconds: of a stage of a pipeline for the others.
      spread: how far a measured step may lie to either side, as a share.
      mfu: the share of the peak that the model's own FLOPs are, without work that is done again
        or by several devices alike.
      notes: what could not be counted as it is.
      scale: by what all seconds are multiplied, so that a step that was measured takes what it did.
      basis: `compiled` where the seconds were read from the schedule of a compiled program.

    Invariants:
      sum: step_seconds is compute_seconds, what the axes expose, and waits_seconds.
    """

    compute_seconds: float
    hbm_seconds: float
    axes: tuple[AxisTime, ...]
    spread: float
    mfu: float
    notes: tuple[str, ...] = ()
    scale: float = 1.0
    basis: Literal["modelled", "compiled"] = "modelled"
    waits_seconds: float = 0.0

    @property
    def mark(self) -> str:
        """Return `x~` where a compiler made the schedule, else `~`: no time is exact."""
        return "x~" if self.basis == "compiled" else "~"

    @property
    def step_seconds(self) -> float:
        """Return the seconds of the whole step."""
        exposed = sum(axis.exposed_seconds for axis in self.axes)
        return self.compute_seconds + exposed + self.waits_seconds

    @property
    def bound(self) -> str:
        """Return the largest part of the step: `compute`, `memory`, `stages` or a mesh axis."""
        shares = {axis.mesh_axis: axis.exposed_seconds for axis in self.axes}
        shares["stages"] = self.waits_seconds
        shares["memory"] = self.hbm_seconds
        shares["compute"] = self.compute_seconds - self.hbm_seconds
        return max(reversed(shares), key=lambda name: shares[name])


@dataclass(frozen=True, slots=True)
class Links:
    """The links between devices, with the time of a collective over them.

    Attributes:
      measured: the calibration of this machine and mesh, where there is one.
    """

    placement: Placement
    target: Target
    measured: Calibration | None
    _kept: dict[object, object] = field(default_factory=dict, repr=False)

    @kept
    def legs(self, axes: tuple[str, ...]) -> tuple[Leg, ...] | None:
        """Return the legs of a collective over mesh axes; None where a speed is not known."""
        return legs(self.placement, axes)

    def seconds(
        self, kind: steps.CollectiveKind, axes: tuple[str, ...], payload_bytes: int
    ) -> float | None:
        """Return how long a collective takes; None where nothing was measured and no link is known.

        What was not measured goes by the links; without them it takes as long as the nearest that
        was measured and sends as many bytes.
        """
        curve = self.measured.curve(kind, axes) if self.measured else None
        if curve is not None:
            return curve.at(payload_bytes)
        stretch = self.legs(axes)
        if stretch is not None:
            return walk_seconds(kind, payload_bytes, stretch)
        curve = self.measured.nearest(kind, axes) if self.measured else None
        if curve is None:
            return None
        ways = self.target.mesh.ways
        likest = steps.CollectiveKind(curve.kind), _MANY, max(2, ways(curve.mesh_axes))
        sent = steps.ring_bytes(kind, payload_bytes, ways(axes))
        return curve.at(sent * _MANY / steps.ring_bytes(*likest))

    def start_seconds(self, send: Send) -> float:
        """Return what a collective takes beside its bytes, where a product waits for it."""
        stretch = self.legs(send.mesh_axes) if send.carries == "activations" else None
        if stretch is None or (self.measured and self.measured.curve(send.kind, send.mesh_axes)):
            return 0.0
        return start_seconds(self.placement, send.kind, stretch)

    def slices_of(self, step: steps.Step) -> int:
        """Return how many slices wait for each other in a step."""
        names = {name for each in step.collectives for name in each.mesh_axes}
        sent = (axis for axis in self.placement.axes if axis.axis.name in names)
        return math.prod(slices_of(axis, self.placement) for axis in sent)

    def notes(self, step: steps.Step) -> Iterator[str]:
        """Yield that a step goes over DCN, whose losses are not modelled, or unmeasured links."""
        names = {name for each in step.collectives for name in each.mesh_axes}
        for axis in self.placement.axes:
            if axis.axis.name in names and slices_of(axis, self.placement) > 1:
                yield f"`{axis.axis.name}` goes over DCN, at the bandwidth of the hosts"
        yield from _unmeasured(self.target, step)
        kinds = dict.fromkeys((each.kind, each.mesh_axes) for each in step.collectives)
        if missing := [
            f"{kind} over {'+'.join(axes)}" for kind, axes in kinds if self._lacks(kind, axes)
        ]:
            yield (
                f"the calibration has no {', '.join(missing)}: each takes as long as the likest"
                " collective that was measured and sends as many bytes"
            )

    def _lacks(self, kind: str, axes: tuple[str, ...]) -> bool:
        is_measured = self.measured is not None and self.measured.curve(kind, axes) is not None
        return self.measured is not None and not is_measured and self.legs(axes) is None


def links_of(plan: ShardingPlan) -> Links | None:
    """Return the links under the mesh of a plan; None if it does not fit on its machine."""
    found = placed(plan.target, plan.spec.policy.order)
    return None if found is None else Links(found, plan.target, _curves(plan.target))


class Scale(NamedTuple):
    """The factor of predictions, so that a measured step is predicted at its measured time.

    Attributes:
      told: the same for people, with both times.
    """

    share: float = 1.0
    told: str = ""


def scaled(time: StepTime, scale: float) -> StepTime:
    """Return a step of which each part takes `scale` times as long."""
    if scale == 1:
        return time
    axes = (
        AxisTime(each.mesh_axis, each.seconds * scale, each.exposed_seconds * scale)
        for each in time.axes
    )
    return replace(
        time,
        compute_seconds=time.compute_seconds * scale,
        hbm_seconds=time.hbm_seconds * scale,
        axes=tuple(axes),
        mfu=time.mfu / scale,
        waits_seconds=time.waits_seconds * scale,
        scale=time.scale * scale,
    )


class Send(NamedTuple):
    """The properties that decide how long a collective takes."""

    kind: steps.CollectiveKind
    mesh_axes: tuple[str, ...]
    payload_bytes: int
    carries: Carries = "activations"
    stage: steps.StageTag = ""
    is_once: bool = False


class Work(NamedTuple):
    """The work and traffic of a step, for any placement of its mesh on the machine.

    Seconds are by the stages that take them, `""` where all take as long.

    Attributes:
      compute_seconds: of all operations, and of what is beside them.
      hbm_seconds: of it, what waits for memory.
      update_seconds: of the optimizer, which comes once a step, behind all microbatches.
      own_seconds: the model's own FLOPs at the peak.
      backward: the share of the backward pass in what is computed.
      sends: how often a collective runs.
      state_seconds: of what lies in the memory of the host, to the device and back.
      kept_seconds: of what is kept there until the backward pass.
      notes: which operations could not be counted.
    """

    compute_seconds: Mapping[steps.StageTag, float]
    hbm_seconds: Mapping[steps.StageTag, float]
    update_seconds: Mapping[steps.StageTag, float]
    own_seconds: float
    backward: float
    sends: Mapping[Send, float]
    state_seconds: Mapping[steps.StageTag, float]
    kept_seconds: Mapping[steps.StageTag, float]
    notes: tuple[str, ...]


class OpTime(NamedTuple):
    """The seconds of an operation in a step: all, those that wait for memory, and its own FLOPs."""

    op: steps.StepOp
    taken: float
    waited: float
    own: float


#: What operations take, by their identity: each is kept, so that no other can have it.
OpTimes = dict[int, OpTime]


def step_work(
    step: steps.Step,
    chip: Chip,
    constants: Constants | None = None,
    known: OpTimes | None = None,
) -> Work | None:
    """Return the work of a step on a chip; None if the catalogue has no speeds for it.

    Args:
      known: what operations of other steps on this mesh and chip take.
    """
    if not is_timed(chip):
        return None
    constants = constants or constants_of(chip)
    speed, backward = per_device(chip.hbm_bytes_per_s, chip), 0.0
    compute: dict[steps.StageTag, float] = {"": 0.0}
    memory: dict[steps.StageTag, float] = {"": 0.0}
    known, found = {} if known is None else known, []
    for op in step.ops:
        one = known.get(id(op))
        if one is None:
            one = known[id(op)] = _op_time(op, step, chip, constants)
        found.append(one)
        compute[op.stage] = compute.get(op.stage, 0.0) + one.taken
        memory[op.stage] = memory.get(op.stage, 0.0) + one.waited
        backward += one.taken if op.phase == "backward" else 0.0
    tags = dict.fromkeys(each.stage for each in step.arguments)
    update = {tag: update_bytes(step, tag) / speed for tag in tags}
    own = sum(each.own for each in found)
    sends: dict[Send, float] = {}
    for each in step.collectives:
        key = _send(each)
        sends[key] = sends.get(key, 0) + each.count
    whole = sum(compute.values())
    share = backward / whole if whole else 0.0
    hosts = _host_seconds(step, chip)
    return Work(compute, memory, update, own, share, sends, *hosts, tuple(silent_kernels(step)))


def _op_time(op: steps.StepOp, step: steps.Step, chip: Chip, constants: Constants) -> OpTime:
    flops, hbm = op_seconds(op, chip, constants)
    beside = constants.passes * made_bytes(op) / per_device(chip.hbm_bytes_per_s, chip)
    taken = beside + max(flops, hbm) * op.count
    waited = beside + (hbm * op.count if hbm > flops else 0.0)
    return OpTime(op, taken, waited, own_seconds(op, step, chip))


_Seconds = Mapping[steps.StageTag, float]


def _host_seconds(step: steps.Step, chip: Chip) -> tuple[_Seconds, _Seconds]:
    """Return what the link to the host takes of what lies there, and of what is kept there.

    It sends and receives at a time: state is read while other state is written.
    """
    if chip.host_bytes_per_s is None:
        return {}, {}
    speed, kept = per_device(chip.host_bytes_per_s, chip), dict[steps.StageTag, float]()
    tags = dict.fromkeys(each.stage for each in step.arguments if each.is_on_host)
    own = {tag: [each for each in step.arguments if each.stage == tag] for tag in tags}
    for each in step.tensors:
        if each.moves:
            moved = 2 * each.bytes * each.moves / speed
            kept[each.stage] = kept.get(each.stage, 0.0) + moved
    return {tag: max(steps.host_bytes(given)) / speed for tag, given in own.items()}, kept


def _send(each: steps.Collective) -> Send:
    carried = _CARRIES.get(each.carries.kind, "activations")
    shape = each.kind, each.mesh_axes, each.payload_bytes
    return Send(*shape, carried, each.stage, each.is_once)


def step_time(
    plan: ShardingPlan,
    step: steps.Step,
    constants: Constants | None = None,
    work: Work | None = None,
) -> StepTime | None:
    """Return the time of a step; None if the catalogue has no speeds for the machine.

    Args:
      constants: others than those that were fitted, to fit them.
      work: what `step_work` gives for the step, where that is known.
    """
    hardware = plan.target.hardware
    if hardware is None:
        return None
    constants = constants or constants_of(hardware.chip)
    work = work or step_work(step, hardware.chip, constants)
    if work is None:
        return None
    links = links_of(plan)
    sent = None if links is None else _sent(links, work.sends)
    if links is None or sent is None:
        return None
    exposed = None if links.measured is None else links.measured.exposed
    if exposed is not None:
        constants = replace(constants, shown=exposed.median, carrying=())
    stages, waits = step.stages, 0.0
    if stages is None:
        busiest = _taken(work, sent, constants)
    else:
        found = [_taken(work, sent, constants, stages, stage) for stage in stages.extremes]
        busiest = max(found, key=lambda each: each.turns_seconds)
        whole = _taken(work, sent, constants).turns_seconds * stages.count
        waits = stages.waits(busiest.turns_seconds, whole, work.backward)
    notes, spread = (*work.notes, *links.notes(step)), SPREAD[hardware.chip.platform]
    axes = busiest.axes
    whole = busiest.compute_seconds + sum(each.exposed_seconds for each in axes) + waits
    late = constants.slices * math.log2(links.slices_of(step)) * whole
    axes = (*axes, AxisTime(SLICES, late, late)) if late else axes
    mfu = work.own_seconds / (whole + late) if whole else 0.0
    taken = (busiest.compute_seconds, busiest.hbm_seconds, axes, spread, mfu, notes)
    return StepTime(*taken, waits_seconds=waits)


def own_seconds(op: steps.StepOp, step: steps.Step, chip: Chip) -> float:
    """Return the time of an operation's model FLOPs at the peak.

    Work that is done again is none of them, and what several devices all do counts once.
    """
    if op.phase == "remat":
        return 0.0
    useful = op.flops * op.count * op.useful / op.load
    return useful / steps.idle_ways(op, step.mesh) / peak(op.dtype, chip)


def is_timed(chip: Chip) -> bool:
    """Say whether the catalogue has the speeds of a chip."""
    return None not in (chip.bf16_flops_per_s, chip.hbm_bytes_per_s, chip.matmul_efficiency)


def peak(dtype: str, chip: Chip) -> float:
    """Return the peak FLOP/s of one device for operands of a dtype.

    A TPU multiplies f32 in one pass of bf16, JAX's default precision, and a GPU in TF32, at half
    the rate. A dtype that the catalogue has no peak for goes as bf16.

    Source: JAX documentation, `jax.default_matmul_precision`; NVIDIA A100 and H100 datasheets.
    """
    for measured, per_s in chip.calibration.flops_per_s if chip.calibration else ():
        if measured == dtype:
            return per_s
    width, peak = array_bytes((1,), dtype), chip.bf16_flops_per_s
    if width == 1:
        peak = (chip.fp8_flops_per_s if dtype.startswith("f8") else chip.int8_ops_per_s) or peak
    elif width == 4 and chip.platform == "gpu":
        peak = peak and peak / 2
    return per_device(peak, chip)


def efficiency(chip: Chip, dtype: str, m: float, k: float, n: float) -> float:
    """Return the share of the roofline that a matmul [m, k] x [k, n] reaches on one device.

    It is that of the compiler's estimates or of measurements, `Chip.calibration`, looked up by the
    local sizes; so a mesh axis that makes one of them thin costs what it costs. What is smaller
    than the smallest of the table takes as long as that: lanes and a fixed start that stay empty.
    Where there is no table it is the chip's one share for all sizes.

    Invariants:
      share: in (0, 1].
    """
    table = _table(chip, dtype)
    if table is None:
        assert chip.matmul_efficiency is not None, "only a chip that has one is timed"
        cores = next((value for name, value in chip.compiler if name == "core_count"), None)
        return chip.matmul_efficiency * tiled(cores and int(cores), m, k, n)
    full = max(m, table.m[0]), max(k, table.k[0]), max(n, table.n[0])
    filled = matmul_seconds(chip, dtype, m, k, n) / matmul_seconds(chip, dtype, *full)
    return table.share(*full) * filled


def memory_share(chip: Chip, m: float, k: float, n: float) -> float:
    """Return the share of its memory's speed that a chip reaches, by a product that reads most.

    It was measured with the table of products; without one it is what matmuls reach of the peak.
    """
    if _table(chip, "bf16") is not None:
        return efficiency(chip, "bf16", m, k, n)
    assert chip.matmul_efficiency is not None, "only a chip that has one is timed"
    return chip.matmul_efficiency


@lru_cache(maxsize=1 << 12)
def tiled(cores: int | None, m: float, k: float, n: float) -> float:
    """Return the share of a GPU's cores that a matmul keeps busy; 1 where their number is unknown.

    Each core makes a tile of the result at a time, so the last round of tiles leaves cores idle, a
    tile at the edge is made whole, and each has a start and an end around its sum. What has fewer
    tiles than there are cores is cut into smaller ones, or along the sum.
    """
    if cores is None:
        return 1.0
    found = []
    for (rows, columns, share), parts in itertools.product(_TILES, _PARTS):
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        inside = m * n / (tiles * rows * columns)
        rounds = tiles * parts / cores
        summed = k / (k + parts * _TILE_START)
        found.append(share * inside * summed * rounds / math.ceil(rounds))
    return max(found)


def _table(chip: Chip, dtype: str) -> MatmulTable | None:
    """Return the table for a dtype: its own, else that of another as wide, else that of bf16."""
    if chip.calibration is None:
        return None
    width = array_bytes((8,), dtype)
    is_float = not dtype.startswith(("s", "u"))

    def distance(table: MatmulTable) -> tuple[bool, bool, bool]:
        other = array_bytes((8,), table.dtype)
        is_other_kind = is_float == table.dtype.startswith(("s", "u"))
        return table.dtype != dtype, width != other or is_other_kind, table.dtype != "bf16"

    return min(chip.calibration.matmuls, key=distance, default=None)


def matmul_seconds(chip: Chip, dtype: str, m: float, k: float, n: float) -> float:
    """Return the roofline of a matmul on one device: the longer of its FLOPs and its bytes."""
    read, written = (array_bytes((8,), each) / 8 for each in (dtype, result_dtype(dtype)))
    moved = read * (m * k + k * n) + written * m * n
    return max(2 * m * k * n / peak(dtype, chip), moved / per_device(chip.hbm_bytes_per_s, chip))


def result_dtype(dtype: str) -> str:
    """Return the dtype of a matmul's result: integers are summed in 32 bits."""
    return "s32" if dtype.startswith(("s", "u")) else "bf16" if dtype.startswith("f8") else dtype


def matmul_sizes(op: steps.StepOp) -> tuple[float, float, float] | None:
    """Return m, k and n of a contraction of two arrays on one device; None of anything else.

    Its FLOPs over the elements of the result are what is contracted, over those of an operand what
    only the other has. What both operands and the result have is a batch: to the multipliers that
    is more rows, since the matmuls of a batch follow each other without a start of their own.
    """
    if op.kind != "einsum" or len(op.operands) != 2 or not op.flops:
        return None
    left, result = (math.prod(each.shard_shape) for each in (op.operands[0], op.result))
    k, n = op.flops / 2 / result, op.flops / 2 / left
    m = result / n
    return max(1.0, m), max(1.0, k), max(1.0, n)


def op_seconds(
    op: steps.StepOp, chip: Chip, constants: Constants | None = None
) -> tuple[float, float]:
    """Return the time of an operation's FLOPs, and of its bytes, for one run.

    Attention multiplies in 16 bits where the rest of a step does in 8.

    Source: NVIDIA Transformer Engine and Google's Qwix quantise the products with weights.
    """
    constants = constants or constants_of(chip)
    hbm = op_bytes(op) / per_device(chip.hbm_bytes_per_s, chip)
    if op.kind == "kernel":
        return constants.kernel * op.flops / peak("bf16", chip), hbm
    dtype, sizes = op.dtype, matmul_sizes(op)
    cost = constants.narrow if array_bytes((8,), dtype) <= 8 else 1.0
    if sizes is not None:
        share = efficiency(chip, dtype, *sizes)
        slowed = 1.0 if _table(chip, dtype) is None else share
        return cost * op.flops / (peak(dtype, chip) * share), hbm / slowed
    assert chip.matmul_efficiency is not None, "only a chip that has one is timed"
    return cost * op.flops / (peak(dtype, chip) * chip.matmul_efficiency), hbm


def made_bytes(op: steps.StepOp) -> float:
    """Return the bytes of an operation's results in a step; 8-bit results count as 16 bits.

    What a scatter adds to is there before.
    """
    if op.kind == "scatter":
        return 0.0
    width = array_bytes((8,), result_dtype(op.result.dtype)) / array_bytes((8,), op.result.dtype)
    made = op.result.bytes if op.left_bytes is None else op.left_bytes
    return made * max(1.0, width) * op.count


def op_bytes(op: steps.StepOp) -> int:
    """Return the bytes that an operation reads and writes each time it runs, on one device.

    A lookup reads the rows that it takes, and no others; a scatter adds to the rows it is given.
    """
    if op.kind == "gather":
        return 2 * op.result.bytes
    if op.kind == "scatter" and op.operands:
        return op.result.bytes + 2 * op.operands[-1].bytes
    return op.bytes


def update_bytes(step: steps.Step, stage: steps.StageTag | None = None) -> int:
    """Return the bytes that the optimizer moves: parameters and state twice, gradients once.

    0 where the step changes no parameter. Where it is given some to change, the others are frozen.

    Args:
      stage: of what only these stages have; None for all.
    """
    held = {"parameter": 0, "optimizer": 0, "donated": 0}
    for each in step.arguments:
        if each.role in held and stage in (None, each.stage):
            size = each.array.bytes * each.count
            held[each.role] += size
            held["donated"] += size if each.role == "parameter" and each.is_donated else 0
    if not held["optimizer"] and not held["donated"]:
        return 0
    return 3 * (held["donated"] or held["parameter"]) + 2 * held["optimizer"]


def per_device(per_chip: float | None, chip: Chip) -> float:
    """Return one device's share of a speed of its chip."""
    assert per_chip is not None, "only a chip that has its speeds is timed"
    return per_chip / chip.devices_per_chip


def _curves(target: Target) -> Calibration | None:
    """Return the calibration whose collectives count: measured on this machine, over this mesh."""
    hardware = target.hardware
    found = None if hardware is None else hardware.chip.calibration
    if found is None or hardware is None or found.machine != hardware.machine:
        return None
    return found if found.mesh == str(target.mesh) else None


def _unmeasured(target: Target, step: steps.Step) -> Iterator[str]:
    """Yield a note where the machine was measured but not this mesh, so links are used."""
    made = None if target.hardware is None else target.hardware.chip.calibration
    if made is None or not made.is_measured or not step.collectives:
        return
    if _curves(target) is None:
        yield (
            f"the calibration has collectives of {made.machine}, mesh {made.mesh}: here they go by"
            " the catalogue's links"
        )


def _sent(links: Links, sends: Mapping[Send, float]) -> dict[Send, float] | None:
    """Return the time of all collectives; None if one is not known."""
    sent: dict[Send, float] = {}
    for send, count in sends.items():
        seconds = links.seconds(send.kind, send.mesh_axes, send.payload_bytes)
        if seconds is None:
            return None
        sent[send] = count * (seconds + links.start_seconds(send))
    return sent


class _Taken(NamedTuple):
    """The time of one stage, or the mean of all stages.

    Attributes:
      turns_seconds: of it, for all microbatches: what comes once a step is left out.
    """

    compute_seconds: float
    hbm_seconds: float
    axes: tuple[AxisTime, ...]
    turns_seconds: float


def _taken(
    work: Work,
    sent: Mapping[Send, float],
    constants: Constants,
    stages: steps.Stages | None = None,
    stage: int = 0,
) -> _Taken:
    """Return the time of a stage; without one, the mean of all stages.

    No more is hidden than there is computation; what is too much shows in proportion.
    """

    def share(tag: steps.StageTag) -> float:
        return 1 if stages is None else stages.work(tag, stage)

    def sum_of(seconds: Mapping[steps.StageTag, float]) -> float:
        return sum(share(tag) * each for tag, each in seconds.items())

    compute, memory = sum_of(work.compute_seconds), sum_of(work.hbm_seconds)
    of_one = stages.held if stages is not None else lambda *_: 1.0
    update = sum(of_one(tag, stage) * each for tag, each in work.update_seconds.items())
    state, kept = (
        sum(of_one(tag, stage) * each for tag, each in moved.items())
        for moved in (work.state_seconds, work.kept_seconds)
    )
    shown_of = {send: constants.shown_of(send) for send in sent}
    times = {send: share(send.stage) * each * max(1, shown_of[send]) for send, each in sent.items()}
    hidden = {send: max(0.0, 1 - shown_of[send]) * time for send, time in times.items()}
    behind = max(0.0, 1 - constants.shown) * kept
    most = min(1.0, (compute + update) / (sum(hidden.values()) + behind or 1.0))
    axes: dict[str, tuple[float, float]] = {}
    turns = compute
    for send, seconds in times.items():
        name, shown = "+".join(sorted(send.mesh_axes)), seconds - hidden[send] * most
        before = axes.get(name, (0.0, 0.0))
        axes[name] = before[0] + seconds, before[1] + shown
        turns += 0.0 if send.is_once else shown
    if state or kept:
        turns += kept - behind * most
        axes[HOST] = state + kept, state + kept - behind * most
    found = tuple(AxisTime(name, *pair) for name, pair in axes.items())
    return _Taken(compute + update, memory + update, found, turns)


def silent_kernels(step: steps.Step) -> Iterator[str]:
    """Yield the kernels that do not say what they compute."""
    silent = {str(op.place) for op in step.ops if op.kind == "kernel" and not op.flops}
    for at in sorted(silent):
        yield f"the kernel at {at} does not state its FLOPs: it counts by its bytes"
