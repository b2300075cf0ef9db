from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.memory import memory
from shardspec.analysis.step_memory import Amount, StepMemory, held_bytes, highest, step_memory
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import StatePolicy
from shardspec.ir.step import Step
from shardspec.jax_backend.step.reading import step_of
from tests.analysis.test_memory import plan_of
from tests.models import small_steps
from tests.models.steps import CASES

lives = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)).map(
        lambda life: (min(life[:2]), max(life[:2]), life[2])
    )
)


@cache
def traced(name: str) -> tuple[ShardingPlan, Step]:
    """Return one of the steps that tests trace, and a plan on its target."""
    text = CASES[name].spec if name in CASES else small_steps.SPEC
    resolver = small_steps.resolver(spec=text)
    build = CASES[name].step if name in CASES else small_steps.PROGRAMS[name]
    function, args = build(resolver)
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    return ShardingPlan(spec, resolver.target, ()), step_of(resolver, function, *args)


def held(name: str) -> StepMemory:
    return step_memory(*traced(name))


def alive(found: list[tuple[int, int, int]], tick: int) -> int:
    return sum(size for born, dies, size in found if born <= tick <= dies)


@given(lives)
def test_at_no_tick_more_is_alive_than_at_the_peak(found: list[tuple[int, int, int]]) -> None:
    by_tick = [alive(found, tick) for tick in range(11)]
    assert highest(found) == (by_tick.index(max(by_tick)), max(by_tick))


@pytest.mark.parametrize("name", small_steps.PROGRAMS)
def test_sum_and_peak_of_a_step(name: str) -> None:
    found = held(name)
    assert found.total.bytes == sum(part.bytes for part in found.parts.values())
    assert set(found.parts) == {
        *("parameters", "gradients", "optimizer", "batch", "caches", "other"),
        *("activations", "temporaries"),
    }
    made = [found.gradients, found.activations, found.temporaries]
    assert sum(part.bytes for part in made if part) == sum(each.bytes for each in found.peak)
    assert [each.bytes for each in found.peak] == sorted(
        (each.bytes for each in found.peak), reverse=True
    )
    latest = max((each.born for each in found.peak), default=0)
    assert all(latest <= each.dies for each in found.peak), "they are held at once"
    assert found.total.mark == "~"
    assert found.parameters.mark == "="


def test_what_a_training_step_holds() -> None:
    found = held("clipped_adam")
    shards = 2 * 1024 * 4096 // 16 * 4
    assert found.parameters == Amount(shards)
    assert found.optimizer == Amount(2 * shards + 512)  # two moments, and a count
    assert found.batch == Amount(64 // 8 * 128 * 1024 * 2)
    assert found.fits


#: What libtpu reports of steps: their arguments, and all of it.
REPORTS: dict[str, dict[str, int]] = {
    name: figures
    for name, figures in json.loads(
        (Path(__file__).parents[1] / "data" / "final_programs.json").read_text(encoding="utf-8")
    )["memory"].items()
    if name in CASES
}


@pytest.mark.parametrize("name", REPORTS)
def test_beside_the_report_of_libtpu(name: str) -> None:
    found = held(name)
    arguments, total = REPORTS[name]["arguments"], REPORTS[name]["total"]
    given = [found.parameters, found.optimizer, found.batch, found.caches, found.other]
    assert sum(part.bytes for part in given if part) == arguments
    assert {part.mark for part in given if part} == {"="}
    assert 0.85 * total < found.total.bytes < 1.1 * total


def test_a_cache_is_none_of_the_parameters() -> None:
    found = held("decode-8b-v5e")
    # layers, batch / data, length, key heads / tensor, size of a head, keys and values, bf16
    assert found.caches == Amount(32 * 16 * 2048 * 2 * 128 * 2 * 2)


@pytest.mark.parametrize("state", ["", "state: {optimizer: zero1}"])
def test_without_a_step_it_is_the_plan_and_its_state(state: str) -> None:
    plan = plan_of(state, hardware="16 cpu")
    found = step_memory(plan)
    assert found.total == Amount(memory(plan).bytes)
    names = ("parameters", "gradients", "optimizer") if state else ("parameters",)
    assert tuple(found.parts) == names
    assert found.hbm_bytes is None
    assert found.fits is None


def test_tiles_are_filled_up_on_a_tpu_alone() -> None:
    tpu, cpu = plan_of(), plan_of(hardware="16 cpu")
    assert step_memory(tpu).parameters == Amount(memory(tpu).bytes)
    assert held_bytes((3, 5), "f32", cpu.target) == Amount(60)
    assert held_bytes((3, 5), "f32", tpu.target) == Amount(4 * 128 * 4)
    assert held_bytes((3, 5), "s4", tpu.target) == Amount(8, "floor")


@given(st.builds(StatePolicy, st.sampled_from(("same", "zero1", "zero2"))))
def test_floor_of_a_plan(state: StatePolicy) -> None:
    from dataclasses import replace

    plan = plan_of()
    with_state = replace(plan, spec=replace(plan.spec, state=state))
    assert step_memory(with_state).total.bytes >= memory(with_state).bytes


def test_a_compiled_program_without_values_says_nothing_of_them() -> None:
    plan = plan_of()
    assert "temporaries" not in step_memory(plan, Step("compiler", plan.mesh)).parts
    assert step_memory(plan, Step("code", plan.mesh)).temporaries == Amount(0, "floor")


def test_one_floor_makes_the_sum_a_floor() -> None:
    found = StepMemory(Amount(3), batch=Amount(4), temporaries=Amount(5, "floor"), hbm_bytes=12)
    assert found.total == Amount(12, "floor")
    assert found.fits
    assert StepMemory(Amount(3), batch=Amount(4), hbm_bytes=6).fits is False


def test_no_arrays_neither_fit_nor_do_not() -> None:
    assert StepMemory(Amount(0), hbm_bytes=6).fits is None
    assert StepMemory(Amount(0), host=Amount(9), hbm_bytes=6).fits
