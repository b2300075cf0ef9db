"""Sums that are left out or taken twice are found, and right programs have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from shardspec.ir.step import WrongSum
from shardspec.jax_backend.step.sums import wrong_sums

P = PartitionSpec
SIZE = 8


def found(
    function: Callable[..., Any],
    *specs: PartitionSpec,
    out: PartitionSpec | None = None,
    devices: int = 4,
    check: bool = False,
) -> list[WrongSum]:
    """Return what is wrong in a function of square arrays."""
    mesh = AbstractMesh((devices,), ("x",), (AxisType.Auto,))
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=out or P(), check_vma=check
    )
    arrays = [jax.ShapeDtypeStruct((SIZE * 4, SIZE * 4), jnp.float32)] * len(specs)
    return list(wrong_sums(jax.jit(mapped).trace(*arrays).jaxpr.jaxpr, ["out"]))


def faults(*args: Any, **kwargs: Any) -> set[str]:
    return {each.fault for each in found(*args, **kwargs)}


def line_of(function: Callable[..., Any], text: str) -> int:
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


def loss(w: Any, x: Any) -> Any:
    return jnp.mean(jnp.tanh(x @ w) ** 2)


ROWS, COLUMNS, WHOLE = P("x"), P(None, "x"), P()


def test_a_gradient_without_a_sum_has_both_lines() -> None:
    def update(w: Any, x: Any) -> Any:
        grad = jax.grad(loss)(w, x)
        return w - 0.1 * grad

    (wrong,) = found(update, WHOLE, ROWS)
    assert (wrong.fault, wrong.mesh_axis, wrong.ways, wrong.part) == ("missing", "x", 4, "sum")
    assert wrong.first.line == line_of(loss, "x @ w")
    assert wrong.second.line == line_of(update, "w - 0.1")
    assert wrong.result == "out"


def normed(w: Any, x: Any) -> Any:
    """Return a layer norm: rows by a column, and that by a row, which are broadcast in place."""
    scale = w[0] * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-6)
    return (x - x.mean(-1, keepdims=True)) * scale


def stacked(w: Any, x: Any) -> Any:
    both = jnp.stack([x @ w, jnp.tanh(x)])
    return sum(jnp.unstack(both * both))


@pytest.mark.parametrize("layer", [normed, stacked])
def test_a_gradient_through_layers_without_a_sum(layer: Callable[..., Any]) -> None:
    def update(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(layer(w, x)) @ w))(w)

    def right(w: Any, x: Any) -> Any:
        grad = jax.grad(lambda w: jnp.mean(jnp.tanh(layer(w, x)) @ w))(w)
        return w - 0.1 * lax.pmean(grad, "x")

    (wrong,) = found(update, WHOLE, ROWS)
    assert (wrong.fault, wrong.part) == ("missing", "sum")
    assert wrong.second.line == line_of(update, "w - 0.1")
    assert not found(right, WHOLE, ROWS)


def test_a_part_that_is_returned_as_it_is() -> None:
    def local(x: Any) -> Any:
        return jnp.sum(x)

    (wrong,) = found(local, ROWS)
    assert wrong.first.line == line_of(local, "jnp.sum")
    assert wrong.second == wrong.mapped
    assert wrong.mapped.line == line_of(local, "def local")
    assert not found(local, ROWS, devices=1)
    assert not found(lambda x: jnp.sum(x)[None], ROWS, out=ROWS)


def test_a_local_maximum() -> None:
    def softmax(x: Any) -> Any:
        shifted = x - x.max(-1, keepdims=True)
        return jnp.log(lax.psum(jnp.exp(shifted).sum(-1), "x")) + x.max(-1)

    (wrong,) = found(softmax, COLUMNS)
    assert (wrong.fault, wrong.part) == ("missing", "maximum")
    assert wrong.second.line == line_of(softmax, "jnp.log")


@jax.custom_vjp
def copied(x: Any) -> Any:
    return x


@jax.custom_vjp
def copied_right(x: Any) -> Any:
    return x


copied.defvjp(lambda x: (x, None), lambda _, g: (g,))
copied_right.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "x"),))


@jax.custom_vjp
def reduced(x: Any) -> Any:
    return lax.psum(x, "x")


reduced.defvjp(lambda x: (lax.psum(x, "x"), None), lambda _, g: (g,))


@pytest.mark.parametrize(("copy", "wrong"), [(copied, {"missing"}), (copied_right, set())])
def test_a_backward_pass_of_the_users(copy: Any, wrong: set[str]) -> None:
    def grads(scale: Any, up: Any, down: Any) -> Any:
        def whole(scale: Any) -> Any:
            hidden = jnp.tanh(copy(jnp.sin(scale)) @ up)
            return jnp.sum(reduced(hidden @ down))

        return jax.grad(whole)(scale)

    assert faults(grads, WHOLE, COLUMNS, ROWS) == wrong


def test_layers_and_microbatches() -> None:
    def accumulated(w: Any, x: Any, *, is_summed: bool) -> Any:
        def one(total: Any, part: Any) -> Any:
            return total + jax.grad(jax.checkpoint(loss))(part, x), None

        total, _ = lax.scan(one, jnp.zeros_like(w), jnp.stack((w, w)))
        return lax.pmean(total, "x") if is_summed else total

    assert faults(lambda w, x: accumulated(w, x, is_summed=False), WHOLE, ROWS) == {"missing"}
    assert not found(lambda w, x: accumulated(w, x, is_summed=True), WHOLE, ROWS)


def test_a_clip_by_the_norm_of_parts() -> None:
    def clipped(g: Any, whole: Any) -> Any:
        norm = jnp.sqrt(jnp.sum(g * g) + jnp.sum(whole * whole))
        return whole / jnp.maximum(norm, 1.0)

    assert faults(clipped, ROWS, WHOLE) == {"missing"}


def test_a_bias_before_the_sum() -> None:
    def row(x: Any, w: Any, b: Any) -> Any:
        out = x @ w + b[0]
        return lax.psum(out, "x")

    for check in (False, True):
        (wrong,) = found(row, COLUMNS, ROWS, WHOLE, check=check)
        assert wrong.fault == "added"
        assert wrong.first.line == line_of(row, "+ b[0]")
        assert wrong.second.line == line_of(row, "psum(out")


def test_sums_taken_twice() -> None:
    def twice(x: Any) -> Any:
        total = lax.psum(jnp.sum(x, 0), "x")
        return lax.psum(-total, "x")

    for check in (False, True):
        (wrong,) = found(twice, ROWS, check=check)
        assert (wrong.fault, wrong.is_implicit) == ("twice", False)
        assert wrong.first.line == line_of(twice, "jnp.sum(x, 0)")
        assert wrong.second.line == line_of(twice, "-total")


def test_a_gradient_that_jax_has_summed() -> None:
    def grads(w: Any, x: Any, sums: Callable[..., Any]) -> Any:
        return sums(jax.grad(loss)(w, x), "x")

    mean = lambda w, x: grads(w, x, lax.pmean)  # noqa: E731
    total = lambda w, x: grads(w, x, lax.psum)  # noqa: E731
    assert [(each.fault, each.is_implicit) for each in found(mean, WHOLE, ROWS, check=True)] == [
        ("mean", True)
    ]
    assert faults(total, WHOLE, ROWS, check=True) == {"twice"}
    assert not found(mean, WHOLE, ROWS)
    assert not found(total, WHOLE, ROWS)


def test_the_way_out_of_a_mean_of_summed_gradients() -> None:
    def grads(w: Any, x: Any) -> Any:
        return lax.pmean(jax.grad(loss)(lax.pcast(w, "x", to="varying"), x), "x")

    assert not found(grads, WHOLE, ROWS, check=True)


def decoded(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T
    most = scores.max(-1, keepdims=True)
    parts = jnp.exp(scores - most)
    whole = lax.pmax(most, "x")
    scale = jnp.exp(most - whole)
    total = lax.psum(parts.sum(-1, keepdims=True) * scale, "x")
    return lax.psum(parts @ v * scale, "x") / total


def rung(x: Any) -> Any:
    total, part = jnp.sum(x), jnp.sum(x)
    for _ in range(3):
        part = lax.ppermute(part, "x", [(at, (at + 1) % 4) for at in range(4)])
        total = total + part
    return total


def normed(x: Any) -> Any:
    mean = lax.psum(jnp.sum(x), "x") / lax.psum(x.size, "x")
    return lax.pmean(jnp.mean(jnp.square(x - mean)), "x")


def zero(g: Any, w: Any) -> Any:
    mine = lax.psum_scatter(g.T @ g, "x", tiled=True)
    return w - lax.all_gather(mine, "x", tiled=True)


def of_all(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: lax.pmean(loss(w, x), "x") + jnp.sum(w * w))(w) / lax.axis_size("x")


def regularized(w: Any, x: Any) -> Any:
    grad = jax.grad(lambda w: loss(w, x) + 0.1 * jnp.sum(w * w))(w)
    return w - lax.pmean(grad, "x")


def with_share(x: Any, w: Any, b: Any) -> Any:
    return lax.psum(x @ w + b / lax.axis_size("x"), "x")


def with_epsilon(x: Any) -> Any:
    return lax.psum(x.T @ x + 1e-6, "x")


def of_first(x: Any) -> Any:
    own = jnp.where(lax.axis_index("x") == 0, jnp.sum(x), 0.0)
    return lax.psum(own, "x")


def metrics(x: Any) -> Any:
    total = lax.psum(jnp.sum(x), "x")
    return lax.pmean(total, "x")


def is_finite(x: Any) -> Any:
    return lax.pmin(jnp.isfinite(jnp.sum(x)).astype(jnp.float32), "x")


def zeros(x: Any) -> Any:
    return 0.0 * jnp.sum(x) + jnp.ones(())


def lined_up(x: Any) -> Any:
    total = lax.all_gather(jnp.sum(x, 0), "x").sum(0)
    return total / lax.psum(1, "x")


def until_small(x: Any) -> Any:
    return lax.while_loop(
        lambda c: c > 1.0, lambda c: 0.5 * lax.pmean(c, "x"), lax.psum(jnp.sum(x), "x")
    )


@jax.jit
def all_summed(x: Any) -> Any:
    return lax.psum(x, "x")


def by_a_function(x: Any, w: Any, b: Any) -> Any:
    return all_summed(x @ w + b) / lax.axis_size("x")


def weighted(x: Any, mask: Any) -> Any:
    total = lax.psum(jnp.sum(x), "x")
    return lax.psum(total, "x") / lax.psum(jnp.sum(mask), "x")


RIGHT = {
    "a sum in a function of its own": (by_a_function, (COLUMNS, ROWS, WHOLE)),
    "a total and a count, both of all devices": (weighted, (ROWS, WHOLE)),
    "attention over a split cache": (decoded, (WHOLE, ROWS, ROWS)),
    "a ring by hand": (rung, (ROWS,)),
    "statistics of a global batch": (normed, (ROWS,)),
    "a scatter and a gather": (zero, (ROWS, WHOLE)),
    "the gradient of a mean over devices": (
        lambda w, x: lax.psum(of_all(w, x), "x"),
        (WHOLE, ROWS),
    ),
    "a regularized mean": (regularized, (WHOLE, ROWS)),
    "a share of a bias": (with_share, (COLUMNS, ROWS, WHOLE)),
    "a number added to parts": (with_epsilon, (ROWS,)),
    "a value of one device": (of_first, (ROWS,)),
    "a metric that is summed already": (metrics, (ROWS,)),
    "a truth value": (is_finite, (ROWS,)),
    "zeros of a split array": (zeros, (ROWS,)),
    "a gather that is summed": (lined_up, (ROWS,)),
    "a loop until all agree": (until_small, (ROWS,)),
    "a kernel": (
        lambda x: jax.ffi.ffi_call("k", jax.ShapeDtypeStruct((), jnp.float32))(jnp.sum(x)),
        (ROWS,),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs(name: str) -> None:
    function, specs = RIGHT[name]
    assert not found(function, *specs)


@pytest.mark.parametrize("check", [False, True])
def test_a_mean_outside_of_the_mapped_function(check: bool) -> None:
    mesh = AbstractMesh((4,), ("x",), (AxisType.Auto,))

    def row(x: Any, w: Any, b: Any) -> Any:
        return lax.psum(x @ w + b, "x").T

    def mean(*arrays: Any, by: float | None) -> Any:
        specs = (COLUMNS, ROWS, WHOLE)
        out = jax.shard_map(row, mesh=mesh, in_specs=specs, out_specs=WHOLE, check_vma=check)
        return jax.jit(out)(*arrays) / by if by else jnp.tanh(out(*arrays))

    arrays = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 3
    for by in (None, 4.0):
        traced = jax.jit(partial(mean, by=by)).trace(*arrays)
        assert [each.fault for each in wrong_sums(traced.jaxpr.jaxpr)] == ["added"] * (not by)


def test_a_kernel_whose_type_is_stated() -> None:
    """With `check_vma`, a kernel of what is the same on all devices returns the same on all."""

    def row(x: Any, w: Any, b: Any) -> Any:
        return lax.psum(x @ w + jax.ffi.ffi_call("k", jax.typeof(b))(b), "x")

    assert faults(row, COLUMNS, ROWS, WHOLE, check=True) == {"added"}
    assert not found(row, COLUMNS, ROWS, WHOLE)


def test_another_axis_changes_nothing() -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"), (AxisType.Auto,) * 2)

    def local(w: Any, x: Any) -> Any:
        return lax.psum(jax.grad(loss)(w, x), "y")

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(WHOLE, P(("x", "y"))), out_specs=WHOLE, check_vma=False
    )
    array = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    wrong = wrong_sums(jax.jit(mapped).trace(array, array).jaxpr.jaxpr)
    assert [(each.fault, each.mesh_axis) for each in wrong] == [("missing", "x")]


def test_a_program_that_jax_transposes() -> None:
    """Under `jax.grad` of a `shard_map`, JAX sums what is replicated itself."""
    mesh = AbstractMesh((4,), ("x",), (AxisType.Auto,))
    for check in (False, True):
        mapped = jax.shard_map(
            lambda w, x: lax.pmean(loss(w, x), "x"),
            mesh=mesh,
            in_specs=(WHOLE, ROWS),
            out_specs=WHOLE,
            check_vma=check,
        )
        array = jax.ShapeDtypeStruct((32, 32), jnp.float32)
        traced = jax.jit(jax.grad(jax.checkpoint(mapped))).trace(array, array)
        assert wrong_sums(traced.jaxpr.jaxpr) == ()
