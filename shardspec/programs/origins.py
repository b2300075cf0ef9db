"""What a value of a compiled program is another form of, and which results it ends in.

The array behind a collective: where its operand is a view of an argument of the program, through
copies, slices, loops and fusions, it carries that argument; where its result flows into one
argument's new value alone, it carries the gradient of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.ir.operations import MOVES, CollectiveKind, op_info
from shardspec.programs.calls import Calls, Ref, Site, through
from shardspec.programs.census import base
from shardspec.programs.hlo import Instruction, number

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
    ends: dict[Element, frozenset[int]] = field(default_factory=dict)
    after: dict[Element, tuple[Element | int, ...]] = field(default_factory=dict)

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
            return first, (*indices, number(each.attribute("index")))
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
        return is_element and kept is not None and number(kept.attribute("index")) == indices[-1]

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

    def _onward(self, at: Element) -> tuple[Element | int, ...]:
        """Return where a value goes, one operation on; numbers are results of the program."""
        if at not in self.after:
            self.after[at] = tuple(self._next(at))
        return self.after[at]

    def _next(self, at: Element) -> Iterator[Element | int]:
        computation = self.calls.program.computations[at[0].computation]
        each = computation.instructions[at[0].name]
        if each.is_root:
            yield from self._returned(at)
        for user in computation.users.get(each.name, ()):
            yield from self._read(at, user)

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
            index = number(user.attribute("index"))
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
