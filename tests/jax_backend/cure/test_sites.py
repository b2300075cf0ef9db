"""Which values of a lowered step could be constrained, and all that each of them stands for."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from shardspec.cure.patching import Extent
from shardspec.cure.written import writable
from shardspec.jax_backend.cure.sites import numbered, sites_of, where
from shardspec.jax_backend.step.graph import functions_of
from tests.jax_backend.cure.small import (
    STEPS,
    P,
    X,
    layer,
    mean,
    resolver,
    sites,
    struct,
    text_of,
    traced_of,
    without,
)
from tests.versions_of_jax import constants_in_place

LAYER = ['x @ p["wi"]', "jax.nn.relu(hidden)", 'hidden @ p["wo"]', "x + out"]


def step(name: str) -> tuple[Any, ...]:
    function, args = STEPS[name](without)
    return (function, *args)


def points(name: str) -> dict[str, tuple[int, int]]:
    """Return how many values each expression stands for, and how many gradients."""
    return {
        text: (
            sum(not point.is_operand for point in site.points),
            sum(point.is_operand for point in site.points),
        )
        for text, site in sites(*step(name)).items()
    }


def test_the_values_of_a_layer_are_those_that_leave_their_expressions() -> None:
    found = sites(*step("forward"))
    assert list(found) == LAYER
    assert [(site.shape, site.dtype) for site in found.values()] == [
        ((32, 64, 1024), "f32"),
        ((32, 64, 1024), "f32"),
        ((32, 64, 256), "f32"),
        ((32, 64, 256), "f32"),
    ]
    assert all(len(site.points) == 1 for site in found.values())


def test_a_point_is_what_its_expression_makes() -> None:
    traced = traced_of(*step("computed_again"))
    ops = dict(numbered(traced.module))
    for site in sites_of(traced.module):
        for point in site.points:
            op = ops[point.op]
            value = op.operands[point.at] if point.is_operand else op.results[point.at]
            assert tuple(value.type.shape) == site.shape
            assert where(str(op.location)).extent == site.at


def test_nothing_of_the_module_is_changed() -> None:
    traced = traced_of(*step("scanned"))
    before = str(traced.module)
    sites_of(traced.module)
    assert str(traced.module) == before


def test_gradients_are_points_of_the_value_that_they_are_of() -> None:
    # the product's gradient is read twice, for the weight and for what it is multiplied with
    assert points("gradient") == {LAYER[0]: (1, 1), LAYER[1]: (1, 1), LAYER[2]: (1, 2)} | {
        LAYER[3]: (1, 0)
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("jitted", [(2, 3), (2, 2), (2, 4), (2, 0)]),
        ("computed_again", [(4, 3), (4, 2), (2, 4), (2, 0)]),
        ("scanned", [(1, 2), (1, 1), (1, 2), (1, 0)]),
        ("scanned_again", [(2, 2), (2, 1), (1, 2), (1, 1)]),
    ],
)
def test_values_of_each_call_and_each_time_are_of_one_expression(
    name: str, expected: list[tuple[int, int]]
) -> None:
    assert points(name) == dict(zip(LAYER, expected, strict=True))


def test_what_an_expression_computes_for_itself_is_no_value() -> None:
    def f(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w + 1.0)

    found = sites(f, X, struct(256, 1024))
    assert list(found) == ["x @ w", "x @ w + 1.0", "jnp.tanh(x @ w + 1.0)"]


def test_functions_of_libraries_are_one_value() -> None:
    def f(x: Any) -> Any:
        y = jax.nn.softmax(x, axis=-1)
        z = jax.nn.gelu(x)
        return y + z + jnp.clip(y, 0, 1)

    found = sites(f, X)
    calls = {"jax.nn.softmax(x, axis=-1)", "jax.nn.gelu(x)", "jnp.clip(y, 0, 1)"}
    assert calls < found.keys()
    for site in found.values():
        assert len(site.points) == 1
    traced = traced_of(f, X)
    ops = dict(numbered(traced.module))
    inner = {number for number, op in ops.items() if op.name != "func.func" and not _is_in_main(op)}
    assert inner
    assert not inner & {point.op for site in found.values() for point in site.points}


@constants_in_place
def test_a_function_of_one_expression_is_the_value_of_its_calls() -> None:
    @jax.jit
    def double(x: Any) -> Any:
        return x * 2

    @jax.jit
    def more(x: Any) -> Any:
        y = x * 3
        return y + 1

    def f(x: Any) -> Any:
        return double(x) + more(x - 1)

    texts = {"double(x)", "x - 1", "more(x - 1)", "x * 3", "y + 1", "double(x) + more(x - 1)"}
    assert sites(f, X).keys() == texts


def dense(x: Any, w: Any) -> Any:
    return x @ w


def test_lines_that_call_a_helper_are_expressions_of_their_own() -> None:
    """The helper is none: it yields values of two shapes, and has one line for both."""

    def f(p: Any, x: Any) -> Any:
        hidden = dense(x, p["wi"])
        return jnp.tanh(dense(jax.nn.relu(hidden), p["wo"]))

    calls = {'dense(x, p["wi"])', "jax.nn.relu(hidden)", 'dense(jax.nn.relu(hidden), p["wo"])'}
    for function in (f, jax.jit(f), jax.checkpoint(f)):
        assert set(sites(function, P, X)) - calls == {f"jnp.tanh({max(calls, key=len)})"}


def test_a_helper_of_one_shape_is_an_expression_beside_the_lines_that_call_it() -> None:
    w = struct(256, 256)

    def f(w: Any, x: Any) -> Any:
        y = dense(x, w)
        return mean(dense(y, w)) + mean(y)

    found = sites(jax.grad(f), w, X)
    assert set(found) >= {"x @ w", "dense(x, w)", "dense(y, w)"}
    assert len(found["x @ w"].points) > len(found["dense(y, w)"].points)


def test_a_sum_of_gradients_is_of_what_expressions_read() -> None:
    w = struct(256, 256)

    def f(w: Any, x: Any) -> Any:
        y = x * 2
        first = y @ w
        second = jnp.matmul(y, w)
        return mean(jnp.tanh(first) + jnp.tanh(second))

    found = sites(jax.grad(f, (0, 1)), w, X)
    for text in ("y @ w", "jnp.matmul(y, w)"):  # each gradient is read for `y` and for `w`
        assert sum(point.is_operand for point in found[text].points) == 2


def _is_in_main(op: Any) -> bool:
    while op.name != "func.func":
        op = op.parent
    return "main" in str(op.attributes["sym_name"])


def test_inside_of_shard_map_shapes_are_local() -> None:
    specs = PartitionSpec("fsdp", None, None)

    def inner(x: Any) -> Any:
        local = jnp.tanh(x) * 2
        return local + 1

    mapped = jax.shard_map(inner, mesh=resolver().mesh, in_specs=specs, out_specs=specs)

    def f(x: Any) -> Any:
        y = x * 3
        return mapped(y) * 4

    large = struct(128, 64, 256)
    assert list(sites(f, large)) == ["x * 3", "mapped(y)", "mapped(y) * 4"]


def test_values_under_vmap_have_a_dimension_that_their_names_lack() -> None:
    def one(x: Any) -> Any:
        y = x * 2
        return y + 1

    def f(x: Any) -> Any:
        z = x * 3
        return jax.vmap(one)(z) * 4

    found = sites(f, X)
    vmaps = {"x * 2": 1, "x * 3": 0, "y + 1": 1, "jax.vmap(one)(z) * 4": 0}
    assert {text: site.vmaps for text, site in found.items()} == vmaps


def test_what_a_mapped_function_of_a_library_yields_is_outside_of_its_vmap() -> None:
    def f(x: Any) -> Any:
        return jax.vmap(jax.nn.softmax)(x) * 4

    def g(x: Any) -> Any:
        return jax.vmap(f)(x)

    for function, vmaps in ((f, 0), (g, 1)):
        found = sites(function, X)
        assert found["jax.vmap(jax.nn.softmax)(x)"].vmaps == vmaps + 1
        assert {site.vmaps for site in writable(found.values(), "/")} == {vmaps}


def test_what_is_constrained_already_is_left_out() -> None:
    own = resolver()

    def f(x: Any) -> Any:
        y = own.constrain(x * 2, "batch length embed")
        return y + 1

    found = sites_of(traced_of(f, X).module)
    assert [text_of(site) for site in found] == ["x * 2", "y + 1"]


@pytest.mark.parametrize(
    ("shape", "is_site"),
    [((64, 64, 64), True), ((64, 64, 63), False), ((1 << 19,), False), ((512, 512), True)],
)
def test_small_arrays_and_vectors_are_left_out(shape: tuple[int, ...], is_site: bool) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y + 1

    assert bool(sites(f, struct(*shape))) is is_site


def test_an_expression_of_values_of_different_ranks_is_left_out() -> None:
    def f(x: Any, w: Any) -> Any:
        both = jax.tree.map(jnp.tanh, (x, w))
        alike = jax.tree.map(jnp.sin, (x, x + 1))
        return both[0] @ both[1] + alike[0] + alike[1]

    texts = list(sites(f, struct(32, 64, 1024), struct(1024, 1024)))
    assert "jax.tree.map(jnp.tanh, (x, w))" not in texts
    assert "jax.tree.map(jnp.sin, (x, x + 1))" in texts


def test_what_a_loop_takes_of_its_arrays_and_keeps_of_each_turn_is_no_value() -> None:
    def turn(x: Any, y: Any) -> Any:
        x = x + y
        return x, x * 2

    def f(x: Any, ys: Any) -> Any:
        x, kept = jax.lax.scan(turn, x, ys)
        return x - 1, kept - 1

    found = sites(f, X, struct(4, *X.shape))
    assert sorted(found) == ["kept - 1", "x * 2", "x + y", "x - 1"]


def test_what_is_computed_of_gradients_is_an_update() -> None:
    def train(p: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: (jnp.tanh(x @ p["wi"]) ** 2).sum())(p)
        update = jnp.sign(grads["wi"])
        return p["wi"] - update * 0.1

    found = sites(train, P, X)
    assert found['jnp.sign(grads["wi"])'].is_update
    assert not found['x @ p["wi"]'].is_update


def test_a_step_without_gradients_has_no_updates() -> None:
    assert not any(each.is_update for each in sites(*step("forward")).values())


def test_what_is_kept_for_the_backward_pass_alone_is_no_value() -> None:
    """A mask, where the expression gives numbers."""
    own = jax.jit(partial(layer, without))
    found = sites_of(traced_of(jax.grad(lambda p, x: mean(own(p, x))), P, X).module)
    assert {site.dtype for site in found} == {"f32"}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(jnp.bfloat16, "bf16"), (jnp.int32, "s32"), (jnp.uint8, "u8"), (jnp.bool_, "pred")],
)
def test_dtypes_are_spelt_as_in_steps(dtype: Any, expected: str) -> None:
    def f(x: Any) -> Any:
        y = jnp.flip(x, 0)
        return jnp.flip(y, 1)

    assert {each.dtype for each in sites(f, struct(512, 512, dtype=dtype)).values()} == {expected}


# locations


@pytest.mark.parametrize(
    ("text", "name", "extent"),
    [
        (
            'loc("jit(f)/dot"(callsite("f"("/a/m.py":3:8 to 4:24) at "g"("/a/n.py":1:1 to 1:2))))',
            "jit(f)/dot",
            Extent("/a/m.py", 3, 8, 4, 24),
        ),
        ('loc("jit(f)/mul"("/a/m.py":3:8 to :24))', "jit(f)/mul", Extent("/a/m.py", 3, 8, 3, 24)),
        ('loc("jit(f)/mul"("/a/m.py":3:8))', "jit(f)/mul", None),
        ("loc(unknown)", "", None),
        ('loc("/a/m.py":3:8 to :24)', "", Extent("/a/m.py", 3, 8, 3, 24)),
    ],
)
def test_what_a_location_says(text: str, name: str, extent: Extent | None) -> None:
    found = where(text)
    assert (found.name, found.extent) == (name, extent)


def test_frames_of_libraries_are_passed_over() -> None:
    frames = f'"{jax.__file__}":9:9 to :12) at "f"("/a/m.py":3:8 to :24)'
    assert where(f'loc("dot"("{jax.__file__}":9:9 to :12))').extent is None
    found = where(f'loc("dot"(callsite("g"({frames})))')
    assert found.extent == Extent("/a/m.py", 3, 8, 3, 24)


@pytest.mark.parametrize(
    ("name", "is_gradient"),
    [
        ("jit(f)/transpose(jvp())/dot", True),
        ("jit(f)/jvp()/dot", False),
        ("jit(f)/transpose(jvp())/rematted_computation/dot", False),
    ],
)
def test_what_is_a_gradient(name: str, is_gradient: bool) -> None:
    assert where(f'loc("{name}")').is_gradient is is_gradient


def test_operations_are_numbered_in_order_with_those_inside_of_others() -> None:
    module = traced_of(*step("scanned")).module
    numbers = [number for number, _ in numbered(module)]
    assert numbers == list(range(len(numbers)))
    names = [op.name for _, op in numbered(module)]
    assert names.count("func.func") == len(functions_of(module))
    assert names.index("stablehlo.while") < names.index("stablehlo.dot_general")


IDS, TABLE = struct(4096, 64, dtype=jnp.int32), struct(1024, 8)


def taken(table: Any, ids: Any) -> Any:
    return jnp.take(table, ids, axis=0)


def indexed(table: Any, ids: Any) -> Any:
    return table[ids]


def embedded(table: Any, ids: Any) -> Any:
    embed = jax.jit(partial(indexed, table))
    return embed(ids)


def of_expression(table: Any, ids: Any) -> Any:
    ids = ids % 1024
    return table[ids]


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (taken, ["jnp.take(table, ids, axis=0)"]),
        (indexed, ["table[ids]"]),
        pytest.param(embedded, ["embed(ids)"], marks=constants_in_place),
        (of_expression, []),
        (lambda table, ids: ids * table[0, 0], []),
    ],
)
def test_what_a_table_is_looked_up_by_is_a_value(function: Any, texts: list[str]) -> None:
    traced = traced_of(jax.grad(lambda table, ids: mean(function(table, ids))), TABLE, IDS)
    found = {text_of(site): site for site in sites_of(traced.module) if site.is_index}
    assert sorted(found) == texts
    ops = dict(numbered(traced.module))
    for site in found.values():
        assert (site.shape, site.dtype) == ((4096, 64), "s32")
        for point in site.points:
            assert str(ops[point.op].operands[point.at].type) == "tensor<4096x64xi32>"


def test_a_table_of_integers_is_not_looked_up_by() -> None:
    traced = traced_of(indexed, struct(1024, 512, dtype=jnp.int32), IDS)
    (site,) = (each for each in sites_of(traced.module) if each.is_index)
    assert site.shape == (4096, 64)
