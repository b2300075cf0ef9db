"""What a compiler adds to a step, which neither its code nor its sharding asks for.

- An array is copied. A loop, a product or a result wants its dimensions in another order in memory;
  or a loop changes what its caller keeps; or it makes a result where it cannot read the old one.
- A constant is written out: one number, or a mask of two dimensions, to the size of what reads it.
- Something is computed again to save memory.

Of a copy at the start or the end of a step one can say more: which argument it is of, and what
would spare it. XLA prints the order of an array's dimensions from minor to major, in braces behind
its shape; `jax.experimental.layout.Layout` takes it from major to minor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Added
from shardspec.diagnostics.words import grouped
from shardspec.programs.calls import Ref, through
from shardspec.programs.hlo import Computation, Instruction, number
from shardspec.programs.op_names import split_name
from shardspec.programs.operations import kind_of
from shardspec.programs.reading import ReadProgram

#: How XLA names what it does again to save memory.
_AGAIN = ".remat"
#: How libtpu marks an array in on-chip memory.
_ON_CHIP = "S("
_MOVES = frozenset(("copy", "transpose"))
_VIEWS = frozenset(("parameter", "bitcast", "reshape", "tuple", "get-tuple-element"))
_SPREADS = frozenset(("broadcast", "convert", "constant"))
#: What writes into an array that it is given: a loop's stack, rows of a table.
_WRITES = frozenset(("scatter", "dynamic-update-slice"))
#: What passes an array on to such.
_PASSES_ON = frozenset(("while", "tuple", "custom-call", "conditional", "call"))
#: A value that is repeated less often than this is one of the code's, such as shared keys of heads.
_SPREAD = 64
#: Additions smaller than this, on one device in a step, are not reported.
_LEAST_BYTES = 2**20
_ORDER = re.compile(r"\]\{(\d+(?:,\d+)*)")


def added_by(program: ReadProgram) -> tuple[Added, ...]:
    """Return what a compiler added to a program, alike ones as one, the most bytes first."""
    found = grouped(_added(program), lambda each: each._replace(runs=0))
    rows = (same[0]._replace(runs=sum(each.runs for each in same)) for same in found.values())
    large = (each for each in rows if each.step_bytes >= _LEAST_BYTES)
    return tuple(sorted(large, key=lambda each: (-each.step_bytes, each.array, str(each.place))))


def _added(program: ReadProgram) -> Iterator[Added]:
    entry = program.calls.program.entry
    for body, times in program.calls.unfused():
        for each in body.instructions.values():
            array = each.arrays[0] if each.arrays else None
            if array is None or _ON_CHIP in each.type:
                continue
            what = _what(each, body, program)
            if what:
                shape = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
                place, phase = program.made(Ref(body.name, each.name))
                added = Added(what, shape, array.bytes, times, place, phase)
                is_outer = what == "copy" and body is entry
                yield _with_cause(added, each, body, program) if is_outer else added


def _what(each: Instruction, body: Computation, program: ReadProgram) -> str:
    """Return what an instruction is, where the compiler added it."""
    if _is_only(each, program, _MOVES):
        return "" if split_name(each.op_name)[-1:] == ["transpose"] else "copy"
    if _is_only(each, program, _SPREADS) and _is_written_out(each, body, program):
        return "written out"
    is_again = _AGAIN in each.name and (kind_of(each) is not None or each.operation == "fusion")
    return "computed again" if is_again else ""


def _is_only(each: Instruction, program: ReadProgram, kinds: frozenset[str]) -> bool:
    """Say whether an instruction is of some kinds, or a fusion of these and of views."""
    if each.operation != "fusion":
        return each.operation in kinds
    inner = {op.operation for op in _inside(each, program)}
    return not kinds.isdisjoint(inner) and inner <= kinds | _VIEWS


def _inside(fusion: Instruction, program: ReadProgram) -> Iterator[Instruction]:
    for name in fusion.called:
        body = program.calls.program.computations.get(name)
        yield from () if body is None else body.instructions.values()


def _is_written_out(each: Instruction, body: Computation, program: ReadProgram) -> bool:
    """Say whether a small value is repeated in memory, and what reads it could repeat it."""
    given = (body.instructions[name] for name in each.operands if name in body.instructions)
    size = sum(array.bytes for value in given for array in value.arrays)
    readers = body.users.get(each.name, [])
    kinds = {reader.operation for reader in readers}
    inner = {op.operation for reader in readers for op in _inside(reader, program)}
    is_own = _WRITES.isdisjoint(kinds | inner) and _PASSES_ON.isdisjoint(kinds)
    return bool(readers) and is_own and size * _SPREAD <= each.arrays[0].bytes


# why a copy at the start or the end of a step is there


def _with_cause(added: Added, copy: Instruction, entry: Computation, program: ReadProgram) -> Added:
    """Return a copy with the argument that it is of, and with why it is made, if that is known."""
    source = through(entry, copy.operands[0])
    given = entry.instructions.get(copy.operands[0])
    if source is None or given is None:
        return added
    outputs = tuple(_outputs(copy, entry))
    old, new = _order(given), _order(copy)
    is_given = source.operation == "parameter"
    numbers = [number(source.stated)] if is_given else _taken(outputs, program)
    given_by = program.step.arguments
    arguments = [given_by[each] for each in numbers if each < len(given_by)]
    path = arguments[0].path if arguments else ""
    if old != new and (is_given or outputs):
        return added._replace(why="order", path=path, order=new if is_given else old)
    if old == new and is_given and not outputs and _is_changed(copy, entry):
        is_lent = bool(arguments) and not arguments[0].is_donated and _has_place(source, program)
        return added._replace(why="kept", path=path) if is_lent else added
    if old == new and arguments and not is_given and _is_of_loop(source, entry):
        return added._replace(why="loop", path=path)
    return added


def _order(each: Instruction) -> tuple[int, ...]:
    """Return the dimensions of an array from major to minor, as they lie in memory."""
    found = _ORDER.search(each.type)
    return tuple(int(at) for at in reversed(found[1].split(","))) if found else ()


def _outputs(each: Instruction, entry: Computation) -> Iterator[int]:
    """Yield which of the results of a step a value is."""
    if each.is_root:
        yield 0
    for reader in entry.users.get(each.name, ()):
        if reader.is_root and reader.operation == "tuple":
            yield from (at for at, name in enumerate(reader.operands) if name == each.name)


def _taken(outputs: Sequence[int], program: ReadProgram) -> list[int]:
    """Return the parameters whose memory results take."""
    aliases = program.calls.program.aliases
    return [aliases[each] for each in outputs if each in aliases]


def _is_changed(copy: Instruction, entry: Computation) -> bool:
    """Say whether a loop is given a copy."""
    readers = entry.users.get(copy.name, ())
    tuples = (reader for reader in readers if reader.operation == "tuple")
    return any(_is_loop(each) for made in tuples for each in entry.users.get(made.name, ()))


def _has_place(given: Instruction, program: ReadProgram) -> bool:
    """Say whether a result could take the memory of a parameter: one of its type, still free."""
    own, entry = program.calls.program, program.calls.program.entry
    root = None if entry is None else entry.root
    results = () if root is None else root.arrays
    return any(
        (array.dtype, array.shape) == (given.arrays[0].dtype, given.arrays[0].shape)
        for at, array in enumerate(results)
        if at not in own.aliases
    )


def _is_of_loop(source: Instruction, entry: Computation) -> bool:
    maker = entry.instructions.get(source.operands[0]) if source.operands else None
    return source.operation == "get-tuple-element" and maker is not None and _is_loop(maker)


def _is_loop(each: Instruction) -> bool:
    return each.operation == "while"
