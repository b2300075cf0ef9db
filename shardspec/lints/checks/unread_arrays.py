"""No line of `step:` reads much of the model.

Add lines that read these arrays. Their FLOPs, and what their weights and gradients send, are
missing from every figure of the step, so the figures are lower bounds and the ranking of meshes may
be wrong. Norms and biases need no line: only arrays that products read are counted, those with two
dimensions beside that of stacked layers. Up to 5 % of their bytes are a note of `cost`. Above that
it is a warning of `check`, and an error of `cost` and `search`, which call what depends on it
unknown.

The steps of the library, `extends: decoder`, leave out lines that match no array. They know arrays
by the names that common models give them, and a renamed array may be none of these.

Bad:
    shardspec: 1
    mesh: {data: 8}
    axes: {batch: 64, length: 128, embed: 256, mlp: 1024}
    rules:
      - batch, embed -> data
      - length, mlp -> none
    params:
      "*": embed mlp
    arrays:
      wi: f32[256, 1024]
      widen: f32[256, 1024]
    step:
      program:
        - residual[batch length embed], "wi" -> hidden[batch length mlp]

Good:
    -    - residual[batch length embed], "wi" -> hidden[batch length mlp]
    +    - residual[batch length embed], "{wi,widen}" -> hidden[batch length mlp]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic, Severity, codes, point
from shardspec.diagnostics.words import binary_bytes, grouped, template
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import Spec
from shardspec.lints.context import Context

if TYPE_CHECKING:
    from shardspec.analysis.step_values import Flow

_SHOWN = 5


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a warning where lines of `step:` leave out much of the model."""
    if context.spec.step is not None and context.all_plans and context.first:
        yield from _found(context.spec, context.flow, context.first)


def in_figures(spec: Spec, arrays: Sequence[ParamSharding]) -> Iterator[Diagnostic]:
    """Yield the same as an error, for what shows figures of the step."""
    from shardspec.analysis.step_flow import flow_of  # most specs have no step

    found = _found(spec, flow_of(spec, arrays), arrays)
    return (each.with_level(Severity.ERROR) for each in found)


def _found(spec: Spec, flow: Flow, arrays: Sequence[ParamSharding]) -> Iterator[Diagnostic]:
    from shardspec.analysis.step_layout import unread

    left = unread(spec, flow, arrays)
    if not flow.ops or flow.faults or not left.is_much:
        return
    kinds = grouped(left.arrays, lambda each: template(each.path))
    largest = sorted(kinds.values(), key=lambda alike: -sum(each.param.bytes for each in alike))
    yield point(
        codes.UNREAD_ARRAYS,
        f"{left.told}: what they compute and send is not counted",
        flow.step.span,
        "not counted",
        notes=tuple(
            f"{binary_bytes(sum(each.param.bytes for each in alike))}  {alike[0].path}"
            + (f" and {len(alike) - 1} more like it" if len(alike) > 1 else "")
            for alike in largest[:_SHOWN]
        ),
        help=f'add a line for each kind: `residual, "{_glob(largest[0])}" -> hidden`, as'
        " `shardspec explain step` says; or trace the code: `--step MODULE:FUNCTION`",
        arrays=tuple(each.path for each in left.arrays),
    )


def _glob(alike: Sequence[ParamSharding]) -> str:
    """Return a pattern for arrays that differ in numbers alone."""
    from shardspec.naming.patterns import exact

    path = exact(alike[0].path)
    return path if len(alike) == 1 else template(path).replace("#", "*")
