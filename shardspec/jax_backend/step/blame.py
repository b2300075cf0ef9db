"""Why a collective is there: from its mesh axes back to an array or a constraint, and to a rule.

Shardy says of every value which argument or constraint each of its axes came from. Those names are
of its own making: `input: 3` counts the arguments of the module, `mc_0_input: 1` those of the first
`shard_map`, `constraint_4` the constraints. Here they become paths, lines and rules; what cannot be
resolved is said to be unknown.

`Carries` names what a collective carries by the same facts: a weight, the gradient of one, an
activation by name, or an einsum.

What a program computes is what no compiler fuses away: contractions, lookups, sorts and kernels,
each with its arrays, its FLOPs and its phase.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardspec.diagnostics.words import by_key, reached
from shardspec.ir.plan import Attempt, DimSharding, Kind
from shardspec.ir.step import Carried, Cause, CauseKind, Flows, OpKind, Place, StepOp
from shardspec.jax_backend.step import graph as graphs
from shardspec.jax_backend.step.graph import Graph, Node, Result, Split, Value, dims_of, located
from shardspec.jax_backend.step.passes import operations
from shardspec.jax_backend.step.sends import Send
from shardspec.jax_backend.step.trace import Given, Layouts
from shardspec.kept import kept
from shardspec.programs.op_names import constraint_names, einsum_in, phase_of
from shardspec.programs.operations import Window, einsum, taps

#: Custom calls that are marks in the program, and compute nothing.
_MARKS = ("Sharding", "SPMD", "LayoutConstraint", "annotate", "MoveTo", "xla.sdy", "Unreduced")


def set_phases(graph: Graph) -> None:
    """Say of every operation in which phase of the step it runs.

    JAX's own names tell forward, backward and rematerialised work apart. What has no such name
    comes with the loop it stands in, or else before the first backward work or after it.
    """
    update = False
    for node in graph.nodes():
        told = phase_of(node.where.name)
        outer = node.body.owner
        if told is None and outer is not None:
            told = phase_of(outer.where.name)
        update = update or told == "backward"
        node.phase = told or ("update" if update else "forward")


def ops_of(graph: Graph, names: dict[Value, str]) -> Iterator[StepOp]:
    """Yield every operation that computes, in the order of the program.

    Args:
      names: of values, by their identity: the weights and activations that are known.
    """
    flows = Flows()
    for node in graph.nodes():
        kind = node.info.kind
        if kind is not None and node.results and not is_mark(node):
            reads = flows.compute(node.at, map(_outermost, node.operands))
            made = dict.fromkeys(node.results, frozenset((node.at,)))
            yield replace(_op(node, kind, names), reads=tuple(sorted(reads)))
        else:
            made = {result: flows.makers(found) for result, found in _passed_on(node)}
        for result, ticks in made.items():
            flows.make(result, ticks)


def _passed_on(node: Node) -> Iterator[tuple[Value, list[Value]]]:
    """Yield each result of what computes nothing, and the values that it is made of."""
    bodies = node.bodies if node.name in graphs.WITH_BODIES else []
    if node.name == "stablehlo.while":
        bodies = bodies[:1]
    for at, result in enumerate(node.results):
        inner = [body.yields[at] for body in bodies if at < len(body.yields)]
        yield result, [_outermost(value) for value in (inner if bodies else node.operands)]


def _outermost(value: Value) -> Value:
    """Return the value that the argument of a body is given; of a loop before its first round."""
    while value.given is not None:
        value = value.given
    return value


def backend_config(node: Node) -> str:
    """Return what a custom call states for its compiler; empty where it states nothing."""
    attributes = node.op.attributes
    held = attributes["backend_config"] if "backend_config" in attributes else ""  # noqa: SIM401
    return str(getattr(held, "value", held))


def target_of(node: Node) -> str:
    """Return the name of the kernel or mark that a custom call is; empty for anything else."""
    attributes = node.op.attributes
    return (
        str(attributes["call_target_name"]).strip('"') if "call_target_name" in attributes else ""
    )


def is_mark(node: Node) -> bool:
    """Say whether an operation is a mark in the program, and computes nothing."""
    return target_of(node).startswith(_MARKS)


def _op(node: Node, kind: OpKind, names: dict[Value, str]) -> StepOp:
    split = [axis for value in (*node.results, *node.operands) for axis in value.axes]
    return StepOp(
        kind,
        einsum_of(node),
        tuple(value.array(names.get(value, "")) for value in node.operands),
        node.result.array(names.get(node.result, "")),
        flops_of(node),
        node.count,
        node.where.place,
        node.phase,
        tuple(dict.fromkeys((*node.body.all_manual, *split))),
        node.at,
        vmaps=node.where.name.count("vmap("),
    )


def flops_of(node: Node) -> int:
    """Return the FLOPs of one device each time an operation runs; 0 where nothing is multiplied.

    A kernel says its own, where it was given a cost estimate.
    """
    if node.name == "stablehlo.dot_general":
        contracted, _, _, _ = dimensions(node)
        shape = node.operands[0].shard_shape
        return 2 * math.prod(node.result.shard_shape) * math.prod(shape[at] for at in contracted)
    if node.name == "stablehlo.convolution":
        return _convolution_flops(node)
    return _kernel_flops(node) if node.name == "stablehlo.custom_call" else 0


def _convolution_flops(node: Node) -> int:
    """Return the FLOPs of a convolution: what falls on padding or between elements is none."""
    numbers = stablehlo.ConvDimensionNumbers(node.op.attributes["dimension_numbers"])
    image, kernel = node.operands
    result = math.prod(node.result.shard_shape)
    features = kernel.shard_shape[numbers.kernel_input_feature_dimension]
    dims = zip(
        numbers.input_spatial_dimensions,
        numbers.kernel_spatial_dimensions,
        numbers.output_spatial_dimensions,
        strict=True,
    )
    found = Fraction(2 * result * features)
    for at, (inner, tap, outer) in enumerate(dims):
        stride, spread, apart = (
            _windows(node, name, at) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
        )
        window = Window(kernel.shape[tap], stride, _low(node, at), spread, apart)
        places = node.result.shape[outer]
        found *= Fraction(taps(window, image.shape[inner], places), max(1, places))
    return math.ceil(found)


def _windows(node: Node, name: str, at: int) -> int:
    given = node.op.attributes
    return int(given[name][at]) if name in given else 1


def _low(node: Node, at: int) -> int:
    """Return the padding before the first element."""
    given = node.op.attributes
    return int(given["padding"][2 * at]) if "padding" in given else 0


def _kernel_flops(node: Node) -> int:
    try:
        config = json.loads(backend_config(node) or "{}")
    except ValueError:
        return 0
    held = config.get("custom_call_config", {}) if isinstance(config, dict) else {}
    estimate = held.get("cost_estimate") or {}
    return int(estimate.get("flops", 0))


def dimensions(node: Node) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return what a product contracts and batches: left, right, left, right."""
    found: Any = stablehlo.DotDimensionNumbers(node.op.attributes["dot_dimension_numbers"])
    return (
        list(found.lhs_contracting_dimensions),
        list(found.rhs_contracting_dimensions),
        list(found.lhs_batching_dimensions),
        list(found.rhs_batching_dimensions),
    )


def einsum_of(node: Node) -> str:
    """Return a product as an einsum: as the code spells it, where it does and it fits.

    A product of the backward pass is another than that of the code, and is spelt anew.
    """
    if node.name != "stablehlo.dot_general":
        return ""
    stated = stated_einsum(node)
    if stated and node.phase in ("forward", "remat"):
        return stated
    return einsum(dimensions(node), [len(operand.shape) for operand in node.operands[:2]])


def stated_einsum(node: Node) -> str:
    """Return the einsum in whose name an operation runs, empty where there is none."""
    return einsum_in(node.where.place)


def contracted_axes(node: Node) -> dict[str, list[Value]]:
    """Return the mesh axes over which the result of an operation is a partial sum, and of whom.

    Each with the operands that have it in a dimension that the operation sums over.
    """
    return by_key(
        (axis.name, operand)
        for at, operand in enumerate(node.operands)
        for dim in _summed_dims(node, at)
        for axis in operand.split[dim]
    )


def _summed_dims(node: Node, at: int) -> list[int]:
    if node.name == "stablehlo.dot_general" and at < 2:
        return dimensions(node)[at]
    if node.name == "stablehlo.reduce" and at < len(node.operands) // 2:
        return [int(dim) for dim in node.op.attributes["dimensions"]]
    if node.name in ("stablehlo.gather", "stablehlo.scatter", "stablehlo.convolution"):
        return list(range(len(node.operands[at].shape)))
    return []


_INPUT = re.compile(r"^input: (\d+)$")
_OUTPUT = re.compile(r"^output: (\d+)$")
_CONSTRAINT = re.compile(r"^constraint_\d+$")
_ORIGIN = "sdy.sharding_origin_name"
#: What reads or writes rows of a table.
LOOKUPS = ("gather", "scatter")
_REGION = re.compile(r"^(mc_\d+)_(input|output): (\d+)$")
#: How far a value is followed through operations that only show it otherwise.
_FAR = 64


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint in the code.

    Attributes:
      split: the axes of each dimension that it asks for.
      names: the logical axes, or the name of the activation, that `Resolver.constrain` was given.
    """

    place: Place
    split: Split
    shape: tuple[int, ...]
    names: str = ""


def constraints_of(module: Any, sizes: dict[str, int]) -> dict[str, Constraint]:
    """Return every constraint of a propagated module by the name that origins know it by."""
    found: dict[str, Constraint] = {}
    with module.context:
        for op in operations(module.operation):
            if op.name != "sdy.sharding_constraint" or _ORIGIN not in op.attributes:
                continue
            where = located(str(op.location))
            split = graphs.split_of(op.attributes["sharding"], sizes)
            shape = tuple(op.operands[0].type.shape)
            made = Constraint(where.place, split, shape, constraint_names(where.name))
            found[ir.StringAttr(op.attributes[_ORIGIN]).value] = made
    return found


@dataclass(frozen=True, slots=True)
class Blame:
    """Everything that blame is read from."""

    graph: Graph
    layouts: Layouts
    arguments: Sequence[Given | None]
    results: Sequence[Result]
    constraints: dict[str, Constraint]
    _kept: dict[object, object] = field(default_factory=dict, repr=False)

    def causes(self, send: Send) -> tuple[Cause, ...]:
        """Return a cause for each mesh axis of a collective, in their order."""
        return tuple(self._cause(send, name) for name in send.names)

    def _cause(self, send: Send, axis: str) -> Cause:
        if send.is_written:
            return Cause(axis, CauseKind.WRITTEN, place=send.node.where.place)
        causes = [self.of_value(each, axis) for each in _carriers(send, axis)]
        return min(causes, key=plainness, default=Cause(axis, CauseKind.UNKNOWN))

    def of_value(self, value: Value, axis: str) -> Cause:
        """Return why a mesh axis splits a value."""
        root = root_of(value)
        if root.argument is not None and axis in root.axes:
            return self._of_argument(root.argument, axis)
        origin = _origin(value, axis)
        if origin is None:
            return Cause(axis, CauseKind.UNKNOWN)
        return self._of_origin(origin, value, axis)

    def _of_origin(self, origin: str, value: Value, axis: str) -> Cause:
        found = _INPUT.match(origin)
        if found:
            return _propagated(self._of_argument(int(found.group(1)), axis), value)
        if _CONSTRAINT.match(origin):
            return self._of_constraint(origin, value, axis)
        found = _OUTPUT.match(origin)
        if found:
            return self._of_result(int(found.group(1)), axis)
        found = _REGION.match(origin)
        return self._of_region(found, axis) if found else Cause(axis, CauseKind.UNKNOWN)

    def argument(self, number: int | None) -> Given | None:
        """Return an argument of the function; None for no number, and for its constants."""
        known = number is not None and number < len(self.arguments)
        return self.arguments[number] if number is not None and known else None

    def _of_argument(self, number: int, axis: str) -> Cause:
        given = self.argument(number)
        dim = self.graph.main.arguments[number].axes.get(axis)
        if given is None or dim is None:
            return Cause(axis, CauseKind.UNKNOWN)
        logical, attempt = self._placed(given.dims, dim, axis)
        if not given.is_placed and attempt is None:
            return Cause(axis, CauseKind.PROPAGATED, given.path, dim)
        return Cause(
            axis, CauseKind.ARGUMENT, given.path, dim, logical_axis=logical, attempt=attempt
        )

    def _of_constraint(self, name: str, value: Value, axis: str) -> Cause:
        constraint = self.constraints.get(name)
        if constraint is None:
            return Cause(axis, CauseKind.UNKNOWN)
        dim = dims_of(constraint.split).get(axis)
        dims = self._dims_of(name)
        logical, attempt = (None, None) if dim is None else self._placed(dims, dim, axis)
        is_own = constraint.shape == value.shape
        return Cause(
            axis,
            CauseKind.CONSTRAINT if is_own else CauseKind.PROPAGATED,
            dim=dim,
            place=constraint.place,
            logical_axis=logical,
            attempt=attempt,
            through=() if is_own else _through(value),
        )

    @kept
    def _dims_of(self, name: str) -> tuple[DimSharding, ...]:
        """Return the dimensions of what a constraint of that name constrains."""
        found = self.constraints[name]
        return self.layouts.constrained(found.names, found.shape, found.split)

    def _of_result(self, number: int, axis: str) -> Cause:
        """Return the cause that a result's sharding is, with the argument that lies likewise."""
        value = self.graph.main.yields[number]
        given = self.given_back(number)
        split = self.results[number].split if number < len(self.results) else ()
        dim = next((at for at, axes in enumerate(split) if axis in axes), None)
        dim = value.axes.get(axis) if dim is None else dim
        if given is None or dim is None:
            return Cause(axis, CauseKind.RESULT, dim=dim)
        logical, attempt = self._placed(given.dims, dim, axis)
        return Cause(axis, CauseKind.RESULT, given.path, dim, logical_axis=logical, attempt=attempt)

    @kept
    def given_back(self, number: int) -> Given | None:
        """Return the argument that a result is the new value of, by its path and shape."""
        path = self.results[number].path if number < len(self.results) else ""
        shape = self.graph.main.yields[number].shape
        found = [
            each
            for each, value in zip(self.arguments, self.graph.main.arguments, strict=True)
            if each is not None
            and value.shape == shape
            and each.path
            and f"/{path}".endswith(f"/{each.path}")
        ]
        return max(found, key=lambda each: len(each.path), default=None)

    def _placed(
        self, dims: Sequence[DimSharding], dim: int, axis: str
    ) -> tuple[str | None, Attempt | None]:
        """Return the logical axis of a dimension, and what gave it a mesh axis."""
        if dim >= len(dims):
            return None, None
        found = dims[dim]
        attempts = [each for each in (found.added, found.taken) if each is not None]
        attempt = next((each for each in attempts if axis in each.mesh_axes), None)
        state = self.layouts.spec.state
        if attempt is not None and attempt.kind is Kind.ZERO and state is not None:
            attempt = replace(attempt, span=state.over_span or state.span)
        return found.logical_axis, attempt

    def _of_region(self, found: re.Match[str], axis: str) -> Cause:
        """Return the cause that a `shard_map` is: what it was given, or how it says it lies."""
        region = self.graph.regions.get(found.group(1))
        if region is None:
            return Cause(axis, CauseKind.UNKNOWN)
        number = int(found.group(3))
        if found.group(2) == "input" and number < len(region.operands):
            root = root_of(region.operands[number])
            if root.argument is not None and axis in root.axes:
                cause = self._of_argument(root.argument, axis)
                if cause.attempt is not None:
                    return cause
        return Cause(axis, CauseKind.CONSTRAINT, place=region.where.place)


def _propagated(cause: Cause, value: Value) -> Cause:
    """Return a cause that reached a value through operations, with what it came through."""
    if cause.kind is not CauseKind.ARGUMENT:
        return cause
    return replace(cause, kind=CauseKind.PROPAGATED, through=_through(value))


#: Of several causes the one that says most of what the user wrote.
_PLAIN = tuple(CauseKind)


#: The least key of them all.
PLAINEST = (False, 0)


def plainness(cause: Cause) -> tuple[bool, int]:
    """Return a key by which the cause that says most of what the user wrote comes first."""
    return cause.attempt is None, _PLAIN.index(cause.kind)


def _carriers(send: Send, axis: str) -> list[Value]:
    """Return the values whose lying along an axis makes a collective necessary.

    What a lookup sends is for its table: indices are gathered since its rows are elsewhere.
    """
    nodes = (
        send.node,
        send.source.made_by,
        *(u for each in _forms(send.result) for u in each.users),
    )
    for node in nodes:
        own = node.operands[0] if node is not None and node.operands and not node.bodies else None
        is_other = node is send.node and own is not send.source  # that XLA sends instead
        if node and own and axis in own.axes and (is_other or node.info.kind in LOOKUPS):
            return [own]
    if axis in send.source.axes:
        return [send.source]
    made_by = _maker(send.source)
    if made_by is None:
        return [send.result] if axis in send.result.axes else []
    summed = contracted_axes(made_by).get(axis, [])
    return summed or [value for value in made_by.operands if axis in value.axes]


def _forms(value: Value) -> Iterator[Value]:
    yield value
    for user in value.users:
        if user.info.view:
            yield from _forms(user.result)


def _maker(value: Value) -> Node | None:
    """Return the operation that a value comes from, other collectives and views looked through."""
    node = value.made_by
    while node is not None and (node.name.startswith("sdy.") or node.info.view):
        node = node.operands[0].made_by if node.operands else None
    return node


def root_of(value: Value) -> Value:
    """Return the value that this one is another form of: an argument of the function, at best."""
    for _ in range(_FAR):
        before = _before(value)
        if before is None:
            return value
        value = before
    return value


def _before(value: Value) -> Value | None:
    """Return what a value is a view of, outside of the body that it is given to."""
    if value.given is not None:
        return value.given
    node = value.made_by
    if node is None or not node.operands:
        return None
    if node.name == "stablehlo.optimization_barrier":
        return node.operands[node.results.index(value)]
    if node.name == "stablehlo.while":
        at = node.results.index(value)
        kept = node.bodies[0].yields[at] is node.bodies[0].arguments[at]
        return node.operands[at] if kept else None
    is_gather = node.name in ("sdy.all_gather", "sdy.all_to_all", "sdy.collective_permute")
    return node.operands[0] if node.info.view or is_gather else None


def _origin(value: Value, axis: str) -> str | None:
    """Return what Shardy says that an axis of a value came from, asked back through views."""
    for _ in range(_FAR):
        found = value.origins.get(axis)
        if found is not None and found != "self":
            return found
        node = value.made_by
        if value.given is not None:
            value = value.given
        elif node is not None and node.bodies and node.name != "sdy.manual_computation":
            value = node.bodies[0].yields[node.results.index(value)]
        elif node is not None and node.operands:
            inputs = [each for each in node.operands if axis in each.axes]
            value = inputs[0] if inputs else node.operands[0]
        else:
            return found if value.argument is None else f"input: {value.argument}"
    return None


def _through(value: Value) -> tuple[str, ...]:
    """Return what made a value, as the code calls it."""
    node = _maker(value)
    if node is None:
        return ()
    scope = node.where.place.scope.rpartition("/")[2]
    return (scope or node.name.rpartition(".")[2],)


#: How many operations a value is followed through.
_FAR_CARRIED = 200
#: How far an update of a parameter is followed back to the state that it starts from.
_NEAR = 8
_FILLS = frozenset(("stablehlo.dynamic_update_slice", "stablehlo.concatenate"))
_SPREADS = "stablehlo.broadcast_in_dim"
_EXCHANGES = frozenset(("sdy.all_reduce", "sdy.all_to_all"))


@dataclass(frozen=True, slots=True)
class Carries:
    """Names what is sent, by the same facts that blame is read from."""

    blame: Blame

    def of(self, send: Send) -> Carried:
        """Return what a collective carries."""
        root = root_of(send.source)
        given = self.blame.argument(root.argument)
        if given is not None:
            return _of_argument(given)
        if send.kind.traits.sums and send.node.phase in ("backward", "update"):
            gradient = self._gradient(send.result)
            if gradient:
                return Carried("gradient", gradient)
        added_to = self._added_to(send)
        if added_to:
            return Carried("gradient", added_to)
        back = self._given_back(send.result)
        if back and send.node.phase == "update":
            return Carried("weight", back)
        table = self._table(send)
        if table:
            return Carried("activation", f"rows of {table}")
        name, einsum = _constrained(send), _einsum(send)
        if name and not (einsum and " " in name):
            return Carried("activation", name)
        if einsum:
            return Carried("einsum", einsum)
        name = self._flows_with(send)
        made_by = _maker_of(send.source)
        if name:
            return Carried("activation", name)
        einsum = "" if made_by is None else einsum_of(made_by)
        return Carried("einsum", einsum) if einsum else Carried("unknown", _scope(send))

    def _flows_with(self, send: Send) -> str:
        """Return the named activation of this shape from whose constraint an axis came here."""
        for value in (send.result, send.source):
            for origin in value.origins.values():
                constraint = self.blame.constraints.get(origin)
                if constraint is not None and constraint.shape == value.shape:
                    return constraint.names
        return ""

    def _added_to(self, send: Send) -> str:
        """Return the table to whose gradient the rows that are sent are added."""
        users = (*send.source.users, *send.result.users)
        found = (user.result for user in users if user.name == "stablehlo.scatter")
        return next((path for path in map(self._gradient, found) if path), "")

    def _table(self, send: Send) -> str:
        """Return the weight that what is sent was looked up in."""
        made_by = _maker_of(send.source)
        if made_by is None or made_by.name != "stablehlo.gather":
            return ""
        given = self.blame.argument(root_of(made_by.operands[0]).argument)
        return "" if given is None else given.path

    def _gradient(self, value: Value) -> str:
        """Return the parameter whose state a value is added to, or as which it is given back."""
        for each in islice(reached([value], _later, is_nearest_first=True), _FAR_CARRIED):
            found = (self._updated(user, each) for user in each.users)
            path = self._given_back(each) or next(filter(None, found), "")
            if path:
                return path
        return ""

    def _given_back(self, value: Value) -> str:
        """Return the parameter that a value is given back as, or as whose gradient."""
        if value.body is not self.blame.graph.main or not value.yielded:
            return ""
        given = self.blame.given_back(value.yielded[0])
        return given.path if given is not None and given.role == "parameter" else ""

    def _updated(self, user: Node, value: Value) -> str:
        """Return the parameter whose weight or state an operation brings together with a value."""
        if not user.info.is_elementwise:
            return ""
        others = (each for each in user.operands if each is not value)
        for other in others:
            given = self._state(other, math.prod(value.shape), _NEAR)
            if given is not None:
                return given.owner or given.path
        return ""

    def _state(self, value: Value, size: int, left: int) -> Given | None:
        """Return the weight or state of a size that a value is worked out of by elements."""
        root = root_of(value)
        given = self.blame.argument(root.argument)
        if given is not None:
            is_state = given.role in ("parameter", "optimizer")
            return given if is_state and math.prod(root.shape) == size else None
        node = value.made_by
        if node is None or not left or not node.info.is_elementwise:
            return None
        found = [self._state(each, size, left - 1) for each in node.operands]
        owners = {each.owner or each.path for each in found if each is not None}
        return next(each for each in found if each is not None) if len(owners) == 1 else None


def _maker_of(value: Value) -> Node | None:
    """Return what made a value, which devices may have exchanged or summed since."""
    made_by = value.made_by
    while made_by is not None and made_by.name in _EXCHANGES:
        made_by = made_by.operands[0].made_by
    return made_by


def _of_argument(given: Given) -> Carried:
    if given.role == "parameter":
        return Carried("weight", given.path)
    return Carried("state" if given.role == "optimizer" else "activation", given.path)


def _onward(user: Node, value: Value) -> list[Value]:
    """Return what a gradient becomes in an operation that reads it.

    A norm that is spread over all elements of a gradient is none itself.
    """
    if user.name == _SPREADS and math.prod(user.result.shape) > math.prod(value.shape):
        return []
    passes = user.info.view or user.name in _FILLS or user.name.startswith("sdy.")
    if passes and user.results and not user.bodies:
        return [user.results[user.operands.index(value) if len(user.results) > 1 else 0]]
    if user.info.is_elementwise and user.result.shape == value.shape:
        return [user.result]
    if user.bodies:
        at = user.operands.index(value)
        return [b.arguments[at] for b in user.bodies[:1] if at < len(b.arguments)]
    return []


def _later(value: Value) -> Iterator[Value]:
    """Yield what a gradient becomes in what reads it, and behind the loop or branch it is in."""
    for user in value.users:
        yield from _onward(user, value)
    owner = value.body.owner
    if owner is not None:
        yield from (owner.results[at] for at in value.yielded if at < len(owner.results))


def _constrained(send: Send) -> str:
    """Return the activation's name, or the logical axes, that a value is constrained by next."""
    for node in (send.node, *_next(send.result)):
        name = constraint_names(node.where.name)
        if name:
            return name
    return ""


def _next(value: Value) -> list[Node]:
    """Return the operations that read a value, and those that read a sum it is added to."""
    found = list(value.users)
    for user in value.users:
        if user.info.view or user.name == "stablehlo.add":
            found += user.result.users
    return found


def _einsum(send: Send) -> str:
    made_by = _maker_of(send.source)
    for node in (send.node, made_by, *send.result.users):
        if node is not None and stated_einsum(node):
            return stated_einsum(node)
    return ""


def _scope(send: Send) -> str:
    """Return what the code was doing: the last part of the name of an operation."""
    return send.node.where.name.rpartition("/")[2]
