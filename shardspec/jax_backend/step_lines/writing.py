"""`step:` of a function that was traced: lines by the names of what flows through it.

Lines of the backward pass are not written, since they follow from those of the forward pass; nor
is the update. What layers keep is read off what the backward pass does again. Layers that a scan
goes through are one line each anyway; those that Python repeats are found by what repeats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardspec.ir.step import Place
from shardspec.jax_backend.step.graph import Body, Graph, Node, count_rounds, graph_of
from shardspec.jax_backend.step.ops import set_phases
from shardspec.jax_backend.step.passes import copy_of, prepared
from shardspec.jax_backend.step.trace import Given, Layouts, Resolving, Traced
from shardspec.jax_backend.step_lines.dims import DimFlow
from shardspec.jax_backend.step_lines.naming import Naming
from shardspec.jax_backend.step_lines.rows import Rows, rows_of
from shardspec.jax_backend.step_lines.spelling import Entry, Spelling, first_read, used
from shardspec.jax_backend.step_lines.streams import Stream

#: As many lines as a repeated layer has at the most.
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step as the spec would state it.

    Attributes:
      fields: of `step:`, as YAML has them.
      unwritten: what no line says, with its place.
    """

    fields: dict[str, Any]
    unwritten: tuple[tuple[Place, str], ...]


def written_step(resolver: Resolving, found: Traced, paths: Sequence[str] = ()) -> WrittenStep:
    """Return the lines of `step:` that say what a traced function computes.

    Args:
      paths: of the arrays that the spec lists, which may have `params/` before those of the code.
    """
    found = replace(found, arguments=tuple(_by_path(found.arguments, paths)))
    module = copy_of(found.module)
    prepared(module)
    graph = graph_of(module, resolver.target.mesh.sizes)
    set_phases(graph)
    count_rounds(graph)
    layouts = Layouts(resolver)
    flow = DimFlow({axis.name: axis for axis in layouts.spec.logical_axes})
    rows = rows_of(graph, found.arguments, layouts, flow)
    return _Writing(layouts, graph, flow, rows, found).step()


def _by_path(arguments: Sequence[Given | None], paths: Sequence[str]) -> Iterator[Given | None]:
    """Yield what the function is given, parameters by the paths that the spec has for them."""
    known = frozenset(paths)
    heads = {path.partition("/")[0] for path in paths}
    for each in arguments:
        if each is None or each.role != "parameter" or each.path in known:
            yield each
            continue
        inner = each.path.partition("/")[2]
        longer = (f"{head}/{each.path}" for head in sorted(heads))
        yield replace(each, path=next((p for p in (*longer, inner) if p in known), each.path))


class _Writing:
    def __init__(
        self, layouts: Layouts, graph: Graph, flow: DimFlow, rows: Rows, found: Traced
    ) -> None:
        self.spec = layouts.spec
        self.graph = graph
        self.rows = rows.rows
        self.unwritten = [(node.where.place, why) for node, why in rows.unwritten]
        self.outer = _microbatches(graph)
        self.micro = round(math.prod(body.rounds for body in self.outer))
        sizes = {axis.name: axis.size for axis in self.spec.logical_axes if axis.size is not None}
        self.tokens = self._tokens(sizes, flow)
        given = (each for each in found.arguments if each is not None)
        paths = {each.path for each in given if each.role == "parameter"}
        self.naming = Naming(flow, sizes)
        self.spelling = Spelling(self.spec, self.naming, sorted(paths))
        self.stacked = {"layers", "layer", "stage"}
        self.stacked |= {name for scan in self.spec.scans for name, _ in scan.axes}

    def _tokens(self, sizes: dict[str, int], flow: DimFlow) -> int | None:
        """Return the tokens of a step where `axes` say others; set the batch to that of a line."""
        stated = sizes.get("batch")
        found: Counter[int] = Counter()
        for row in self.rows:
            for dim in row.result.found().dims:
                called = dim.label if dim.label not in (None, "_") else None
                if "batch" in (called, None) and dim.atoms:
                    leaves = [atom for atom in dim.atoms if atom.names.get("batch")]
                    if called or leaves:
                        found[math.prod(atom.size for atom in dim.atoms)] += 1
        if not found:
            return None
        batch = found.most_common(1)[0][0]
        if stated is not None and stated // self.micro == batch:
            sizes["batch"] = batch
            return None
        if stated is None and "length" not in sizes:
            return None
        sizes["batch"] = batch
        return batch * self.micro * sizes.get("length", 1)

    def step(self) -> WrittenStep:
        """Return the whole section."""
        self.naming.name_all(self.rows, self.spelling.activations)
        entries = [self.spelling.entry(row) for row in self.rows]
        blocks = _blocks(_side_by_side(entries))
        is_training = any(each.phase == "backward" for each in self._products())
        flows = [row for row in self.rows if row.call == "flash"]
        fields: dict[str, Any] = {} if is_training else {"mode": "serve"}
        if self.tokens is not None:
            fields["tokens"] = self.tokens
        if self.micro > 1:
            fields["microbatches"] = self.micro
        remat = self._remat(blocks) if is_training else []
        if remat:
            fields["remat"] = remat[0] if len(remat) == 1 else remat
        if (dtype := self._dtype()) != "bf16":
            fields["dtype"] = dtype
        if flows:
            fields["attention"] = "einsum"
        fields["program"] = [self._line(each, block) for block in blocks for each in block]
        return WrittenStep(fields, tuple(self.unwritten))

    def _products(self) -> list[Node]:
        return [node for node in self.graph.nodes() if node.name == "stablehlo.dot_general"]

    def _dtype(self) -> str:
        kinds: Counter[str] = Counter()
        for row in self.rows:
            if row.node.operands and row.flops:
                kinds[row.node.operands[0].dtype] += row.flops
        return kinds.most_common(1)[0][0] if kinds else "bf16"

    # what is kept

    def _remat(self, blocks: Sequence[list[Entry]]) -> list[str]:
        """Return what the layers keep: `full`, `dots`, the names of results; none for all."""
        again = {_signature(node) for node in self._products() if node.phase == "remat"}
        if not again:
            is_redone = any(node.phase == "remat" for node in self.graph.nodes())
            return ["dots"] if is_redone else []
        missing = []
        for block in blocks:
            for at, entry in enumerate(block):
                row = entry.rows[0]
                later = {s for each in block[at + 1 :] for s in _read_by(each)}
                is_needed = row.result.found() in later and row.call in ("", "flash")
                is_layer = self._turns(block) > 1 and (row.pairs or row.call)
                own = {_signature(each.node) for each in entry.rows}
                if is_layer and is_needed and not own & again:
                    missing.append(self.naming.name(row.result))
        return list(dict.fromkeys(missing)) or ["full"]

    # lines

    def _turns(self, block: Sequence[Entry]) -> int:
        """Return how often a block runs in a microbatch."""
        return max(self._runs(each) for each in block)

    def _runs(self, entry: Entry) -> int:
        return round(sum(row.node.count for row in entry.rows) / self.micro / entry.width)

    def _line(self, entry: Entry, block: Sequence[Entry]) -> str:
        if not entry.paths:
            return first_read(entry.before + entry.after) + self._times(entry, block)
        pattern = self.spelling.pattern(entry.paths)
        line = first_read(f'{entry.before}"{pattern}"{entry.after}')
        return line + self._uses(entry)

    def _times(self, entry: Entry, block: Sequence[Entry]) -> str:
        """Return ` x 24` behind a line that neither reads an array, nor what its loop makes."""
        runs = self._runs(entry)
        made = {each.rows[0].result.found() for each in block[: block.index(entry)]}
        is_open = any(stream in made for stream in _read_by(entry))
        return "" if runs == 1 or is_open else f" x {runs}"

    def _uses(self, entry: Entry) -> str:
        """Return ` x 128` where every array is used more than once in its layer."""
        row = entry.rows[0]
        weight = row.weight
        assert weight is not None
        gone = [dim for dim in weight.dims if dim not in used(row, weight)]
        for dim in gone:
            if dim.atoms and dim.label not in self.stacked:
                what = f"a slice of {weight.path}, whose dimension no `scan:` says is one of layers"
                self.unwritten.append((row.node.where.place, what))
        rounds = math.prod(atom.size for dim in gone for atom in dim.atoms)
        uses = self._runs(entry) * entry.width / (len(set(entry.paths)) * rounds)
        return f" x {round(uses)}" if uses >= 2 else ""


def _read_by(entry: Entry) -> list[Stream]:
    return [each.found() for each, _ in entry.rows[0].reads if isinstance(each, Stream)]


def _signature(node: Node) -> tuple[object, ...]:
    """Return what a product has in common with the one that does it again."""
    place = node.where.place
    shapes = sorted(operand.shape for operand in node.operands)
    return (place.file, place.line, *shapes, node.result.shape)


def _microbatches(graph: Graph) -> list[Body]:
    """Return the loops that go forward and backward in every round."""
    found = []
    for node in graph.nodes():
        if node.name == "stablehlo.while":
            phases = {each.phase for each in _products_in(node.bodies[0])}
            if "forward" in phases and "backward" in phases:
                found.append(node.bodies[0])
    return found


def _products_in(body: Body) -> list[Node]:
    own = [node for node in body.nodes if node.name == "stablehlo.dot_general"]
    return own + [
        each for node in body.nodes for inner in node.bodies for each in _products_in(inner)
    ]


def _side_by_side(entries: Sequence[Entry]) -> list[Entry]:
    """Join lines that differ in their arrays alone, and write one value: branches of a gate."""
    found: list[Entry] = []
    for entry in entries:
        last = found[-1] if found else None
        if last is not None and entry.paths and last.paths and _is_beside(last, entry):
            last.paths += entry.paths
            last.rows += entry.rows
            last.width += 1
        else:
            found.append(entry)
    return found


def _is_beside(one: Entry, other: Entry) -> bool:
    texts = (one.before, one.after) == (other.before, other.after)
    return texts and one.rows[0].result.found() is other.rows[0].result.found()


def _blocks(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the lines by the loops that they stand in; of layers that repeat, of the first."""
    keys = [entry.key for entry in entries]
    blocks: list[list[Entry]] = []
    at = 0
    while at < len(entries):
        size, turns = _repeats(keys, at)
        block = list(entries[at : at + size])
        for turn in range(1, turns):
            for place, entry in enumerate(block):
                again = entries[at + turn * size + place]
                entry.paths += again.paths
                entry.rows += again.rows
        same = blocks and turns == 1 and _loop(blocks[-1][0]) is _loop(block[0])
        if same and len(blocks[-1][0].rows) == blocks[-1][0].width:
            blocks[-1] += block
        else:
            blocks.append(block)
        at += size * turns
    return blocks


def _loop(entry: Entry) -> Body | None:
    return next((body for body in entry.rows[0].body.outwards() if body.is_loop), None)


def _repeats(keys: Sequence[object], at: int) -> tuple[int, int]:
    """Return how many lines from here on are repeated, and how often they are there."""
    for size in range(1, min(_LONGEST, (len(keys) - at) // 2) + 1):
        if keys[at] != keys[at + size]:
            continue
        turns = 1
        block = keys[at : at + size]
        while keys[at + turns * size : at + (turns + 1) * size] == block:
            turns += 1
        if turns > 1:
            return size, turns
    return 1, 1
