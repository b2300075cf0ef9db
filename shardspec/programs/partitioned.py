"""A program that XLA has partitioned, as the compiler of a target leaves it.

XLA's partitioner says where devices need what others have. What TPU and GPU compilers change of
that afterwards are passes, each from program to program: sums that are added up become one, a sum
of which each device keeps a slice is scattered, a total of a loop is summed behind it. Combining
and scheduling change counts and times and no bytes, and are left to the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Target
from shardspec.ir.step import StepArgument, StepTensor, Unknown
from shardspec.programs.calls import Ref, calls_of, through
from shardspec.programs.census import base, target_of, uncounted
from shardspec.programs.groups import Slices, members_of
from shardspec.programs.held import held_values
from shardspec.programs.hlo import Computation, Instruction, Program, program_of
from shardspec.programs.reading import ReadProgram, read
from shardspec.programs.rewrites import moves, sums, tpu
from shardspec.programs.rewrites.edit import PASSES, Edit, inlined, is_sound
from shardspec.programs.varying import varying

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
        if is_gpu:
            sums.sums_split(edit)
            sums.sums_once(edit)
        if around is not None:
            sums.sums_after_loop(edit, *around, are_narrow=is_gpu)
        if is_tpu:
            moves.gathers_joined(edit)
        if not is_gpu:
            sums.sums_once(edit)
        if around is not None:
            moves.moves_hoisted(edit, *around)
        moves.moves_narrowed(edit, is_tpu=is_tpu)
        if is_tpu:
            _as_libtpu(edit, differs)
        else:
            sums.sums_scattered(edit, _RESHAPES if is_gpu else PASSES)
    bodies = {name: edit.done() for name, edit in edits.items()}
    return replace(program, computations=bodies, entry=bodies[program.entry.name])


def read_partitioned(
    text: str, target: Target, arguments: Sequence[StepArgument]
) -> tuple[ReadProgram, tuple[StepTensor, ...]] | Diagnostic:
    """Return a partitioned program as its target's compiler leaves it, and the values it holds."""
    program = program_of(text)
    found = read(rewritten(program, target, arguments), target.mesh, arguments)
    if isinstance(found, Diagnostic):
        return found
    return found, held_values(program, target, arguments)


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


#: What may be left out reads at most this share of what the step sends.
_NEGLIGIBLE = 0.02
_EXPANDED = frozenset(
    ("cholesky", "custom-call", "fft", "reduce-window", "sort", "topk", "triangular-solve")
)
_EXPANDS = "the target's compiler expands it before it partitions"


def _is_moved(body: Computation, each: Instruction) -> bool:
    """Say whether the partitioner moves an operand for an operation."""
    for name in each.operands:
        found = through(body, name)
        for _ in range(_NEAR):
            if found is None or found.operation not in _CUT or not found.operands:
                break
            found = through(body, found.operands[0])
        if found is not None and found.operation in _WHOLE and found.op_name == each.op_name:
            return True
    return False


_CUT = frozenset(("dynamic-slice", "pad", "slice"))
#: A halo, which is a permute, is the same in any expansion.
_WHOLE = frozenset(("all-gather", "all-to-all"))
_NEAR = 6


def _as_libtpu(edit: Edit, differs: dict[Ref, frozenset[str]]) -> None:
    moves.gathers_once(edit)
    sums.sums_scattered(edit, PASSES)
    tpu.products_in_turns(edit, differs)
    tpu.sums_of_lanes_whole(edit)
    tpu.whole_machine_summed(edit)
    tpu.legs_apart(edit)


def _differing(
    program: Program, target: Target, arguments: Sequence[StepArgument]
) -> dict[Ref, frozenset[str]]:
    """Return along which mesh axes values differ from device to device."""
    every, slices = frozenset(target.mesh.sizes), Slices(tuple(range(program.partitions)), (0,))

    def over(each: Instruction) -> frozenset[str]:
        members = members_of(each, slices)
        return every if members is None else frozenset(members.axes(target.mesh))

    given = [frozenset(each.array.split.mesh_axes) for each in arguments]
    return varying(program, given, over, every)
