"""A compiled program as the noun of `ir/step.py`: what it sends, computes and is given.

Sizes are those of one device, which is all that a compiled program knows: an array's shape is that
of its shard, and `split` says nothing. Which mesh axes split an operation is not known either; it
counts as split by all, so that no work is called idle that is not.

One row is one array. XLA combines collectives, and spreads one over several fusions so that others
compute meanwhile; it is told here as if it had done neither.

What a value of a compiled program is another form of, and which results it ends in.

The array behind a collective: where its operand is a view of an argument of the program, through
copies, slices, loops and fusions, it carries that argument; where its result flows into one
argument's new value alone, it carries the gradient of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.words import by_key, grouped
from shardspec.ir import step as ir
from shardspec.ir.operations import IN_HLO, MOVES, SUMS, CollectiveKind, op_info, ring_bytes
from shardspec.ir.spec import Mesh, PartitionSpec
from shardspec.ir.step import Collective, Place, Step
from shardspec.kept import kept
from shardspec.programs import calls as program_calls
from shardspec.programs import hlo, operations
from shardspec.programs.calls import Calls, Ref, Site, called_by, calls_of, named_by, through
from shardspec.programs.hlo import Computation, HloArray, Instruction, Program, number
from shardspec.programs.members import Crossing, Members, Slices, crossings, members_of, slices_of
from shardspec.programs.memory import HeldValue
from shardspec.programs.op_names import einsum_in, phase_of, split_name
from shardspec.programs.operations import ALL, base, einsum_of, flops_of, is_local, kind_of

_INSIDE = frozenset(("fusion", "call", "async-start", "while", "conditional"))
#: How many operations a value is followed through, and how many that read it.
_FAR = 500
_WIDE = 3000
#: More results than these have no gradient in common: a parameter and the state it has.
_MOST_RESULTS = 6

#: A value: an instruction, and which element of nested tuples, the innermost last.
Element = tuple[Ref, tuple[int, ...]]


class Origin(NamedTuple):
    """What a value is another form of.

    Attributes:
      ref: the instruction that makes it.
      parameter: the number of the argument of the program, where it is one.
      is_invariant: whether it is one, and the same in every round of the loop it was read in.
    """

    ref: Ref
    parameter: int | None = None
    is_invariant: bool = False


@dataclass(frozen=True, slots=True)
class Origins:
    """Follows values of one program."""

    calls: Calls
    _kept: dict[object, object] = field(default_factory=dict)

    def origin(self, start: Ref) -> Origin:
        """Return what a value is another form of, out of loops and fusions."""
        at: Element = (start, ())
        loops, is_fixed = 0, True
        seen: set[Element] = set()
        while at not in seen and len(seen) < _FAR:
            seen.add(at)
            each = self.calls.instruction(at[0])
            step = None if each is None else self._back(at, each)
            if each is None or step is None:
                break
            if each.operation == "parameter":
                site = self.calls.sites.get(at[0].computation)
                if site is not None and site.caller.operation == "while":
                    is_fixed = is_fixed and (loops > 0 or self._is_kept(at))
                    loops += 1
            elif each.operation.startswith("dynamic-"):
                is_fixed = is_fixed and loops > 0
            at = step
        found = self.calls.instruction(at[0])
        is_inner = at[0].computation in self.calls.sites
        if found is None or found.operation != "parameter" or is_inner:
            return Origin(at[0])
        return Origin(at[0], number(found.stated), is_fixed and loops > 0)

    def _back(self, at: Element, each: Instruction) -> Element | None:
        """Return where a value comes from, one operation back; None where it is made here."""
        (own, _), indices = at
        if each.operation == "parameter":
            return self._given(at, number(each.stated))
        if each.operation in _INSIDE:
            return self._inside(each, indices)
        if not each.operands:
            return None
        first = Ref(own, each.operands[0])
        if each.operation == "get-tuple-element":
            return first, (*indices, each.index)
        if each.operation == "tuple":
            picked = each.operands[indices[-1] : indices[-1] + 1] if indices else ()
            return (Ref(own, picked[0]), indices[:-1]) if picked else None
        if base(each.operation) in MOVES:
            picked = each.operands[indices[-1] : indices[-1] + 1] if indices else each.operands
            return Ref(own, (picked or each.operands)[0]), ()
        joins = each.operation == "custom-call" and '"ConcatBitcast"' in each.attributes
        return (first, indices) if op_info(each.operation).view or joins else None

    def _inside(self, each: Instruction, indices: tuple[int, ...]) -> Element | None:
        """Return the root of what an instruction runs; of a loop, its body."""
        name = each.attribute("body") if each.operation == "while" else "".join(each.called[:1])
        inner = self.calls.program.computations.get(name)
        if inner is None or inner.root is None:
            return None
        return Ref(name, inner.root.name), indices

    def _given(self, at: Element, which: int) -> Element | None:
        """Return what a computation is given as one of its parameters."""
        site = self.calls.sites.get(at[0].computation)
        if site is None:
            return None
        operands = (*site.caller.operands, *self._later(site))
        if site.caller.operation == "conditional":
            which = site.caller.called.index(at[0].computation) + 1
        if which >= len(operands):
            return None
        return Ref(site.ref.computation, operands[which]), at[1]

    def _later(self, site: Site) -> Iterator[str]:
        """Yield what an asynchronous call is given after its start, by updates of it."""
        if site.caller.operation == "async-start":
            body = self.calls.program.computations[site.ref.computation]
            for user in body.users.get(site.caller.name, ()):
                yield from user.operands[1:] if user.operation == "async-update" else ()

    def _is_kept(self, at: Element) -> bool:
        """Say whether a loop gives an element of its tuple back as it got it."""
        body = self.calls.program.computations[at[0].computation]
        indices = at[1]
        if body.root is None or body.root.operation != "tuple" or not indices:
            return False
        back = body.root.operands[indices[-1] : indices[-1] + 1]
        kept = through(body, back[0]) if back else None
        is_element = kept is not None and kept.operation == "get-tuple-element"
        return is_element and kept is not None and kept.index == indices[-1]

    def results(self, start: Element) -> frozenset[int]:
        """Return the results of the program that a value flows into, by number.

        A number of no dimensions that it is summed to, such as a norm, is not followed. None of
        them where there are too many to be one array's.
        """
        found: set[int] = set()
        seen: set[Element] = set()
        waiting = [start]
        while waiting and len(found) <= _MOST_RESULTS and len(seen) < _WIDE:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            for step in self._onward(at):
                if isinstance(step, int):
                    found.add(step)
                else:
                    waiting.append(step)
        is_whole = len(found) <= _MOST_RESULTS and len(seen) < _WIDE
        return frozenset(found) if is_whole else frozenset()

    def readers(self, start: Ref, most: int) -> Iterator[tuple[Ref, Instruction]]:
        """Yield what reads a value, directly or in another form, the nearest first."""
        seen: set[Element] = {(start, ())}
        waiting: list[Element] = [(start, ())]
        for at in waiting:
            found = self.calls.instruction(at[0])
            if found is not None and at[0] != start:
                yield at[0], found
            for step in self._onward(at):
                if not isinstance(step, int) and step not in seen and len(seen) < most:
                    seen.add(step)
                    waiting.append(step)

    @kept
    def _onward(self, at: Element) -> tuple[Element | int, ...]:
        """Return where a value goes, one operation on; numbers are results of the program."""
        computation = self.calls.program.computations[at[0].computation]
        each = computation.instructions[at[0].name]
        read = (self._read(at, user) for user in computation.users.get(each.name, ()))
        return (*(self._returned(at) if each.is_root else ()), *chain.from_iterable(read))

    def _returned(self, at: Element) -> Iterator[Element | int]:
        site = self.calls.sites.get(at[0].computation)
        if site is None:
            yield at[1][-1] if at[1] else 0
            return
        is_loop = site.caller.operation == "while"
        if is_loop and site.caller.attribute("body") != at[0].computation:
            return
        yield site.ref, at[1]
        body = self.calls.program.computations[at[0].computation]
        if is_loop and 0 in body.parameters:
            yield Ref(body.name, body.parameters[0].name), at[1]

    def _read(self, at: Element, user: Instruction) -> Iterator[Element]:
        ref, indices = Ref(at[0].computation, user.name), at[1]
        which = user.operands.index(at[0].name)
        if user.operation == "get-tuple-element":
            index = user.index
            if not indices:
                yield ref, ()
            elif indices[-1] == index:
                yield ref, indices[:-1]
        elif user.operation == "tuple":
            yield from (
                (ref, (*indices, n)) for n, o in enumerate(user.operands) if o == at[0].name
            )
        elif user.operation in _INSIDE:
            is_branch = user.operation == "conditional"
            for name in user.called[which - 1 : which] if is_branch else user.called:
                inner = self.calls.program.computations.get(name)
                taken = 0 if is_branch else which
                if inner is not None and taken in inner.parameters:
                    yield Ref(name, inner.parameters[taken].name), indices
        elif user.operation.endswith("-done"):
            yield ref, indices
        elif user.operation.startswith(tuple(CollectiveKind)) and len(user.operands) > 1:
            yield ref, (which,)
        elif any(array.shape for array in user.arrays):
            yield ref, ()


#: The attribute of a rewritten program that says what one device sends, instead of a ring.
SENDS = "wire_bytes"
#: How libtpu marks the parts of a collective that goes on while others compute; -1 is its start.
_CONTINUES = '"async_collective_fusion_config":{"flag_end":"'
STARTS = f'{_CONTINUES}-1"'
#: What only hands on what others make.
_CARRIES = frozenset(("while", "conditional", "parameter", "tuple", "get-tuple-element"))
#: What libtpu calls a fusion of an all-reduce with the slice that each device keeps of it.
_FUSED_SCATTER = "all-reduce-scatter"
#: What a send to other slices and its receive have in common.
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
#: Each end of what goes between slices, and the other one.
_ENDS = {"send": "recv", "recv": "send"}
#: What parts the keys in JAX's name of a parameter.
_KEYS = re.compile(r"\['|'\]|\[|\]|\.")
#: Why something is unknown.
_NOT_RUN = "nothing that is known runs the computation that it stands in"
_ENDLESS = "the loop has no fixed number of iterations: counted once"
_UNREAD = "this line of the program cannot be read"
#: Of a line that cannot be read, so much is shown.
_MOST_SHOWN = 60
#: How far a line is looked for among what makes a value; its square among what reads it.
_NEAR = 12


class Maker(NamedTuple):
    """Who makes a value: a line of the user's; or the argument that it is another form of."""

    place: Place
    phase: ir.Phase
    argument: str = ""


UNKNOWN_MAKER = Maker(Place(), "forward")


@dataclass(frozen=True, slots=True)
class ReadProgram:
    """A compiled program that was read once, and what can be asked of it."""

    step: Step
    _reader: _Reader = field(repr=False)

    def makers(self, values: Sequence[HeldValue]) -> list[Maker]:
        """Return who makes each of some values: a line of the user's, else an argument."""
        names = {name for each in values for name in each.names}
        program = self._reader.program
        refs = (
            Ref(computation.name, each.name)
            for computation in program.computations.values()
            for each in computation.instructions.values()
            if each.name in names
        )
        pairs = ((ref.name, self._reader.maker(ref)) for ref in refs)
        found = {name: maker for name, maker in pairs if maker is not None}
        known = ([found[name] for name in each.names if name in found] for each in values)
        return [
            min(makers, key=lambda each: not each.place.is_known, default=UNKNOWN_MAKER)
            for makers in known
        ]

    @property
    def calls(self) -> Calls:
        """Return what calls what, and how often."""
        return self._reader.calls

    def made(self, ref: Ref) -> tuple[Place, ir.Phase]:
        """Return the user's line of an instruction, and its phase."""
        return self._reader.made(ref)

    def told(self, ref: Ref, each: Instruction) -> tuple[str, Place, ir.Phase]:
        """Return what an instruction does in the user's words, its place and its phase."""
        return self._reader.told(ref, each)

    def estimates(self) -> tuple[program_calls.Estimate, ...]:
        """Return what operations take by the compiler's own estimate; none where it states none."""
        return tuple(program_calls.estimates_of(self._reader.calls, self._reader.told))

    def parts(self) -> Parts:
        """Return the program, and what each of its instructions computes and sends."""
        sends = by_key(self._reader.collectives)
        return Parts(self._reader.calls, dict(self._reader.ops), sends, self._reader.other_end)


class Parts(NamedTuple):
    """A compiled program, instruction by instruction.

    Attributes:
      other_end: of a receive from other slices the send, and the other way around.
    """

    calls: Calls
    ops: Mapping[Ref, ir.StepOp]
    sends: Mapping[Ref, Sequence[Collective]]
    other_end: Callable[[Ref, Instruction], Ref]


def read_program(
    text: str, mesh: Mesh, arguments: Sequence[ir.StepArgument | None] = ()
) -> ReadProgram | Diagnostic:
    """Return a compiled program, read.

    Args:
      text: HLO as XLA prints it once all its passes have run.
      mesh: that the program was compiled for; its devices are counted in this order.
      arguments: of the step, in the order of the program's parameters; without them paths are
        the names that JAX gave to the parameters, and roles are not known.

    Invariants:
      total: any text gives a step or a diagnostic.
    """
    return read(hlo.program_of(text), mesh, arguments)


def read(
    program: Program, mesh: Mesh, arguments: Sequence[ir.StepArgument | None] = ()
) -> ReadProgram | Diagnostic:
    """Return a program, read, as `read_program` does a text."""
    calls = calls_of(program)
    if program.entry is None:
        return _bad("the text names no `ENTRY` computation", _OF_XLA)
    if calls is None:
        return _bad("computations of the program call each other in a circle", _OF_XLA)
    slices = slices_of(mesh, program.partitions, program.chips)
    if slices is None:
        return _bad(
            f"the program is for {program.partitions} devices, the mesh has {mesh.device_count}",
            f"read it with the mesh it was compiled for, not with {mesh}; of several slices, that"
            " is one that says which axes are `@ dcn`",
        )
    reader = _Reader(program, calls, mesh, slices, tuple(arguments))
    return ReadProgram(reader.step(), reader)


_OF_XLA = "give the text of `compiled.as_text()`, or a dump `*after_optimizations.txt` of XLA"


def _bad(message: str, way_out: str) -> Diagnostic:
    return Diagnostic(codes.BAD_PROGRAM, message, help=way_out)


@dataclass(frozen=True, slots=True)
class _Sent:
    """One array of a collective, which may send more than one."""

    kind: CollectiveKind
    members: Members
    ref: Ref
    each: Instruction
    at: int
    array: HloArray
    result: Element

    @property
    def operand(self) -> Ref:
        """Return what makes the array."""
        return Ref(self.ref.computation, self.each.operands[self.at])

    @property
    def is_combined(self) -> bool:
        """Say whether other arrays are sent along."""
        return len(self.each.operands) > 1 and not self.kind.traits.takes_parts


@dataclass(slots=True)
class _Reader:
    """Walks the computations once, in the order they run."""

    program: Program
    calls: Calls
    mesh: Mesh
    slices: Slices
    given: tuple[ir.StepArgument | None, ...]
    collectives: list[tuple[Ref, Collective]] = field(default_factory=list)
    ops: list[tuple[Ref, ir.StepOp]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: list[tuple[str, ir.Unknown]] = field(default_factory=list)
    clock: int = 0
    was_backward: bool = False
    arguments: tuple[ir.StepArgument, ...] = ()
    ends: dict[tuple[str, str], Ref] = field(default_factory=dict)
    origins: Origins = field(init=False)
    crossings: dict[Ref, Crossing] = field(init=False)

    def __post_init__(self) -> None:
        self.origins = Origins(self.calls)
        self.crossings = dict(crossings(self.program, self.slices))

    def step(self) -> Step:
        """Return the step."""
        entry = self.program.entry
        assert entry is not None
        self.arguments = tuple(self._arguments(entry))
        for ref, each in self._walk(entry):
            self.clock += 1
            self._read(ref, each)
        self._read_beside()
        inside = (each.inside for each in self.crossings.values())
        unused = self._cheaper_branches().union(*inside)
        return Step(
            "compiler",
            self.mesh,
            tuple(op for ref, op in self.ops if ref.computation not in unused),
            tuple(sent for ref, sent in self.collectives if ref.computation not in unused),
            arguments=self.arguments,
            end=self.clock,
            notes=tuple(dict.fromkeys(self.notes)),
            unknown=tuple(_added_up(each for _, each in self.unknown)),
        )

    def _walk(self, entry: Computation) -> Iterator[tuple[Ref, Instruction]]:
        """Yield every instruction that runs once, what one calls before it."""
        seen = {entry.name}
        stack = [(entry, list(reversed(entry.instructions.values())))]
        while stack:
            body, left = stack[-1]
            if not left:
                stack.pop()
                continue
            runs = (name for name in called_by(left[-1]) if name in self.calls.times)
            names = [name for name in dict.fromkeys(runs) if name not in seen]
            inner = [self.program.computations.get(name) for name in names]
            seen.update(names)
            for each in reversed(inner):
                if each is not None:
                    stack.append((each, list(reversed(each.instructions.values()))))
            if stack[-1][0] is body:
                yield Ref(body.name, left[-1].name), left.pop()

    def _read(self, ref: Ref, each: Instruction) -> None:
        operation = each.operation.removesuffix("-start")
        crossing = self.crossings.get(ref)
        self.was_backward = self.was_backward or phase_of(each.op_name) == "backward"
        if operation in IN_HLO:
            if _CONTINUES not in each.attributes or STARTS in each.attributes:
                members = members_of(each, self.slices)
                rows = self._rows(ref, each, IN_HLO[operation], members)
                self.collectives += ((ref, row) for row in rows)
        elif crossing is not None:
            alone = replace(each, operands=each.operands[:1])  # without its token
            rows = self._rows(ref, alone, crossing.kind, crossing.members)
            self.collectives += ((ref, row) for row in rows)
        elif kind_of(each) is not None:
            self.ops.append((ref, self._op(ref, each)))
        missing = operations.uncounted(each, crosses=crossing is not None)
        if missing is not None and not self._goes_on(ref, each):
            self._miss(ref, *missing)

    def _goes_on(self, ref: Ref, each: Instruction) -> bool:
        """Say whether an instruction goes on with one that another began, and so counts there."""
        begun = each.operands and self.calls.instruction(Ref(ref.computation, each.operands[0]))
        is_part = begun and begun.operation != each.operation
        return bool(is_part and begun and base(begun.operation) == base(each.operation))

    def _miss(self, ref: Ref, what: str, reason: str, figures: tuple[ir.Figure, ...]) -> None:
        """Note something that cannot be counted."""
        count = self.calls.times.get(ref.computation, 1)
        found = ir.Unknown(what, reason, figures, self._place(ref), self._phase(ref), count)
        self.unknown.append((ref.computation, found))

    def _read_beside(self) -> None:
        """Note what the walk does not count: loops without end, what nothing runs, lost lines."""
        for computation in self.program.computations.values():
            if computation.name not in self.calls.times:
                for each in computation.instructions.values():
                    ref = Ref(computation.name, each.name)
                    if not is_local(each):
                        self._miss(ref, base(each.operation), _NOT_RUN, ALL)
        sent = (ref.computation for ref, _ in self.collectives)
        sending = self.calls.callers((*sent, *(name for name, _ in self.unknown)))
        for ref in self.calls.endless:
            found = self.calls.instruction(ref)
            sends = found is not None and not sending.isdisjoint(called_by(found))
            figures: tuple[ir.Figure, ...] = ("flops", "time")
            self._miss(ref, "while", _ENDLESS, ("sends", *figures) if sends else figures)
        for line in self.program.unread:
            self.unknown.append(("", ir.Unknown(line[:_MOST_SHOWN], _UNREAD, ALL)))

    # collectives

    def _rows(
        self, ref: Ref, each: Instruction, kind: CollectiveKind, members: Members | None
    ) -> Iterator[Collective]:
        """Yield a row for each array that a collective sends."""
        if members is None:
            self._miss(ref, str(kind), "its devices cannot be read", ("sends", "time"))
            return
        if kind is CollectiveKind.ALL_REDUCE and _FUSED_SCATTER in ref.computation:
            kind = CollectiveKind.REDUCE_SCATTER
        arrays = [self._array(ref, name) for name in each.operands]
        if kind.traits.takes_parts and len(arrays) > 1 and arrays[0] is not None:
            arrays = [HloArray(arrays[0].dtype, (len(arrays), *arrays[0].shape))]
        if not arrays or None in arrays:
            self._miss(ref, str(kind), "what it sends cannot be read", ("sends", "time"))
        for at, array in enumerate(arrays):
            if array is not None and members.axes(self.mesh):
                result = self._result(ref, each, at)
                yield self._row(_Sent(kind, members, ref, each, at, array, result))

    def _result(self, ref: Ref, each: Instruction, at: int) -> Element:
        """Return what a collective gives for one array; across slices, what is received."""
        if each.operation == "send":
            return self.other_end(ref, each), (0,)
        kind = IN_HLO.get(base(each.operation))
        are_parts = kind is not None and kind.traits.takes_parts
        return ref, (at,) if len(each.operands) > 1 and not are_parts else ()

    def other_end(self, ref: Ref, each: Instruction) -> Ref:
        """Return what is received for what is sent to other slices, and the other way around."""
        key = _RENDEZVOUS.search(each.attributes)
        if key is not None and not self.ends:
            for name, body in self.program.computations.items():
                for one in body.instructions.values():
                    found = _RENDEZVOUS.search(one.attributes)
                    if found is not None and one.operation in _ENDS:
                        self.ends[_ENDS[one.operation], found.group(1)] = Ref(name, one.name)
        return ref if key is None else self.ends.get((each.operation, key.group(1)), ref)

    def _row(self, sent: _Sent) -> Collective:
        payload = sent.kind.payload(sent.array.bytes, sent.array.bytes * sent.members.ways)
        is_gather = sent.kind.traits.grows
        origin = self.origins.origin(sent.operand)
        carries = self._carried(sent, origin)
        return Collective(
            sent.kind,
            sent.members.axes(self.mesh),
            payload,
            number(sent.each.attribute(SENDS)) or ring_bytes(sent.kind, payload, sent.members.ways),
            self.calls.times[sent.ref.computation],
            _step_array(sent.array, "" if carries.kind == "gradient" else carries.name),
            self._place(sent.operand if sent.is_combined and not is_gather else sent.ref),
            self._phase(sent.ref),
            carries,
            is_invariant=origin.is_invariant,
            at=self.clock,
            rounds=self._rounds(sent.ref.computation),
        )

    def _rounds(self, computation: str) -> float:
        """Return how often the innermost loop around a computation goes round."""
        while computation in self.calls.sites:
            site = self.calls.sites[computation]
            outer = site.ref.computation
            if site.caller.operation == "while":
                return self.calls.times[computation] / max(1, self.calls.times.get(outer, 1))
            computation = outer
        return 1

    def _carried(self, sent: _Sent, origin: Origin) -> ir.Carried:
        if origin.parameter is not None and origin.parameter < len(self.arguments):
            argument = self.arguments[origin.parameter]
            return ir.Carried(_CARRIED.get(argument.role, "unknown"), argument.path)
        gradient = self._gradient(sent) if sent.kind in SUMS else ""
        if gradient:
            return ir.Carried("gradient", gradient)
        einsum = einsum_in(self._place(sent.ref))
        return ir.Carried("einsum", einsum) if einsum else ir.Carried()

    def _gradient(self, sent: _Sent) -> str:
        """Return the argument into whose new value alone a sum flows, with the state it has."""
        results = self.origins.results(sent.result)
        numbers = [self.program.aliases.get(number) for number in results]
        if not numbers or any(n is None or n >= len(self.arguments) for n in numbers):
            return ""
        found = [self.arguments[n] for n in numbers if n is not None]
        is_cache = any(each.role in ("cache", "batch") for each in found)
        if len({each.array.shape for each in found}) > 1 or is_cache:
            return ""
        return _common_end([each.path for each in found])

    # ops

    def _op(self, ref: Ref, each: Instruction) -> ir.StepOp:
        kind, phase = kind_of(each), self._phase(ref)
        assert kind is not None
        arrays = [array for name in each.operands if (array := self._array(ref, name)) is not None]
        result = each.arrays[0] if each.arrays else HloArray("f32", ())
        shapes = [array.shape for array in arrays]
        place = self._place(ref)
        is_product = kind in ("einsum", "convolution") and phase != "backward"
        einsum = einsum_in(place) if is_product else ""
        return ir.StepOp(
            "einsum" if einsum else kind,
            einsum or einsum_of(each, [len(shape) for shape in shapes]),
            tuple(_step_array(array) for array in arrays),
            _step_array(result),
            flops_of(each, shapes, result.shape),
            self.calls.times[ref.computation],
            place,
            phase,
            self.mesh.names,
            self.clock,
        )

    # what is known of an instruction

    def _array(self, ref: Ref, name: str) -> HloArray | None:
        found = self.calls.instruction(Ref(ref.computation, name))
        return found.arrays[0] if found is not None and found.arrays else None

    def told(self, ref: Ref, each: Instruction) -> tuple[str, Place, ir.Phase]:
        """Return what an instruction does in the user's words, its place and its phase."""
        place = self._place(ref)
        own = chain(islice(self._outward(ref), 1), self._inward(ref))
        last = next((name for one in own if (name := split_name(one.op_name)[-1])), each.operation)
        return einsum_in(place) or last, place, self._phase(ref)

    def maker(self, ref: Ref) -> Maker | None:
        """Return who makes a value; None where that is not known."""
        found = self.calls.instruction(ref)
        if found is None or found.operation not in _CARRIES:
            place, phase = self.made(ref)
            return Maker(place, phase) if place.is_known else None
        number = self.origins.origin(ref).parameter
        if number is None or number >= len(self.arguments):
            return None
        return Maker(Place(), self._phase(ref), self.arguments[number].path)

    def made(self, ref: Ref) -> tuple[Place, ir.Phase]:
        """Return the user's line of an instruction, and its phase."""
        return self._place(ref), self._phase(ref)

    def _place(self, ref: Ref) -> Place:
        """Return the user's line: of an instruction, of what is around or in it, or beside it."""
        own = chain(self._outward(ref), self._inward(ref))
        for each in chain(own, self._makers(ref), self._readers(ref)):
            place = self.program.place(each)
            if place.is_known:
                return place
        return Place()

    def _outward(self, ref: Ref) -> Iterator[Instruction]:
        """Yield the instruction whose name says what one is for, then the fusion that it is in."""
        found = self.calls.instruction(ref)
        for _ in range(_NEAR):
            if found is None:
                return
            yield named_by(found, self.program.computations[ref.computation])
            site = self.calls.sites.get(ref.computation)
            if site is None or site.caller.operation == "while":
                return
            ref, found = site.ref, site.caller

    def _inward(self, ref: Ref) -> Iterator[Instruction]:
        """Yield what a fusion is made of, its result first."""
        found = self.calls.instruction(ref)
        for name in found.called if found is not None and found.operation == "fusion" else ():
            body = self.program.computations.get(name)
            yield from reversed(body.instructions.values() if body is not None else ())

    def _makers(self, ref: Ref) -> Iterator[Instruction]:
        """Yield what makes the first operand, and so on back."""
        for _ in range(_NEAR):
            found = self.calls.instruction(ref)
            if found is not None and found.operation == "recv":
                ref = self.other_end(ref, found)
                found = self.calls.instruction(ref)
            if found is None or not found.operands:
                return
            origin = self.origins.origin(Ref(ref.computation, found.operands[0])).ref
            if origin == ref:
                return
            ref = origin
            yield from self._outward(ref)

    def _readers(self, ref: Ref) -> Iterator[Instruction]:
        found = self.calls.instruction(ref)
        if found is not None and found.operation == "send":
            ref = self.other_end(ref, found)
        for at, _ in self.origins.readers(ref, _NEAR * _NEAR):
            yield from self._outward(at)

    def _phase(self, ref: Ref) -> ir.Phase:
        """Return what JAX's names tell of an instruction, of what reads it, or of its loop."""
        near = chain(self._outward(ref), self._readers(ref))
        told = next((phase for each in near if (phase := phase_of(each.op_name))), None)
        site = self.calls.sites.get(ref.computation)
        while told is None and site is not None:
            told = phase_of(site.caller.op_name)
            site = self.calls.sites.get(site.ref.computation)
        return told or ("update" if self.was_backward else "forward")

    def _arguments(self, entry: Computation) -> Iterator[ir.StepArgument]:
        parameters = sorted(entry.parameters.items())
        donated = set(self.program.aliases.values())
        is_given = len(self.given) == len(parameters)
        for at, (which, each) in enumerate(parameters):
            given = self.given[at] if is_given else None
            array = each.arrays[0] if each.arrays else HloArray("f32", ())
            path = _path(each.op_name) or each.name if given is None else given.path
            role: ir.Role = "other" if given is None else given.role
            yield ir.StepArgument(path, role, _step_array(array, path), which in donated, True)

    # branches

    def _cheaper_branches(self) -> frozenset[str]:
        """Return the computations that do not count: of each condition the dearest branch does."""
        unused: set[str] = set()
        sites = {site.ref: site.caller for site in self.calls.sites.values()}
        for ref, caller in sites.items():
            if caller.operation != "conditional" or ref.computation not in self.calls.times:
                continue
            branches = [self.calls.within(name) for name in caller.called]
            costs = [self._cost(branch) for branch in branches]
            dearest = costs.index(max(costs))
            if max(costs) != min(costs):
                place = self._place(ref)
                self.notes.append(f"the condition at {place} counts with its dearer branch")
            for at, branch in enumerate(branches):
                unused |= branch - branches[dearest] if at != dearest else set()
        return frozenset(unused)

    def _cost(self, names: frozenset[str]) -> tuple[int, float]:
        wire = sum(sent.wire_bytes for ref, sent in self.collectives if ref.computation in names)
        return wire, sum(op.flops * op.count for ref, op in self.ops if ref.computation in names)


_CARRIED: dict[ir.Role, ir.CarriedKind] = {
    "parameter": "weight",
    "optimizer": "state",
    "batch": "activation",
    "cache": "activation",
}


def _added_up(unknown: Iterable[ir.Unknown]) -> Iterator[ir.Unknown]:
    """Yield what cannot be counted, what is alike as one."""
    for alike in grouped(unknown, lambda each: replace(each, count=0)).values():
        yield replace(alike[0], count=sum(each.count for each in alike))


def _step_array(array: HloArray, name: str = "") -> ir.StepArray:
    whole = PartitionSpec(((),) * len(array.shape))
    return ir.StepArray(array.dtype, array.shape, whole, array.shape, name)


def _path(op_name: str) -> str:
    """Return JAX's name of a parameter as a path.

    >>> _path("state['params']['layers'][0].kernel")
    'state/params/layers/0/kernel'
    """
    return "/".join(part for part in _KEYS.split(op_name) if part)


def _common_end(paths: Sequence[str]) -> str:
    """Return the keys that all paths end with.

    >>> _common_end(["state/params/mlp/wi", "state/mu/mlp/wi"])
    'mlp/wi'
    """
    columns = zip(*(reversed(path.split("/")) for path in paths), strict=False)
    same = takewhile(lambda column: len(set(column)) == 1, columns)
    return "/".join(reversed([column[0] for column in same]))
