"""How gradients are held: one answer for what reads the spec alone and for what reads its step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.analysis.memory import Held, memory
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


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_zero1_over_microbatches_holds_whole_gradients_and_sums_them_in_each(dtype: str) -> None:
    """In what they are added up in; `zero2` holds parts, and scatters in every microbatch."""
    whole, parts = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
    text = text_of("zero1", dtype, None, "(data, fsdp)").replace("embed -> fsdp", "embed -> none")
    for state, share, kind in (("zero1", 1, whole), ("zero2", 8, parts)):
        changes = {"axes__batch": "32", "step__microbatches": "4", "state__optimizer": state}
        step = stated(text, **changes).step
        tensors = [e for e in step.tensors if (e.array.name, e.phase) == ("layers/up", "backward")]
        (held,) = (each for each in tensors if each.born == 0)
        assert (held.array.dtype, held.bytes) == ("f32", 2 * 32 * 64 * 4 // 2 // share)
        sums = [e for e in step.collectives if str(e.carries) == "gradient of layers/up"]
        assert {each.kind for each in sums} == {kind}
        assert sum(each.count for each in sums) == 8
