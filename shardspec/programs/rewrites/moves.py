"""Gathers and exchanges that compilers narrow, join and take out of loops."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from shardspec.analysis import step_partition
from shardspec.ir.operations import MOVES, CollectiveKind
from shardspec.ir.spec import array_bytes
from shardspec.programs.hlo import Instruction, number
from shardspec.programs.rewrites.edit import (
    FAR,
    FORMS,
    GATHER,
    Edit,
    devices_of,
    form,
    is_alone,
    typed,
)

_MOVES = frozenset(map(str, MOVES))
#: What does not grow what it is given: XLA takes no other out of a loop.
_HOISTED = frozenset(str(kind) for kind in CollectiveKind if not kind.traits.grows)
#: What may be another value in every round, whatever it reads.
_NEW = frozenset(
    (
        *("parameter", "while", "conditional", "custom-call", "opt-barrier"),
        *("rng", "rng-bit-generator", "rng-get-and-update-state"),
    )
)
#: What shows a value narrower, or with its dimensions in another order.
_ALIKE = frozenset(("transpose", "copy", "convert"))
#: What libtpu makes narrower before it cuts and joins it.
_CUTS = frozenset(("broadcast", "concatenate", "dynamic-slice", "pad", "select", "slice"))
#: Through these libtpu looks for what was narrower; a copy, which a constraint leaves, ends that.
_SHOWS = frozenset(("bitcast", "convert", "dynamic-slice", "reshape", "slice", "transpose"))
_PRODUCTS = frozenset(("convolution", "dot", "ragged-dot"))
#: What a TPU multiplies f32 as.
_QUICK = "bf16"


def moves_narrowed(edit: Edit, *, is_tpu: bool) -> None:
    """Move in the narrower dtype what its readers make narrower first.

    XLA:GPU does so with gathers, libtpu with whatever is moved, and with f32 that products read.
    libtpu also makes wider only behind a move what was narrower before it.
    """
    kinds = _MOVES if is_tpu else (GATHER,)
    for each in [*edit]:
        if each.operation in kinds and is_alone(each):
            own = each.arrays[0].dtype
            dtypes = _read_as(edit, each, is_tpu=is_tpu)
            widest = max(dtypes, key=_width, default=own)
            if is_tpu:
                widest = min(widest, _made_as(edit, each), key=_width)
            if _width(widest) < _width(own):
                given = form(
                    f"{each.name}.narrow",
                    typed(widest, edit.source(each).arrays[0].shape),
                    each.operands[0],
                    "convert",
                )
                edit.ahead(each.name, (given,))
                kind = typed(widest, each.arrays[0].shape)
                edit.put(replace(each, operands=(given.name,), type=kind))


def _width(dtype: str) -> int:
    return array_bytes((8,), dtype)


def _made_as(edit: Edit, each: Instruction) -> str:
    """Return the narrowest dtype of what is only shown and converted before it is moved."""
    found, dtype = edit.source(each), each.arrays[0].dtype
    for _ in range(FAR):
        if found.operation not in _SHOWS or not found.operands:
            break
        found = edit.source(found)
        if len(found.arrays) != 1:
            break
        dtype = min(dtype, found.arrays[0].dtype, key=_width)
    return dtype


def _read_as(edit: Edit, each: Instruction, *, is_tpu: bool, depth: int = 0) -> set[str]:
    """Return the dtypes that readers make of a value first; none where one takes it as it is."""
    found: set[str] = set()
    for user in edit.readers(each.name):
        shows = user.operation in FORMS or (is_tpu and user.operation in (*_MOVES, *_CUTS))
        is_quick = is_tpu and user.operation in _PRODUCTS and "high" not in user.bare
        if user.operation == "convert":
            found.add(user.arrays[0].dtype)
        elif is_quick and each.arrays[0].dtype == "f32":
            found.add(_QUICK)
        elif shows and len(user.arrays) == 1 and depth < FAR:
            inner = _read_as(edit, user, is_tpu=is_tpu, depth=depth + 1)
            if not inner:
                return set()
            found |= inner
        else:
            return set()
    return set() if each.is_root else found


def gathers_joined(edit: Edit) -> None:
    """Gather at once what is gathered along one dimension after another.

    libtpu's partitioner gathers all that an operation needs with one collective. That is as many
    bytes as one after another, over both axes. What is sliced behind the gathers is resharded in
    steps, each with a collective of its own.
    """
    for each in [*edit]:
        one, user = edit.folded(each, GATHER), edit.only_reader(each)
        is_step = user is not None and user.operation == "dynamic-slice"
        if one is not None and not is_step:
            edit.stop(edit.source(each))
            edit.put(one)


def gathers_once(edit: Edit) -> None:
    """Gather once what is gathered alike and read with its dimensions in another order."""
    first: dict[tuple[object, ...], str] = {}
    for each in [*edit]:
        if each.operation == GATHER and is_alone(each):
            array = each.arrays[0]
            source = edit.shown(each.operands[0], _ALIKE).name
            key = (source, _joined(edit, each), array.dtype, *sorted(array.shape))
            if first.setdefault(key, each.name) != each.name:
                edit.put(form(each.name, each.type, first[key]))


def _joined(edit: Edit, each: Instruction) -> Hashable:
    """Return what has to be alike of the devices that equal gathers join.

    XLA orders them by the dimension that it splits a product by first. libtpu does not mind where
    it could pass the operand around a ring.
    """
    members = edit.members(each)
    longest = step_partition.longest_row(edit.target.hardware)
    if members is not None and step_partition.has_ring(
        len(members.axes(edit.target.mesh)), members.ways, longest
    ):
        return edit.together(each)
    return devices_of(each)


def moves_hoisted(edit: Edit, outer: Edit, loop: Instruction) -> None:
    """Send ahead of a loop what every round sends alike, unless that makes it larger."""
    given = edit.parameters.get(0)
    if given is None or not loop.operands or not edit.root:
        return
    fixed = _Fixed(edit, given.name)
    for each in [*edit]:
        if each.operation not in _HOISTED or not is_alone(each) or not fixed.holds(each.name):
            continue
        copies = {given.name: loop.operands[0]}
        made = []
        for name in fixed.chain(each.name):
            old = edit.by_name[name]
            copies[name] = f"{loop.name}.{name}"
            read = tuple(copies[one] for one in old.operands)
            made.append(replace(old, name=copies[name], operands=read))
        outer.ahead(loop.name, (one for one in made if one.name not in outer.by_name))
        edit.stop(each)


@dataclass(slots=True)
class _Fixed:
    """What is the same in every round of a loop.

    Attributes:
      given: the name of the loop's tuple in its body.
    """

    edit: Edit
    given: str
    known: dict[str, bool] = field(default_factory=dict)

    def holds(self, name: str) -> bool:
        """Say whether a value is the same in every round."""
        for each in self.chain(name):
            if each not in self.known:
                self.known[each] = self._holds(self.edit.by_name[each])
        return self.known[name]

    def _holds(self, each: Instruction) -> bool:
        if each.operation in _NEW:
            return False
        if each.operation == "get-tuple-element" and each.operands[0] == self.given:
            root = self.edit.by_name[self.edit.root]
            at = number(each.attribute("index"))
            return root.operation == "tuple" and root.operands[at : at + 1] == (each.name,)
        return all(self.known.get(name, False) for name in each.operands)

    def chain(self, name: str) -> list[str]:
        """Return what a value is made of, each behind what it reads, up to the loop's tuple."""
        found: dict[str, None] = {}
        waiting = [(name, False)]
        while waiting:
            at, is_ready = waiting.pop()
            if is_ready:
                found[at] = None
            elif at not in found and at != self.given:
                waiting.append((at, True))
                if self.known.get(at) is not False:
                    waiting += [(one, False) for one in self.edit.by_name[at].operands]
        return [*found]
