"""What moved between two layouts, with causes, and what a restore would cost."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.layout_diff import (
    ArrayLayout,
    AxisLayout,
    Mark,
    Reason,
    TargetDiff,
    TargetLayout,
    diff_layouts,
    layout_of,
    reasons_of,
    restore,
)
from shardspec.ir.spec import MeshAxis, PartitionSpec, array_bytes
from shardspec.lock.diff_forms import causes, move_rows

SPEC = """
shardspec: 1
mesh: {data: 4, model: 2}
rules:
  - mlp -> model
  - embed -> none
  - heads -> data
arrays:
  wi: bf16[embed=8 mlp=16]
  q: bf16[heads=8]
  norm: f32[embed=8]
"""


def diff_of(before: str, after: str) -> TargetDiff:
    sides = []
    for text in (before, after):
        spec, diagnostics = pipeline.load_text(text, "spec.yaml")
        assert spec is not None
        assert not any(d.is_error for d in diagnostics)
        plans = pipeline.compile_plans(spec)
        sides.append((layout_of(spec, plans), reasons_of(plans)))
    (old, why_old), (new, why_new) = sides
    (found,) = diff_layouts(old, new, why_old, why_new)
    return found


def marks(diff: TargetDiff) -> dict[str, Mark]:
    return {move.path: move.mark for move in diff.moves}


def test_nothing_moved() -> None:
    assert diff_of(SPEC, SPEC).is_same
    assert diff_of(SPEC, SPEC.replace("  - mlp", "  # a comment\n  - mlp")).is_same


def test_each_mark() -> None:
    assert marks(diff_of(SPEC, SPEC.replace("embed -> none", "embed -> data"))) == {
        "wi": Mark.MORE,
        "norm": Mark.MORE,
    }
    assert marks(diff_of(SPEC, SPEC.replace("heads -> data", "heads -> none"))) == {"q": Mark.LESS}
    square = SPEC.replace("data: 4, model: 2", "data: 2, model: 2")
    assert marks(diff_of(square, square.replace("mlp -> model", "mlp -> data"))) == {
        "wi": Mark.OTHER
    }
    assert marks(diff_of(SPEC, SPEC.replace("heads -> data", "heads -> data | model"))) == {}


def test_new_gone_and_resized() -> None:
    changed = SPEC.replace("q: bf16[heads=8]", "k: bf16[heads=8]").replace(
        "embed=8 mlp", "embed=4 mlp"
    )
    assert marks(diff_of(SPEC, changed)) == {
        "wi": Mark.RESIZED,
        "k": Mark.NEW,
        "q": Mark.GONE,
    }


def test_same_answer_by_another_rule() -> None:
    whole = diff_of(SPEC, SPEC.replace("  - embed -> none\n", ""))
    assert marks(whole) == {"wi": Mark.SAME, "norm": Mark.SAME}
    dim = whole.moves[0].dims[0]
    assert dim.why_before is not None
    assert dim.why_after is not None
    assert dim.why_before.place == "spec.yaml:6"
    assert dim.why_after.text == "no rule for `embed`"


def test_an_override_is_the_reason_for_each_dimension_that_it_states() -> None:
    text = SPEC + "  wo: bf16[embed=8 mlp=16]\n"
    overrides = """\
overrides:
  - {path: wi, spec: '(none, data)'}
  - {path: wo, spec: '(none, data)'}
  - {path: norm, axes: mlp}
"""
    found = diff_of(text, text + overrides)
    reasons = {move.path: [dim.why_after for dim in move.dims] for move in found.moves}
    wi, wo = (f"- {{path: {name}, spec: '(none, data)'}}" for name in ("wi", "wo"))
    assert reasons == {
        "wi": [Reason("override wi", "spec.yaml:14", wi)] * 2,
        "wo": [Reason("override wo", "spec.yaml:15", wo)] * 2,
        "norm": [Reason("mlp -> model", "spec.yaml:5", "- mlp -> model")],
    }


def test_a_larger_axis_is_a_move() -> None:
    found = diff_of(SPEC, SPEC.replace("data: 4, model: 2", "data: 2, model: 4"))
    assert marks(found) == {"wi": Mark.MORE, "q": Mark.LESS}
    assert found.machine_changed


def test_bytes_per_device_are_those_of_the_plans() -> None:
    found = diff_of(SPEC, SPEC.replace("embed -> none", "embed -> data"))
    assert found.before is not None
    assert found.after is not None
    assert found.before.per_device_bytes == 8 * 16 * 2 // 2 + 8 * 2 // 4 + 8 * 4
    assert found.after.per_device_bytes == 8 * 16 * 2 // 8 + 8 * 2 // 4 + 8 * 4 // 4


MESH_AXES = ("a", "b")


@st.composite
def targets(draw: st.DrawFn) -> TargetLayout:
    sizes = draw(st.sampled_from([(2, 2), (4, 1), (1, 4)]))
    dims = draw(
        st.sampled_from(
            [
                ((), ()),
                (("a",), ()),
                ((), ("b",)),
                (("a",), ("b",)),
                (("a", "b"), ()),
                (("b", "a"), ()),
            ]
        )
    )
    axes = tuple(AxisLayout(MeshAxis(n, s)) for n, s in zip(MESH_AXES, sizes, strict=True))
    array = ArrayLayout("w", (7, 4), "f32", (None, None), PartitionSpec(dims))
    return TargetLayout("t", "", axes, "", "", (array,))


def held(target: TargetLayout) -> list[set[tuple[int, int]]]:
    """Return the elements each device holds, worked out one by one."""
    (array,) = target.arrays
    sizes = target.mesh.sizes
    found = []
    for place in itertools.product(*(range(size) for size in sizes.values())):
        index = dict(zip(sizes, place, strict=True))
        ranges = []
        for size, axes in zip(array.shape, array.partition.dims, strict=True):
            ways = math.prod(sizes[axis] for axis in axes)
            shard = 0
            for axis in axes:
                shard = shard * sizes[axis] + index[axis]
            length = -(-size // ways)
            ranges.append(range(min(shard * length, size), min((shard + 1) * length, size)))
        found.append(set(itertools.product(*ranges)))
    return found


@given(targets(), targets())
def test_restore_counts_what_is_not_held(before: TargetLayout, after: TargetLayout) -> None:
    missing = [
        array_bytes((len(new - old),), "f32")
        for old, new in zip(held(before), held(after), strict=True)
    ]
    found = restore(before, after)
    assert found.is_exact
    assert (found.total_bytes, found.most_bytes) == (sum(missing), max(missing))
    assert bool(found.arrays) == any(missing)


@given(targets())
def test_none(target: TargetLayout) -> None:
    """From a layout to itself nothing moves."""
    assert restore(target, target).total_bytes == 0


def test_the_only_targets_are_compared_whatever_their_names() -> None:
    named = SPEC.replace("mesh: {data: 4, model: 2}", "targets: {pod: {mesh: {data: 2, model: 2}}}")
    found = diff_of(SPEC, named)
    assert found.name == "pod"
    assert marks(found) == {"q": Mark.LESS}


def test_another_memory_and_another_sum_move_nothing_between_devices() -> None:
    offloaded = f"{SPEC}memory: {{wi: pinned_host}}\n"
    diff = diff_of(SPEC, offloaded)
    assert marks(diff) == {"wi": Mark.MEMORY}
    assert diff.before is not None
    assert diff.after is not None
    assert (diff.before.host_bytes, diff.after.host_bytes) == (0, 2 * 8 * 16 // 2)
    assert diff.before.per_device_bytes == diff.after.per_device_bytes + diff.after.host_bytes
    assert restore(diff.before, diff.after).total_bytes == 0
    (cause,) = causes(diff)
    (row,) = move_rows(cause)
    assert (row.before, row.after) == ("(none, model) in device", "(none, model) in pinned_host")
    explicit = SPEC.replace("data: 4, model: 2", "data: 4 explicit, model: 2 explicit")
    stated = explicit + 'overrides: [{path: wi, spec: "(none, none)SUMS"}]\n'
    summed = diff_of(stated.replace("SUMS", ""), stated.replace("SUMS", " unreduced data"))
    assert marks(summed) == {"wi": Mark.SUMS}
    (row,) = move_rows(causes(summed)[0])
    assert row.after == "(none, none) unreduced data"
    assert marks(diff_of(offloaded, offloaded.replace("mlp -> model", "mlp -> data"))) == {
        "wi": Mark.MORE
    }


def test_an_activation_that_one_side_alone_has_is_a_change() -> None:
    more = f"{SPEC}activations: {{hidden: embed mlp, residual: embed _}}\n"
    less = f"{SPEC}activations: {{residual: embed _}}\n"
    for before, after in ((less, more), (more, less)):
        (pair,) = diff_of(before, after).activations
        names = [each.name for each in pair if each is not None]
        assert names == ["hidden"]
        assert (pair[0] is None) == (before == less)
        assert not diff_of(before, after).is_same
    assert diff_of(more, more).activations == ()
