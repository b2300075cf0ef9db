"""The proof of an export: what our own reading of the file gives each array, beside the plan.

The text that was written is read back by the reader that `shardspec import` has for the format,
and answered by the other tool's semantics. So a wrong export is found before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic, Label, SourceFile
from shardspec.diagnostics.codes import EXPORT_DIFFERS
from shardspec.formats.export.exported import Request
from shardspec.formats.foreign.compare import Difference, differences, findings, together
from shardspec.formats.foreign.imported import Answer, Options
from shardspec.formats.foreign.registry import format_named, load
from shardspec.ir.param import Params
from shardspec.ir.plan import Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import target_text


def proof(
    request: Request, text: str, name: str, options: Options, *, by_path: bool = False
) -> tuple[Diagnostic, ...]:
    """Return a finding for each group of arrays that the file would lay out otherwise.

    Args:
      name: of the format, as `shardspec import` knows it.
      by_path: whether the format itself names arrays by path. Otherwise arrays have the names
        of the plan, and those whose layout an override states are left out.
    """
    entry = format_named(name)
    assert entry is not None, f"there is a reader of {name}"
    reader = load(entry)
    suffix = {"flax": ".py", "nnx": ".py", "maxtext": ".yml"}.get(name, ".gin")
    imported, faults = reader.read((SourceFile(f"<exported>{suffix}", text),), options)
    assert imported is not None, f"what was written reads back: {faults}"
    kept = tuple(s for s in request.plan.params if by_path or not s.is_stated)
    plan = ShardingPlan(request.spec, request.plan.target, kept)
    params = tuple(each.param for each in kept) if by_path else _named(kept)
    answers: Sequence[Answer] = reader.answer(imported.reading, params, plan.mesh)
    found = differences(plan, answers)
    said = findings(found, imported.tool)
    return tuple(
        _exported(each, about[0], plan, request)
        for each, about in zip(said, together(found), strict=True)
    )


def _named(shardings: Sequence[ParamSharding]) -> Params:
    """Return the arrays with the names that the plan has for them."""
    return tuple(replace(each.param, logical_axes=each.logical_axes) for each in shardings)


def _exported(
    finding: Diagnostic, about: Difference, plan: ShardingPlan, request: Request
) -> Diagnostic:
    """Return the finding of a comparison as one about an export."""
    label = next(_labels(plan[about.paths[0]]), None)
    help = "--lossy writes the file all the same"
    if not request.is_resolved:
        help = "--resolved writes the rules that count on this target; " + help
    labels = () if label is None else (label,)
    return replace(finding, code=EXPORT_DIFFERS, labels=labels, help=help)


def _labels(sharding: ParamSharding) -> Iterator[Label]:
    """Yield the rules that are passed over here, which the other tool would take."""
    for dim in sharding.dims:
        for attempt in dim.attempts:
            span = attempt.span
            if span is None:
                continue
            if attempt.outcome is Outcome.INDIVISIBLE:
                yield Label(span, f"passed over: {dim.size} is not divisible by {attempt.ways}")
            elif attempt.mesh_axes != attempt.asked:
                yield Label(span, f"here this is {target_text(attempt.mesh_axes)}")
            elif attempt.outcome is Outcome.ABSENT:
                yield Label(span, "this target has no such mesh axis")
