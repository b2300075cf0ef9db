"""What the program of `step:` is made of: values and arrays by index, loops, operations.

None of it knows a mesh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shardspec.diagnostics import Diagnostic
from shardspec.ir.plan import ParamSharding
from shardspec.ir.program import Line, StepSpec
from shardspec.ir.spec import LogicalAxes, Param, Shape

OpName = Literal["einsum", "flash", "gather", "route", "view", "op", "stage"]


class Index(NamedTuple):
    """A dimension as an operation counts it; several of them may lie in one of an array."""

    name: str
    size: int


#: The indices of each dimension of something, major to minor.
View = tuple[tuple[Index, ...], ...]


@dataclass(eq=False, slots=True)
class Value:
    """Something that a line makes, or that the step is given.

    Attributes:
      names: by which rules place it; None is whole.
      view: by what lines know its dimensions.
      loop: the one that it is made in; None outside of all.
      base: what it is added to.
      maker: the operation that makes it; None for what is given.
      read_in: the loops that read it; 0 for lines outside of all.
      needs: all that it is made from, by way of others too.
      is_trained: whether a parameter that is trained has a part in it, so that it has a gradient.
      rounds: how many of it there are, one for each round of a loop: layers of a cache.
    """

    name: str
    names: LogicalAxes
    shape: Shape
    dtype: str
    view: View
    loop: Loop | None = None
    base: Value | None = None
    maker: Op | None = None
    needs: frozenset[int] = frozenset()
    read_in: set[int] = field(default_factory=set)
    is_trained: bool = False
    rounds: int = 1


@dataclass(eq=False, slots=True)
class Weight:
    """Arrays that are alike: one for each round of a loop, or all of its rounds in one.

    Attributes:
      arrays: in order of the rounds.
      kept: the dimensions that are no stacked axis.
      copies: how many each round uses: two for `wi_0` and `wi_1`.
    """

    arrays: tuple[ParamSharding, ...]
    kept: tuple[int, ...]
    copies: int = 1

    @property
    def first(self) -> ParamSharding:
        """Return the first of the arrays."""
        return self.arrays[0]

    @property
    def trained_share(self) -> float:
        """Return the share of the arrays that have gradients."""
        trained = sum(each.is_trained for each in self.arrays)
        return 1 if trained == len(self.arrays) else trained / len(self.arrays)

    @property
    def is_trained(self) -> bool:
        """Say whether any of them has a gradient."""
        return any(each.is_trained for each in self.arrays)

    @property
    def is_stacked(self) -> bool:
        """Say whether one array holds all rounds."""
        return len(self.kept) < self.first.param.rank

    @property
    def names(self) -> LogicalAxes:
        """Return the names of what a round uses."""
        return tuple(self.first.logical_axes[dim] for dim in self.kept)

    @property
    def shape(self) -> Shape:
        """Return the shape of what a round uses."""
        return tuple(self.first.param.shape[dim] for dim in self.kept)


@dataclass(eq=False, slots=True)
class Loop:
    """Lines that run once for each layer.

    Attributes:
      key: what tells it from others with as many rounds.
      is_unrolled: whether every round has arrays of its own.
      uses: how many rounds in a row use the same arrays.
    """

    rounds: int
    key: str
    is_unrolled: bool = True
    uses: int = 1


class Read(NamedTuple):
    """What an operation reads, and by which indices."""

    source: Value | Weight
    view: View

    @property
    def indices(self) -> tuple[Index, ...]:
        """Return the indices of all dimensions."""
        return tuple(index for dim in self.view for index in dim)


@dataclass(eq=False, slots=True)
class Op:
    """One operation of a round.

    Attributes:
      view: of the result.
      whole: indices that have to be whole where it runs, since a kernel goes over all of them.
      flops: on all devices each time it runs, with all its copies.
      passes: the loop of whose stages it is what comes in, or what goes out.
    """

    kind: OpName
    line: Line
    loop: Loop | None
    reads: tuple[Read, ...]
    result: Value
    view: View
    flops: int
    whole: frozenset[str] = frozenset()
    copies: int = 1
    passes: Loop | None = None
    weight: Weight | None = field(init=False)

    def __post_init__(self) -> None:
        found = (read.source for read in self.reads if isinstance(read.source, Weight))
        self.weight = next(found, None)

    @property
    def count(self) -> int:
        """Return how often it runs in a pass."""
        return self.loop.rounds if self.loop is not None else 1


@dataclass(frozen=True, slots=True)
class Flow:
    """The program of a step.

    Attributes:
      inputs: what the step is given besides parameters.
      faults: lines that cannot be.
      used: the paths of the arrays that some line reads.
      experts: the names of the dimensions of experts that tokens go to.
      slots: the names of what an expert takes of a group, and `load` how many even shares that is.
      microbatches: of a step; in a pipeline they are a dimension of what is outside of its loops.
    """

    step: StepSpec
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    faults: tuple[Diagnostic, ...]
    used: frozenset[str]
    sizes: dict[str, int] = field(repr=False)
    tokens: int | None = None
    microbatches: int = 1
    experts: frozenset[str] = frozenset({"expert"})
    slots: frozenset[str] = frozenset()
    load: float = 1.0

    @property
    def passes(self) -> int:
        """Return how often the whole program runs in a step, a microbatch each time."""
        return 1 if self.step.is_buffered else self.microbatches

    @property
    def remats_stages(self) -> bool:
        """Say whether stages of a pipeline keep what comes into them, and nothing else."""
        return self.step.pipeline is not None and self.step.remat == ("stages",)

    def is_index(self, value: Value) -> bool:
        """Say whether an input is looked up by: token ids, and what routes go by."""
        lookups = (op.reads[0] for op in self.ops if op.kind in ("gather", "route"))
        return any(read.source is value for read in lookups)

    def keeps(self, value: Value) -> bool:
        """Say whether the backward pass has a result as the forward pass made it."""
        remat = self.step.remat
        if value.loop is None or remat == ("none",):
            return True
        if remat == ("dots",):
            return value.maker is not None and value.maker.kind == "einsum"
        return value.name in remat

    def is_one_of(self, caches: Sequence[Param], value: Value) -> bool:
        """Say whether an input is one of these caches: attended to, or named as one of them."""
        reads = (read for op in self.ops if op.kind == "flash" for read in op.reads[1:])
        is_attended = any(read.source is value for read in reads)
        names = (set(cache.logical_axes or ()) for cache in caches)
        return bool(caches) and (is_attended or any(set(value.names) <= own for own in names))


#: Experts with arrays of their own: no token goes through all of them, as through a layer.
APART = re.compile(r"experts?[./_][0-9]+")


def mark_trained(ops: Sequence[Op]) -> None:
    """Mark what parameters have a part in: from the second round on, what a loop carries, too."""
    for _ in range(2):
        for op in ops:
            result, sources = op.result, [read.source for read in op.reads]
            sources += [result.base] if result.base is not None else []
            result.is_trained |= op.kind != "route" and any(source.is_trained for source in sources)
            base = result.base
            if base is not None and op.loop is not None and base.loop is not op.loop:
                base.is_trained |= result.is_trained
