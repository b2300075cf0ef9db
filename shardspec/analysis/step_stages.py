"""A pipeline: layers in stages, and what goes from one stage to the next.

Stages that are programs of their own (`ir.step.Stages`) each go through the microbatches as a step
without a pipeline does. Under `gpipe` they are one program, which is what this module is about: all
stages run at once, each on a microbatch of its own, and then every microbatch goes on to the
next stage. So with `stages` of them it takes `microbatches` + `stages` - 1 turns until the last is
through, and each stage works for nothing in `stages` - 1 of these. What is before the first stage
and behind the last is computed for all microbatches at once.

Source: GPipe (arXiv 1811.06965), section 2; the schedule is that of MaxText (layers/pipeline.py)
and Praxis without repeats: a buffer `[stage batch length embed]` that moves by one place, where
microbatches that lie on stages move to meet it, and its results back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardspec.analysis.step_values import Index, Loop, Op, Read, Value
from shardspec.diagnostics import quote
from shardspec.ir.program import Line, StepSpec

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
