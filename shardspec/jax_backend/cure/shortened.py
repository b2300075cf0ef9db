"""A step with fewer layers: what most trials of an unrolled model are priced on.

A model whose layers are not scanned is lowered as the same operations over and over: forward,
backward, and for each of its weights in the update. All but a few layers are cut out, and what read
their values reads those of a layer that stays. Types are equal, thus the program stays well-formed;
what it computes is another thing, and is never run. Two programs, one with a layer more than the
other, say what a layer takes, and thus what the whole step takes. The first and the last layers may
take something else: then steps with one layer more tell it.

Nothing here knows what a layer is. Operations that come again at a fixed distance are a run, and
parts of runs are of one layer where they read the same arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jax.interpreters import mlir
from jaxlib.mlir import ir

from shardspec.jax_backend.cure.inserting import without_idle_marks
from shardspec.jax_backend.cure.sites import inside, numbered
from shardspec.jax_backend.step.graph import children, functions_of
from shardspec.jax_backend.step.passes import bytecode_of

#: Layers that stay, in the programs; of fewer layers than the least, cutting saves little.
KEPT = (4, 3, 2)
_LEAST_LAYERS = 6
#: Layers that may have no part of a run: the first and the last one.
_UNLIKE = 2
#: Distances that are tried, and operations in the shortest run.
_DISTANCES, _SHORTEST = 64, 24
#: What makes a value of a single one, which is then of the same argument.
_OF_ONE = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "convert", "dynamic_slice", "reshape", "slice", "transpose")
)
#: The attribute of an argument that says which result takes its memory.
_TAKES = "tf.aliasing_output"
#: Their attributes may say of which layer they are.
_UNTOLD = frozenset(("stablehlo.constant", "stablehlo.slice"))


@dataclass(frozen=True, slots=True)
class Shortened:
    """A step of which only some layers are left.

    Attributes:
      module: its bytecode.
      layers: how many are left.
      numbers: of the operations that stay, by their numbers in the whole step.
      arguments, results: those that stay, by their numbers in the whole step; see `pruned`.
    """

    module: bytes
    layers: int
    numbers: Mapping[int, int]
    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()


class Run(NamedTuple):
    """Operations that come again at a fixed distance: `times` parts of `size` operations."""

    start: int
    size: int
    times: int

    @property
    def end(self) -> int:
        """Return where the operations behind it begin."""
        return self.start + self.size * self.times

    def part(self, number: int) -> range:
        """Return the positions of one part."""
        start = self.start + self.size * number
        return range(start, start + self.size)


def shortened(module: bytes) -> tuple[int, tuple[Shortened, ...]]:
    """Return how many layers a step has, and the step with four, three and two of them.

    There are none of either where the same operations do not come again and again, or where two
    programs together are as long as the whole one.
    """
    with mlir.make_ir_context():
        whole = ir.Module.parse(module)
        layers = _Layers(whole)
        if layers.count < _LEAST_LAYERS:
            return 0, ()
        stay = dict(numbered(whole))
        length = len(stay)
        found = []
        cut = 1  # the first layer stays, and the last ones
        for kept in KEPT:
            until = layers.count - kept + 1
            gone = layers.cut(range(cut, until))
            cut = until
            inner = {each for op in gone for each in inside(op)}
            stay = {number: op for number, op in stay.items() if op not in inner}
            for op in reversed(gone):
                op.erase()
            if not _is_well_formed(whole):
                break  # a layer that is unlike the others has nothing before it to read
            new = {old: number for old, (number, _) in zip(stay, numbered(whole), strict=True)}
            found.append(Shortened(bytecode_of(whole), kept, new))
        while sum(len(each.numbers) for each in found[:2]) > length:
            found.pop(0)
        return (layers.count, tuple(found)) if len(found) > 1 else (0, ())


def _is_well_formed(module: Any) -> bool:
    try:
        return bool(module.operation.verify())
    except ir.MLIRError:
        return False


def pruned(step: Shortened) -> Shortened:
    """Return a prepared step without the arguments and results of the layers that are gone.

    Nothing reads such an argument, but that it may be given back. Such a result is one of a layer
    that stays, which has its own.
    """
    with mlir.make_ir_context():
        found = ir.Module.parse(step.module)
        without_idle_marks(found)
        main = functions_of(found)["main"]
        told = [{each.name: each.attr for each in own} for own in main.attributes["arg_attrs"]]
        takes = {own[_TAKES].value: at for at, own in enumerate(told) if _TAKES in own}
        block = main.regions[0].blocks[0]
        back = _last(block)
        made, given = list(back.operands), list(block.arguments)
        arguments = [at for at, value in enumerate(given) if _is_read(value, back.name)]
        own = {made[result] for result, at in takes.items() if at in arguments}
        own |= {value for at, value in enumerate(given) if at not in arguments}
        results = []
        for number, value in enumerate(made):
            if takes.get(number) in arguments or value not in own:
                own.add(value)
                results.append(number)
        for result, at in takes.items():
            taken = told[at].pop(_TAKES)
            if result in results:
                told[at][_TAKES] = ir.IntegerAttr.get(taken.type, results.index(result))
        _keep(main, [(at, told[at]) for at in arguments], results)
        found.operation.verify()
        return replace(
            step, module=bytecode_of(found), arguments=(*arguments,), results=(*results,)
        )


def _keep(
    main: Any, arguments: Sequence[tuple[int, Mapping[str, Any]]], results: Sequence[int]
) -> None:
    """Leave a function some of its arguments, with their attributes, and some of its results."""
    block = main.regions[0].blocks[0]
    before = _last(block)
    values = [before.operands[at] for at in results]
    with ir.InsertionPoint(before), before.location:
        ir.Operation.create(before.name, operands=values)
    before.erase()
    stay = {at for at, _ in arguments}
    for at in reversed(range(len(block.arguments))):
        if at not in stay:
            block.erase_argument(at)
    types = [each.type for each in block.arguments], [each.type for each in values]
    own = [ir.DictAttr.get(dict(told)) for _, told in arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(own)
    if "res_attrs" in main.attributes:
        given = list(main.attributes["res_attrs"])
        main.attributes["res_attrs"] = ir.ArrayAttr.get([given[at] for at in results])


def _is_read(value: Any, but: str) -> bool:
    """Say whether anything reads a value but operations of a name."""
    return any(use.owner.operation.name != but for use in value.uses)


def _last(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation


def runs(kinds: Sequence[int]) -> list[Run]:
    """Return where a sequence repeats itself, in order; what covers most goes first.

    >>> runs([9, *[1, 2, 3, 4] * 8, 5])
    [Run(start=1, size=4, times=8)]
    """
    array = np.asarray(kinds)
    found = sorted(
        (run for size in _distances(kinds) for run in _runs_at(array, size)),
        key=lambda run: (-run.size * run.times, -run.times),
    )
    taken = np.zeros(len(array), bool)
    chosen: list[Run] = []
    for run in found:
        if not taken[run.start : run.end].any():
            taken[run.start : run.end] = True
            chosen.append(run)
    return sorted(chosen)


def _distances(kinds: Sequence[int]) -> list[int]:
    """Return how far apart the same operations most often are, alone and in a row."""
    counted: Counter[int] = Counter()
    for width in (1, _SHORTEST):
        rows = zip(*(kinds[at:] for at in range(width)), strict=False)
        counted += Counter(dict(_apart(rows).most_common(_DISTANCES)))
    return [distance for distance, _ in counted.most_common()]


def _apart(found: Iterable[Hashable]) -> Counter[int]:
    """Return how often things are how far behind the same thing."""
    last: dict[Hashable, int] = {}
    counted: Counter[int] = Counter()
    for at, each in enumerate(found):
        if each in last:
            counted[at - last[each]] += 1
        last[each] = at
    return counted


def _runs_at(kinds: np.ndarray, size: int) -> Iterator[Run]:
    """Yield the longest runs of parts of one size."""
    same = np.concatenate(([False], kinds[:-size] == kinds[size:], [False]))
    edges = np.flatnonzero(same[1:] != same[:-1])
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        count = (end - start) // size + 1
        if count > max(KEPT) and count * size >= _SHORTEST:
            yield Run(start, size, count)


class _Layers:
    """The runs of a step, and the layer of each of their parts."""

    def __init__(self, module: Any) -> None:
        """Find the layers: parts of a run of which each reads arguments of its own."""
        functions = functions_of(module)
        block = _longest(functions)
        self._ops = [each.operation for each in block.operations]
        self._reads = _reads(block.arguments, self._ops)
        #: The layers that read what has a key, and those of what is in a part.
        self._owners: dict[Hashable, set[int]] = {}
        #: The layers that read what an operation makes which is in no part of a known layer.
        self._readers: dict[Hashable, set[int]] = {}
        self._labels: dict[Run, list[int | None]] = {}
        self._gone: set[int] = set()
        self._known: set[int] = set()
        found = runs(_kinds(self._ops, functions))
        first = _most_layers([run for run in found if self._is_of_layers(run)])
        if first is not None:
            self._known.update(range(first.times))
            self._label(first, [*self._known])
        while self._could_label_more(found):
            pass
        before, covered = dict(self._labels), self._covered()
        while self._could_label_more(found, by_readers=True):
            pass
        if self._covered() <= covered:
            self._labels = before

    @property
    def _order(self) -> list[int]:
        """Return the layers, in the order of the step."""
        earliest = self._labels[min(self._labels)] if self._labels else []
        return [label for label in dict.fromkeys(earliest) if label is not None]

    def _covered(self) -> int:
        """Return how many operations are of layers."""
        parts = ((run, label) for run, labels in self._labels.items() for label in labels)
        layers = {*self._order}
        return sum(run.size for run, label in parts if label in layers)

    def _could_label_more(self, found: Sequence[Run], *, by_readers: bool = False) -> bool:
        """Say whether a run more could be labelled, by those who read it if need be."""
        left = [run for run in found if run not in self._labels]
        return bool(self._known) and (
            any(self._could_label(run) for run in left)
            or (by_readers and any(self._could_label(run, by_readers=True) for run in left))
        )

    @property
    def count(self) -> int:
        """Return the number of layers; 0 where the step has no such runs."""
        return len(self._order)

    def cut(self, places: Iterable[int]) -> list[Any]:
        """Let nothing read what the layers at some places make; return their operations."""
        gone: list[int] = []
        order = self._order
        layers = {order[at] for at in places}
        self._gone |= layers
        for run, labels in self._labels.items():
            stay = [number for number, label in enumerate(labels) if label not in self._gone]
            for number, label in enumerate(labels) if stay else ():
                if label in layers:
                    instead = max((each for each in stay if each < number), default=stay[0])
                    gone += run.part(number)
                    for old, new in zip(run.part(number), run.part(instead), strict=True):
                        results = zip(self._ops[old].results, self._ops[new].results, strict=True)
                        for value, other in results:
                            value.replace_all_uses_with(other)
        return [self._ops[at] for at in sorted(gone)]

    def _read_by(self, run: Run, number: int) -> Counter[Hashable]:
        """Return what a part reads that is not of its own making."""
        part = run.part(number)
        keys = Counter(key for at in part for key in self._reads[at])
        return Counter({key: count for key, count in keys.items() if key not in part})

    def _is_of_layers(self, run: Run) -> bool:
        """Say whether each part reads arguments that no other one does."""
        read = [set(self._read_by(run, number)) for number in range(run.times)]
        counted = Counter(key for keys in read for key in keys)
        return all(any(isinstance(k, _Argument) and counted[k] == 1 for k in keys) for keys in read)

    def _could_label(self, run: Run, *, by_readers: bool = False) -> bool:
        """Say of which layers the parts of a run are, by what they read, or by who reads them.

        A layer may have several parts, as many as any other, and some may be of no layer. Where a
        part reads two layers alike, it is of the one that lacks parts.
        """
        labels: list[int | None] = []
        each_has = max(1, run.times // len(self._known))
        for number in range(run.times):
            votes: Counter[int] = Counter()
            for key, count in self._read_by(run, number).items():
                owners = self._owners.get(key, ())
                if len(owners) == 1:
                    votes.update({next(iter(owners)): count})
            if by_readers:
                readers = (self._readers.get(at, ()) for at in run.part(number))
                votes.update(next(iter(each)) for each in readers if len(each) == 1)
            open_ = (label for label, _ in votes.most_common() if labels.count(label) < each_has)
            labels.append(next(open_, None))
        counted = Counter(label for label in labels if label is not None)
        missing = len(self._known - counted.keys())
        if missing > _UNLIKE or len({*counted.values()}) != 1:
            return False
        self._label(run, labels)
        return True

    def _label(self, run: Run, labels: list[int | None]) -> None:
        self._labels[run] = labels
        for number, label in enumerate(labels):
            if label is None:
                continue
            for key in self._read_by(run, number):
                found = self._owners if isinstance(key, _Argument) else self._readers
                found.setdefault(key, set()).add(label)
            for at in run.part(number):
                self._owners[at] = {label}


def _longest(functions: Mapping[str, Any]) -> Any:
    """Return the block of a step: that of `main`, or of a longer function that it calls once."""
    block = functions["main"].regions[0].blocks[0]
    while True:
        calls = [each for each in block.operations if each.operation.name == "func.call"]
        counts = Counter(str(each.operation.attributes["callee"].value) for each in calls)
        once = [functions[name] for name, count in counts.items() if count == 1]
        inner = [each.regions[0].blocks[0] for each in once]
        longest = max(inner, key=lambda each: len(each.operations), default=block)
        if len(longest.operations) <= len(block.operations):
            return block
        block = longest


def _most_layers(found: Sequence[Run]) -> Run | None:
    """Return the longest run, or one of a part more: the first or the last layer may be unlike."""
    longest = max(found, key=lambda run: run.size * run.times, default=None)
    if longest is None:
        return None
    near = [run for run in found if run.times - longest.times in (0, 1)]
    return max(near, key=lambda run: (run.times, run.size))


class _Argument(NamedTuple):
    """An argument, or a slice of one."""

    number: int
    slices: tuple[str, ...] = ()


def _reads(arguments: Iterable[Any], ops: Sequence[Any]) -> list[list[Hashable]]:
    """Return for each operation what it reads: arguments, or the positions of other operations."""
    keys: dict[Any, Hashable] = {value: _Argument(at) for at, value in enumerate(arguments)}
    found: list[list[Hashable]] = []
    for at, op in enumerate(ops):
        read = [keys[value] for value in op.operands]
        found.append(read)
        first = read[0] if read and op.name in _OF_ONE else None
        key: Hashable = at
        if isinstance(first, _Argument):
            is_slice = op.name == "stablehlo.slice"
            key = first._replace(slices=(*first.slices, str(op.attributes))) if is_slice else first
        keys.update(dict.fromkeys(op.results, key))
    return found


def _kinds(ops: Iterable[Any], functions: Mapping[str, Any]) -> list[int]:
    """Return numbers that are equal for operations that do the same to values of the same types."""
    kinds: dict[object, int] = {}
    known: dict[str, int] = {}

    def of(op: Any) -> int:
        names = () if op.name in _UNTOLD else tuple(op.attributes)
        attributes = tuple(told(name, op.attributes[name]) for name in names)
        inside = tuple(map(of, children(op)))
        types = tuple(value.type for values in (op.operands, op.results) for value in values)
        return kinds.setdefault((op.name, types, attributes, inside), len(kinds))

    def told(called: str, attribute: Any) -> object:
        if not isinstance(attribute, ir.FlatSymbolRefAttr):
            return called, attribute
        name = attribute.value
        if name not in known:
            inside = tuple(map(of, children(functions[name])))
            known[name] = kinds.setdefault((inside,), len(kinds))
        return known[name]

    return [of(op) for op in ops]
