"""Values of a traced program as `step:` has them, and the lines that make them, before spelling."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardspec.jax_backend.step.graph import Body, Node
from shardspec.jax_backend.step_lines.dims import Dims


@dataclass(eq=False, slots=True)
class Stream:
    """A value of `step:`: all that is written under one name, one after the other.

    Attributes:
      same: the one that it turned out to be the same as.
      name: of the activation that a constraint says it is; of an input, what it is called.
      dims: of its first value, or of what is constrained.
      rows: those that write it; none of an input.
      is_constrained: whether `dims` are those that a constraint wants.
    """

    dims: Dims
    name: str = ""
    same: Stream | None = None
    rows: list[Row] = field(default_factory=list)
    is_constrained: bool = False
    is_input: bool = False
    is_cache: bool = False

    def found(self) -> Stream:
        """Return the one that stands for all that are the same."""
        stream = self
        while stream.same is not None:
            stream = stream.same
        return stream


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A parameter, as the function is given it.

    Attributes:
      dims: with the names that the spec gives it.
    """

    path: str
    dims: Dims


@dataclass(eq=False, slots=True)
class Derived:
    """A value that is worked out of others, and which no line makes so far.

    Attributes:
      of: what it is worked out of.
      is_smooth: whether it has a gradient by them.
      made: the stream of the line that makes it, once something needs that.
    """

    node: Node
    dims: Dims
    of: tuple[Stream | Weight, ...]
    is_smooth: bool
    made: Stream | None = None


Source = Stream | Weight | Derived


@dataclass(slots=True, eq=False)
class Row:
    """A line to be: what it reads, and what it makes.

    Attributes:
      call: `gather`, `route`, `op`, `flash` or nothing, as lines have it.
      reads: each with the dimensions that it has where it is read.
      pairs: the dimensions of the two that a product counts together, those first that it sums.
      summed: how many of them it sums over.
      at: the tick of its operation.
      flops: on all devices, each time.
    """

    call: str
    reads: list[tuple[Stream | Weight, Dims]]
    dims: Dims
    result: Stream
    node: Node
    at: int
    pairs: tuple[tuple[int, int], ...] = ()
    flops: int = 0
    summed: int = 0

    @property
    def weight(self) -> Weight | None:
        """Return the array that it reads."""
        return next((each for each, _ in self.reads if isinstance(each, Weight)), None)

    @property
    def body(self) -> Body:
        """Return what it stands in."""
        return self.node.body


def roots(source: Source) -> tuple[Stream | Weight, ...]:
    """Return the streams and arrays that a value comes from."""
    if isinstance(source, Derived):
        found = source.of if source.made is None else (*source.of, source.made)
        return tuple(each.found() if isinstance(each, Stream) else each for each in found)
    return (source.found(),) if isinstance(source, Stream) else (source,)


def united(one: Stream, other: Stream) -> Stream:
    """Return one stream for two that are written into each other."""
    one, other = one.found(), other.found()
    if one is other:
        return one
    for given, made in ((one, other), (other, one)):
        if given.is_input and (made.is_input or not _comes_from(made, given)):
            return made
    if other.is_constrained and not one.is_constrained:
        one, other = other, one
    other.same = one
    one.name = one.name or other.name
    one.is_input |= other.is_input
    one.rows += other.rows
    return one


def _comes_from(stream: Stream, given: Stream) -> bool:
    """Say whether a value is made of another, by way of others too."""
    seen: set[Stream] = set()
    waiting = [stream]
    while waiting:
        one = waiting.pop()
        if one is given:
            return True
        if one not in seen:
            seen.add(one)
            reads = (read for row in one.rows for read, _ in row.reads)
            waiting += [read.found() for read in reads if isinstance(read, Stream)]
    return False
