"""One word for one thing, one order of arguments, one type of plan."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import shardspec
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec

TX = optax.adam(1e-3)


def resolver(**more: Any) -> Resolver:
    return Resolver(make_spec(params={"**/kernel": "embed mlp"}, **more))


def model() -> dict[str, Any]:
    return {"mlp": {"kernel": jnp.ones((8, 16))}}


def test_all_plans_are_of_one_type() -> None:
    found, params = resolver(), model()
    state = TX.init(params)
    whole = {"params": params, "opt_state": state}
    plans = (found.plan(params), found.state_plan(state, params), found.plan(whole))
    assert {type(plan) for plan in plans} == {shardspec.Plan}
    assert [len(plan.arrays) for plan in plans] == [1, 3, 4]
    for plan in plans:
        assert plan.target == "here"
        assert plan.diagnostics == ()
        assert all(isinstance(each, shardspec.ParamSharding) for each in plan.arrays)
        for path in plan:
            assert plan.explain(path).startswith(str(plan[path]))
            assert plan.visualize(path)
            assert plan[path].partition_spec == plan[path].partition_spec.to_jax()
            assert path in str(plan)


def test_memory_counts_what_a_plan_lists() -> None:
    found, params = resolver(), model()
    state = TX.init(params)
    per_array = 8 * 16 * 4 // 8
    assert found.plan(params).memory().by_kind == {"parameters": per_array}
    moments = {"optimizer state": 2 * per_array + 4}
    assert found.state_plan(state, params).memory().by_kind == moments
    whole = found.plan({"params": params, "opt_state": state}).memory()
    assert whole.by_kind == {"parameters": per_array} | moments
    assert whole.bytes == 3 * per_array + 4


def test_a_plan_of_both_prints_the_table_and_the_state() -> None:
    found, params = resolver(), model()
    whole = {"params": params, "opt_state": TX.init(params)}
    lines = str(found.plan(whole)).splitlines()
    assert any(re.match(r" +mlp/kernel +f32\[8, 16\] +data, model", line) for line in lines)
    assert "mu of mlp/kernel: same shape, its sharding" in str(found.plan(whole))
    assert lines[-1] == "132 B of state per device"
    assert found.plan(whole).diagnostics == found.findings(whole)


def test_what_a_plan_of_both_has_to_say_is_of_both() -> None:
    found = resolver()
    params = {"mlp": {"kernel": jnp.ones((16, 16))}, "bare": jnp.ones((8, 16))}
    state = {"row": {"mlp": {"kernel": jnp.ones(16)}}}
    plan = found.plan({"params": params, "opt_state": state})
    assert {"unnamed-array", "ambiguous-state"} <= {each.code.name for each in plan.diagnostics}
    assert plan.diagnostics == found.findings({"params": params, "opt_state": state})


def test_state_and_parameters_are_told_apart_by_their_types() -> None:
    found, params = resolver(), model()
    placed = found.put(params)
    state = jax.jit(TX.init, out_shardings=found.state_shardings(TX.init(params), params))(placed)
    assert found.verify_placement(placed, state) == ()
    assert found.verify_placement(state, placed) == ()
    (wrong,) = found.verify_placement(placed, TX.init(params))
    assert found.verify_placement(TX.init(params), placed) == (wrong,)
    assert "mu/mlp" in str(wrong)
    with pytest.raises(shardspec.ShardspecError, match="the state comes first"):
        found.state_shardings(params, state)


def test_words_of_the_version_before_say_the_new_ones() -> None:
    found, params = resolver(), model()
    plan = found.state_plan(TX.init(params), params)
    one = plan["0/mu/mlp/kernel"]
    uses: dict[str, tuple[Any, Any]] = {
        "`resolver.check(...)` is called `resolver.verify_placement(...)` now": (
            lambda: found.check(params),
            found.verify_placement(params),
        ),
        "`resolver.spec(names)` is called `resolver.partition_spec(names)` now": (
            lambda: found.spec("batch _"),
            found.partition_spec("batch _"),
        ),
        "`state_plan(...).plan` is called `state_plan(...)` now": (lambda: plan.plan, plan),
        "`state_plan[path].sharding` is called `state_plan[path]` now": (
            lambda: one.sharding,  # type: ignore[attr-defined]
            one,
        ),
    }
    for said, (use, same) in uses.items():
        with pytest.warns(DeprecationWarning, match=re.escape(said)) as caught:
            assert use() == same
        assert caught[0].filename == __file__, "it is told at the caller's line"


def test_check_keeps_its_meaning() -> None:
    found, params = resolver(), model()
    warned = pytest.warns(DeprecationWarning, match="verify_placement")
    with warned, pytest.raises(shardspec.ShardspecError, match="kernel"):
        found.check(params, like=params, strict=True)
    with pytest.warns(DeprecationWarning, match="verify_placement"):
        (wrong,) = found.check(found.put(params), state=TX.init(params), memory_kinds=())
    assert wrong.code.name == "sharding-differs"
