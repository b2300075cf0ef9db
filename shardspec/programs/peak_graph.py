"""A partitioned program as values and the operations that make them, for the model of memory.

XLA's text names tuples, views and calls that take no memory. Here they are gone: a value is one
array on one device, a view of it (a reshape, a transpose, a copy) is the same value, a call is
written out, and what a loop gives back as it got it is the value outside. Equal operations on equal
values are one, as after XLA's common subexpression elimination; an optimization barrier keeps its
two sides apart. What no result needs is dropped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shardspec.ir.spec import Shape
from shardspec.programs.hlo import (
    Computation,
    HloArray,
    Instruction,
    Program,
    arrays_of,
    divided,
    number,
)

#: Operations that give their operand in another form, and take no memory for it.
VIEWS = frozenset(("bitcast", "copy", "reshape", "transpose", "bitcast-convert"))
BARRIER = "opt-barrier"
LOOP = "while"
UPDATE = "dynamic-update-slice"
_METADATA = re.compile(r", (?:metadata|sharding|frontend_attributes|backend_config)=\{.*")
#: Operations that are not one with an equal one: they send, draw, or have an effect.
_APART = frozenset(("custom-call", "rng", "rng-bit-generator", "infeed", "outfeed", BARRIER))
#: No more instructions than these are written out: a text may be anything.
_MOST = 200_000


_SERIAL = itertools.count()


@dataclass(eq=False, slots=True)
class Value:
    """One array on one device.

    Attributes:
      body: the body it is made in.
      maker: the operation that makes it; None of an argument of a body.
      at: which of the results of its maker, or of the arguments of its body.
      users: the operations that read it, in any body, once each.
      serial: values in the order in which they were noted.
    """

    dtype: str
    shape: Shape
    bytes: int
    body: Body
    maker: Node | None = None
    at: int = 0
    users: list[Node] = field(default_factory=list)
    is_yielded: bool = False
    serial: int = field(default_factory=_SERIAL.__next__)


@dataclass(eq=False, slots=True)
class Node:
    """One operation.

    Attributes:
      captures: values from outside that its bodies read.
      shapes: of a product, the shapes in which it reads its operands, which may be views.
      views: for each operand, which dimension of the value is each one that is read: -1 of one that
        is 1 long; None where dimensions are put together or divided.
    """

    operation: str
    instruction: Instruction
    body: Body
    operands: list[Value]
    results: list[Value] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    captures: list[Value] = field(default_factory=list)
    shapes: tuple[Shape, ...] = ()
    views: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(eq=False, slots=True)
class Body:
    """Operations in the order of the program; the whole program, or what a loop or branch runs.

    Attributes:
      node: the operation that runs it; None of the whole program.
    """

    name: str
    node: Node | None
    depth: int
    arguments: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)

    @property
    def is_loop(self) -> bool:
        """Say whether a loop runs it."""
        return self.node is not None and self.node.operation == LOOP


def graph_of(program: Program) -> Body | None:
    """Return the whole program; None where the text names none."""
    if program.entry is None:
        return None
    builder = _Builder(program)
    main = Body(program.entry.name, None, 0)
    for at in range(max(program.entry.parameters, default=-1) + 1):
        given = program.entry.parameters.get(at)
        for array in () if given is None else given.arrays:
            main.arguments.append(_value(array, main, None, len(main.arguments)))
    main.yields = builder.fill(main, program.entry, _by_parameter(program.entry, main.arguments))
    _drop_unused(main)
    return main


def every_node(body: Body) -> Iterator[Node]:
    """Yield the operations of a body and of all bodies inside it."""
    for node in body.nodes:
        yield node
        for inner in node.bodies:
            yield from every_node(inner)


def _value(array: HloArray, body: Body, maker: Node | None, at: int) -> Value:
    return Value(array.dtype, array.shape, array.bytes if array.space == 0 else 0, body, maker, at)


def _by_parameter(computation: Computation, values: list[Value]) -> dict[int, list[Value]]:
    """Divide the values that a computation is given among its parameters."""
    found, start = {}, 0
    for at in sorted(computation.parameters):
        length = len(computation.parameters[at].arrays)
        found[at] = values[start : start + length]
        start += length
    return found


class _Builder:
    """Writes computations out as bodies."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.left = _MOST
        self.open: set[str] = set()

    def fill(
        self,
        body: Body,
        computation: Computation,
        given: dict[int, list[Value]],
        known: dict[object, list[Value]] | None = None,
    ) -> list[Value]:
        """Add the operations of a computation to a body; return what it gives.

        One that calls itself is not written out again.

        Args:
          known: operations that the body has already; an equal one is the same.
        """
        values: dict[str, list[Value]] = {}
        known = {} if known is None else known
        starts: dict[str, list[int]] = {}
        views: dict[str, tuple[int, ...] | None] = {}
        self.open.add(computation.name)
        for each in computation.instructions.values():
            self.left -= 1
            if each.operation == "parameter":
                values[each.name] = given.get(number(each.stated), [])
                continue
            if each.operation == "get-tuple-element":
                values[each.name] = _element(computation, each, values, starts)
                continue
            operands = [values.get(name, []) for name in each.operands]
            values[each.name] = self._read(body, each, operands, known)
            _note_views(computation, each, values, views)
        self.open.discard(computation.name)
        root = computation.root
        return values[root.name] if root is not None else []

    def _read(
        self,
        body: Body,
        each: Instruction,
        operands: list[list[Value]],
        known: dict[object, list[Value]],
    ) -> list[Value]:
        operation = each.operation
        if operation == "tuple":
            return [value for given in operands for value in given]
        flat = [value for given in operands for value in given]
        if operation in VIEWS or (operation == "convert" and _is_same(each, flat)):
            return flat[:1]
        is_open = self.left > 0 and self.open.isdisjoint(each.called)
        if operation == "call" and is_open:
            inner = self.program.computations.get(each.attribute("to_apply"))
            if inner is not None:
                return self.fill(body, inner, dict(enumerate(operands)), known)
        if operation == LOOP and is_open:
            return self._loop(body, each, flat)
        if operation == "conditional" and is_open:
            return self._branches(body, each, operands)
        return _taken(body, each, flat, known)

    def _loop(self, body: Body, each: Instruction, flat: list[Value]) -> list[Value]:
        computation = self.program.computations.get(each.attribute("body"))
        if computation is None or len(each.arrays) != len(flat):
            return _taken(body, each, flat, {})
        node = Node(LOOP, each, body, flat)
        inner = Body(computation.name, node, body.depth + 1)
        kept = _kept(computation, len(flat))
        given = []
        for at, array in enumerate(each.arrays):
            argument = _value(array, inner, None, at)
            inner.arguments.append(argument)
            given.append(flat[at] if at in kept else argument)
        node.bodies.append(inner)
        body.nodes.append(node)
        inner.yields = self.fill(inner, computation, {0: given})
        if len(inner.yields) != len(flat):
            inner.yields = list(inner.arguments)
        node.results = [_value(array, body, node, at) for at, array in enumerate(each.arrays)]
        for at in kept:
            inner.yields[at] = inner.arguments[at]
        return [flat[at] if at in kept else value for at, value in enumerate(node.results)]

    def _branches(self, body: Body, each: Instruction, operands: list[list[Value]]) -> list[Value]:
        node = Node(each.operation, each, body, [value for given in operands for value in given])
        body.nodes.append(node)
        for at, name in enumerate(each.called):
            computation = self.program.computations.get(name)
            if computation is None or at + 1 >= len(operands):
                continue
            inner = Body(name, node, body.depth + 1)
            inner.yields = self.fill(inner, computation, {0: operands[at + 1]})
            node.bodies.append(inner)
        node.results = [_value(array, body, node, at) for at, array in enumerate(each.arrays)]
        return node.results


def _note_views(
    computation: Computation,
    each: Instruction,
    values: Mapping[str, list[Value]],
    views: dict[str, tuple[int, ...] | None],
) -> None:
    """Note in which order of dimensions an operation reads its operands, and gives a view."""
    made = values[each.name]
    read = [computation.instructions.get(name) for name in each.operands]
    before = [_view(one, values, views) for one in read]
    node = made[0].maker if len(made) == 1 else None
    if node is None or node.instruction is not each:
        if before and read[0] is not None and made == values.get(each.operands[0]):
            views[each.name] = _viewed(each, read[0], before[0])
        return
    node.views = tuple(before)
    if each.operation == "dot":
        node.shapes = tuple(array.shape for one in read if one is not None for array in one.arrays)


def _view(
    each: Instruction | None,
    values: Mapping[str, list[Value]],
    views: Mapping[str, tuple[int, ...] | None],
) -> tuple[int, ...] | None:
    """Return which dimension of its value is each one of an array; None where that is not known."""
    value = values.get(each.name, []) if each is not None else []
    if each is None or len(value) != 1 or len(each.arrays) != 1:
        return None
    shape = each.arrays[0].shape
    own = tuple(range(len(shape))) if value[0].shape == shape else None
    return views.get(each.name, own)


def _viewed(
    each: Instruction, read: Instruction, before: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return which dimension of a value is each one of a view of a view of it."""
    if before is None or len(each.arrays) != 1:
        return None
    if each.operation == "transpose":
        order = each.numbers("dimensions")
        return tuple(before[at] for at in order) if len(order) == len(before) else None
    old, new = read.arrays[0].shape, each.arrays[0].shape
    long = [at for at, size in zip(before, old, strict=True) if size > 1]
    if [size for size in old if size > 1] != [size for size in new if size > 1]:
        return None
    left = iter(long)
    return tuple(next(left) if size > 1 else -1 for size in new)


def _is_same(each: Instruction, flat: list[Value]) -> bool:
    return len(flat) == 1 and len(each.arrays) == 1 and flat[0].dtype == each.arrays[0].dtype


def _taken(
    body: Body, each: Instruction, flat: list[Value], known: dict[object, list[Value]]
) -> list[Value]:
    """Return the results of an operation, those of an equal one where there is one."""
    key: object = None
    if each.operation not in _APART and "channel_id" not in each.attributes:
        rest = _METADATA.sub("", each.attributes)
        stated = "" if flat else each.stated
        key = (each.operation, tuple(map(id, flat)), each.arrays, stated, rest)
        if key in known:
            return known[key]
    node = Node(each.operation, each, body, flat)
    node.results = [_value(array, body, node, at) for at, array in enumerate(each.arrays)]
    if each.operation == BARRIER:
        node.results = [_value(array, body, node, at) for at, array in enumerate(each.arrays)]
        node.results.append(Value("bool", (), 0, body, node, len(flat)))
        body.nodes.append(node)
        return node.results[:-1]
    body.nodes.append(node)
    if key is not None:
        known[key] = node.results
    return node.results


def _element(
    computation: Computation,
    each: Instruction,
    values: dict[str, list[Value]],
    starts: dict[str, list[int]],
) -> list[Value]:
    """Return an element of a tuple, of which a nested one has several values."""
    name = each.operands[0] if each.operands else ""
    source = computation.instructions.get(name)
    if source is None:
        return []
    if name not in starts:
        parts = divided(source.type[1:-1]) if source.type.startswith("(") else []
        lengths = (sum(1 for _ in arrays_of(part)) for part in parts)
        starts[name] = [0, *itertools.accumulate(lengths)]
    at = each.index
    bounds = starts[name][at : at + 2]
    return values.get(name, [])[slice(*bounds)] if len(bounds) == 2 else []


def _kept(computation: Computation, length: int) -> frozenset[int]:
    """Return which elements a loop gives back as it got them."""
    root = computation.root
    if root is None or root.operation != "tuple" or len(root.operands) != length:
        return frozenset()
    found = set()
    for at, name in enumerate(root.operands):
        each = computation.instructions.get(name)
        while each is not None and each.operation == "copy" and each.operands:
            each = computation.instructions.get(each.operands[0])
        if each is None or each.operation != "get-tuple-element":
            continue
        source = computation.instructions.get(each.operands[0]) if each.operands else None
        is_given = source is not None and source.operation == "parameter"
        if is_given and each.index == at:
            found.add(at)
    return frozenset(found)


def _drop_unused(main: Body) -> None:
    """Drop what no result needs, and note who reads what is left."""
    needed: set[int] = set()
    waiting: list[Value] = []

    def need(value: Value) -> None:
        if id(value) not in needed:
            needed.add(id(value))
            waiting.append(value)

    for value in main.yields:
        need(value)
    used: set[int] = set()
    while waiting:
        value = waiting.pop()
        node = value.maker or value.body.node
        if node is None:
            continue
        is_first = id(node) not in used
        used.add(id(node))
        if node.operation == LOOP and node.bodies:
            need(node.operands[value.at])
            need(node.bodies[0].yields[value.at])
            if value.maker is None:
                need(node.results[value.at])
        elif is_first:
            for operand in node.operands:
                need(operand)
            for inner in node.bodies:
                for given in inner.yields:
                    need(given)
    _keep(main, used, needed)
    note_users(main)


def _keep(body: Body, used: set[int], needed: set[int]) -> None:
    body.nodes = [node for node in body.nodes if id(node) in used]
    for node in body.nodes:
        for inner in node.bodies:
            _keep(inner, used, needed)
        if node.operation == LOOP and node.bodies:
            inner = node.bodies[0]
            kept = [at for at, value in enumerate(node.results) if id(value) in needed]
            node.operands = [node.operands[at] for at in kept]
            node.results = [node.results[at] for at in kept]
            inner.arguments = [inner.arguments[at] for at in kept]
            inner.yields = [inner.yields[at] for at in kept]
            for values in (node.results, inner.arguments):
                for at, value in enumerate(values):
                    value.at = at


def note_users(body: Body) -> None:
    """Note on each value what reads it, and on each operation what it reads from outside."""
    for node in body.nodes:
        for value in dict.fromkeys(node.operands):
            value.users.append(node)
        for inner in node.bodies:
            note_users(inner)
        node.captures = [*_captured(node)]
    for value in body.yields:
        value.is_yielded = True


def _captured(node: Node) -> dict[Value, None]:
    found: dict[Value, None] = {}
    for inner in node.bodies:
        reads = [value for each in inner.nodes for value in (*each.operands, *each.captures)]
        for value in (*reads, *inner.yields):
            if value.body.depth <= node.body.depth:
                found[value] = None
    return found
