"""`step:` held against the arrays of a spec: operations in order, on dimensions by name.

No mesh is asked here, so a search reads a program once. A line becomes an operation for each kind
of array that it matches; arrays that differ in the number of a layer, and the slices of a stacked
array, are one operation that runs once a round of a loop; `x 4` makes four rounds of each. A name
of an axis that is a product, `joined_kv: heads * kv`, stands for its factors, so that `joined_kv`
and `heads kv` are the same.

Every line that writes a value makes a new one of that name. It is added to the one before where it
was made from that (`residual`), or where nothing has read that yet (two branches of a gated MLP).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

from shardspec.analysis import step_values
from shardspec.analysis.step_values import Loop, LostError, Op, Read, Value, Weight, is_whole
from shardspec.diagnostics import Diagnostic, Span, codes, point, quote
from shardspec.diagnostics.words import counted, did_you_mean, grouped, listed, numbers_in, template
from shardspec.ir.plan import ParamSharding, stacked_names
from shardspec.ir.program import Line, StepSpec, Term, TermDim
from shardspec.ir.spec import LogicalAxes, Pattern, Spec
from shardspec.resolve.match import path_matcher

#: Arrays of experts, which are not for a line of dense layers; shared experts are dense.
_EXPERTS = re.compile(r"(?<!shared)(?<!shared_)experts?[./](?!router\b)|experts?_[0-9]")


def flow_of(spec: Spec, arrays: Sequence[ParamSharding], load: float = 1.0) -> step_values.Flow:
    """Return the program of a spec over arrays, whose names count and not how they are split.

    Args:
      load: of the experts of the device that it is the program of, as even shares.
    """
    step = spec.step or StepSpec()
    build = _Build(spec, step, arrays)
    build.load = load
    for line in step.program:
        build.line(line)
    if step.program and not build.faults and not (build.used and build.ops):
        message = f"no line of {quote.section('step:')} reads an array that there is"
        build.fault(message, step.span, _NO_ARRAYS)
    step_values.mark_trained(build.ops)
    build.end()
    tokens = build.tokens()
    return step_values.Flow(
        step,
        tuple(build.ops),
        tuple(build.inputs),
        tuple(build.faults),
        frozenset(build.used),
        build.sizes,
        tokens,
        build.microbatches,
        frozenset(["expert", *(each.expert for each in build.slots.values())]),
        frozenset(each.slot for each in build.slots.values()),
        load,
    )


@lru_cache(maxsize=1 << 8)
def _matched(pattern: Pattern, paths: tuple[str, ...]) -> tuple[int, ...]:
    """Return which of some paths a pattern matches: a search asks about each of its variants."""
    matcher = path_matcher((pattern,))
    return tuple(at for at, path in enumerate(paths) if matcher.first_match(path) is not None)


_REMATS = ("none", "full", "dots", "stages")
_NO_ARRAYS = 'name them in lines of the spec\'s own: `residual, "**/wi/kernel" -> hidden`'


class _Build:
    """The program as it grows, line by line."""

    def __init__(self, spec: Spec, step: StepSpec, arrays: Sequence[ParamSharding]) -> None:
        self.spec = spec
        self.step = step
        self.arrays = [each for each in arrays if not each.param.is_cache]
        self.paths = tuple(each.path for each in self.arrays)
        self.axes = {axis.name: axis for axis in spec.logical_axes}
        named = [each for each in spec.activations if each.pattern is None]
        self.activations = {each.name: self._of_one(each.logical_axes) for each in named}
        self.stacked = stacked_names(spec)
        stated = {axis.name: axis.size for axis in spec.logical_axes if axis.size is not None}
        self.sizes = step_values.sizes_of(self.arrays) | stated
        self.values: dict[str, Value] = {}
        self.inputs: list[Value] = []
        self.ops: list[Op] = []
        self.faults: list[Diagnostic] = []
        self.lost: set[str] = set()  # results of lines with a fault, which was reported
        self.used: set[str] = set()
        self.taken: dict[str, str] = {}
        self.loop: Loop | None = None
        self.dims = step_values.Sizes(self.axes, self.sizes)
        self.slots: dict[str, step_values.Slots] = {}
        self.load = 1.0
        self._batch()

    def _batch(self) -> None:
        """Set the size of a batch to that of a microbatch."""
        step, length = self.step, self.sizes.get("length", 1)
        if step.tokens is not None:
            self.sizes["batch"] = max(1, step.tokens // max(1, length))
        self.microbatches, batch = step_values.counted(step, self.sizes)
        if batch is not None:
            self.sizes["batch"] = batch
        if step.is_buffered:
            self.sizes[step_values.MICROBATCH] = self.microbatches

    def _of_one(self, names: LogicalAxes) -> LogicalAxes:
        """Return the names of an activation of one microbatch, unless all are in a buffer."""
        return (
            names
            if self.step.is_buffered
            else tuple(n for n in names if n != step_values.MICROBATCH)
        )

    def end(self) -> None:
        """Report a step that trains nothing, or a pipeline that lacks something."""
        is_whole = bool(self.ops) and not self.faults
        found = step_values.lacking(self.step, self.ops) if is_whole else None
        if found is not None:
            self.fault(found[0], self.step.span, found[1])
        made = {op.result.name for op in self.ops}
        for name in self.step.remat if made else ():
            if name not in {*_REMATS, *made, *self.lost}:
                help = did_you_mean(name, [*_REMATS, *sorted(made)])
                help = help or f"one of {listed(_REMATS)}, or names of results"
                message = f"`remat` keeps `{name}`, and no line makes it"
                self.fault(message, self.step.span, help)
        if self.step.mode == "serve" or not is_whole or self.faults or not self.spec.training:
            return
        if not any(op.result.is_trained for op in self.ops):
            entry = next(each for each in self.spec.training if each.training == "frozen")
            step, serve = quote.section("step:"), quote.word("mode", "serve")
            message = f"every array that {step} reads is frozen, so that it trains nothing"
            help = f"say `trained` of some before this entry, or {serve} in `step`"
            self.fault(message, entry.pattern.span, help)

    def tokens(self) -> int | None:
        """Return the tokens of a step; None where the sizes of batch or length are not known."""
        if self.step.tokens is not None:
            return self.step.tokens
        batch, length = self.sizes.get("batch"), self.sizes.get("length", 1)
        return None if batch is None else batch * length * self.microbatches

    def fault(
        self, message: str, span: Span | None, help: str | None = None, subject: str | None = None
    ) -> LostError:
        """Note a fault and return what ends the line."""
        self.faults.append(point(codes.STEP_LINE, message, span, help=help, subject=subject))
        return LostError()

    def line(self, line: Line) -> None:
        """Take in a line."""
        before, loop, faults = set(self.used), self.loop, len(self.faults)
        try:
            self._line(line)
            pattern = next((each.text for each in line.operands if each.kind != "value"), "")
            self.taken |= {} if line.call else dict.fromkeys(self.used - before, pattern)
        except LostError as lost:
            self.used, self.loop = before, loop  # it leaves no trace
            self.faults += [] if lost.finding is None else [lost.finding]
            if len(self.faults) > faults or any(term.text in self.lost for term in line.operands):
                self.lost.update(term.text for term in line.results)

    def _line(self, line: Line) -> None:
        if line.call in ("dispatch", "combine"):
            for each in self._routed(line):
                self._line(each)
            return
        patterns = [at for at, term in enumerate(line.operands) if self._is_array(term)]
        if len(patterns) > 1:
            span = line.operands[patterns[1]].span
            raise self.fault("a line reads one pattern of arrays", span, "write a line for each")
        found: Sequence[tuple[Weight | None, Loop | None]]
        if patterns:
            found = self._weights(line, line.operands[patterns[0]])
            found = [(weight, _repeated(loop, line.times)) for weight, loop in found]
        else:
            found = [(None, self._loop_of(line))]
        self._enter(found[0][1])
        for weight, _ in found:
            reads = [
                self._read_weight(weight, term, line)
                if at in patterns and weight is not None
                else self._read_value(term, line)
                for at, term in enumerate(line.operands)
            ]
            self._run(line, tuple(reads), weight)

    # what is read

    def _is_array(self, term: Term) -> bool:
        if term.kind != "value":
            return True
        is_value = term.text in self.values or term.text in self.activations
        return not is_value and any(each.path == term.text for each in self.arrays)

    def _matching(self, term: Term, line: Line) -> list[ParamSharding]:
        if term.kind == "value":
            found = [each for each in self.arrays if each.path == term.text]
        else:
            pattern = Pattern(term.text, term.kind, term.span)
            found = [self.arrays[at] for at in _matched(pattern, self.paths)]
        if not self._is_own(line):  # what an earlier line multiplies is not for a looser pattern
            own = term.text
            left = (each for each in found if self.taken.get(each.path, own) == own)
            is_routed = "expert" in own
            found = [each for each in left if is_routed or not _EXPERTS.search(each.path)]
        if found:
            return found
        if not self._is_own(line):
            raise LostError  # of a step that is for other models, too
        help = did_you_mean(term.text, self.paths) or "`shardspec compile` lists the arrays"
        raise self.fault(f"no array matches `{term.text}`", term.span, help, term.text)

    def _is_own(self, line: Line) -> bool:
        return line.span is not None and line.span.source is self.spec.source

    def _weights(self, line: Line, term: Term) -> list[tuple[Weight | None, Loop | None]]:
        """Return the kinds of arrays that a pattern matches, each with its loop."""
        found = self._matching(term, line)
        self.used.update(each.path for each in found)
        made: list[tuple[Weight | None, Loop | None]] = []
        for shape, alike in grouped(found, lambda each: self._stack(each, line)).items():
            if shape:
                for each in alike:
                    kept = tuple(d for d in range(each.param.rank) if d not in shape)
                    rounds = math.prod(each.param.shape[dim] for dim in shape)
                    key = _stack_key(each, shape)
                    made.append((Weight((each,), kept), Loop(rounds, key, is_unrolled=False)))
                continue
            kinds = grouped(alike, lambda each: (template(each.path), each.param.shape))
            made += map(_unstacked, kinds.values())
        runs = {loop.rounds if loop is not None else 1 for _, loop in made}
        if len(runs) > 1:
            counts = listed(f"{count} times" for count in sorted(runs))
            message = f"`{term.text}` matches arrays of different loops: {counts}"
            raise self.fault(message, term.span, "write a line for each")
        return made

    def _stack(self, array: ParamSharding, line: Line) -> tuple[int, ...]:
        """Return the dimensions of an array that are stacked axes."""
        names = array.logical_axes
        written = [dim.name for term in line.results for dim in term.dims or ()]
        named = self._names_read(line) | set(written)
        dims = [d for d, name in enumerate(names) if name in self.stacked and name not in named]
        return tuple(dims)

    def _names_read(self, line: Line) -> set[str | None]:
        """Return the names of the values that a line reads, aliases too."""
        found: set[str | None] = set()
        for term in line.operands:
            value = self.values.get(term.text) if term.kind == "value" else None
            found |= set(value.names) if value else set()
            found |= {dim.alias or dim.name for dim in term.dims or ()}
        return found

    def _loop_of(self, line: Line) -> Loop | None:
        """Return the loop of a line that reads no array."""
        if line.per is not None:
            return self._weights(line, line.per)[0][1]
        if line.times is not None:
            is_same = self.loop is not None and self.loop.rounds == line.times
            return self.loop if is_same else Loop(line.times, f"x {line.times}")
        loop = self.loop
        for term in line.operands:
            value = self.values.get(term.text)
            if loop is not None and value is not None and _first_of(value).loop is loop:
                return loop
        return None

    def _enter(self, loop: Loop | None) -> None:
        """Go on in the loop that is open, or begin another."""
        now = self.loop
        if loop is None or loop.rounds == 1:
            self.loop = None
        elif now is None or (now.rounds, now.key) != (loop.rounds, loop.key):
            self.loop = loop
        else:
            now.is_unrolled, now.uses = now.is_unrolled and loop.is_unrolled, loop.uses

    def _read_weight(self, weight: Weight, term: Term, line: Line) -> Read:
        names: list[str | None] = list(weight.names)
        what = f"{weight.first.path} [{' '.join(name or '_' for name in names)}]"
        renamed = self._renamed(names, term, what)
        view = tuple(
            self.dims.indices(name, size, f"?{id(weight)}.{at}")
            for at, (name, size) in enumerate(zip(renamed, weight.shape, strict=True))
        )
        twice = next((name for name in renamed if name and renamed.count(name) > 1), None)
        if twice is not None:
            help = (
                f"tell them apart: `[{twice}, {twice} as {twice}_out]`, a name for each dimension"
            )
            raise self.fault(f"{what} has two dimensions `{twice}`", term.span, help)
        return Read(weight, view)

    def _read_value(self, term: Term, line: Line) -> Read:
        value = self._here(self.values.get(term.text) or self._given(term, line), line)
        if term.dims is None or (value in self.inputs and not term.is_renamed):
            return Read(value, value.view)
        known = [dim[0].name if len(dim) == 1 else None for dim in value.view]
        what = f"{term.text} [{' '.join(name or '_' for name in value.names)}]"
        names = self._renamed([n or v for n, v in zip(known, value.names, strict=True)], term, what)
        view = []
        for at, (name, dim) in enumerate(zip(names, value.view, strict=True)):
            is_same = name is None or name in (value.names[at], known[at])
            size = math.prod(index.size for index in dim)
            view.append(dim if is_same else self.dims.indices(name, size, ""))
        return Read(value, tuple(view))

    def _here(self, value: Value, line: Line) -> Value:
        """Return a value as the line has it: of a pipeline a microbatch in a loop, else all."""
        home = step_values.home_of(value)
        is_given = home is None and not is_whole(value)
        if not self.step.is_buffered or is_given or home is self.loop:
            return value
        for loop in filter(None, (home, self.loop)):  # out of the one, and into the other
            self._add(step_values.passed(value, loop, self.microbatches, line))
            value = self.values[value.name]
        return value

    def _given(self, term: Term, line: Line) -> Value:
        """Return a value that no line makes: an activation, or one with all its names."""
        names = self.activations.get(term.text)
        if names is None and term.dims is not None and not term.is_renamed:
            names = tuple(dim.name for dim in term.dims)
        if names is None:
            if not self._is_own(line) or term.text in self.lost:
                raise LostError
            known = [*self.values, *self.activations]
            help = did_you_mean(term.text, known) or (
                f"a line before makes it, {quote.section('activations')} names it, or it has its"
                f" names here: `{term.text}[batch length embed]`"
            )
            raise self.fault(f"nothing is called `{term.text}`", term.span, help, term.text)
        layers = [name for name in names if name in self.stacked and self.step.mode == "serve"]
        rounds = math.prod(self.dims.size(name, term, term.span) for name in layers)
        names = tuple(name for name in names if name not in layers)
        inner, is_one = self.loop, bool(layers) or "batch" not in names
        self.loop = inner if is_one else None  # what is given is given for all microbatches
        value = self._value(term, names, names, line)
        self.loop, value.rounds = inner, rounds
        self.values[term.text] = value
        self.inputs.append(value)
        return value

    def _renamed(self, names: list[str | None], term: Term, what: str) -> list[str | None]:
        """Return names as the brackets of a term have them: all by place, or some by name."""
        if term.dims is None:
            return names
        if len(term.dims) == len(names):
            return [dim.alias or dim.name for dim in term.dims]
        found = list(names)
        for dim in term.dims:
            if dim.name not in names:
                raise self.fault(f"{what} has no `{dim.name}`", dim.span or term.span)
            if dim.alias is None:
                count = f"{counted(len(term.dims), 'name')} for {counted(len(names), 'dimension')}"
                help = "all of them, or those that get another name: `[length as kv_length]`"
                raise self.fault(f"{what}: {count}", term.span, help)
            found[names.index(dim.name)] = dim.alias
        return found

    # sizes and indices

    def _value(self, term: Term, names: LogicalAxes, known: LogicalAxes, line: Line) -> Value:
        """Return a value of these names.

        Args:
          names: by which rules place it.
          known: by which lines know its dimensions.
        """
        if self.step.is_buffered and self.loop is None and step_values.MICROBATCH not in known:
            names, known = (step_values.MICROBATCH, *names), (step_values.MICROBATCH, *known)
        spans = {dim.alias or dim.name: dim.span for dim in term.dims or ()}
        shape = tuple(self.dims.size(name, term, spans.get(name)) for name in known)
        view = tuple(
            self.dims.indices(name, size, f"?{term.text}.{at}")
            for at, (name, size) in enumerate(zip(known, shape, strict=True))
        )
        return Value(term.text, names, shape, self.step.dtype, view)

    # what is made

    def _run(self, line: Line, reads: tuple[Read, ...], weight: Weight | None) -> None:
        if line.call == "flash":
            self._attend(line, reads)
            return
        if line.call == "split":
            self._split(line, reads)
            return
        results = [self._result(term, line, reads) for term in line.results]
        kind = cast(step_values.OpName, line.call or ("view" if len(reads) == 1 else "einsum"))
        copies = self._copies(weight, reads)
        for result in results:
            flops = self._flops(line, kind, reads, result) * copies // len(results)
            self._add(Op(kind, line, self.loop, reads, result, result.view, flops, copies=copies))

    def _copies(self, weight: Weight | None, reads: Sequence[Read]) -> int:
        """Return how many arrays each round uses; experts apart each use their own tokens."""
        if weight is None:
            return 1
        experts = {slots.expert for slots in self.slots.values()}
        values = (read for read in reads if isinstance(read.source, Value))
        sizes = [each.size for read in values for each in read.indices if each.name in experts]
        if sizes and step_values.APART.search(weight.first.path):
            return max(1, weight.copies // sizes[0])
        return weight.copies

    def _flops(
        self, line: Line, kind: step_values.OpName, reads: Sequence[Read], result: Value
    ) -> int:
        if line.flops:
            return max(0, self.dims.sum(line.flops, line))
        if kind != "einsum":
            return 0
        indices = step_values.agreed(line, reads, result)
        return 2 * math.prod(indices.values())

    def _result(self, term: Term, line: Line, reads: Sequence[Read]) -> Value:
        names = self.activations.get(term.text)
        written = tuple(dim.alias or dim.name for dim in term.dims) if term.dims else None
        placed = tuple(dim.name for dim in term.dims) if term.dims else None
        if written and placed and None in written:  # `_` is what only the array has
            given = {n for r in reads if isinstance(r.source, Value) for n in r.source.names}
            weights = (read.source for read in reads if isinstance(read.source, Weight))
            own = [n for each in weights for n in each.names if n not in given]
            if len(own) == written.count(None):
                placed = tuple(
                    p or (None if w else own[0]) for p, w in zip(placed, written, strict=True)
                )
                written = tuple(w or own.pop(0) for w in written)
        before = self.values.get(term.text)
        if names is not None and written is not None and len(names) != len(written):
            count = f"{counted(len(written), 'name')} for {counted(len(names), 'dimension')}"
            said = " ".join(name or "_" for name in names)
            has = f"it is stated as `activation {term.text} : {said}`"
            help = quote.either(f"`activations` has `{term.text}: {said}`", has)
            raise self.fault(f"`{term.text}` has {count}", term.span, help)
        is_bare = written is None and names is None
        if is_bare and before is not None and self._goes_on(before, reads):
            return Value(term.text, before.names, before.shape, before.dtype, before.view)
        names, known = self._by_activation(names, written, term, line, reads)
        if names is not None and written is None and None in known:
            help = f"write all of them here: `{term.text}[batch length embed]`"
            message = f"`{term.text}` has a dimension without a name"
            raise self.fault(message, term.span, help)
        return self._value(term, names or placed or known, known, line)

    def _by_activation(
        self, names: LogicalAxes | None, written: LogicalAxes | None,
        term: Term, line: Line, reads: Sequence[Read],
    ) -> tuple[LogicalAxes | None, LogicalAxes]:  # fmt: skip
        """Return by which names rules place a result, and by which lines know its dimensions.

        They differ where what is read has other names of the same sizes: keys may be `batch
        kv_length kv_heads kv` to the rules, and are made `batch length ...`. A line of a step that
        the spec extends does without an activation that is of another form.
        """
        if written is not None:
            return names, written
        if names is None:
            return None, self._inferred(term, line, reads)
        read = {name for each in reads for name in (*each.source.names, *_names_of(each))}
        made = {each for name in names for each in (name, *self.dims.factors(name or ""))}
        kinds = [type(each.source) for each in reads]
        if None in names or made - {""} <= read or line.call or set(kinds) != {Value, Weight}:
            return names, names
        inferred = self._inferred(term, line, reads)
        apart = tuple(each for name in inferred for each in self.dims.factors(name or ""))
        wanted = [self.sizes.get(name or "") for name in names]
        for found in (inferred, apart):
            if [self.sizes.get(name or "") for name in found] == wanted:
                return names, found
        return (names, names) if self._is_own(line) else (None, inferred)

    def _inferred(self, term: Term, line: Line, reads: Sequence[Read]) -> LogicalAxes:
        """Return the names of a product of a value and arrays: those that only one of them has."""
        weights = [read for read in reads if isinstance(read.source, Weight)]
        values = [read for read in reads if isinstance(read.source, Value)]
        if len(reads) == 1:
            return _spelt(values or weights)
        if len(weights) != 1 or len(values) != 1 or line.call not in ("", "gather"):
            said = f"`{term.text}[batch length embed]`"
            help = f"write them: {said}, or add it to {quote.section('activations')}"
            raise self.fault(f"the names of `{term.text}` are not known", term.span, help)
        if line.call == "gather":
            return (*_spelt(values), *_spelt(weights)[1:])
        (value,), (weight,) = values, weights
        shared = {i.name for i in value.indices} & {i.name for i in weight.indices}
        if not shared:
            message = f"`{line.operands[0].text}` and {_title(weight)} have no name in common"
            raise self.fault(message, line.span, "a product sums over what both have")
        return (*_spelt([value], shared), *_spelt([weight], shared))

    def _goes_on(self, before: Value, reads: Sequence[Read]) -> bool:
        """Say whether a result of the same name is added to what there is."""
        here = id(self.loop) if self.loop is not None else 0
        is_needed = any(id(before) in _needs(read.source) for read in reads)
        is_read_here = here in before.read_in or any(read.source is before for read in reads)
        return (is_needed and is_read_here) or not before.read_in

    def _add(self, op: Op) -> None:
        result = op.result
        before = self.values.get(result.name)
        if before is not None and before.shape == result.shape and self._goes_on(before, op.reads):
            result.base = before
        result.loop, result.maker = op.loop, op
        needs = {i for read in op.reads for i in _needs(read.source)}
        result.needs = frozenset(needs | (_needs(result.base) if result.base else set()))
        for read in op.reads:
            if isinstance(read.source, Value):
                read.source.read_in.add(id(op.loop) if op.loop is not None else 0)
        self.values[result.name] = result
        self.ops.append(op)

    def _split(self, line: Line, reads: tuple[Read, ...]) -> None:
        """Cut a value into several, side by side."""
        (read,) = reads
        whole = math.prod(index.size for index in read.indices)
        results = [self._result(term, line, reads) for term in line.results]
        parts = sum(math.prod(each.shape) for each in results)
        if parts != whole:
            message = f"the parts have {parts:,} elements, and `{line.operands[0].text}` {whole:,}"
            help = f"sizes are those of {quote.section('axes')}, or written: `[kv=64]`"
            raise self.fault(message, line.span, help)
        for result in results:
            part, kept = self._part(read, result)
            self._add(Op("view", line, self.loop, (part,), result, result.view, 0, kept))

    def _part(self, read: Read, result: Value) -> tuple[Read, frozenset[str]]:
        """Return what is cut by the indices of one of its parts, and those that have to be whole.

        A shard of an interleaved axis has its share of every part, so that none has to travel.
        """
        made = {index.name for dim in result.view for index in dim}
        cut = [dim for dim in read.view if made.isdisjoint(index.name for index in dim)]
        own = _names_of(read)
        new = tuple(index for dim in result.view for index in dim if index.name not in own)
        if len(cut) != 1 or len(cut[0]) != 1 or not new:
            return read, frozenset()
        (index,) = cut[0]
        parts = self.axes[index.name].parts if index.name in self.axes else None
        if parts is None or not parts.is_interleaved:
            return read, frozenset({index.name})
        view = tuple(new if dim is cut[0] else dim for dim in read.view)
        return Read(read.source, view), frozenset()

    # experts

    def _routed(self, line: Line) -> tuple[Line, ...]:
        """Return the lines that a `dispatch` or `combine` stands for."""
        scores = line.operands[1]
        if any(self._is_array(term) for term in line.operands):
            message = f"`{line.call}` reads values, and no arrays"
            raise self.fault(message, line.operands[0].span, "a line before makes the scores")
        routing = _dims(self._read_value(scores, line))
        given = _dims(self._read_value(line.operands[0], line))
        (result,) = line.results
        placed = self.activations.get(result.text, ())
        if line.call == "combine":
            slots = self.slots.get(scores.text)
            if slots is None:
                message = f"nothing is dispatched by `{scores.text}`"
                help = "it takes the scores that a `dispatch` before it goes by"
                raise self.fault(message, scores.span, help)
            if result.dims is None and placed == tuple(dim.name for dim in slots.tokens):
                line = replace(line, results=(replace(result, dims=slots.tokens),))
            return step_values.combined(line, given, slots)
        alike = {dim.name: dim for dim in given}
        dims = result.dims or tuple(alike.get(name) or TermDim(name) for name in placed)
        found = step_values.slots_of(
            *(tuple(map(step_values.known_as, each)) for each in (given, routing, dims))
        )
        if isinstance(found, str):
            help = "as in `-> arrived[expert batch slot embed]`: what is new are experts and slots"
            raise self.fault(f"`{result.text}` {found}", result.span, help)
        self._count_slots(found, scores, tuple(map(step_values.known_as, routing)), line)
        is_dropless = self.step.experts is not None and self.step.experts.is_dropless
        found = found._replace(is_dropless=is_dropless, tokens=given)
        self.slots[scores.text] = found
        return step_values.dispatched(line, routing, dims, found)

    def _count_slots(
        self, slots: step_values.Slots, scores: Term, routing: LogicalAxes, line: Line
    ) -> None:
        """Set the size of the slots of an expert, where `experts:` says it."""
        experts, name = self.step.experts, slots.slot
        stated = self.sizes.get(name)
        shape = self._read_value(scores, line).source.shape
        sizes = dict(zip(routing, shape, strict=True))
        self.sizes.setdefault(slots.expert, sizes[slots.scored])
        if experts is None and stated is None:
            message = f"how many tokens an expert takes, `{name}`, is not known"
            said = quote.word("experts", "top 2 capacity 1.25")
            help = f"say {said} in `step`, or `{name}` in {quote.section('axes')}"
            raise self.fault(message, line.results[0].span, help)
        if experts is None:
            return
        count = experts.slots(sizes[slots.position], sizes[slots.scored])
        if stated not in (None, count):
            made = f"{quote.word('experts', experts)} makes {count}"
            message = f"`{name}` is {stated} in {quote.section('axes')}, and {made}"
            span = next((axis.span for axis in self.spec.logical_axes if axis.name == name), None)
            self.fault(message, span or line.span, "remove one of the two")
        self.sizes[name] = experts.slots(sizes[slots.position], sizes[slots.scored], self.load)

    # attention

    def _attend(self, line: Line, reads: tuple[Read, ...]) -> None:
        """Add attention: one kernel, or the products that make scores and use them."""
        units = {axis.name: axis.unit for axis in self.spec.logical_axes}
        query, key, *rest = (
            Read(read.source, step_values.headed(read.view, units)) for read in reads
        )
        if any(isinstance(read.source, Weight) for read in reads[:2]):
            raise self.fault("`flash` reads values, and no arrays", line.operands[0].span)
        known = step_values.roles(query, key)
        if known is None:
            help = f"name them: `{line.operands[1].text}[length as kv_length]`"
            message = "which dimension of the keys is their positions is not plain"
            raise self.fault(message, line.operands[1].span, help)
        positions, aliases = known
        is_shared = positions in aliases.values()
        keys = [Read(each.source, step_values.aliased(each.view, aliases)) for each in (key, *rest)]
        span = query.indices
        size = next(i.size for read in keys for i in read.indices if i.name == positions)
        shared = {other.name for other in keys[0].indices} - {span[0].name, positions}
        summed = next((i.name for i in reversed(span) if i.name in shared), "")
        flops = 2 * math.prod(index.size for index in span) * size
        term = line.results[0]
        result = self._attended(term, line, reads)
        view = step_values.flat(result, span) if rest else query.view
        weighted = 2 * math.prod(result.shape) * size
        if self.step.attention == "flash":
            # a cache may be split by its length: each device answers from its own part
            is_cache = self.step.mode == "serve" and not is_shared
            whole = frozenset({summed if is_cache else positions, summed} - {""})
            made = (query, *keys)
            kernel = self.dims.sum(line.flops, line) if line.flops else flops + weighted
            self._add(Op("flash", line, self.loop, made, result, view, max(0, kernel), whole))
            return
        dims = (*((i,) for i in span if i.name != summed), (step_values.Index(positions, size),))
        names = (*(dim[0].name for dim in dims[:-1]), None if is_shared else positions)
        shape = tuple(dim[0].size for dim in dims)
        scores = Value(f"{term.text} scores", names, shape, self.step.dtype, dims)
        self._add(Op("einsum", line, self.loop, (query, keys[0]), scores, dims, flops))
        made = (Read(scores, dims), keys[-1])
        self._add(Op("einsum", line, self.loop, made, result, view, weighted))

    def _attended(self, term: Term, line: Line, reads: tuple[Read, ...]) -> Value:
        """Return the value that attention makes: as the query, unless it has names of its own."""
        if term.dims is not None or (term.text in self.activations and self._is_own(line)):
            return self._result(term, line, reads)
        query = reads[0].source
        assert isinstance(query, Value)
        return Value(term.text, query.names, query.shape, query.dtype, query.view)


def _first_of(value: Value) -> Value:
    """Return what a value is added to, or what that is, the first of all."""
    while value.base is not None:
        value = value.base
    return value


def _names_of(read: Read) -> set[str]:
    return {index.name for index in read.indices}


def _needs(source: Value | Weight | None) -> set[int]:
    return {id(source), *source.needs} if isinstance(source, Value) else set()


def _spelt(reads: Iterable[Read], without: Iterable[str] = ()) -> LogicalAxes:
    """Return the names of what is read, but for dimensions of which an index is left out."""
    left = set(without)
    found: list[str | None] = []
    for read in reads:
        names = read.source.names
        for name, dim in zip(names, read.view, strict=True):
            inner = [index.name for index in dim]
            if left.isdisjoint(inner):
                is_known = name is None or len(inner) > 1 or inner[0] == name
                found.append(name if is_known else inner[0])
    return tuple(found)


def _dims(read: Read) -> tuple[TermDim, ...]:
    """Return the dimensions of what is read: the names that rules have for them, and the lines."""
    pairs = zip(read.source.names, _spelt([read]), strict=True)
    return tuple(TermDim(name, None if alias == name else alias) for name, alias in pairs)


def _title(read: Read) -> str:
    source = read.source
    return source.first.path if isinstance(source, Weight) else f"`{source.name}`"


def _unstacked(arrays: list[ParamSharding]) -> tuple[Weight, Loop | None]:
    """Return arrays that differ in numbers as one, and the loop over the first of the numbers."""
    kept = tuple(range(arrays[0].param.rank))
    paths = [step_values.APART.sub("", each.path) for each in arrays]
    rounds = len({numbers_in(path)[0] for path in paths if numbers_in(path)})
    if len(arrays) == 1 or rounds < 2 or len(arrays) % rounds:
        return Weight(tuple(arrays), kept, len(arrays)), None
    path = template(arrays[0].path)
    weight = Weight(tuple(arrays), kept, len(arrays) // rounds)
    return weight, Loop(rounds, path.partition("#")[0])


def _repeated(loop: Loop | None, times: int | None) -> Loop | None:
    """Return the loop of a line that uses each of its arrays so often, one use after another."""
    if times is None or times == 1:
        return loop
    rounds, key = (loop.rounds, f"{loop.key} ") if loop is not None else (1, "")
    return Loop(rounds * times, f"{key}x {times}", is_unrolled=False, uses=times)


def _stack_key(array: ParamSharding, dims: tuple[int, ...]) -> str:
    """Return what tells one stack of layers from another: the path down to it."""
    parts = array.path.split("/")
    names = {array.logical_axes[dim] for dim in dims}
    at = next((place for place, part in enumerate(parts) if part in names), 0)
    return "/".join(parts[: at + 1])
