"""What a traced program computes, as lines of `step:` would say it, before they are spelt.

Told of are products and lookups of the forward pass. What lies between them element by element is
no value of its own: a norm of `residual` is `residual`, and what is added to it is one more part of
it. So values are streams, as they are in `step:`. What is worked out of a stream in another way (a
choice of experts, one token of all) is a line only where a product reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.ir.spec import DTYPE_BITS, Activation
from shardspec.jax_backend.step.graph import Body, Graph, Node, Value
from shardspec.jax_backend.step.ops import dimensions, flops_of
from shardspec.jax_backend.step.trace import Given, Layouts
from shardspec.jax_backend.step_lines.attention import join_attention
from shardspec.jax_backend.step_lines.dims import WHOLE, Dim, DimFlow, Dims, all_atoms, flat
from shardspec.jax_backend.step_lines.streams import (
    Derived,
    Row,
    Source,
    Stream,
    Weight,
    roots,
    united,
)
from shardspec.programs.op_names import constraint_names

_FLOATS = ("f", "bf")


@dataclass(frozen=True, slots=True)
class Rows:
    """The forward pass.

    Attributes:
      unwritten: operations that nothing is said of, with why.
    """

    rows: tuple[Row, ...]
    unwritten: tuple[tuple[Node, str], ...]


def rows_of(
    graph: Graph, arguments: Sequence[Given | None], layouts: Layouts, flow: DimFlow
) -> Rows:
    """Return the lines to be of the forward pass, in the order of the program."""
    walk = _Walk(layouts, flow)
    walk.arguments(graph, arguments)
    walk.body(graph.main)
    walk.rows.sort(key=lambda row: row.at)
    for row in walk.rows:
        row.reads = [(_in_round(each, flow), dims) for each, dims in row.reads]
    join_attention(walk.rows)
    return Rows(tuple(walk.rows), tuple(walk.unwritten))


class _Walk:
    def __init__(self, layouts: Layouts, flow: DimFlow) -> None:
        self.layouts = layouts
        self.flow = flow
        self.activations = {each.name: each for each in layouts.spec.activations}
        self.rows: list[Row] = []
        self.unwritten: list[tuple[Node, str]] = []
        self.sources: dict[Value, Source] = {}
        self.smooth: set[Value] = set()
        self.thin: set[Value] = set()
        self.counting: set[Value] = set()

    # what is given

    def arguments(self, graph: Graph, arguments: Sequence[Given | None]) -> None:
        for value, given in zip(graph.main.arguments, arguments, strict=True):
            if given is None or given.role in ("optimizer", "other") or not value.shape:
                continue
            labels: list[str | None] = [dim.logical_axis for dim in given.dims]
            parts = [] if given.role == "parameter" else given.path.split("/")
            own = next((self.activations[part] for part in parts if part in self.activations), None)
            if own is not None and len(own.logical_axes or ()) == len(value.shape):
                labels = list(own.logical_axes)
            if len(labels) == len(value.shape):
                self.flow.named(value, labels)
            dims = self.flow.of(value)
            if given.role == "parameter":
                self._note(value, Weight(given.path, dims), is_smooth=_is_float(value))
                continue
            name = given.path.replace("/", "_") if given.role == "cache" else given.path
            stream = Stream(dims, name.rpartition("/")[2], is_input=True)
            stream.is_cache = given.role == "cache"
            self._note(value, stream, is_smooth=_is_float(value))

    def _note(self, value: Value, source: Source | None, *, is_smooth: bool) -> None:
        if source is not None:
            self.sources[value] = source
        if is_smooth:
            self.smooth.add(value)

    def source(self, value: Value) -> Source | None:
        """Return what a value comes from; None for constants."""
        found = self.sources.get(value)
        if found is None and value.given is not None and value.body.is_loop:
            found = self.source(value.given)
            self._note(value, found, is_smooth=self.is_smooth(value.given))
            for marks in (self.thin, self.counting):
                if value.given in marks:
                    marks.add(value)
        return found.found() if isinstance(found, Stream) else found

    def is_smooth(self, value: Value) -> bool:
        """Say whether a value has a gradient by what it comes from."""
        return value in self.smooth

    # operations

    def body(self, body: Body) -> None:
        """Go through the forward pass of a body, and of the bodies in it."""
        for node in body.nodes:
            if node.phase != "forward" and not _has_forward(node):
                continue
            if node.name == "sdy.manual_computation":
                self.unwritten.append((node, "a `shard_map`, whose sizes are those of one device"))
            elif node.bodies:
                self._inside(node)
            self.flow.node(node)
            self._node(node)

    def _inside(self, node: Node) -> None:
        if node.name == "stablehlo.while":
            self.body(node.bodies[0])
        elif node.name in ("stablehlo.case", "stablehlo.if"):
            self.body(max(node.bodies, key=_work))
        else:
            for body in node.bodies:
                for held, given in zip(body.arguments, node.operands, strict=False):
                    self.flow.note(held, self.flow.of(given))
                    self._note(held, self.source(given), is_smooth=self.is_smooth(given))
                self.body(body)

    def _node(self, node: Node) -> None:
        if node.info.is_constant:
            if node.name == "stablehlo.iota":
                self.counting.add(node.result)
        elif node.name == "stablehlo.dot_general":
            self._product(node)
        elif node.name == "stablehlo.convolution":
            self._kernel(node, "op")
        elif node.name == "stablehlo.gather" and isinstance(self.source(node.operands[0]), Weight):
            self._lookup(node)
        elif node.name == "stablehlo.optimization_barrier":
            for operand, result in zip(node.operands, node.results, strict=True):
                self._form(operand, result)
        elif node.bodies:
            self._given_back(node)
        elif node.name == "sdy.sharding_constraint":
            self._constrained(node)
        elif node.info.view == "whole" or node.name == "stablehlo.broadcast_in_dim":
            self._form(node.operands[0], node.result, is_spread=node.info.view != "whole")
        elif node.name == "stablehlo.dynamic_update_slice":
            self._written_into(node)
        elif node.name == "stablehlo.custom_call" and (flops_of(node) or len(node.operands) > 2):
            self._kernel(node, "op")
        else:
            self._worked_out(node)

    def _form(self, operand: Value, result: Value, *, is_spread: bool = False) -> None:
        """Note another form of a value."""
        source = self.source(operand)
        is_smooth = self.is_smooth(operand) and _is_float(result)
        if is_spread and result.shape != operand.shape:
            kept = len(all_atoms(self.flow.of(operand))) < len(all_atoms(self.flow.of(result)))
            if kept:
                self.thin.add(result)
        if operand in self.thin:
            self.thin.add(result)
        if operand in self.counting:
            self.counting.add(result)
        is_rounded = DTYPE_BITS.get(result.dtype, 32) in (4, 8)  # of a product, and no choice
        if source is not None and self.is_smooth(operand) and not is_smooth and not is_rounded:
            source = self._derived(result, [source], is_smooth=False)
        self._note(result, source, is_smooth=is_smooth)

    def _worked_out(self, node: Node) -> None:
        """Note what an operation makes of what it reads, element by element or otherwise."""
        for result in node.results:
            is_smooth = _is_float(result) and any(map(self.is_smooth, node.operands))
            alike = [each for each in node.operands if each.shape == result.shape]
            if not alike or (node.info.is_known and not node.info.is_elementwise):
                source = self._other(node, result, is_smooth=is_smooth)
            else:
                source = self._elementwise(result, alike, is_smooth=is_smooth)
            self._note(result, source, is_smooth=is_smooth)

    def _other(self, node: Node, result: Value, *, is_smooth: bool) -> Source | None:
        """Return the source of what has other dimensions; all of a stream put back is that."""
        found = [source for each in node.operands if (source := self.source(each)) is not None]
        streams = {each for source in found for each in roots(source)}
        if node.name in ("stablehlo.slice", "stablehlo.dynamic_slice") and found:
            whole, part = all_atoms(self.flow.of(node.operands[0])), all_atoms(self.flow.of(result))
            gone = set(whole) - set(part)
            is_round = set(part) <= set(whole) and all(map(self.flow.is_turn, gone))
            if is_round or (isinstance(found[0], Weight) and set(part) < set(whole)):
                return found[0]
        if node.name == "stablehlo.concatenate" and len(streams) == 1:
            (one,) = streams
            if set(all_atoms(self.flow.of(result))) == set(all_atoms(one.dims)):
                return one
        return self._derived(result, found, is_smooth=is_smooth)

    def _derived(
        self, result: Value, found: Sequence[Source], *, is_smooth: bool
    ) -> Derived | Weight | None:
        given = dict.fromkeys(each for source in found for each in roots(source))
        if not given or result.made_by is None:
            return None
        return Derived(result.made_by, self.flow.of(result), tuple(given), is_smooth)

    def _elementwise(
        self, result: Value, operands: Sequence[Value], *, is_smooth: bool
    ) -> Source | None:
        known = [(each, source) for each in operands if (source := self.source(each)) is not None]
        full = [(each, source) for each, source in known if each not in self.thin]
        if not full:
            if all(each in self.counting for each in operands if self.source(each) is None):
                is_counted = any(each in self.counting for each in operands)
            else:
                is_counted = False
            sources = [source for _, source in known]
            if known and not is_counted and len(set(sources)) == 1:
                self.thin.add(result)
                return sources[0]
            if not known and any(each in self.counting for each in operands):
                self.counting.add(result)
            return self._derived(result, sources, is_smooth=is_smooth)
        return self._merged(result, full, [source for _, source in known], is_smooth=is_smooth)

    def _merged(
        self,
        result: Value,
        full: Sequence[tuple[Value, Source]],
        known: Sequence[Source],
        *,
        is_smooth: bool,
    ) -> Source | None:
        """Return the source of what is made of whole values, element by element."""
        smooth = [source for each, source in full if self.is_smooth(each)]
        streams = [source for source in smooth if isinstance(source, Stream)]
        if not is_smooth:
            alone = full[0][1]
            is_same = len(known) == 1 and not self.is_smooth(full[0][0])
            return alone if is_same else self._derived(result, known, is_smooth=False)
        if streams:
            first = streams[0]
            for other in streams[1:]:
                first = united(first, other)
            for part in smooth:
                apart = {each for each in roots(part) if isinstance(each, Stream)} - {first}
                if isinstance(part, Derived) and apart:
                    first = united(first, self.made(part) or first)
            return first
        derived = [source for source in smooth if isinstance(source, Derived)]
        if len(derived) == 1 and len(known) == 1:
            return derived[0]
        if derived or not smooth:
            return self._derived(result, known, is_smooth=is_smooth)
        return smooth[0]

    def _written_into(self, node: Node) -> None:
        into, part = node.operands[:2]
        source = self.source(into)
        is_smooth = self.is_smooth(part) or self.is_smooth(into)
        if source is None and (found := self.source(part)) is not None:
            source = self._derived(node.result, [found], is_smooth=is_smooth)
        self._note(node.result, source, is_smooth=is_smooth)

    def _given_back(self, node: Node) -> None:
        if node.name == "sdy.manual_computation":
            return
        body = node.bodies[0]
        if node.name in ("stablehlo.case", "stablehlo.if"):
            body = max(node.bodies, key=_work)
        for at, result in enumerate(node.results):
            last = body.yields[at]
            source = self.source(last)
            if node.name == "stablehlo.while":
                first = self.source(node.operands[at])
                if isinstance(first, Stream) and isinstance(source, Stream):
                    source = united(first, source)
                source = source or first
            self._note(result, source, is_smooth=self.is_smooth(last))

    def _constrained(self, node: Node) -> None:
        """Take names from a constraint; one that lies otherwise than another is a line."""
        operand, result = node.operands[0], node.result
        labels = self._asked(node)
        before = self.source(operand)
        self._form(operand, result)
        self.flow.note(result, self.flow.of(operand))
        if len(labels) != len(result.shape):
            return
        stream = self.made(before) if isinstance(before, Derived) else before
        dims = self.flow.named(result, labels)
        if not isinstance(stream, Stream):
            return
        name = self._name(constraint_names(node.where.name), labels)
        if stream.is_input and {None, WHOLE} & {*labels}:
            name = ""  # what is given has all its names where it is read first
        if stream.is_input and not stream.rows:
            stream.name = name or stream.name
            return
        if stream.is_constrained and _labels(stream.dims) != _labels(dims):
            moved = Stream(dims)
            self._add(Row("", [(stream, self.flow.of(operand))], dims, moved, node, node.at))
            stream = moved
        stream.dims, stream.is_constrained = dims, True
        if name and (stream.is_input or not stream.name):
            stream.name = name
        self._note(result, stream, is_smooth=self.is_smooth(operand))

    def _activation(self, name: str) -> Activation | None:
        entry = self.activations.get(name)
        is_named = entry is not None and entry.pattern is None and entry.partition is None
        return entry if is_named else None

    def _name(self, names: str, labels: Sequence[str | None]) -> str:
        """Return the activation that a constraint names, or the only one that has its names."""
        if self._activation(names):
            return names
        wanted = tuple(None if label == WHOLE else label for label in labels)
        alike = [n for n, each in self.activations.items() if each.logical_axes == wanted]
        return alike[0] if len(alike) == 1 and self._activation(alike[0]) else ""

    def _asked(self, node: Node) -> list[str | None]:
        """Return the names that a constraint gives to dimensions; None where it says nothing."""
        names, shape = constraint_names(node.where.name), node.result.shape
        entry = self._activation(names)
        if entry is not None:
            return [name or WHOLE for name in entry.logical_axes]
        dims = self.layouts.constrained(names, shape, node.result.split)
        if names or not dims:
            return [dim.logical_axis or WHOLE for dim in dims]
        return [
            dim.logical_axis or (None if axes or not self._is_split(old.label, size) else WHOLE)
            for dim, axes, old, size in zip(
                dims, node.result.split, self.flow.of(node.operands[0]), shape, strict=True
            )
        ]

    def _is_split(self, label: str | None, size: int) -> bool:
        """Say whether rules split a dimension of a name."""
        return label is not None and any(d.mesh_axes for d in self.layouts.dims(label, (size,)))

    # lines

    def _add(self, row: Row) -> None:
        row.result.rows.append(row)
        self.rows.append(row)

    def made(self, derived: Derived) -> Stream | None:
        """Return the stream that a derived value is, by a line that makes it."""
        if derived.made is not None:
            return derived.made.found()
        streams = [each.found() for each in derived.of if isinstance(each, Stream)]
        if not streams:
            return None
        lined = [each for each in streams if not each.is_input] if derived.is_smooth else streams
        source = (lined or streams)[0]
        derived.made = Stream(derived.dims)
        call = "" if derived.is_smooth else "route"
        self._add(
            Row(call, [(source, source.dims)], derived.dims, derived.made, derived.node,
                derived.node.at)
        )  # fmt: skip
        return derived.made

    def _read(self, value: Value) -> tuple[Stream | Weight, Dims]:
        """Return what a line reads for a value."""
        source = self.source(value)
        dims = self.flow.of(value)
        if isinstance(source, Derived):
            weights = [each for each in source.of if isinstance(each, Weight)]
            source = self.made(source) or weights[0]
        if source is None:
            source = Stream(dims, "given", is_input=True)
            self.sources[value] = source
        return source, dims

    def _product(self, node: Node) -> None:
        reads = [self._read(operand) for operand in node.operands[:2]]
        result = Stream(self.flow.of(node.result))
        summed, summed_right, batch, batch_right = dimensions(node)
        pairs = [*zip(summed, summed_right, strict=True), *zip(batch, batch_right, strict=True)]
        is_smooth = any(map(self.is_smooth, node.operands))
        if all(isinstance(each, Weight) for each, _ in reads):
            self._note(node.result, reads[0][0], is_smooth=is_smooth)
            self.unwritten.append((node, "a product of parameters alone"))
            return
        dims = self.flow.of(node.result)
        if isinstance(reads[0][0], Weight):  # as lines have it: of the value, then of the array
            count = len(node.operands[0].shape) - len(summed) - len(batch)
            first, last = len(batch), len(batch) + count
            result.dims = (*dims[:first], *dims[last:], *dims[first:last])
        flops = flops_of(node)
        self._add(Row("", reads, dims, result, node, node.at, tuple(pairs), flops, len(summed)))
        self._note(node.result, result, is_smooth=is_smooth)

    def _lookup(self, node: Node) -> None:
        table, index = node.operands[:2]
        source = self.source(table)
        assert isinstance(source, Weight)
        rows = self.source(index)
        if isinstance(rows, Derived):
            rows = next((each.found() for each in rows.of if isinstance(each, Stream)), None)
        is_smooth = self.is_smooth(table)
        if not isinstance(rows, Stream):
            made = Derived(node, self.flow.of(node.result), (source,), is_smooth)
            self._note(node.result, made, is_smooth=is_smooth)
            return
        result = Stream(self.flow.of(node.result))
        dims = self.flow.of(node.result)
        reads: list[tuple[Stream | Weight, Dims]] = [(rows, rows.dims), (source, source.dims)]
        self._add(Row("gather", reads, dims, result, node, node.at))
        self._note(node.result, result, is_smooth=is_smooth)

    def _kernel(self, node: Node, call: str) -> None:
        """Note an operation that no einsum says, with its FLOPs."""
        reads = [
            self._read(each)
            for each in node.operands
            if each.shape and not isinstance(self.source(each), type(None))
        ]
        is_smooth = any(map(self.is_smooth, node.operands))
        if not reads or all(isinstance(each, Weight) for each, _ in reads):
            return
        result = Stream(self.flow.of(node.result))
        row = Row(call, reads, self.flow.of(node.result), result, node, node.at)
        row.flops = flops_of(node)
        self._add(row)
        self._note(node.result, result, is_smooth=is_smooth)


def _in_round(source: Stream | Weight, flow: DimFlow) -> Stream | Weight:
    """Return an input with the dimensions that it has in a microbatch."""
    if isinstance(source, Stream) and source.is_input and not source.is_cache:
        dims = [(dim, [a for a in flat(dim.atoms) if not flow.is_turn(a)]) for dim in source.dims]
        source.dims = tuple(
            Dim(tuple(left), dim.label) for dim, left in dims if left or not dim.atoms
        )
    return source


def _has_forward(node: Node) -> bool:
    return any(
        each.phase == "forward" or _has_forward(each) for body in node.bodies for each in body.nodes
    )


def _work(body: Body) -> int:
    own = sum(flops_of(node) for node in body.nodes)
    return own + sum(_work(inner) for node in body.nodes for inner in node.bodies)


def _is_float(value: Value) -> bool:
    return value.dtype.startswith(_FLOATS)


def _labels(dims: Dims) -> list[str | None]:
    return [None if dim.label == WHOLE else dim.label for dim in dims if dim.atoms]
