"""How gradients are held: one answer for what reads the spec alone and for what reads its step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.analysis.memory import Held, gradients_of, memory
from shardspec.analysis.step_memory import step_memory
from shardspec.ir.step import CollectiveKind
from tests.analysis.test_spec_step import TEXT, plan_of, stated

TIED = TEXT.replace("  table: f32", "  norm: f32[32]\n  table: f32")
#: The state goes over an axis that splits no array, and over one that splits them all.
OVER = TIED.replace("mesh: {fsdp: 4,", "mesh: {data: 2, fsdp: 4,").replace(
    "batch -> fsdp,", "'batch -> (data, fsdp)',"
)


def text_of(state: str, dtype: str, gradients: str | None, over: str) -> str:
    text = OVER.replace("f32[", f"{dtype}[") + f"state: {{optimizer: {state}, over: '{over}'}}\n"
    return text.replace("step:\n", f"step:\n  gradients: {gradients}\n") if gradients else text


@given(
    st.sampled_from(["same", "zero1", "zero2"]),
    st.sampled_from(["f32", "bf16"]),
    st.sampled_from([None, "bf16", "f32"]),
    st.sampled_from(["data", "(data, fsdp)"]),
    st.sampled_from(["1", "2", "4"]),
    st.booleans(),
)
@settings(max_examples=60)
def test_check_and_cost_hold_the_same_gradients(
    state: str, dtype: str, gradients: str | None, over: str, microbatches: str, is_whole: bool
) -> None:
    """All of them where microbatches add them up; a step that does not may let some go before."""
    text = text_of(state, dtype, gradients, over)
    text = text.replace("embed -> fsdp", "embed -> none") if is_whole else text
    if microbatches == "1":  # the two uses of a table have gradients of their own
        text = text.replace('    - gather(tokens[batch length], "table") -> residual\n', "")
    plan = plan_of(text, step__microbatches=microbatches)
    found = step_memory(plan, stated(text, step__microbatches=microbatches).step).gradients
    assert found is not None
    held = memory(plan).by_kind[Held.GRADIENTS]
    assert found.bytes <= held
    assert microbatches == "1" or found.bytes == held


@pytest.mark.parametrize("microbatches", ["1", "2"])
@pytest.mark.parametrize("optimizer", ["same", "zero1", "zero2"])
def test_gradients_are_split_as_zero_says(optimizer: str, microbatches: str) -> None:
    """ZeRO-2 splits them; ZeRO-1 only those that are not added up over microbatches.

    Source: Rajbhandari et al., arXiv:1910.02054, section 5.
    """
    plan = plan_of(text_of(optimizer, "f32", None, "data"), step__microbatches=microbatches)
    found = gradients_of(plan.spec, plan.mesh)
    assert found.is_split == (optimizer == "zero2" or (optimizer, microbatches) == ("zero1", "1"))
    assert found.dtype == (None if microbatches == "1" else "f32")
    assert found.over == (() if optimizer == "same" else ("data",))
    bare = replace(plan.spec, step=None)
    assert gradients_of(bare, plan.mesh).is_split == (optimizer == "zero2")
    assert not gradients_of(replace(plan.spec, state=None), plan.mesh).is_split


def gradient_sums(state: str, **changes: str) -> tuple[int, set[CollectiveKind], float]:
    """Return the bytes held of a gradient over four microbatches, and how it is reduced."""
    text = text_of(state, "f32", None, "(data, fsdp)").replace("embed -> fsdp", "embed -> none")
    step = stated(text, axes__batch="32", step__microbatches="4", **changes).step
    tensors = [e for e in step.tensors if (e.array.name, e.phase) == ("layers/up", "backward")]
    (held,) = (each for each in tensors if each.born == 0)
    assert held.array.dtype == "f32"
    sums = [e for e in step.collectives if str(e.carries) == "gradient of layers/up"]
    return held.bytes, {each.kind for each in sums}, sum(each.count for each in sums)


WHOLE = 2 * 32 * 64 * 4 // 2
SUM, SCATTER = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER


@pytest.mark.parametrize(
    ("state", "reduce", "share", "kind", "count"),
    [
        ("zero1", None, 1, SCATTER, 2),  # all of it, sent once for each of two layers
        ("zero1", "step", 1, SCATTER, 2),
        ("zero1", "microbatch", 1, SUM, 8),
        ("zero2", None, 8, SCATTER, 8),  # a part, to which every microbatch adds
        ("zero2", "microbatch", 8, SCATTER, 8),
        ("zero2", "step", 1, SCATTER, 2),
        ("same", "step", 1, SUM, 2),
        ("same", "microbatch", 1, SUM, 8),
    ],
)
def test_gradients_are_held_and_reduced_as_is_said(
    state: str, reduce: str | None, share: int, kind: CollectiveKind, count: int
) -> None:
    changes = {} if reduce is None else {"step__reduce": reduce}
    assert gradient_sums(state, **changes) == (WHOLE // share, {kind}, count)


@pytest.mark.parametrize(
    ("gather", "count", "kept"), [("layer", 2 * 2 * 4, 0), ("microbatch", 2 * 4, 2), ("step", 2, 2)]
)
def test_weights_stay_gathered_as_is_said(gather: str, count: int, kept: int) -> None:
    """Two layers, four microbatches; forward and backward, once for both, or once a step."""
    text = TEXT.replace("step:\n", f"step:\n  gather: {gather}\n")
    step = stated(text, axes__batch="32", step__microbatches="4").step
    gathers = [
        each
        for each in step.collectives
        if each.kind is CollectiveKind.ALL_GATHER and str(each.carries) == "weight layers/up"
    ]
    assert sum(each.count for each in gathers) == count
    held = [
        each for each in step.tensors if each.array.name == "layers/up" and each.dies == step.end
    ]
    assert sum(each.count for each in held if each.phase == "forward") == kept
