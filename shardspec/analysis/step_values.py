"""What the program of `step:` is made of: values and arrays by index, loops, operations.

None of it knows a mesh. Here is how large dimensions are and what the operands of a line have to
agree on; what attention calls its dimensions (heads, their width, positions of queries and keys);
and what words stand for that are several operations.

**Experts that have slots**, `dispatch(...)` and `combine(...)`.
Tokens are multiplied with a mask `[batch length expert slot]` that says which of them goes where,
so that those of a device are sorted by experts; then what goes to the experts of a device travels
there. What these make comes back, and is added up by the weights of the choice. Without drops,
tokens are sorted by index: the mask is one number a token, and its products have no FLOPs.

Source: GShard (arXiv 2006.16668), section 2.2; MaxText, layers/moe.py, with dropped tokens.

**A pipeline**: layers in stages, and what goes from one stage to the next. Stages
that are programs of their own (`ir.step.Stages`) each go through the microbatches as a step
without a pipeline does. Under `gpipe` they are one program, and a value moves between them: all
stages run at once, each on a microbatch of its own, and then every microbatch goes on to the
next stage. So with `stages` of them it takes `microbatches` + `stages` - 1 turns until the last is
through, and each stage works for nothing in `stages` - 1 of these. What is before the first stage
and behind the last is computed for all microbatches at once.

Source: GPipe (arXiv 1811.06965), section 2; the schedule is that of MaxText (layers/pipeline.py)
and Praxis without repeats: a buffer `[stage batch length embed]` that moves by one place, where
microbatches that lie on stages move to meet it, and its results back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from shardspec.diagnostics import Diagnostic, Span, codes, point, quote
from shardspec.diagnostics.words import listed
from shardspec.ir.plan import ParamSharding
from shardspec.ir.program import Line, Product, StepSpec, Term, TermDim
from shardspec.ir.spec import LogicalAxes, LogicalAxis, Param, Shape, axis_of
from shardspec.ir.step import Place

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
      view: by its own dimensions.
      is_trained: whether any of them has a gradient; `trained_share` how many of them have.
    """

    arrays: tuple[ParamSharding, ...]
    kept: tuple[int, ...]
    copies: int = 1
    view: View = field(init=False)
    is_trained: bool = field(init=False)
    trained_share: float = field(init=False)

    def __post_init__(self) -> None:
        self.view = tuple((Index(f"{at}", size),) for at, size in enumerate(self.shape))
        trained = sum(each.is_trained for each in self.arrays)
        self.is_trained = trained > 0
        self.trained_share = 1 if trained == len(self.arrays) else trained / len(self.arrays)

    @property
    def first(self) -> ParamSharding:
        """Return the first of the arrays."""
        return self.arrays[0]

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


def place_of(span: Span | None) -> Place:
    """Return the line of a program."""
    return Place() if span is None else Place(span.source.name, span.line)


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
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        self.place = place_of(self.line.span)
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


@lru_cache(maxsize=1 << 10)
def indices_of(views: tuple[View, ...]) -> dict[str, int]:
    """Return the sizes of all indices, by name."""
    return {index.name: index.size for view in views for dim in view for index in dim}


@lru_cache(maxsize=1 << 10)
def letters_of(views: tuple[View, ...], view: View) -> str:
    """Return an einsum by letter: `abc,cd->abd`."""
    names: dict[str, str] = {}

    def spelt(one: View) -> str:
        found = (index.name for dim in one for index in dim)
        return "".join(names.setdefault(name, chr(97 + len(names) % 26)) for name in found)

    left = ",".join(map(spelt, views))
    return f"{left}->{spelt(view)}"


#: What tells positions from heads in attention.
_POSITIONS = ("length", "seq", "pos", "token", "patch")


def roles(query: Read, key: Read) -> tuple[str, dict[str, str]] | None:
    """Return the index of the positions of keys, and what other indices of keys are.

    None where it is not plain which of them are positions.
    """
    asked, held = query.indices, key.indices
    own = [i.name for i in held if i.name not in {j.name for j in asked}]
    left = [i.name for i in asked if i.name not in {j.name for j in held}]
    found = next((name for name in own if is_position(name)), None)
    if found is None and len(own) > len(left):
        found = own[0]
    if found is None and len(own) == len(left):  # in cross-attention each has positions of its own
        found = next((o for o, asks in zip(own, left, strict=True) if is_position(asks)), None)
    if found is None:
        shared = [i.name for i in held if i.name not in own and is_position(i.name)]
        if not shared:
            return None
        found = f"{shared[0]}'"
        aliases = {shared[0]: found}
        left = [name for name in left if name != shared[0]]
    else:
        aliases = {}
        positions = [name for name in left if is_position(name)] or left[:1]
        left = [name for name in left if name not in positions[:1]]
    heads = [name for name in own if name != found]
    aliases |= dict(zip(heads, left, strict=False))
    return found, aliases


def headed(view: View, units: dict[str, int]) -> View:
    """Return a view in which heads that lie side by side are an index of their own."""

    def apart(index: Index) -> tuple[Index, ...]:
        unit = units.get(index.name, 1)
        if unit <= 1 or index.size % unit or index.size == unit:
            return (index,)
        return Index(f"{index.name}'", index.size // unit), Index(f"{index.name}/unit", unit)

    return tuple(tuple(part for index in dim for part in apart(index)) for dim in view)


def is_position(name: str) -> bool:
    """Say whether a name is one of positions."""
    return any(word in name for word in _POSITIONS)


def aliased(view: View, aliases: dict[str, str]) -> View:
    """Return a view whose indices have other names."""
    return tuple(tuple(Index(aliases.get(i.name, i.name), i.size) for i in dim) for dim in view)


def flat(value: Value, indices: Sequence[Index]) -> View:
    """Return the view of a value, by the indices of the query where the shapes agree."""
    found, left = [], list(indices)
    for size in value.shape:
        inner = [left.pop(0)] if left else []
        while left and math.prod(index.size for index in inner) < size:
            inner.append(left.pop(0))
        found.append(tuple(inner))
    is_same = [math.prod(i.size for i in dim) for dim in found] == [*value.shape]
    return tuple(found) if is_same and not left else value.view


#: What a product by index computes: it only moves tokens.
_NO_FLOPS = (Product((0,)),)


class Slots(NamedTuple):
    """The names of a dispatch.

    Attributes:
      expert: of the dimension of experts, in the result.
      slot: of the dimension of what an expert takes of a group.
      position: of the tokens of a group.
      scored: what the scores call the experts.
      is_dropless: whether tokens are sorted by expert.
      tokens: the dimensions of what is dispatched.
    """

    expert: str
    slot: str
    position: str
    scored: str
    is_dropless: bool = False
    tokens: tuple[TermDim, ...] = ()


def slots_of(
    tokens: LogicalAxes, routing: LogicalAxes, result: Sequence[str | None]
) -> Slots | str:
    """Return what a dispatch calls its dimensions, or what is wrong with its result.

    >>> slots_of(
    ...     ("batch", "length", "embed"),
    ...     ("batch", "length", "router"),
    ...     ["expert", "batch", "slot", "embed"],
    ... )[:4]
    ('expert', 'slot', 'length', 'router')
    """
    new = [name for name in result if name is not None and name not in tokens]
    positions = [name for name in routing if name in tokens and name not in result]
    scored = [name for name in routing if name is not None and name not in tokens]
    if len(new) != 2 or None in result:
        return "needs two names that the tokens have not, of experts and of their slots"
    if len(positions) != 1 or positions[0] is None:
        return "has to leave out one name of the tokens, that of their positions"
    if len(scored) != 1:
        return "goes by scores that need one name the tokens have not, that of experts"
    return Slots(new[0], new[1], positions[0], scored[0])


def dispatched(
    line: Line, routing: Sequence[TermDim], result: tuple[TermDim, ...], slots: Slots
) -> tuple[Line, ...]:
    """Return the choice and its weights, what leaves a device by experts, and what arrives."""
    source, scores = line.operands
    mask = Term("dispatch", "value", _mask(routing, slots), scores.span)
    leaving = Term("leaving", "value", result, line.results[0].span)
    arrived = replace(line.results[0], dims=result)
    return (
        Line("route", (scores,), (mask,), span=line.span),
        Line("", (scores,), (replace(mask, text="combine"),), span=line.span),
        Line("", (source, _bare(mask)), (leaving,), _flops(slots), span=line.span),
        Line("", (_bare(leaving),), (arrived,), span=line.span),
    )


def combined(line: Line, made: Sequence[TermDim], slots: Slots) -> tuple[Line, ...]:
    """Return what comes back from experts, and its sum by the weights of the choice."""
    source, scores = line.operands
    dims = (_whole(known_as(dim)) if known_as(dim) == slots.expert else dim for dim in made)
    returned = Term("returned", "value", tuple(dims), source.span)
    weights = Term("combine", "value", None, scores.span)
    return (
        Line("", (source,), (returned,), span=line.span),
        Line("", (_bare(returned), weights), line.results, _flops(slots), span=line.span),
    )


def known_as(dim: TermDim) -> str | None:
    """Return the name that a line knows a dimension by."""
    return dim.alias or dim.name


def _flops(slots: Slots) -> tuple[Product, ...]:
    return _NO_FLOPS if slots.is_dropless else ()


def _mask(routing: Sequence[TermDim], slots: Slots) -> tuple[TermDim, ...]:
    size = 1 if slots.is_dropless else None
    dims = (_whole(slots.expert, size) if known_as(dim) == slots.scored else dim for dim in routing)
    return (*dims, _whole(slots.slot, 1) if size else TermDim(slots.slot))


def _whole(name: str | None, size: int | None = None) -> TermDim:
    """Return a dimension that no rule splits."""
    return TermDim(None, name, size)


def _bare(term: Term) -> Term:
    return Term(term.text, "value", None, term.span)


#: What a dimension of microbatches is called; a rule for it may put them on the stages.
MICROBATCH = "microbatch"


def turns(microbatches: int, stages: int) -> int:
    """Return how often every stage runs.

    >>> turns(8, 4), turns(8, 1)
    (11, 8)
    """
    return microbatches + stages - 1


def counted(step: StepSpec, sizes: Mapping[str, int]) -> tuple[int, int | None]:
    """Return the microbatches of a step, and the sequences of one; None where they are not known.

    With an axis `microbatch`, `batch` is that of one microbatch already.
    """
    count, whole, own = step.microbatches, sequences(step, sizes), _in_flight(step, sizes)
    if own > 1:
        count = count if count > 1 else own
    return count, None if whole is None else max(1, whole // count)


def sequences(step: StepSpec, sizes: Mapping[str, int]) -> int | None:
    """Return the sequences of a step in all of its microbatches; None where they are not known."""
    batch = sizes.get("batch")
    return None if batch is None else batch * _in_flight(step, sizes)


def _in_flight(step: StepSpec, sizes: Mapping[str, int]) -> int:
    return sizes.get(MICROBATCH, 1) if step.tokens is None else 1


def is_whole(value: Value) -> bool:
    """Say whether it is of all microbatches."""
    return MICROBATCH in value.names


def lacking(step: StepSpec, ops: Sequence[Op]) -> tuple[str, str] | None:
    """Return what a pipeline lacks, and what helps; None where it lacks nothing."""
    if step.pipeline is None:
        is_odd = step.remat == ("stages",)
        help = f"say {quote.word('pipeline', '1f1b')} too, or {quote.word('remat', 'full')}"
        return (f"{quote.word('remat', 'stages')} without a pipeline", help) if is_odd else None
    if not any(op.weight is not None and op.weight.is_stacked for op in ops):
        stated = quote.word("pipeline", step.pipeline)
        message = f"{stated}, and no line reads arrays in which layers are stacked"
        return message, "stages are parts of a stacked axis: `scan` names it, or the arrays do"
    return None


def home_of(value: Value) -> Loop | None:
    """Return the loop in whose rounds a value is; None for what is outside of all."""
    if is_whole(value) or value.loop is not None or value.maker is None:
        return value.loop
    return value.maker.passes


def passed(value: Value, loop: Loop, microbatches: int, line: Line) -> Op:
    """Return what takes a value of all microbatches into the stages of a loop, or out of them."""
    if is_whole(value):
        at = value.names.index(MICROBATCH)
        cut = slice(at, at + 1)
        names, shape, view = list(value.names), list(value.shape), list(value.view)
        del names[cut], shape[cut], view[cut]
    else:
        names = [MICROBATCH, *value.names]
        shape = [microbatches, *value.shape]
        view = [(Index(MICROBATCH, microbatches),), *value.view]
    made = Value(value.name, tuple(names), tuple(shape), value.dtype, tuple(view))
    return Op("stage", line, None, (Read(value, value.view),), made, made.view, 0, passes=loop)


class LostError(Exception):
    """A line that makes nothing: a fault, or one that is for other models.

    Attributes:
      finding: the fault, where nobody has told of it.
    """

    def __init__(self, finding: Diagnostic | None = None) -> None:
        """Take the fault."""
        super().__init__()
        self.finding = finding


def sizes_of(arrays: Iterable[ParamSharding]) -> dict[str, int]:
    """Return the size of each name that has one size in all arrays."""
    found: dict[str, set[int]] = {}
    for each in arrays:
        for name, size in zip(each.logical_axes, each.param.shape, strict=True):
            if name is not None:
                found.setdefault(axis_of(name), set()).add(size)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}


def lost(
    message: str, span: Span | None, help: str | None = None, subject: str | None = None
) -> LostError:
    """Return what ends a line, with its fault."""
    return LostError(point(codes.STEP_LINE, message, span, help=help, subject=subject))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a program by name.

    Attributes:
      axes: those that the spec declares.
      known: the sizes, which grow with the program.
    """

    axes: Mapping[str, LogicalAxis]
    known: Mapping[str, int]

    def indices(self, name: str | None, size: int, blank: str) -> tuple[Index, ...]:
        """Return a dimension as its factors, where the sizes agree."""
        if name is None:
            return (Index(blank, size),)
        factors = self.factors(name)
        found = tuple(Index(each, self.known.get(each, 0)) for each in factors)
        if len(found) > 1 and math.prod(index.size for index in found) == size:
            return found
        return (Index(name, size),)

    def factors(self, name: str, depth: int = 0) -> tuple[str, ...]:
        """Return the names whose product a name is; itself where it is none."""
        axis = self.axes.get(name)
        if axis is None or len(axis.factors) < 2 or depth > 8:
            return (name,)
        return tuple(each for part in axis.factors for each in self.factors(part, depth + 1))

    def size(self, name: str | None, term: Term, span: Span | None) -> int:
        """Return the size of a dimension of a term, as it is written there or stated in `axes`."""
        dims = term.dims or ()
        written = next((d.size for d in dims if (d.alias or d.name) == name and d.size), None)
        size = written or (self.known.get(axis_of(name)) if name else None)
        if size is None:
            what = f"`{name}`" if name else "a dimension without a name"
            help = _state_it(name) if name else "name it in brackets"
            help += f", or here: `[{name}=128]`" if name else ""
            raise lost(f"the size of {what} is not known", span or term.span, help, name)
        return size

    def sum(self, products: Sequence[Product], line: Line) -> int:
        """Return what a line says by sizes: `3 * batch * length`."""
        found = 0
        for each in products:
            found += each.sign * math.prod(self._factor(factor, line) for factor in each.factors)
        return found

    def _factor(self, factor: int | str | tuple[Product, ...], line: Line) -> int:
        if isinstance(factor, tuple):
            return self.sum(factor, line)
        if isinstance(factor, int):
            return factor
        size = self.known.get(factor)
        if size is None:
            message = f"the size of `{factor}` is not known"
            raise lost(message, line.span, _state_it(factor), factor)
        return size


def _state_it(name: str) -> str:
    return f"state it{quote.either(f' in `axes`: `{name}: 128`', f', `axis {name} = 128`')}"


def agreed(line: Line, reads: Sequence[Read], result: Value) -> dict[str, int]:
    """Return the sizes of the indices of an einsum, which everything in it agrees on."""
    sizes: dict[str, int] = {}
    whose: dict[str, str] = {}
    views = [(term, read.indices) for term, read in zip(line.operands, reads, strict=True)]
    made = tuple(index for dim in result.view for index in dim)
    for term, indices in (*views, (line.results[0], made)):
        for index in indices:
            first = sizes.setdefault(index.name, index.size)
            if first != index.size and 1 not in (first, index.size):
                message = (
                    f"`{index.name}` is {first} in `{whose[index.name]}`"
                    f" and {index.size} in `{term.text}`"
                )
                help = f"give one another name: `{term.text}[{index.name} as {index.name}_b]`"
                raise lost(message, term.span, help)
            whose.setdefault(index.name, term.text)
    read = {index.name for _, indices in views for index in indices}
    lone = next((index for index in made if index.name not in read and index.size > 1), None)
    if lone is not None:
        there = listed(sorted(name for name in read if not name.startswith("?")), limit=12)
        message = f"`{line.results[0].text}` has `{lone.name}`, and nothing that is read has it"
        help = f"read are {there}; or give another name: `[{lone.name} as ...]`"
        raise lost(message, line.results[0].span, help)
    _joined(views, {index.name for index in made})
    return sizes


def _joined(views: Sequence[tuple[Term, Sequence[Index]]], made: set[str]) -> None:
    """Report an einsum that sums over what one operand alone has."""
    for at, (term, indices) in enumerate(views):
        others = {i.name for other, (_, v) in enumerate(views) if other != at for i in v}
        for index in indices:
            if index.name in made or index.name in others or index.size == 1:
                continue
            message = f"only `{term.text}` has `{index.name}`, and the line would sum over it"
            help = f"name it in the result, or as the other side does: `[{index.name} as ...]`"
            raise lost(message, term.span, help)
