"""Names of dimensions, as they flow through a traced program from the arrays that it is given.

Nothing is split here: it is about names alone, by which lines of `step:` say what a step computes.
A dimension is one or more atoms. Two dimensions that a product sums over together, or that are
added element by element, have the same atoms, and a reshape that cuts a dimension cuts its atom:
so `joined_kv` is `heads` and `kv` from there on, wherever it was before. An atom may have several
names, from the arrays that meet in it; the largest of them says what it is called.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardspec.ir.spec import LogicalAxis, Shape
from shardspec.jax_backend.step.graph import Body, Node, Value
from shardspec.jax_backend.step.ops import dimensions

#: In place of a name: a dimension that a constraint wants whole.
WHOLE = "_"


@dataclass(eq=False, slots=True)
class Atom:
    """A dimension, or a factor of one, wherever it goes.

    Attributes:
      same: what it turned out to be the same as.
      parts: those that it was cut into, major to minor.
      names: how many elements the arrays have that give it each name.
      whole: of a part of a dimension: the atoms of all of it.
      twin: the one that it is beside in one value, as positions of keys are to those of queries.
    """

    size: int
    same: Atom | None = None
    parts: tuple[Atom, ...] = ()
    names: Counter[str] = field(default_factory=Counter)
    whole: tuple[Atom, ...] = ()
    twin: Atom | None = None


class Dim(NamedTuple):
    """A dimension of a value; one of size 1 has no atoms.

    Attributes:
      label: the name that came with it; `_` where a constraint wants it whole.
    """

    atoms: tuple[Atom, ...]
    label: str | None = None


Dims = tuple[Dim, ...]


def root(atom: Atom) -> Atom:
    """Return the atom that stands for all that are the same."""
    while atom.same is not None:
        atom = atom.same
    return atom


def flat(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    """Return atoms by their parts."""
    found: list[Atom] = []
    for atom in map(root, atoms):
        found += flat(atom.parts) if atom.parts else (atom,)
    return tuple(found)


def all_atoms(dims: Dims) -> tuple[Atom, ...]:
    """Return the atoms of all dimensions."""
    return flat([atom for dim in dims for atom in dim.atoms])


class DimFlow:
    """The dimensions of every value that was asked for, or that an operation made."""

    def __init__(self, axes: Mapping[str, LogicalAxis]) -> None:
        """Take the logical axes of the spec, which say what is a product of what."""
        self.axes = axes
        self._known: dict[Value, Dims] = {}
        self._turns: dict[Body, Atom] = {}

    # dimensions

    def of(self, value: Value) -> Dims:
        """Return the dimensions of a value; constants have new ones wherever they are read."""
        found = self._known.get(value)
        if found is not None:
            return found
        if value.given is not None and value.given.shape == value.shape:
            return self.note(value, self.of(value.given))
        made = tuple(self.new(size) for size in value.shape)
        node = value.made_by
        is_constant = node is not None and node.info.is_constant and len(value.shape) < 2
        return made if is_constant else self.note(value, made)

    def note(self, value: Value, dims: Dims) -> Dims:
        """Note the dimensions of a value."""
        self._known[value] = dims
        return dims

    def new(self, size: int, label: str | None = None, whole: Sequence[Atom] = ()) -> Dim:
        """Return a dimension that is like no other."""
        return Dim((Atom(size, whole=tuple(whole)),) if size > 1 else (), label)

    def named(self, value: Value, labels: Sequence[str | None]) -> Dims:
        """Give a value these names; None leaves the one that came with a dimension."""
        dims = []
        for dim, label, size in zip(self.of(value), labels, value.shape, strict=True):
            if label not in (None, WHOLE):
                self._vote(dim.atoms, label, math.prod(value.shape))
            dims.append(Dim(dim.atoms, label or dim.label) if size > 1 or label else dim)
        return self.note(value, tuple(dims))

    def _vote(self, atoms: Sequence[Atom], name: str, weight: int) -> None:
        found = [root(atom) for atom in atoms]
        if len(found) == 1 and not found[0].parts:
            found[0].names[name] += weight
            return
        leaves = flat(found)
        factors = self.factors(name)
        if len(factors) == len(leaves):
            for atom, factor in zip(leaves, factors, strict=True):
                atom.names[factor] += weight

    def factors(self, name: str, depth: int = 0) -> tuple[str, ...]:
        """Return the axes that an axis is the product of; itself where it is none."""
        axis = self.axes.get(name)
        if axis is None or len(axis.factors) < 2 or depth > 8:
            return (name,)
        return tuple(part for each in axis.factors for part in self.factors(each, depth + 1))

    def join(self, one: Sequence[Atom], other: Sequence[Atom]) -> None:
        """Note that two dimensions are the same; the larger of two atoms is cut like the other."""
        left, right = [*flat(one)], [*flat(other)]
        while left and right:
            a, b = left.pop(0), right.pop(0)
            if a is b:
                continue
            if a.size == b.size:
                _unite(a, b)
                continue
            if a.size < b.size:
                left, right, a, b = right, left, b, a
            if a.size % b.size:
                return
            self._cut(a, b.size)
            left, right = [*flat([a]), *left], [b, *right]

    def _cut(self, atom: Atom, size: int) -> None:
        """Cut an atom into a major part of a size, and the rest."""
        atom.parts = (Atom(size), Atom(atom.size // size))
        for name, weight in atom.names.items():
            found = [(each, self.axes[each].size) for each in self.factors(name) if each != name]
            if found and found[0][1] == size:
                atom.parts[0].names[found[0][0]] += weight
                if len(found) == 2:
                    atom.parts[1].names[found[1][0]] += weight

    def is_turn(self, atom: Atom) -> bool:
        """Say whether an atom counts the rounds of a loop."""
        return any(root(turn) is root(atom) for turn in self._turns.values())

    # operations

    def node(self, node: Node) -> None:
        """Note the dimensions of the results of an operation."""
        act = _OPERATIONS.get(node.name)
        if act is not None:
            act(self, node)
            return
        for result in node.results if node.operands else ():
            self.note(result, self._alike(node, result))

    def _alike(self, node: Node, result: Value) -> Dims:
        """Return dimensions as those of the operands that have the shape of a result."""
        alike = [each for each in node.operands if each.shape == result.shape and result.shape]
        alike.sort(key=_is_spread)
        if not alike:
            near = [each for each in node.operands if len(each.shape) == len(result.shape)]
            return self._resized(near[0], result.shape) if near else self.of(result)
        dims = [self.of(each) for each in alike]
        for other in dims[1:]:
            for one, two in zip(dims[0], other, strict=True):
                self.join(one.atoms, two.atoms)
        return tuple(
            Dim(each[0].atoms, next((dim.label for dim in each if dim.label), None))
            for each in zip(*dims, strict=True)
        )

    def _resized(self, operand: Value, shape: Shape) -> Dims:
        """Return dimensions where some are only a part of those before, or more."""
        dims = zip(self.of(operand), operand.shape, shape, strict=True)
        return tuple(
            dim if was == now else self.new(now, dim.label, flat(dim.atoms))
            for dim, was, now in dims
        )

    def _same(self, node: Node) -> None:
        for operand, result in zip(node.operands, node.results, strict=False):
            self.note(result, self.of(operand))

    def _broadcast(self, node: Node) -> None:
        (operand,), result = node.operands, node.result
        places = [int(at) for at in node.op.attributes["broadcast_dimensions"]]
        dims = [self.new(size) for size in result.shape]
        for dim, at, size in zip(self.of(operand), places, operand.shape, strict=True):
            if size == result.shape[at]:
                dims[at] = dim
        self.note(result, tuple(dims))

    def _reshape(self, node: Node) -> None:
        self.note(node.result, self._reshaped(self.of(node.operands[0]), node.result.shape))

    def _reshaped(self, dims: Dims, shape: Shape) -> Dims:
        pool = list(all_atoms(dims))
        made: list[tuple[Atom, ...]] = []
        for size in shape:
            taken: list[Atom] = []
            left = size
            while left > 1 and pool:
                atom = pool.pop(0)
                if atom.size > left and atom.size % left == 0:
                    self._cut(atom, left)
                    pool[:0] = atom.parts
                    atom = pool.pop(0)
                if left % atom.size:
                    return tuple(self.new(size) for size in shape)
                taken.append(atom)
                left //= atom.size
            made.append(tuple(taken))
        return tuple(Dim(atoms, self._label(atoms, dims)) for atoms in made)

    def _label(self, atoms: tuple[Atom, ...], dims: Dims) -> str | None:
        """Return the name of atoms that are those of a dimension, a factor of it, or of several."""
        if not atoms:
            return None
        wanted: list[str] = []
        for dim in dims:
            own = flat(dim.atoms)
            if own == atoms:
                return dim.label
            if dim.label is None or not own:
                continue
            factors = self.factors(dim.label)
            if len(factors) == len(own) and len(atoms) == 1 and atoms[0] in own:
                return factors[own.index(atoms[0])]
            wanted += [dim.label] if set(own) <= set(atoms) else []
        return next(
            (n for n, axis in self.axes.items() if len(wanted) > 1 and [*axis.factors] == wanted),
            None,
        )

    def _transpose(self, node: Node) -> None:
        dims = self.of(node.operands[0])
        order = [int(at) for at in node.op.attributes["permutation"]]
        self.note(node.result, tuple(dims[at] for at in order))

    def _reduce(self, node: Node) -> None:
        gone = {int(at) for at in node.op.attributes["dimensions"]}
        for operand, result in zip(node.operands, node.results, strict=False):
            dims = self.of(operand)
            self.note(result, tuple(dim for at, dim in enumerate(dims) if at not in gone))

    def _slice(self, node: Node) -> None:
        operand, result = node.operands[0], node.result
        self._turn(node, operand, result.shape)
        self.note(result, self._resized(operand, result.shape))

    def _update(self, node: Node) -> None:
        whole, part = node.operands[:2]
        self._turn(node, whole, part.shape)
        for one, two in zip(self.of(whole), self.of(part), strict=True):
            if math.prod(a.size for a in one.atoms) == math.prod(a.size for a in two.atoms):
                self.join(one.atoms, two.atoms)
        self.note(node.result, self.of(whole))

    def _turn(self, node: Node, operand: Value, shape: Shape) -> None:
        """Note that a dimension counts the rounds of a loop: one of it is used in each."""
        loop = next((body for body in node.body.outwards() if body.is_loop), None)
        for dim, was, now in zip(self.of(operand), operand.shape, shape, strict=True):
            if now == 1 and loop is not None and was == loop.rounds and was > 1:
                self.join(dim.atoms, (self._turns.setdefault(loop, Atom(was)),))

    def _concatenate(self, node: Node) -> None:
        at = int(ir.IntegerAttr(node.op.attributes["dimension"]).value)
        dims = [self.of(operand) for operand in node.operands]
        for other in dims[1:]:
            for place, (one, two) in enumerate(zip(dims[0], other, strict=True)):
                if place != at:
                    self.join(one.atoms, two.atoms)
        size = node.result.shape[at]
        wholes = {flat([a for atom in flat(each[at].atoms) for a in atom.whole]) for each in dims}
        largest = max(dims, key=lambda each: math.prod(a.size for a in flat(each[at].atoms)))
        joint = self.new(size, largest[at].label)
        if len(wholes) == 1:
            (whole,) = wholes
            if whole and math.prod(atom.size for atom in whole) == size:
                joint = Dim(whole, largest[at].label)
        self.note(node.result, (*dims[0][:at], joint, *dims[0][at + 1 :]))

    def _dot(self, node: Node) -> None:
        left, right = (self.of(operand) for operand in node.operands[:2])
        summed, summed_right, batch, batch_right = dimensions(node)
        pairs = [*zip(summed, summed_right, strict=True), *zip(batch, batch_right, strict=True)]
        for one, two in pairs:
            self.join(left[one].atoms, right[two].atoms)
        used = set(all_atoms(left))
        made = [left[at] for at in batch]
        made += [dim for at, dim in enumerate(left) if at not in (*summed, *batch)]
        free = [dim for at, dim in enumerate(right) if at not in (*summed_right, *batch_right)]
        made += [self._beside(dim, used) for dim in free]
        self.note(node.result, _alone(made))

    def _beside(self, dim: Dim, used: set[Atom]) -> Dim:
        """Return a dimension with atoms of its own, where the other operand has the same."""
        atoms = flat(dim.atoms)
        if not any(atom in used for atom in atoms):
            return dim
        twins = [Atom(each.size, names=Counter(each.names), twin=each) for each in atoms]
        return Dim(tuple(twins), dim.label)

    def _gather(self, node: Node) -> None:
        numbers = stablehlo.GatherDimensionNumbers(node.op.attributes["dimension_numbers"])
        operand, index = (self.of(each) for each in node.operands[:2])
        sizes = [int(size) for size in node.op.attributes["slice_sizes"]]
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        inner = [
            dim if size == whole else self.new(size, dim.label, flat(dim.atoms))
            for at, (dim, size, whole) in enumerate(
                zip(operand, sizes, node.operands[0].shape, strict=True)
            )
            if at not in gone
        ]
        outer = [dim for at, dim in enumerate(index) if at != numbers.index_vector_dim]
        offsets = list(numbers.offset_dims)
        rank = len(node.result.shape)
        made = [inner.pop(0) if at in offsets else outer.pop(0) for at in range(rank)]
        self.note(node.result, tuple(made))

    def _convolution(self, node: Node) -> None:
        numbers = stablehlo.ConvDimensionNumbers(node.op.attributes["dimension_numbers"])
        image, kernel = (self.of(each) for each in node.operands[:2])
        features = image[numbers.input_feature_dimension]
        self.join(features.atoms, kernel[numbers.kernel_input_feature_dimension].atoms)
        made = {
            numbers.output_batch_dimension: image[numbers.input_batch_dimension],
            numbers.output_feature_dimension: kernel[numbers.kernel_output_feature_dimension],
        }
        places = zip(
            numbers.output_spatial_dimensions, numbers.input_spatial_dimensions, strict=True
        )
        for out, into in places:
            size, dim = node.result.shape[out], image[into]
            is_same = size == node.operands[0].shape[into]
            made[out] = dim if is_same else self.new(size, dim.label)
        self.note(node.result, tuple(made[at] for at in range(len(node.result.shape))))

    def _loop(self, node: Node) -> None:
        body = node.bodies[0]
        for held, given_back, result in zip(body.arguments, body.yields, node.results, strict=True):
            dims = self.of(held)
            if held.shape == given_back.shape:
                for one, two in zip(dims, self.of(given_back), strict=True):
                    self.join(one.atoms, two.atoms)
            self.note(result, dims)

    def _branch(self, node: Node) -> None:
        for at, result in enumerate(node.results):
            self.note(result, self.of(node.bodies[0].yields[at]))


def _unite(one: Atom, other: Atom) -> None:
    """Make one atom of two; those that lie beside each other in one value stay apart."""
    for a, b in ((one, other), (other, one)):
        if a.twin is not None and root(a.twin) is b:
            return
    other.same = one
    one.names.update(other.names)
    one.whole = one.whole or other.whole
    one.twin = one.twin or other.twin


def _alone(dims: Sequence[Dim]) -> Dims:
    """Return dimensions with those put back that no longer lie beside what they are like."""
    here = {atom for dim in dims for atom in flat(dim.atoms)}

    def back(atom: Atom) -> Atom:
        first = None if atom.twin is None else root(atom.twin)
        return atom if first is None or first in here or first.parts else first

    return tuple(Dim(tuple(map(back, flat(dim.atoms))), dim.label) for dim in dims)


def _is_spread(value: Value) -> bool:
    node = value.made_by
    return node is None or node.info.is_constant or node.name == "stablehlo.broadcast_in_dim"


_OPERATIONS: dict[str, Callable[[DimFlow, Node], Any]] = {
    "stablehlo.optimization_barrier": DimFlow._same,
    "stablehlo.dynamic_update_slice": DimFlow._update,
    "stablehlo.broadcast_in_dim": DimFlow._broadcast,
    "stablehlo.reshape": DimFlow._reshape,
    "stablehlo.transpose": DimFlow._transpose,
    "stablehlo.reduce": DimFlow._reduce,
    "stablehlo.slice": DimFlow._slice,
    "stablehlo.dynamic_slice": DimFlow._slice,
    "stablehlo.concatenate": DimFlow._concatenate,
    "stablehlo.dot_general": DimFlow._dot,
    "stablehlo.gather": DimFlow._gather,
    "stablehlo.convolution": DimFlow._convolution,
    "stablehlo.while": DimFlow._loop,
    "stablehlo.case": DimFlow._branch,
    "stablehlo.if": DimFlow._branch,
    "sdy.named_computation": DimFlow._branch,
}
