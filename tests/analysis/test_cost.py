from __future__ import annotations

import math
from functools import cache

import pytest

from shardspec.analysis.cost import Cost, cost_of, tokens_of
from shardspec.analysis.step_time import FITTED, op_seconds
from shardspec.ir.step import Step, StepArgument
from tests.analysis.test_memory import plan_of
from tests.analysis.test_step_memory import traced
from tests.analysis.test_step_time import BIG, V5E, array


@cache
def cost(name: str) -> Cost:
    return cost_of(*traced(name))


def test_without_a_step_there_is_memory_alone() -> None:
    found = cost_of(plan_of())
    assert (found.time, found.flops, found.tokens) == (None, None, None)
    assert found.memory.parameters.bytes > 0


def test_a_training_step_of_a_size_people_run() -> None:
    """70B in f32 on 512 v5p: 8 FLOPs a parameter and token, of which 6 are the model's own."""
    found = cost("llama-70b-v5p-512")
    assert found.tokens == 512 * 4096
    assert found.time is not None
    assert found.flops is not None
    assert found.flops == pytest.approx(8 * 70.6e9 * 512 * 4096, rel=0.1)
    assert found.time.bound == "compute"
    assert 0.4 < found.time.mfu < 0.7
    assert found.mfu == found.time.mfu
    assert found.tokens_per_s == pytest.approx(found.tokens / found.time.step_seconds)
    large = {axis.mesh_axis for axis in found.time.axes if axis.seconds > 1e-3}
    assert large == {"fsdp", "tensor"}


def test_a_decode_step_waits_for_memory() -> None:
    found = cost("decode-8b-v5e")
    assert found.time is not None
    assert found.time.bound == "memory"
    assert found.tokens == 64
    held = found.memory.parameters.bytes + (found.memory.caches or found.memory.parameters).bytes
    assert found.time.step_seconds > 0.9 * held / 819e9


def test_tokens_are_the_batch_of_whole_numbers() -> None:
    plan = plan_of()

    def batch(*shape: int, dtype: str = "s32") -> StepArgument:
        return StepArgument("x", "batch", array(*shape, dtype=dtype))

    def of(*arguments: StepArgument) -> int | None:
        return tokens_of(Step("code", plan.mesh, arguments=arguments))

    assert of(batch(8, 128)) == of(batch(8, 128), batch(8, 128), batch(8)) == 1024
    assert of(batch(8, 128), batch(8, 64)) is None
    assert of(batch(8, 128, dtype="f32")) is None
    assert of() is None
    step = Step("code", plan.mesh, (BIG,), arguments=(batch(8, 128),))
    assert cost_of(plan, step, tokens=7).tokens == 7
    seconds = op_seconds(BIG, V5E)[0] + FITTED.passes * BIG.result.bytes / 819e9
    assert math.isclose(cost_of(plan, step).tokens_per_s or 0, 1024 / seconds)


def test_without_speeds_there_are_flops_alone() -> None:
    plan = plan_of(hardware="16 cpu")
    found = cost_of(plan, Step("code", plan.mesh, (BIG,)))
    assert (found.time, found.mfu, found.tokens_per_s) == (None, None, None)
    assert found.flops == 16 * BIG.flops
