"""A program that XLA has partitioned, as the compiler of a target leaves it.

XLA's partitioner says where devices need what others have. What TPU and GPU compilers change of
that afterwards are passes, each from program to program: sums that are added up become one, a sum
of which each device keeps a slice is scattered, a total of a loop is summed behind it. Combining
and scheduling change counts and times and no bytes, and are left to the compiler.

What a partitioned program holds, as the values of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from shardspec.analysis.memory import limit
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.operations import IN_HLO
from shardspec.ir.spec import Chip, PartitionSpec, Shape, Target
from shardspec.ir.step import MadePart, Phase, Place, StepArgument, StepArray, StepTensor, Unknown
from shardspec.programs import rewrites
from shardspec.programs.alike import Differs, alike, differing, of_shards
from shardspec.programs.calls import Ref, calls_of, is_made_for, named_by, through
from shardspec.programs.edit import PASSES, Edit, inlined, is_sound
from shardspec.programs.gathers import gathers_once
from shardspec.programs.hlo import Computation, Instruction, Program, program_of
from shardspec.programs.members import Slices, members_of
from shardspec.programs.op_names import phase_of
from shardspec.programs.operations import base, kind_of, target_of, uncounted
from shardspec.programs.peak import FAST_BYTES, Device, Held, Peak, peak_of
from shardspec.programs.peak_again import rates_of
from shardspec.programs.peak_gates import GATES
from shardspec.programs.peak_hiding import Speeds
from shardspec.programs.peak_rings import PUTS_OFF
from shardspec.programs.peak_scores import PLAIN, SOFTMAX
from shardspec.programs.peak_units import GATHERS_FIRST
from shardspec.programs.reading import ReadProgram, read

#: What XLA:GPU looks through between a sum and its slice.
_RESHAPES = frozenset(("bitcast", "copy", "reshape"))


def rewritten(program: Program, target: Target, arguments: Sequence[StepArgument] = ()) -> Program:
    """Return a partitioned program as the compiler of a target leaves it.

    Computations are rewritten from the innermost outward, since loops hand sums to what is around
    them. What XLA would not print is returned as it is.

    Args:
      program: as it is right after XLA's partitioner.
      arguments: of the step, in the order of the program's parameters.
    """
    if not is_sound(program):
        return program
    program = inlined(program)
    calls = calls_of(program)
    if calls is None or program.entry is None:
        return program
    platform = "cpu" if target.hardware is None else target.hardware.chip.platform
    is_gpu, is_tpu = platform == "gpu", platform == "tpu"
    differs = {} if not is_tpu else _differing(program, target, arguments)
    devices = program.partitions
    edits = {n: Edit(body, target, devices) for n, body in program.computations.items()}
    for name in reversed(calls.times):
        edit, site = edits[name], calls.sites.get(name)
        is_loop = site is not None and site.caller.attribute("body") == name
        around = (edits[site.ref.computation], site.caller) if site and is_loop else None
        rewrites.sums_folded(edit)
        if is_gpu:
            rewrites.sums_split(edit)
            rewrites.sums_once(edit)
        if around is not None:
            rewrites.sums_after_loop(edit, *around, are_narrow=is_gpu)
        if is_tpu:
            rewrites.gathers_joined(edit)
        if not is_gpu:
            rewrites.sums_once(edit, rewrites.sums_in_turns(edit, differs) if is_tpu else ())
        if around is not None:
            rewrites.moves_hoisted(edit, *around)
        rewrites.moves_narrowed(edit, is_tpu=is_tpu)
        if is_tpu:
            _as_libtpu(edit, differs)
        else:
            rewrites.sums_scattered(edit, _RESHAPES if is_gpu else PASSES)
    bodies = {name: edit.done() for name, edit in edits.items()}
    return replace(program, computations=bodies, entry=bodies[program.entry.name])


def read_partitioned(
    text: str, target: Target, arguments: Sequence[StepArgument], free: Mapping[int, Shape]
) -> tuple[ReadProgram, tuple[StepTensor, ...]] | Diagnostic:
    """Return a partitioned program as its target's compiler leaves it, and the values it holds.

    Args:
      free: the shapes of the whole arrays of results whose sharding the caller does not state.
    """
    program = program_of(text)
    found = read_sends(program, target, arguments)
    if isinstance(found, Diagnostic):
        return found
    return found, held_values(program, target, arguments, free)


def read_sends(
    program: Program, target: Target, arguments: Sequence[StepArgument]
) -> ReadProgram | Diagnostic:
    """Return a partitioned program as its target's compiler leaves it, without what it holds."""
    return read(rewritten(program, target, arguments), target.mesh, arguments)


def expanded_first(program: ReadProgram) -> tuple[Unknown, ...]:
    """Return operations of a partitioned program whose collectives the target's compiler changes.

    It expands them before it partitions: prefix sums, sorts, transforms and solvers, along a
    dimension that devices share. Those that together read little are left out.
    """
    found: list[tuple[int, Unknown]] = []
    for name, times in program.calls.times.items():
        body = program.calls.program.computations.get(name)
        for each in body.instructions.values() if body is not None else ():
            is_known = uncounted(each, crosses=False) is None and base(each.operation) in _EXPANDED
            if is_known and body is not None and _is_moved(body, each):
                place, phase = program.made(Ref(name, each.name))
                what = target_of(each) or each.operation
                unknown = Unknown(what, _EXPANDS, ("sends", "time"), place, phase, times)
                reads = (body.instructions[name] for name in each.operands)
                size = sum(array.bytes for one in reads for array in one.arrays)
                found.append((size * times, unknown))
    found.sort(key=lambda pair: -pair[0])
    room = _NEGLIGIBLE * sum(program.step.wire_bytes.values())
    while found and found[-1][0] <= room:
        room -= found.pop()[0]
    return tuple(unknown for _, unknown in found)


#: A generator of random bits, threefry, has more rounds than this; each one mixes by `xor`.
_ROUNDS = 16
#: How many scores one head has where libtpu gives up to fuse the bits of their dropout.
_WIDE_SCORES = range(500_000, 4_500_000)
#: Arrays of 4 bytes that it writes out then, for each of the bits: the rounds' constants and keys.
_OF_BITS = 32


def bits_written_out(program: ReadProgram) -> tuple[Unknown, ...]:
    """Return random bits of a TPU's step that its compiler may compute with in memory.

    Dropout of attention in bf16 that a backward pass computes again: for some sizes libtpu fuses
    neither the constants nor the keys of the generator, and writes each of them out as an array.
    Source: libtpu 0.0.52: of heads of 64, v4 to v5p, 896 to 1152 scores squared, not 768 or 1536;
    of heads of 256, v5e, 2048 squared, not 1024.
    """
    mixed: dict[tuple[Shape, str], list[Place]] = {}
    chosen = set[Shape]()
    for name in program.calls.times:
        body = program.calls.program.computations.get(name)
        for each in body.instructions.values() if body is not None else ():
            if each.operation not in ("xor", "select") or not _is_of_scores(each):
                continue
            place, phase = program.made(Ref(name, each.name))
            (array,) = each.arrays
            if each.operation == "select" and array.dtype == "bf16":
                chosen.add(array.shape)
            elif each.operation == "xor" and phase == "remat":
                mixed.setdefault((array.shape, str(place)), []).append(place)
    return tuple(
        Unknown(
            "random bits",
            "libtpu may write out what they are made of,"
            f" up to {binary_bytes(4 * _OF_BITS * math.prod(shape))}",
            ("memory",),
            places[0],
            "remat",
        )
        for (shape, _), places in mixed.items()
        if len(places) > _ROUNDS and shape in chosen
    )


def _is_of_scores(each: Instruction) -> bool:
    """Say whether an instruction computes as many numbers as several heads have scores."""
    if len(each.arrays) != 1 or len(each.arrays[0].shape) < 4:
        return False
    *others, queries, keys = each.arrays[0].shape
    return math.prod(others) > 1 and queries * keys in _WIDE_SCORES


#: What may be left out reads at most this share of what the step sends.
_NEGLIGIBLE = 0.02
_EXPANDED = frozenset(
    ("cholesky", "custom-call", "fft", "reduce-window", "sort", "topk", "triangular-solve")
)
_EXPANDS = "the target's compiler expands it before it partitions"


def _is_moved(body: Computation, each: Instruction) -> bool:
    """Say whether the partitioner moves an operand for an operation."""
    every = body.instructions.values()
    for name in each.operands:
        found = through(body, name)
        for _ in range(_NEAR):
            if found is None or found.operation not in _CUT or not found.operands:
                break
            found = through(body, found.operands[0])
        if found is None or found.operation not in _WHOLE:
            continue
        readers = (other for other in every if found.name in other.operands)
        if is_made_for(each, found, body.instructions.get(found.operands[0]), readers):
            return True
    return False


_CUT = frozenset(("dynamic-slice", "pad", "slice"))
#: A halo, which is a permute, is the same in any expansion.
_WHOLE = frozenset(("all-gather", "all-to-all"))
_NEAR = 6


def _as_libtpu(edit: Edit, differs: dict[Ref, Differs]) -> None:
    gathers_once(edit)
    rewrites.sums_scattered(edit, PASSES)
    _sums_whole(edit, differs)
    rewrites.legs_apart(edit)


def _sums_whole(edit: Edit, differs: dict[Ref, Differs]) -> None:
    """Sum whole what libtpu does not scatter."""
    rewrites.products_in_turns(edit, differs)
    rewrites.sums_of_lanes_whole(edit)
    rewrites.whole_machine_summed(edit)


def _differing(
    program: Program, target: Target, arguments: Sequence[StepArgument]
) -> dict[Ref, Differs]:
    """Return how values differ from device to device; nothing where a mesh is another one."""
    if program.partitions != target.mesh.device_count:
        return {}
    sizes, slices = target.mesh.sizes, Slices(tuple(range(program.partitions)), (0,))
    given = [of_shards(each.array.split.mesh_axes, sizes) for each in arguments]
    found = alike(program, given, lambda each: members_of(each, slices), program.partitions)
    how = {each: differing(each, sizes) for each in {*chain(*found.values())}}
    return {ref: how[value[0]] for ref, value in found.items() if len(value) == 1}


#: Smaller values are left out.
_LEAST_BYTES = 4096


def held_values(
    program: Program, target: Target, arguments: Sequence[StepArgument], free: Mapping[int, Shape]
) -> tuple[StepTensor, ...]:
    """Return the values that a partitioned program holds on one device, by the clock of its peak.

    Args:
      program: as XLA's partitioner leaves it.
      arguments: of the step, in the order of the program's parameters.
      free: as `read_partitioned` has it.
    """
    program = _as_held(program, target, arguments)
    donated = [number for number, each in enumerate(arguments) if each.is_donated]
    peak = peak_of(program, _device(target), donated, free)
    return tuple(_tensors(peak, program, arguments))


def _as_held(program: Program, target: Target, arguments: Sequence[StepArgument]) -> Program:
    """Return a program with the rewrites that change what is in memory.

    What it adds up over devices it sums once.
    """
    if not is_sound(program) or program.entry is None:
        return program
    bodies, passed = {}, PASSES if target.is_tpu else _RESHAPES
    differs = _differing(program, target, arguments) if target.is_tpu else {}
    for name, body in program.computations.items():
        edit = Edit(body, target, program.partitions)
        if target.is_tpu:
            rewrites.sums_folded(edit)
        rewrites.sums_once(edit)
        rewrites.sums_scattered(edit, passed)
        if target.is_tpu:
            _sums_whole(edit, differs)
        rewrites.scatters_cut(edit, passed)
        bodies[name] = edit.done()
    return replace(program, computations=bodies, entry=bodies[program.entry.name])


def _device(target: Target) -> Device:
    """Return what of a device decides what a program holds; a CPU is taken for a TPU."""
    chip = None if target.hardware is None else target.hardware.chip
    if chip is None or chip.platform != "gpu":
        name = "" if chip is None else chip.name
        fast, softmax = FAST_BYTES.get(name, 0), SOFTMAX.get(name, PLAIN)
        return Device(
            "tpu",
            fast,
            usable_bytes=limit(target),
            softmax=softmax,
            gates=GATES.get(name, "none"),
            speeds=_tpu_speeds(target),
            gathers_first=name in GATHERS_FIRST,
            puts_off=PUTS_OFF.get(name, "none"),
        )
    return Device("gpu", speeds=_speeds(chip), rates=rates_of(chip), usable_bytes=limit(target))


def _tpu_speeds(target: Target) -> Speeds | None:
    """Return how fast a TPU is whose compiler hides collectives behind kernels."""
    hardware = target.hardware
    chip = None if hardware is None else hardware.chip
    if hardware is None or chip is None or chip.name not in _HIDDEN:
        return None
    known = _figures(chip)
    if known is None:
        return None
    flops, memory, link = known
    both_ways = 2 * len(hardware.topology)
    network = (chip.network_bytes_per_s or link) / math.prod(chip.host_shape)
    slice = hardware.device_count // hardware.slice_count
    hides = _HIDDEN[chip.name]
    speeds = flops, memory, link * both_ways, network
    starts = {"send_s": 1e-6, "kernel_s": 0.0}
    return Speeds(*speeds, slice, hides, **starts, at_once=chip.links or 1, has_joined=True)


#: What the compiler of a TPU sends while it computes; that of other chips only sends permutes.
#: Source: the schedules of 40 programs that libtpu 0.0.52 made for v4, v5e, v5p and v6e.
_HIDDEN = {"v5e": frozenset(("all-gather", "collective-permute"))}


def _speeds(chip: Chip) -> Speeds | None:
    """Return how fast a GPU is whose compiler hides collectives behind kernels."""
    capability = dict(chip.compiler).get("cuda_compute_capability", "0")
    known = _figures(chip)
    if float(capability) < _HIDES or known is None:
        return None
    flops, memory, link = known
    node = chip.host_shape[0]
    network = (chip.network_bytes_per_s or link) / node
    return Speeds(flops, memory, link, network, node)


def _figures(chip: Chip) -> tuple[float, float, float] | None:
    """Return the speeds of a chip's products, memory and links; None where one is not known."""
    flops, memory, link = chip.bf16_flops_per_s, chip.hbm_bytes_per_s, chip.link_bytes_per_s
    return None if flops is None or memory is None or link is None else (flops, memory, link)


#: The first compute capability for which XLA hides collectives behind kernels: Hopper's.
#: Source: xla/service/gpu/model/sol_latency_estimator.cc, `IsSupportedForModule`.
_HIDES = 9.0


def _tensors(
    peak: Peak, program: Program, arguments: Sequence[StepArgument]
) -> Iterator[StepTensor]:
    values = [each for each in peak.values if each.bytes >= _LEAST_BYTES]
    moves = {
        id(each): named_by(each, body)
        for body in program.computations.values()
        for each in body.instructions.values()
        if each.operation in IN_HLO
    }
    makers = [moves.get(id(each.instruction), each.instruction) for each in values]
    phases = _phases(makers)
    pairs = list(zip(values, phases, strict=True))
    products = (each for each, phase in pairs if phase in _BACK and _is_product(each))
    turn = min((each.born for each in products), default=peak.end + 1)
    given = [each.array for each in arguments if each.role == "parameter"]
    weights = {(each.dtype, each.shard_shape) for each in given}
    for (each, phase), maker in zip(pairs, makers, strict=True):
        is_kept = phase == "forward" and each.dies >= turn
        is_weight = (each.dtype, each.shape) in weights
        part: MadePart = "activations" if is_kept else "temporaries"
        if is_weight:
            part = "gradients" if phase in ("backward", "update") else "temporaries"
        whole = PartitionSpec(((),) * len(each.shape))
        array = StepArray(each.dtype, each.shape, whole, each.shape)
        place = _place(maker, program)
        made = StepTensor(array, each.bytes, each.born, each.dies, place, phase, part=part)
        yield replace(made, why=each.why, is_attended=each.is_attended)


_BACK = ("backward", "remat")


def _is_product(each: Held) -> bool:
    return each.instruction is not None and kind_of(each.instruction) is not None


def _phases(makers: Sequence[Instruction | None]) -> list[Phase]:
    """Return the phase of each value; what has no name of its own comes with what is before it."""
    found: list[Phase] = []
    before: Phase = "forward"
    for each in makers:
        name = "" if each is None else each.op_name
        told = phase_of(name)
        was_backward = "backward" in found
        before = told or ("update" if was_backward and before == "update" else before)
        found.append(before)
    return found


def _place(maker: Instruction | None, program: Program) -> Place:
    return Place() if maker is None else program.place(maker)
