"""A propagated program as values and nodes, so that nothing after it needs MLIR.

Loops, branches and `shard_map` have bodies of their own. The arguments of a body know the value
that they are given from outside, so that a weight is followed from a loop back to the argument of
the function. Loops of known bounds say how often they go round.

The location of an operation has what `passes.prepared` left there: its name, `jit(step)/jvp()/dot`,
and the user's line, with that of a helper where the line calls one.

`returned` compares the state that a step gives back with how it was given. JAX compiles for the
types and the layouts of what it is given. The result of a first call is what the second call is
given, so a step that changes a type or a layout of its state compiles twice. Two trees of the same
paths and shapes are the same state where parameters or state in it were donated, or are worked out
of the old ones, element by element.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardspec.analysis.memory import relaid_bytes
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import by_key, counted
from shardspec.ir.operations import OpInfo, op_info
from shardspec.ir.spec import PartitionSpec, Shape, array_bytes, jax_entries
from shardspec.ir.step import ON_HOST, Phase, Place, Returned, StepArgument, StepArray, Unreused
from shardspec.jax_backend.batch import names_of
from shardspec.jax_backend.trees import box_test, is_optimizer_variable
from shardspec.kept import kept
from shardspec.programs.op_names import scope, split_name

#: Operations whose regions are programs; the regions of all others say how to combine two numbers.
WITH_BODIES = frozenset(
    (
        *("stablehlo.while", "stablehlo.case", "stablehlo.if"),
        *("sdy.manual_computation", "sdy.named_computation"),
    )
)
_CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant"))
RETURNS = frozenset(("stablehlo.return", "sdy.return", "func.return"))


class Axis(NamedTuple):
    """A mesh axis, or a part of one, that splits a dimension.

    Attributes:
      size: into how many shards; less than the mesh axis has where it is a part.
      before: of a part: the product of the parts of the axis that are major to it.
    """

    name: str
    size: int
    before: int = 1


Split = tuple[tuple[Axis, ...], ...]


def dims_of(split: Split) -> dict[str, int]:
    """Return the dimension that each mesh axis, or a part of it, splits."""
    return {axis.name: dim for dim, axes in enumerate(split) for axis in axes}


@dataclass(slots=True, eq=False)
class Value:
    """A value of the program.

    Attributes:
      split: the axes of each dimension; inside of `shard_map` without those that are manual.
      origins: for each mesh axis, what Shardy says that it came from.
      argument: the place among the arguments of the function.
      given: of the argument of a body, the value outside that it starts as.
      yielded: the places at which its own body gives it back.
    """

    dtype: str
    shape: Shape
    split: Split
    origins: dict[str, str]
    body: Body
    made_by: Node | None = None
    argument: int | None = None
    given: Value | None = None
    yielded: list[int] = field(default_factory=list)
    users: list[Node] = field(default_factory=list)

    @property
    def axes(self) -> dict[str, int]:
        """Return the dimension that each mesh axis, or a part of it, splits."""
        return dims_of(self.split)

    @property
    def shard_shape(self) -> Shape:
        """Return the shape on one device."""
        ways = (math.prod(axis.size for axis in axes) for axes in self.split)
        return tuple(-(-size // way) for size, way in zip(self.shape, ways, strict=True))

    @property
    def bytes(self) -> int:
        """Return the bytes on one device."""
        return array_bytes(self.shard_shape, self.dtype)

    def array(self, name: str = "") -> StepArray:
        """Return it as a step has it."""
        names = tuple(tuple(axis.name for axis in axes) for axes in self.split)
        return StepArray(self.dtype, self.shape, PartitionSpec(names), self.shard_shape, name)


@dataclass(slots=True, eq=False)
class Node:
    """One operation.

    Attributes:
      op: the operation of MLIR, for its attributes.
      at: its tick on the clock of the step.
    """

    name: str
    op: Any
    operands: list[Value]
    results: list[Value]
    body: Body
    where: Located
    at: int
    phase: Phase = "forward"
    bodies: list[Body] = field(default_factory=list)

    @property
    def result(self) -> Value:
        """Return its only result, or the first."""
        return self.results[0]

    @property
    def info(self) -> OpInfo:
        """Return what is so of its operation."""
        return op_info(self.name)

    @property
    def count(self) -> float:
        """Return how often it runs in a step."""
        return self.body.count


@dataclass(slots=True, eq=False)
class Body:
    """A straight piece of program: that of the function, of a loop, a branch or a `shard_map`.

    Attributes:
      rounds: how often it runs each time that its owner does.
      manual: the mesh axes that the code in it handles by itself.
      region: the name that origins know a `shard_map` by.
    """

    owner: Node | None = None
    arguments: list[Value] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    rounds: float = 1
    manual: tuple[str, ...] = ()

    def outwards(self) -> Iterator[Body]:
        """Yield it, and the bodies around it."""
        body: Body | None = self
        while body is not None:
            yield body
            body = None if body.owner is None else body.owner.body

    @property
    def count(self) -> float:
        """Return how often it runs in a step."""
        return math.prod(body.rounds for body in self.outwards())

    @property
    def is_loop(self) -> bool:
        """Say whether it is the body of a loop."""
        return self.owner is not None and self.owner.name == "stablehlo.while"

    @property
    def all_manual(self) -> tuple[str, ...]:
        """Return the mesh axes that are manual here, those of bodies around it included."""
        return tuple(name for body in [*self.outwards()][::-1] for name in body.manual)


@dataclass(slots=True)
class Graph:
    """The whole program.

    Attributes:
      regions: each `shard_map` by the name that origins know it by.
      end: the last tick.
      module: whose operations the nodes have; they are gone once it is.
    """

    main: Body
    regions: dict[str, Node]
    end: int
    sizes: dict[str, int]
    module: Any

    def nodes(self) -> Iterator[Node]:
        """Yield every operation, in the order of the program."""
        return nodes_of(self.main)


def nodes_of(body: Body) -> Iterator[Node]:
    """Yield the operations of a body and of all in it."""
    for node in body.nodes:
        for inner in node.bodies:
            yield from nodes_of(inner)
        yield node


def graph_of(module: Any, sizes: dict[str, int]) -> Graph:
    """Return the program of a module that Shardy has propagated through.

    Args:
      sizes: of the mesh axes.
    """
    with module.context:
        return _Reader(sizes).read(module)


def functions_of(module: Any) -> dict[str, Any]:
    """Return the functions of a module by their names."""
    return {
        ir.StringAttr(each.attributes["sym_name"]).value: each.operation
        for each in module.body.operations
        if each.operation.name == "func.func"
    }


def children(op: Any) -> list[Any]:
    """Return the operations that stand directly inside of one."""
    blocks = (block for region in op.regions for block in region)
    return [each.operation for block in blocks for each in block.operations]


class _Reader:
    """Walks the operations once, in the order of the program."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.values: dict[Any, Value] = {}
        self.text = location_texts()
        self._kept: dict[object, object] = {}
        self.regions: dict[str, Node] = {}
        self.clock = 0

    def read(self, module: Any) -> Graph:
        """Return the graph of the function `main`."""
        main = functions_of(module)["main"]
        body = Body()
        block = main.regions[0].blocks[0]
        attributes: Any = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else None  # noqa: SIM401
        for at, argument in enumerate(block.arguments):
            own: Any = ir.DictAttr(attributes[at]) if attributes is not None else {}
            split = self.split(own["sdy.sharding"]) if "sdy.sharding" in own else None
            origins = _texts(own["sdy.sharding_origins"]) if "sdy.sharding_origins" in own else {}
            value = self.value(argument, body, split, origins)
            value.argument = at
            body.arguments.append(value)
        self.walk(block, body, Located("", located("loc(unknown)").place))
        return Graph(body, self.regions, self.clock, self.sizes, module)

    def walk(self, block: Any, body: Body, outer: Located) -> None:
        """Read the operations of a block into a body."""
        for each in block.operations:
            op = each.operation
            if op.name in RETURNS:
                body.yields = [self.values[value] for value in op.operands]
                for at, value in enumerate(body.yields):
                    if value.body is body:
                        value.yielded.append(at)
                continue
            self.node(op, body, outer)

    def node(self, op: Any, body: Body, outer: Located) -> None:
        """Read one operation, and what stands inside of it."""
        operands = [self.values[value] for value in op.operands]
        where = joined(outer, located(self.text(op)))
        node = Node(op.name, op, operands, [], body, where, self.clock)
        body.nodes.append(node)
        for operand in operands:
            operand.users.append(node)
        splits, origins = self.shardings(op), _origins(op)
        for at, result in enumerate(op.results):
            split = splits[at] if at < len(splits) else None
            value = self.value(result, body, split, origins[at] if at < len(origins) else {})
            value.made_by = node
            node.results.append(value)
        if op.name in WITH_BODIES:
            self.bodies(node, where)
        self.clock += 1
        node.at = self.clock

    def bodies(self, node: Node, where: Located) -> None:
        """Read the regions of an operation, each as a body."""
        manual: tuple[str, ...] = ()
        if node.name == "sdy.manual_computation":
            held: Any = sdy.ManualAxesAttr(node.op.attributes["manual_axes"])
            manual = tuple(_text(held[at]) for at in range(len(held)))
            if "sdy.sharding_origin_name" in node.op.attributes:
                self.regions[_text(node.op.attributes["sdy.sharding_origin_name"])] = node
        for region in node.op.regions:
            body = Body(node, manual=manual)
            block = region.blocks[0]
            for at, argument in enumerate(block.arguments):
                body.arguments.append(self.bound(argument, at, node, body))
            self.walk(block, body, where)
            node.bodies.append(body)
        if node.name == "stablehlo.while":
            node.bodies = node.bodies[1:] + node.bodies[:1]

    def bound(self, argument: Any, at: int, node: Node, body: Body) -> Value:
        """Return the argument of a body, which lies as the loop or the `shard_map` says."""
        given = node.operands[at] if at < len(node.operands) else None
        origins = dict(given.origins) if given is not None else {}
        split: Split | None = None
        if node.name == "stablehlo.while":
            split = node.results[at].split
            origins = {**origins, **node.results[at].origins}
        elif node.name == "sdy.manual_computation":
            inside = self.per_value(node.op.attributes["in_shardings"])[at]
            split = tuple(
                tuple(axis for axis in axes if axis.name not in body.manual) for axes in inside
            )
        value = self.value(argument, body, split, origins)
        value.given = given
        return value

    def value(self, mlir: Any, body: Body, split: Split | None, origins: dict[str, str]) -> Value:
        """Return the value that stands for one of MLIR."""
        dtype, shape = self.type_of(mlir.type)
        whole: Split = ((),) * len(shape)
        made = Value(dtype, shape, whole if split is None else split, origins, body)
        if len(made.split) != len(shape):
            made.split = whole
        self.values[mlir] = made
        return made

    @kept
    def type_of(self, kind: Any) -> tuple[str, Shape]:
        """Return the dtype and shape of a type; a token is of no size."""
        if not isinstance(kind, ir.RankedTensorType):
            return "bool", (0,)
        tensor = ir.RankedTensorType(kind)
        return _dtype(str(tensor.element_type)), tuple(tensor.shape)

    def shardings(self, op: Any) -> list[Split]:
        """Return how the results of an operation lie, as far as it says so."""
        attributes = op.attributes
        for name in ("sdy.sharding", "out_shardings"):
            if name in attributes:
                return self.per_value(attributes[name])
        for name in ("out_sharding", "sharding"):
            if name in attributes:
                return [self.split(attributes[name])]
        return []

    def per_value(self, attribute: Any) -> list[Split]:
        """Return the sharding of each of several values."""
        if not sdy.TensorShardingPerValueAttr.isinstance(attribute):
            return [self.split(attribute)]
        return [self.split(each) for each in sdy.TensorShardingPerValueAttr(attribute).shardings]

    @kept
    def split(self, attribute: Any) -> Split:
        """Return the axes of each dimension."""
        return split_of(attribute, self.sizes)


def split_of(attribute: Any, sizes: dict[str, int]) -> Split:
    """Return the axes of each dimension, as the sharding of a value says."""
    dims = map(sdy.DimensionShardingAttr, sdy.TensorShardingAttr(attribute).dimension_shardings)
    return tuple(tuple(_axis(ref, sizes) for ref in dim.axes) for dim in dims)


def _axis(attribute: Any, sizes: dict[str, int]) -> Axis:
    """Return the mesh axis, or the part of one, that an attribute refers to."""
    ref = sdy.AxisRefAttr(attribute)
    part = ref.sub_axis_info
    if part is None:
        return Axis(ref.name, sizes[ref.name])
    part = sdy.SubAxisInfoAttr(part)
    return Axis(ref.name, part.size, part.pre_size)


def _dtype(text: str) -> str:
    """Return the short name of an element type of MLIR: `ui8` is `u8`, `i1` is `bool`."""
    if text == "i1":
        return "bool"
    text = text.replace("f8E", "f8_e").lower() if text.startswith("f8") else text
    text = f"u{text[2:]}" if text.startswith("ui") else text
    text = f"s{text[1:]}" if text[0] == "i" and text[1:].isdigit() else text
    return {"complex<f32>": "c64", "complex<f64>": "c128"}.get(text, text)


def _text(attribute: Any) -> str:
    return ir.StringAttr(attribute).value if not isinstance(attribute, str) else attribute


def _texts(attribute: Any) -> dict[str, str]:
    held: Any = ir.DictAttr(attribute)
    return {held[at].name: _text(held[at].attr) for at in range(len(held))}


def _origins(op: Any) -> list[dict[str, str]]:
    if "sdy.sharding_origins" not in op.attributes:
        return []
    found = op.attributes["sdy.sharding_origins"]
    if isinstance(found, ir.ArrayAttr):
        return [_texts(each) for each in ir.ArrayAttr(found)]
    return [_texts(found)]


def count_rounds(graph: Graph) -> list[Node]:
    """Set how often every loop goes round; return the loops that do not say so.

    Those count as one round.
    """
    unknown = []
    for node in graph.nodes():
        if node.name == "stablehlo.while":
            rounds = rounds_of(node)
            node.bodies[0].rounds = 1 if rounds is None else rounds
            if rounds is None:
                unknown.append(node)
    return unknown


def rounds_of(loop: Node) -> int | None:
    """Return how often a loop goes round, None where the program does not say.

    JAX's scans, and `fori_loop` of known bounds, count from a constant to a constant.
    """
    body, condition = loop.bodies
    test = condition.yields[0].made_by if condition.yields else None
    if test is None or test.name != "stablehlo.compare":
        return None
    counter, limit = (_through(operand) for operand in test.operands)
    if counter not in condition.arguments or "LT" not in str(
        test.op.attributes["comparison_direction"]
    ):
        return None
    at = condition.arguments.index(counter)
    last = _number(limit, condition, body)
    first = _number(loop.operands[at], None, None)
    step = _step(body, at)
    if last is None or first is None or not step:
        return None
    return max(0, math.ceil((last - first) / step))


def _through(value: Value) -> Value:
    while value.made_by is not None and value.made_by.info.view == "whole":
        value = value.made_by.operands[
            value.made_by.results.index(value) if len(value.made_by.operands) > 1 else 0
        ]
    return value


def _number(value: Value, condition: Body | None, body: Body | None) -> int | None:
    """Return the number that a value always is; of a loop's argument, where no round changes it."""
    value = _through(value)
    if condition is not None and body is not None and value in condition.arguments:
        at = condition.arguments.index(value)
        kept = body.yields[at] is body.arguments[at]
        return _number(value.given, None, None) if kept and value.given is not None else None
    if value.made_by is None or value.made_by.name not in _CONSTANTS or value.shape:
        return None
    try:
        held: Any = value.made_by.op.attributes["value"]
        return int(held[0])
    except (TypeError, IndexError):
        return None


def _step(body: Body, at: int) -> int | None:
    """Return by how much each round moves the counter."""
    node = _through(body.yields[at]).made_by
    if node is None or node.name != "stablehlo.add":
        return None
    operands = [_through(operand) for operand in node.operands]
    if body.arguments[at] not in operands:
        return None
    others = [operand for operand in operands if operand is not body.arguments[at]]
    return _number(others[0], None, None) if others else None


_FRAME = re.compile(
    r'"(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):\d+'
    r'(?: at "(?P<caller>(?:[^"\\]|\\.)*)":(?P<called>\d+):\d+)?'
)
_LOCATED_NAME = re.compile(r'^loc\("((?:[^"\\]|\\.)*)"(?!:\d)')


class Located(NamedTuple):
    """The location of one operation.

    Attributes:
      name: what was being done, `/` between its parts.
      place: the user's line; unknown where there is none.
    """

    name: str
    place: Place


def location_texts() -> Callable[[Any], str]:
    """Return what gives the text of an operation's location, and makes each text once.

    Few locations are of many operations, and MLIR takes 50 microseconds to write one.
    """
    known: dict[Any, str] = {}

    def text(op: Any) -> str:
        location = op.location
        key = location.attr
        if key not in known:
            known[key] = str(location)
        return known[key]

    return text


@lru_cache(maxsize=65536)
def located(text: str) -> Located:
    """Return what the text of a location says."""
    name, frame = name_in(text), _FRAME.search(text)
    if frame is None:
        return Located(name, Place(scope=scope(name)))
    file, line, caller, called = frame.groups()
    if caller is None:
        return Located(name, Place(file, int(line), scope(name)))
    return Located(name, Place(caller, int(called), scope(name), (file, int(line))))


def name_in(location: str) -> str:
    """Return what JAX calls an operation, as its location states it."""
    found = _LOCATED_NAME.match(location)
    return found.group(1).rstrip(":") if found else ""


def joined(outer: Located, inner: Located) -> Located:
    """Return the location of an operation that stands in a body which `outer` calls."""
    name = joined_names(outer.name, inner.name)
    place = inner.place if inner.place.is_known else outer.place
    return Located(name, replace(place, scope=scope(name)))


@lru_cache(maxsize=65536)
def joined_names(outer: str, inner: str) -> str:
    """Return the whole name of an operation in a body that `outer` calls.

    What `outer` ends with, the operation may begin with: JAX says it of both.

    >>> joined_names("jit(f)/vmap()/while", "vmap()/while/body/dot_general")
    'jit(f)/vmap()/while/body/dot_general'
    """
    around, own = split_name(outer) if outer else [], split_name(inner)
    if not around or own[:1] == around[:1]:
        return inner
    alike = (n for n in range(min(len(around), len(own)), 0, -1) if around[-n:] == own[:n])
    return "/".join((*around, *own[next(alike, 0) :]))


#: How many values are looked at between new state and old.
_FAR = 100


@dataclass(frozen=True, slots=True)
class Result:
    """One array that the function gives back.

    Attributes:
      split: the mesh axes of each dimension, where the caller stated them.
      free_shape: the shape of the whole array, where the caller stated nothing: XLA chooses how it
        is sharded.
    """

    path: str
    split: tuple[tuple[str, ...], ...] = ()
    free_shape: Shape | None = None


class Fed(NamedTuple):
    """A result that may be given to the next call in place of an argument.

    Attributes:
      tree: the number of the argument's tree; all of a tree is state, or none is.
      argument: its place among the arguments of the module, and `result` that among the results.
      kinds: as `Returned` has them.
    """

    tree: int
    argument: int
    result: int
    kinds: tuple[str, str] = ("", "")


def fed_of(lowered: Any, told: Mapping[str, int], numbers: set[int], is_wrapped: bool) -> list[Fed]:
    """Return the pairs of arguments and results of a lowered function that may be one state.

    Args:
      told: the place in the module of each argument that something reads, by that in the call.
      numbers: the places of those that are numbers of Python.
      is_wrapped: whether results stand where the arguments do that they replace, as in `nnx.jit`.
    """
    avals = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    told_of = avals.get("global_out_avals", ())
    fed = []
    for each in passed_on(lowered.args_info, lowered.out_info, is_wrapped=is_wrapped):
        number = told.get(each.path)
        if number is not None and len(told_of) == each.results:
            was = getattr(each.before, "_aval", None)
            kinds = (
                _kind(each.before, was, number in numbers),
                _kind(each.after, told_of[each.at]),
            )
            fed.append(Fed(each.tree, number, each.at, kinds))
    return fed


class PassedOn(NamedTuple):
    """A result that has the place of an argument in a tree of the same paths and shapes.

    Attributes:
      tree: a number that those of one tree share.
      path: of the argument, as JAX writes it.
      before: what JAX says of the argument, and `after` of the result.
      at: the place of the result among all of `results`.
    """

    tree: int
    path: str
    before: Any
    after: Any
    at: int
    results: int


def passed_on(args_info: Any, out_info: Any, *, is_wrapped: bool) -> Iterator[PassedOn]:
    """Yield the arguments of a call and the results that the next call may be given for them."""
    free = dict(_leaves(args_info, 2))
    count = len(jax.tree_util.tree_leaves(out_info))
    groups = [*_leaves(out_info, 2 if is_wrapped else 1).items()]
    groups += [] if is_wrapped else [*_leaves(out_info, 0).items()]
    for head, leaves in groups:
        shown = [(path, info.shape) for path, info, _ in leaves]
        same = [
            key
            for key, own in free.items()
            if [(path, info.shape) for path, info, _ in own] == shown
            and (not is_wrapped or key == head)
        ]
        if not same:
            continue
        key = next((key for key in same if _is_donated(free[key])), same[0])
        for (path, before, _), (_, after, at) in zip(free.pop(key), leaves, strict=True):
            yield PassedOn(len(free), key + path, before, after, at, count)


def _is_donated(leaves: Sequence[tuple[str, Any, int]]) -> bool:
    return any(getattr(info, "donated", False) for _, info, _ in leaves)


def _leaves(tree: Any, depth: int) -> dict[str, list[tuple[str, Any, int]]]:
    """Return the leaves by the first keys of their paths: the rest of it, the leaf, its number."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    text = jax.tree_util.keystr
    return by_key(
        (text(keys[:depth]), (text(keys[depth:]), leaf, at)) for at, (keys, leaf) in enumerate(flat)
    )


def _kind(info: Any, aval: Any, is_number: bool = False) -> str:
    """Return what a type and a layout do not show: a weak type, or the memory of the host."""
    if is_number:
        return "a Python number"
    is_weak = getattr(aval, "weak_type", False)
    is_on_host = getattr(getattr(aval, "memory_space", None), "name", "") == "Host"
    kind = f"weakly typed {info.dtype}" if is_weak else ""
    return f"{kind or info.dtype} {ON_HOST}" if is_on_host else kind


def returned(graph: Graph, fed: Sequence[Fed], given: Sequence[StepArgument]) -> Iterator[Returned]:
    """Yield what of a step's state comes back otherwise than it was given."""
    for pairs in by_key((each.tree, each) for each in fed).values():
        is_lone = len(pairs) == 1
        if not any(_is_state(graph, each, given, is_lone=is_lone) for each in pairs):
            continue
        for each in pairs:
            argument = given[each.argument]
            before, after = argument.array, graph.main.yields[each.result].array(argument.path)
            is_same = (before.dtype, before.split) == (after.dtype, after.split)
            if not is_same or each.kinds[0] != each.kinds[1]:
                yield Returned(argument, after, each.kinds)


def free_shapes(results: Sequence[Result]) -> dict[int, Shape]:
    """Return the shapes of whole results whose sharding nobody states, by their numbers."""
    shapes = enumerate(each.free_shape for each in results)
    return {at: shape for at, shape in shapes if shape is not None}


def sharding_of(value: Any) -> Any:
    """Return the sharding over named axes that an array carries, None where it has none."""
    found = getattr(value, "sharding", None)
    return found if isinstance(found, jax.sharding.NamedSharding) else None


def mesh_axes_of(info: Any) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes of each dimension that an array's sharding states."""
    own = sharding_of(info)
    return () if own is None else tuple(map(names_of, jax_entries(own.spec, len(info.shape))))


def unreused(
    graph: Graph, fed: Sequence[Fed], given: Sequence[StepArgument], free: Mapping[int, Shape]
) -> Iterator[Unreused]:
    """Yield the donated state whose memory a TPU cannot give to the result in its place.

    Args:
      free: the shapes of whole results whose sharding nobody states, by their numbers: the layout
        of such a result is that of the whole array.
    """
    for each in fed:
        argument, whole = given[each.argument], free.get(each.result)
        if argument.is_donated and whole is not None:
            after = graph.main.yields[each.result].array(argument.path)
            taken = relaid_bytes(after.shard_shape, after.dtype, whole)
            if taken is not None:
                yield Unreused(argument, taken)


def _is_state(graph: Graph, fed: Fed, given: Sequence[StepArgument], *, is_lone: bool) -> bool:
    argument = given[fed.argument]
    is_meant = argument.role in ("parameter", "optimizer", "cache")
    if not is_meant and (is_lone or not argument.is_donated):
        return False  # an activation, perhaps, whose memory the result takes
    is_taken = is_meant and argument.is_donated
    return is_taken or _reaches(graph.main.yields[fed.result], fed.argument)


def _reaches(value: Value, place: int) -> bool:
    """Say whether a value is worked out, element by element, of an argument of the function."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting and len(seen) < _FAR:
        value = waiting.pop(0)  # the old state is near, and what is added to it goes far back
        if value.argument == place:
            return True
        node = value.made_by
        if value in seen or node is None:
            continue
        seen.add(value)
        if node.name == "stablehlo.while":
            waiting.append(node.operands[node.results.index(value)])
        elif node.info.is_elementwise or node.info.view or node.name.startswith("sdy."):
            waiting += node.operands
        elif node.name in ("stablehlo.dynamic_update_slice", "stablehlo.scatter"):
            waiting.append(node.operands[0])
    return False


def refusing_lost_updates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is traced by `jax.jit`, which drops what it does to its arguments.

    It raises where an optimizer of NNX is updated and not returned: XLA would leave out the update,
    and the figures would be those of another step.
    """

    @functools.wraps(function)
    def own(*args: Any, **kwargs: Any) -> Any:
        before = list(_of_optimizers((args, kwargs)))
        made = function(*args, **kwargs)
        kept = {id(leaf) for leaf in (*before, *jax.tree_util.tree_leaves(made))}
        lost = [leaf for leaf in _of_optimizers((args, kwargs)) if id(leaf) not in kept]
        if lost:
            arrays = counted(len(lost), "array")
            message = f"the step updates {arrays} of an NNX optimizer, and does not return them"
            help = "return the function of `nnx.jit` itself: `jax.jit` drops updates of arguments"
            raise ShardspecError([Diagnostic(codes.BAD_STEP, message, help=help)])
        return made

    return own


def _of_optimizers(tree: Any) -> Iterator[Any]:
    """Yield the arrays that optimizers of NNX keep."""
    for node in jax.tree_util.tree_leaves(tree, is_leaf=box_test()):
        if is_optimizer_variable(type(node)):
            yield from jax.tree_util.tree_leaves(node)
