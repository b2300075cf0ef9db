"""Why a collective is there: from its mesh axes back to an array or a constraint, and to a rule.

Shardy says of every value which argument or constraint each of its axes came from. Those names are
of its own making: `input: 3` counts the arguments of the module, `mc_0_input: 1` those of the first
`shard_map`, `constraint_4` the constraints. Here they become paths, lines and rules; what cannot be
resolved is said to be unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxlib.mlir import ir

from shardspec.ir.plan import Attempt, DimSharding, Kind
from shardspec.ir.step import Cause, CauseKind, Place
from shardspec.jax_backend.step.graph import Graph, Node, Split, Value, dims_of, located, split_of
from shardspec.jax_backend.step.ops import contracted_axes
from shardspec.jax_backend.step.returned import Result
from shardspec.jax_backend.step.sends import Send
from shardspec.jax_backend.step.trace import Given, Layouts
from shardspec.programs.op_names import constraint_names

_INPUT = re.compile(r"^input: (\d+)$")
_OUTPUT = re.compile(r"^output: (\d+)$")
_CONSTRAINT = re.compile(r"^constraint_\d+$")
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
        _collect(module.operation, sizes, found)
    return found


def _collect(op: Any, sizes: dict[str, int], found: dict[str, Constraint]) -> None:
    for region in op.regions:
        for block in region:
            for each in block.operations:
                inner = each.operation
                if inner.name == "sdy.sharding_constraint":
                    _add(inner, sizes, found)
                _collect(inner, sizes, found)


def _add(op: Any, sizes: dict[str, int], found: dict[str, Constraint]) -> None:
    if "sdy.sharding_origin_name" not in op.attributes:
        return
    name = ir.StringAttr(op.attributes["sdy.sharding_origin_name"]).value
    where = located(op.location)
    split = split_of(op.attributes["sharding"], sizes)
    shape = tuple(op.operands[0].type.shape)
    found[name] = Constraint(where.place, split, shape, constraint_names(where.name))


@dataclass(frozen=True, slots=True)
class Blame:
    """Everything that blame is read from."""

    graph: Graph
    layouts: Layouts
    arguments: Sequence[Given | None]
    results: Sequence[Result]
    constraints: dict[str, Constraint]
    _backs: dict[int, Given | None] = field(default_factory=dict, repr=False)

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
        dims = self.layouts.constrained(constraint.names, constraint.shape, constraint.split)
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

    def given_back(self, number: int) -> Given | None:
        """Return the argument that a result is the new value of, by its path and shape."""
        if number not in self._backs:
            self._backs[number] = self._given_back(number)
        return self._backs[number]

    def _given_back(self, number: int) -> Given | None:
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
