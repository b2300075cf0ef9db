"""A user's step as the noun of `ir/step.py`: traced, partitioned by XLA, explained by Shardy.

XLA's own partitioner writes the program of one device, and passes rewrite it as the target's
compiler would: that is what is sent. Shardy's propagation over the same module says why, and which
reshard a collective belongs to. Where this jaxlib cannot partition the module, what Shardy asks for
is what is sent, and the step says so.

Sums over devices that a loop only adds up, so that one sum behind the loop would do.

A gradient that is summed in each microbatch is such a sum. What is made of it on its way to the
total has to be linear: where code takes a norm of it, or clips it, each round needs its own sum.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardspec.analysis.step_layout import transfers
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import by_key, counted
from shardspec.ir import step as steps
from shardspec.ir.spec import Shape, Target
from shardspec.jax_backend.step import blame as blames
from shardspec.jax_backend.step import graph as graphs
from shardspec.jax_backend.step import passes
from shardspec.jax_backend.step.blame import flops_of, ops_of, set_phases
from shardspec.jax_backend.step.graph import Body, Graph, Node, Value, free_shapes, nodes_of
from shardspec.jax_backend.step.sends import Send, reshard_of, sends_of
from shardspec.jax_backend.step.trace import Call, Given, Layouts, Resolving, Traced, traced
from shardspec.jax_backend.xla.cache import Compiled
from shardspec.jax_backend.xla.partitioning import Partitioning
from shardspec.kept import kept
from shardspec.programs.known import Known, as_read, as_shared, with_flops
from shardspec.programs.partitioned import bits_written_out, expanded_first, read_partitioned

_MANUAL = "sdy.manual_computation"
_BRANCHES = frozenset(("stablehlo.case", "stablehlo.if"))


def step_of(
    resolver: Resolving, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> steps.Step:
    """Return what one call of a function computes, sends and holds on the resolver's target.

    It runs the function's Python, once, on shapes; no device is needed and nothing is compiled.

    Args:
      function: jitted or not; a train step, a loss, a serve step.
      args: trees of arrays or of `ShapeDtypeStruct`s. Leaves without a sharding are placed by
        the spec: parameters, optimizer state, and a batch along its first dimension.

    Raises:
      ShardspecError: the spec does not lay out an argument, or this jaxlib lacks a pass.
    """
    return traced_step(resolver, Call(function, args, kwargs))[1]


def traced_step(resolver: Resolving, call: Call) -> tuple[Traced, steps.Step]:
    """Return a lowered function, and the step that it is; see `step_of`.

    The partitioner gets ready while the function is traced, and works while Shardy propagates.
    """
    target = resolver.target
    with Partitioning(target.mesh.device_count, for_tpu=target.is_tpu) as partitioning:
        found = traced(resolver, call)
        partitioning.give(passes.bytecode_of(found.module))
        step, blame = _propagated(resolver, found)
        made = partitioning.result()
        return found, _with_sends(step, blame, target, made, free_shapes(found.results))


def _with_sends(
    step: steps.Step,
    blame: blames.Blame,
    target: Target,
    made: Compiled | Diagnostic,
    free: Mapping[int, Shape],
) -> steps.Step:
    """Return a propagated step with what the partitioned program sends."""
    warnings = made.warnings if isinstance(made, Compiled) else ()
    sent = _partitioned(made, step, target, free) if isinstance(made, Compiled) else made
    if isinstance(sent, Diagnostic):
        why = f"XLA's partitioner gave no program: {sent.message}"
        missing = steps.Unknown("the step", why, ("sends", "memory", "time"), step.place)
        return replace(step, unknown=(*step.unknown, missing))
    lines = _Lines(blame)
    known = Known(step, lines.of_array, lines.at)
    ops = as_shared(step.ops, sent.ops, target.mesh)
    told = known.with_forced([known.explained(each) for each in sent.collectives])
    read_by = [as_read(each, step.ops, ops) for each in told]
    pairs = zip(read_by, known.ticks, strict=True)
    sends = [replace(each, at=_tick(tick, each, step, sent)) for each, tick in pairs]
    return replace(
        step,
        ops=tuple(map(lines.explained, with_flops(ops, sent.ops))),
        collectives=tuple(sorted(sends, key=lambda each: each.at)),
        tensors=sent.tensors,
        end=max((step.end, *(each.dies for each in sent.tensors))),
        notes=tuple(dict.fromkeys((*step.notes, *sent.notes, *warnings))),
        unknown=tuple(dict.fromkeys((*sent.unknown, *step.unknown))),
    )


def _partitioned(
    made: Compiled, step: steps.Step, target: Target, free: Mapping[int, Shape]
) -> steps.Step | Diagnostic:
    """Return the partitioned program of a step as its target's compiler leaves it."""
    read = read_partitioned(made.text, target, step.arguments, free)
    if isinstance(read, Diagnostic):
        return read
    found, tensors = read
    unknown = (*found.step.unknown, *expanded_first(found))
    unknown += bits_written_out(found) if target.is_tpu else ()
    return replace(found.step, unknown=unknown, tensors=tensors)


def _tick(tick: int | None, sent: steps.Collective, step: steps.Step, made: steps.Step) -> int:
    """Return when a collective of the partitioned program starts, by the clock of the step.

    Args:
      tick: when the propagated step starts it, where that has it.
    """
    if tick is not None:
        return tick
    line = ((op.at, (op.place, op.phase)) for op in step.ops)
    at = next((at for at, where in line if where == (sent.place, sent.phase)), None)
    return sent.at * step.end // max(1, made.end) if at is None else at


class _Lines:
    """Why mesh axes are on arrays, by name, and on what is computed at a line."""

    def __init__(self, blame: blames.Blame) -> None:
        self.blame = blame
        places = ((node.where.place, node) for node in blame.graph.nodes())
        self.nodes: dict[Hashable, list[Node]] = by_key((at.shown, node) for at, node in places)
        arguments = enumerate(blame.arguments)
        self.numbers = {given.path: number for number, given in arguments if given is not None}
        self._kept: dict[object, object] = {}

    def of_array(self, carried: steps.Carried, axis: str) -> steps.Cause | None:
        """Return why an argument, or the one that a gradient is of, lies along an axis."""
        number = self.numbers.get(carried.name)
        value = None if number is None else self.blame.graph.main.arguments[number]
        return None if value is None else self._least([value], axis)

    def at(self, place: steps.Place, axis: str) -> steps.Cause | None:
        """Return why an axis is on a value at a line; what a lookup sends is for its table."""
        return self._at(place.shown, axis) if place.is_known else None

    @kept
    def _at(self, shown: Hashable, axis: str) -> steps.Cause | None:
        nodes = self.nodes.get(shown, [])
        tables = [node.operands[0] for node in nodes if node.info.kind in blames.LOOKUPS]
        values = [value for node in nodes for value in (*node.operands, *node.results)]
        others = (self._least(tables, other) for table in tables for other in table.axes)
        return (
            self._least(tables, axis)
            or self._least(values, axis)
            or next((replace(each, mesh_axis=axis) for each in others if each is not None), None)
        )

    def explained(self, op: steps.StepOp) -> steps.StepOp:
        """Return an operation with a cause for each mesh axis that splits it."""
        if not op.mesh_axes:
            return op
        found = (self.at(op.place, axis) or self._mapped(op.place, axis) for axis in op.mesh_axes)
        return replace(op, because=tuple(each for each in found if each is not None))

    def _mapped(self, place: steps.Place, axis: str) -> steps.Cause | None:
        """Return the `shard_map` whose body a line is in, where values are parts already."""
        nodes = self.nodes.get(place.shown, []) if place.is_known else []
        owners = (body.owner for node in nodes for body in node.body.outwards())
        found = (each for each in owners if each is not None and each.name == _MANUAL)
        at = next((each.where.place for each in found), None)
        return None if at is None else steps.Cause(axis, steps.CauseKind.WRITTEN, place=at)

    def _least(self, values: Iterable[Value], axis: str) -> steps.Cause | None:
        least: steps.Cause | None = None
        for value in values:
            if axis in value.axes:
                found = self.blame.of_value(value, axis)
                if least is None or blames.plainness(found) < blames.plainness(least):
                    least = found
                if blames.plainness(least) == blames.PLAINEST:
                    break
        return least


def _propagated(resolver: Resolving, found: Traced) -> tuple[steps.Step, blames.Blame]:
    """Return the step as Shardy's propagation has it, and why."""
    graph, constraints = _graph(found, resolver.target.mesh.sizes)
    set_phases(graph)
    notes = [*found.notes, *_unnamed(resolver, found), *_unbounded(graph)]
    target = resolver.target
    sends = sends_of(graph)
    unused = set(_cheaper_branches(graph, sends, notes))
    blame = blames.Blame(graph, Layouts(resolver), found.arguments, found.results, constraints)
    carries = blames.Carries(blame)
    given = tuple(_arguments(graph, found.arguments))
    fed = {each.result: each.argument for each in found.fed}
    step = steps.Step(
        "code",
        target.mesh,
        tuple(op for op in ops_of(graph, dict(_names(blame))) if op.at not in unused),
        tuple(
            _collective(send, blame, carries, fed) for send in sends if send.node.at not in unused
        ),
        (),
        given,
        graph.end,
        found.place,
        tuple(dict.fromkeys(notes)),
        tuple(transfers(given, found.place, target.hardware)),
        tuple(graphs.returned(graph, found.fed, given)),
        tuple(
            replace(each, is_filtered=found.is_filtered)
            for each in graphs.unreused(graph, found.fed, given, free_shapes(found.results))
        )
        if target.is_tpu
        else (),
        found.wrong_sums,
    )
    return step, blame


def _graph(found: Traced, sizes: dict[str, int]) -> tuple[Graph, dict[str, blames.Constraint]]:
    """Return the program that Shardy has propagated through, and the constraints in it.

    Raises:
      ShardspecError: this jaxlib lacks a pass.
    """
    constraints: dict[str, blames.Constraint] = {}
    module = passes.copy_of(found.module)
    passes.prepared(module)
    for name in passes.propagated(module):
        if name == passes.NAMED_AFTER:
            constraints = blames.constraints_of(module, sizes)
    return graphs.graph_of(module, sizes), constraints


def _unbounded(graph: Graph) -> Iterator[str]:
    """Count how often loops go round; yield those that do not say it."""
    for loop in graphs.count_rounds(graph):
        place = loop.where.place
        yield f"the loop at {place} has no fixed number of iterations: counted once"


def _names(blame: blames.Blame) -> Iterator[tuple[Value, str]]:
    """Yield the path of every value that is another form of an argument."""
    for node in blame.graph.nodes():
        for value in node.operands:
            given = blame.argument(blames.root_of(value).argument)
            if given is not None:
                yield value, given.path


def _arguments(graph: Graph, arguments: Sequence[Given | None]) -> Iterator[steps.StepArgument]:
    for value, given in zip(graph.main.arguments, arguments, strict=True):
        if given is None:
            yield steps.StepArgument("", "other", value.array())
        else:
            array = value.array(given.path)
            told = (given.is_donated, given.is_placed, given.is_on_host)
            yield steps.StepArgument(given.path, given.role, array, *told, is_guess=given.is_guess)


def _collective(
    send: Send, blame: blames.Blame, carries: blames.Carries, fed: Mapping[int, int]
) -> steps.Collective:
    user = _served(send)
    loop = next((body for body in send.node.body.outwards() if body.is_loop), None)
    carried = carries.of(send)
    name = carried.name if carried.kind in ("weight", "state", "activation") else ""
    return steps.Collective(
        send.kind,
        send.names,
        send.payload_bytes,
        send.wire_bytes,
        send.count,
        send.source.array(name),
        _place(send, user),
        send.node.phase if user is None else user.phase,
        carried,
        blame.causes(send),
        _forced(send, blame),
        loop is not None and _is_fixed(send.source, loop),
        send.is_written,
        send.node.at,
        reshard_of(send, blame.graph, name),
        1 if loop is None else loop.rounds,
        *total_of(send, fed),
    )


def _served(send: Send) -> Node | None:
    """Return the operation that a gather is for: the first that reads it; else what makes it."""
    if send.is_written:
        return send.node
    if send.source.made_by is not None and send.node.name != "sdy.all_gather":
        return send.node
    return next(_readers(send.result), None)


def _readers(value: Value) -> Iterator[Node]:
    for user in value.users:
        if not user.bodies and (user.info.view or user.name.startswith("sdy.")):
            yield from (node for result in user.results for node in _readers(result))
        else:
            yield user


def _place(send: Send, user: Node | None) -> steps.Place:
    """Return the user's line: where the array is needed, or else where it is made."""
    first = (node for node in (user, send.node, send.source.made_by) if node is not None)
    owners = (body.owner for body in send.node.body.outwards() if body.owner is not None)
    places = (node.where.place for node in (*first, *_readers(send.result), *owners))
    return next((place for place in places if place.is_known), steps.Place())


def _forced(send: Send, blame: blames.Blame) -> steps.Cause | None:
    """Return the constraint or the result that asks for a collective which no operation needs."""
    result = send.result
    if send.is_written or send.node.name == "sdy.all_reduce":
        return None
    axis = send.names[0]
    for constraint in blame.constraints.values():
        is_here = constraint.place == send.node.where.place
        if is_here and (constraint.split, constraint.shape) == (result.split, result.shape):
            return steps.Cause(axis, steps.CauseKind.CONSTRAINT, place=constraint.place)
    for reader in result.users:
        if reader.name == _MANUAL:
            return steps.Cause(axis, steps.CauseKind.CONSTRAINT, place=reader.where.place)
    if result.body is blame.graph.main and result.yielded:
        given = blame.given_back(result.yielded[0])
        return steps.Cause(axis, steps.CauseKind.RESULT, "" if given is None else given.path)
    return None


def _is_fixed(value: Value, loop: Body) -> bool:
    """Say whether a value is made without anything that a round of a loop changes."""
    if value.body is not loop:
        return value.body in loop.outwards()
    if value.made_by is None:
        turn = loop.owner.bodies[0] if loop.owner is not None else loop
        at = loop.arguments.index(value) if value in loop.arguments else -1
        return at >= 0 and turn.yields[at] is turn.arguments[at]
    node = value.made_by
    return not node.bodies and all(_is_fixed(each, loop) for each in node.operands)


def _unnamed(resolver: Resolving, found: Traced) -> Iterator[str]:
    """Yield that arrays of the spec were not taken for parameters, or that nothing was."""
    given = [each for each in found.arguments if each is not None]
    spec = Layouts(resolver).spec
    listed = {(each.path, each.shape) for each in spec.params}
    batches = [each for each in given if each.role == "batch"]
    missed = [each for each in batches if (each.path.partition("/")[2], each.shape) in listed]
    if missed:
        yield (
            f"{counted(len(missed), 'array')} of the spec, first `{missed[0].path}`, taken for a"
            " batch and split by the first dimension: names that `arrays` states are not those of"
            " code; write a pattern of `params`"
        )
    elif spec.path_rules and {each.role for each in given} == {"batch"}:
        yield (
            "no pattern of `params` matches what the function reads: all of it is taken for a"
            " batch, and split by its first dimension"
        )


def _cheaper_branches(graph: Graph, sends: Sequence[Send], notes: list[str]) -> Iterator[int]:
    """Yield the ticks of the branches that do not count: of each condition the dearest does."""
    sent: dict[int, float] = {}
    for send in sends:
        sent[send.node.at] = sent.get(send.node.at, 0) + send.wire_bytes * send.count
    for node in graph.nodes():
        if node.name in _BRANCHES and len(node.bodies) > 1:
            costs = [_cost(nodes_of(body), sent) for body in node.bodies]
            dearest = costs.index(max(costs))
            if max(costs)[:2] != min(costs)[:2]:
                notes.append(f"the condition at {node.where.place} counts with its dearer branch")
            for at, body in enumerate(node.bodies):
                if at != dearest:
                    yield from (inner.at for inner in nodes_of(body))


def _cost(nodes: Iterable[Node], sent: dict[int, float]) -> tuple[float, float, int]:
    found = list(nodes)
    wire = sum(sent.get(node.at, 0) for node in found)
    return wire, sum(flops_of(node) * node.count for node in found), len(found)


#: Operations that are linear in an operand where the other is made of something else.
_SCALES = frozenset(("stablehlo.multiply", "stablehlo.divide"))
#: How many values are looked at between a sum and its total.
_FAR = 300


def total_of(send: Send, fed: Mapping[int, int]) -> tuple[int, bool, tuple[str, ...]]:
    """Return the bytes of what a sum is only added to, on one device in a step; 0 if more is done.

    Of several loops around it, that is the total of the outermost that does no more. Where the
    step gives the total back, the caller is one more loop.

    Args:
      fed: the arguments of the function that its results take the place of in the next call.

    Returns:
      The bytes, whether the step gives the total back, and the axes that do not split the total.
    """
    if send.kind is not steps.CollectiveKind.ALL_REDUCE:
        return 0, False, ()
    bodies = [body for body in send.node.body.outwards() if body.is_loop or body.owner is None]
    for body in bodies[::-1]:
        total = _total(send.result, body, fed)
        if total is not None:
            axes = tuple(name for name in send.names if name not in total.axes)
            count = 1 if body.owner is None else body.owner.count
            return round(total.bytes * count) if axes else 0, body.owner is None, axes
    return 0, False, ()


def _total(value: Value, loop: Body, fed: Mapping[int, int]) -> Value | None:
    """Return what a loop carries from round to round as the total of a value; None for none."""
    seen: set[Value] = set()
    factors: set[Value] = set()
    totals: set[Value] = set()
    waiting = [value]
    while waiting and len(seen) < _FAR:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        later = _yielded(value, loop, fed)
        if later is None:
            return None
        if value.body is loop:
            totals.update(later)
        waiting += [each for each in later if each not in seen]
        for user in value.users:
            found = _onward(user, value)
            if found is None:
                return None
            factors.update(found[1])
            waiting += found[0]
    if waiting or not seen.isdisjoint(factors):
        return None
    return max(totals, key=lambda each: each.bytes, default=None)


def _onward(user: Node, value: Value) -> tuple[list[Value], list[Value]] | None:
    """Return what an operation makes of a value, and what it multiplies it by; None for no sum."""
    at = user.operands.index(value)
    if user.bodies:
        return [body.arguments[at] for body in user.bodies[:1] if at < len(body.arguments)], []
    if user.name == "stablehlo.optimization_barrier":
        return [user.results[at]], []
    if user.info.is_linear or user.name.startswith("sdy."):
        return user.results, []
    if user.name in _SCALES and (at == 0 or user.name == "stablehlo.multiply"):
        return user.results, user.operands[1:] if at == 0 else user.operands[:1]
    return None


def _yielded(value: Value, loop: Body, fed: Mapping[int, int]) -> list[Value] | None:
    """Return what a value is called in the next round of a loop, and behind inner ones.

    None where the caller is given a value, which no argument is in the next call.
    """
    body = value.body
    if body.owner is None:
        is_fed = all(at in fed for at in value.yielded)
        return [body.arguments[fed[at]] for at in value.yielded] if is_fed else None
    turned = [body.arguments[at] for at in value.yielded] if body.is_loop else []
    return turned if body is loop else turned + [body.owner.results[at] for at in value.yielded]
