"""What a spec says about code: the program of `step:` by names, and places that `at:` states.

A program is what is written, before it is held against any array. A place is in code that is not
the user's, and is where an activation is constrained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from shardspec.diagnostics import Span

#: What a line does: the einsum that its names say, or one of the words.
Call = Literal["", "flash", "gather", "route", "dispatch", "combine", "split", "op"]


class Balance(NamedTuple):
    """How uneven the choice of experts is: what the busiest one takes, as even shares.

    Attributes:
      mean: over steps.
      p99: more in one step of a hundred.
    """

    mean: float
    p99: float

    def on(self, held: int, experts: int) -> Balance:
        """Return the same of the busiest device, each with some of the experts.

        What experts take beyond their share is taken as independent of each other, but for its
        sum, which is zero: a device with all experts has its even share.

        Source: the deviation of the mean of a sample without replacement.

        >>> Balance(1.5, 2).on(held=1, experts=8), Balance(1.5, 2).on(held=8, experts=8)
        (Balance(mean=1.5, p99=2.0), Balance(mean=1.0, p99=1.0))
        """
        left = (experts - held) / (held * (experts - 1)) if experts > 1 else 0.0
        return Balance(*(1 + (each - 1) * math.sqrt(max(left, 0.0)) for each in self))

    def __str__(self) -> str:
        """Return `balance 1.2 p99 2`."""
        return f"balance {self.mean:g} p99 {self.p99:g}"


class Experts(NamedTuple):
    """How many experts a token goes to, and how many of its even share each of them takes.

    Attributes:
      is_dropless: whether tokens are sorted by expert, as for a ragged product, so that there are
        no slots to fill by a product with a mask.
    """

    choices: int
    capacity: float = 1.0
    is_dropless: bool = False
    balance: Balance | None = None

    def slots(self, tokens: int, experts: int, load: float = 1.0) -> int:
        """Return how many of the tokens of a group an expert takes; more are dropped.

        Source: MaxText, layers/moe.py (`generate_masks`); GShard and Switch Transformer have the
        same but for rounding.

        Args:
          load: even shares that the busiest device has.

        >>> Experts(2, 1.25).slots(tokens=4096, experts=8)
        1280
        """
        share = -(-tokens * self.choices // experts)
        return int(max(share * self.capacity * load, self.capacity, 1))

    def __str__(self) -> str:
        """Return `top 2 capacity 1.25` or `top 2 dropless`."""
        how = "dropless" if self.is_dropless else f"capacity {self.capacity:g}"
        return " ".join(map(str, filter(None, (f"top {self.choices} {how}", self.balance))))


ScheduleKind = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
SCHEDULES: tuple[ScheduleKind, ...] = get_args(ScheduleKind)


class Schedule(NamedTuple):
    """How the stages of a pipeline take turns.

    `gpipe` is one program: a buffer with a place for each stage, in which every microbatch goes on
    by one stage a turn. Under the others each stage is a program of its own.

    Attributes:
      chunks: the parts of its layers that a stage takes in turns; 1 unless they are interleaved.
    """

    kind: ScheduleKind
    chunks: int = 1

    def __str__(self) -> str:
        """Return `1f1b`, or `interleaved(2)`."""
        return f"{self.kind}({self.chunks})" if self.kind == "interleaved" else self.kind


#: What people run where nobody says how stages take turns.
USUAL = Schedule("1f1b")


class Product(NamedTuple):
    """A signed product of numbers, axes and sums in parentheses; several of them are a sum."""

    factors: tuple[int | str | tuple[Product, ...], ...]
    sign: int = 1


@dataclass(frozen=True, slots=True)
class TermDim:
    """A dimension in the brackets of a term: `length`, `length as klength`, `slot=640`, `_`.

    Attributes:
      name: None for `_`.
      alias: the name that the line knows it by; as `name` where none is written.
      size: where it is written; else that of the axis.
    """

    name: str | None
    alias: str | None = None
    size: int | None = None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Term:
    """Something that a line reads or makes: a value by name, or arrays by pattern.

    Attributes:
      kind: `value` for a name; one that no value has may be the path of an array.
      dims: those in brackets; None where there are none.
    """

    text: str
    kind: Literal["value", "glob", "regex"] = "value"
    dims: tuple[TermDim, ...] | None = None
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def is_renamed(self) -> bool:
        """Say whether the brackets only give other names to some dimensions: `[length as k]`."""
        return self.dims is not None and any(dim.alias is not None for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the program.

    Attributes:
      flops: what `op` or `flash` computes each time it runs, as a sum of products; of `flash`,
        where nothing is stated, all pairs of positions.
      times: how often it runs, where that is written: for each array and slice that it reads.
      per: arrays, once for each layer of which it runs.
    """

    call: Call
    operands: tuple[Term, ...]
    results: tuple[Term, ...]
    flops: tuple[Product, ...] = ()
    times: int | None = None
    per: Term | None = None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What one step computes, as `step:` says it with all that it extends.

    Attributes:
      tokens: of a step on all devices; None for `batch` times `length`.
      remat: `("none",)`, `("full",)`, `("dots",)`, `("stages",)`, or the names of the results that
        are kept.
      dtype: of results, and of what is multiplied.
      attention: whether `flash(...)` is a kernel, or products that make all scores.
      gradients: what gradients are summed in over devices; None for the dtype of products, and
        over microbatches f32.
      pipeline: how stages take turns, where a mesh axis splits layers; None for `USUAL`.
      gather: how long weights stay gathered that the batch's mesh axes split.
      reduce: when gradients are reduced over devices; None where that follows from the rest.
      experts: by what `dispatch(...)` makes its slots; None where `axes` says how many.
    """

    mode: Literal["train", "serve"] = "train"
    tokens: int | None = None
    microbatches: int = 1
    remat: tuple[str, ...] = ("none",)
    dtype: str = "bf16"
    attention: Literal["flash", "einsum"] = "flash"
    gradients: str | None = None
    experts: Experts | None = None
    pipeline: Schedule | None = None
    gather: Literal["layer", "microbatch", "step"] = "layer"
    reduce: Literal["microbatch", "step"] | None = None
    program: tuple[Line, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def is_buffered(self) -> bool:
        """Say whether all stages are one program, with a buffer of microbatches."""
        return self.pipeline is not None and self.pipeline.kind == "gpipe"


#: Which values of a place a constraint is put on.
CodeValue = Literal["result", "argument", "line"]
REGEX = "re:"


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A place in code, and which of its values are constrained.

    Attributes:
      text: as written.
      scope: a pattern of named scopes and module paths, regexes behind `re:`; empty where a
        function is meant.
      file, function: how the path of a file and the qualified name of a function end.
      value: what it is of the place.
      index: the number of a result; None for all.
      name: of an argument.
      line: the number of a line in the file.

    Invariants:
      one: it has a scope, or a file.
    """

    text: str
    scope: str = ""
    file: str = ""
    function: str = ""
    value: CodeValue = "result"
    index: int | None = None
    name: str = ""
    line: int = 0

    @property
    def is_regex(self) -> bool:
        """Say whether the pattern of scopes is a regex."""
        return self.scope.startswith(REGEX)

    @property
    def pattern(self) -> str:
        """Return the pattern of scopes as such."""
        return self.scope.removeprefix(REGEX)
