"""What the walk says of random small programs under `shard_map` is what two devices compute.

A value that is called the same is the same on both devices. The parts of a partial sum add up to
what one device computes of the whole arrays; split values put together are that, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from shardspec.jax_backend.step.sum_rules import Kind, State
from shardspec.jax_backend.step.sums import Results, Walk
from shardspec.programs.op_names import Callers

SIZE = 8
SUMS = ("psum", "psum_invariant")
JOINS = (*SUMS, "pmax", "all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all")
SPECS = (
    PartitionSpec("x"),
    PartitionSpec(None, "x"),
    PartitionSpec(),
    PartitionSpec(),
    PartitionSpec("x"),
)
SHAPES = ((SIZE, SIZE), (SIZE, SIZE), (SIZE, SIZE), (SIZE,), (SIZE,))


def looked_up(a: Any, b: Any) -> Any:
    return a[(jnp.abs(b) * 3).astype(jnp.int32) % SIZE]


def added_at(a: Any, b: Any) -> Any:
    return jnp.zeros((SIZE, SIZE)).at[(jnp.abs(a) * 3).astype(jnp.int32) % SIZE].add(b)


def scanned(a: Any, b: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, jnp.tanh(c)), 0.0 * b, a)[0]


def stacked(a: Any, b: Any) -> Any:
    return lax.scan(lambda c, row: (c, row * c), b, a)[1]


def repeated(a: Any, b: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, c: 0.5 * c + jnp.tanh(b), a)


def until(a: Any, b: Any) -> Any:
    return lax.while_loop(
        lambda c: jnp.sum(c[0]) * 0 + c[1] < 2, lambda c: (jnp.sin(c[0]), c[1] + 1), (a + b, 0)
    )[0]


def added_up(a: Any, b: Any) -> Any:
    return lax.scan(lambda c, w: (c + jnp.tanh(a @ w).T @ a, None), 0.0 * b, b[None])[0]


def gradient(a: Any, b: Any) -> Any:
    return jax.grad(jax.checkpoint(lambda b: jnp.sum(jnp.tanh(a @ b))))(b)


def of_total(a: Any, b: Any) -> Any:
    return jax.grad(lambda b: jnp.tanh(lax.psum(jnp.sum(jnp.sin(a @ b)), "x")))(b)


UNARY: tuple[Callable[[Any], Any], ...] = (
    jnp.tanh,
    jnp.sin,
    jnp.negative,
    jnp.square,
    jnp.transpose,
    lambda a: a.sum(0),
    lambda a: a.sum(1),
    lambda a: a.sum(),
    lambda a: a.sum(-1, keepdims=True),
    lambda a: a.max(0),
    lambda a: a.min(-1),
    lambda a: jnp.cumsum(a, 0),
    lambda a: a.reshape(-1),
    lambda a: a.reshape(a.shape[0] // 2, 2, *a.shape[1:]),
    lambda a: a.reshape(a.shape[0], 2, -1),
    lambda a: a.reshape(-1, a.shape[-1]),
    lambda a: a[: a.shape[0] // 2],
    lambda a: a[..., 1:],
    lambda a: a[::-1],
    lambda a: a[0],
    lambda a: a[None],
    lambda a: a[..., None] * jnp.ones((3,)),
    lambda a: a * 2.0,
    lambda a: a + 1.0,
    lambda a: jnp.maximum(a, 0.1),
    lambda a: jnp.where(a > 0, a, 0.0),
    lambda a: jnp.sort(a, 0),
    lambda a: jnp.argmax(a, -1).astype(jnp.float32),
    lambda a: 0.0 * a,
    lambda a: a * jnp.arange(a.shape[0], dtype=jnp.float32).reshape(-1, *[1] * (a.ndim - 1)),
    jax.nn.softmax,
    lambda a: jnp.pad(a, ((0, 1), *[(0, 0)] * (a.ndim - 1))),
    jax.jit(lambda a: jnp.cos(a).sum(0)),
    jax.checkpoint(jnp.sinh),
)
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.matmul,
    lambda a, b: a.T @ b,
    lambda a, b: a @ b.T,
    lambda a, b: jnp.einsum("...d,...d->...", a, b),
    lambda a, b: a / (1.0 + b * b),
    lambda a, b: jnp.where(a > 0, b, 0.0),
    lambda a, b: jnp.where(a.sum() > 0, b, 2 * b),
    lambda a, b: jnp.concatenate((a, b)),
    lambda a, b: jnp.stack((a, b)),
    jnp.maximum,
    lambda a, b: lax.dynamic_update_slice(a, b, (1,) * a.ndim),
    lambda a, b: jnp.take_along_axis(a, jnp.argsort(b, 0), 0),
    lambda a, b: lax.cond(a.sum() > 0, lambda b: b.sum(0), lambda b: jnp.zeros(b.shape[1:]), b),
    looked_up,
    added_at,
    scanned,
    stacked,
    repeated,
    until,
    added_up,
    gradient,
    of_total,
)
COLLECTIVE: tuple[Callable[[Any], Any], ...] = (
    lambda a: lax.psum(a, "x"),
    lambda a: lax.pmean(a, "x"),
    lambda a: lax.pmax(a, "x"),
    lambda a: lax.all_gather(a, "x", tiled=True),
    lambda a: lax.psum_scatter(a, "x", tiled=True),
    lambda a: lax.ppermute(a, "x", [(0, lax.axis_size("x") - 1)]),
    lambda a: lax.all_to_all(a, "x", 0, 1, tiled=True),
    lambda a: a * (lax.axis_index("x") + 1.0),
)

Step = tuple[int, int, int]
steps = st.lists(
    st.tuples(
        st.one_of(
            st.integers(0, len(UNARY) - 1),
            st.integers(len(UNARY), len(UNARY) + len(BINARY) - 1),
            st.integers(len(UNARY) + len(BINARY), len(UNARY) + len(BINARY) + len(COLLECTIVE) - 1),
        ),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    min_size=3,
    max_size=12,
)


def program(chosen: Sequence[Step], kept: list[Step] | None) -> Callable[..., Any]:
    """Return a program that makes one value in each step of those that can be made."""

    def run(*arrays: Any) -> list[Any]:
        values = list(arrays)
        for step in chosen:
            at, first, second = step
            a, b = values[first % len(values)], values[second % len(values)]
            try:
                values.append(made(at, a, b))
            except (TypeError, ValueError, IndexError, ZeroDivisionError):
                if kept is None:
                    raise
                continue
            if kept is not None:
                kept.append((at, first % (len(values) - 1), second % (len(values) - 1)))
        return [value[None] for value in values]

    return run


def made(at: int, a: Any, b: Any) -> Any:
    if at < len(UNARY):
        return UNARY[at](a)
    if at < len(UNARY) + len(BINARY):
        return BINARY[at - len(UNARY)](a, b)
    return COLLECTIVE[at - len(UNARY) - len(BINARY)](a)


def mapped(run: Callable[..., Any], count: int, *, check: bool) -> Any:
    mesh = jax.make_mesh((count,), ("x",), (AxisType.Auto,), devices=jax.devices()[:count])
    under = jax.shard_map(
        run, mesh=mesh, in_specs=SPECS, out_specs=PartitionSpec("x"), check_vma=check
    )
    return jax.jit(under, compiler_options={"xla_backend_optimization_level": 0})


def other_than_one_device(equations: Any, known: dict[Any, State]) -> set[Any]:
    """Return the values that one device need not compute: sums of what is no part, for one."""
    loose = (Kind.UNKNOWN, Kind.STALE)
    found = {var for var, state in known.items() if state.kind in loose}
    for each in equations:
        given = [var for var in each.invars if not isinstance(var, jax.extend.core.Literal)]
        text = str(each.params)
        joins = each.primitive.name in JOINS
        is_right = all(_is_joined_right(each, known[var]) for var in given)
        hides = any(word in text for word in ("psum", "pmax", "all_gather", "axis_index"))
        literals = len(given) < len(each.invars) and joins
        if (joins and not is_right) or hides or literals or found.intersection(given):
            found.update(each.outvars)
    return found


def _is_joined_right(equation: Any, state: State) -> bool:
    name = equation.primitive.name
    if name in (*SUMS, "reduce_scatter"):
        return state.is_sum
    if name == "pmax":
        return state.kind is Kind.PARTIAL and state.part == "maximum"
    return state.kind is Kind.SPLIT


@settings(max_examples=60)
@given(steps, st.integers(0, 100), st.booleans())
def test_states_are_what_two_devices_compute(chosen: list[Step], seed: int, check: bool) -> None:
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
    kept: list[Step] = []
    both = mapped(program(chosen, kept), 2, check=check)
    structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in arrays]
    (equation,) = both.trace(*structs).jaxpr.eqns
    count = len(equation.outvars)
    walk = Walk(equation, "x", Results([""] * count, [False] * count), Callers())
    list(walk.wrong())
    body = equation.params["jaxpr"]
    states = [walk.states[var] for var in body.outvars]
    other = other_than_one_device(body.eqns, walk.states)
    try:
        alone = mapped(program(kept, None), 1, check=check)(*arrays)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        alone = None
    found = both(*arrays)
    for at, (state, var) in enumerate(zip(states, body.outvars, strict=True)):
        parts = np.split(np.asarray(found[at], np.float64), 2)
        if not np.isfinite(parts).all():
            continue
        one = None if alone is None or var in other else np.asarray(alone[at], np.float64)
        holds(state, parts, one, kept)


def holds(state: State, parts: list[Any], one: Any, told: Any) -> None:
    scale = float(np.abs(parts).max(initial=1.0))
    near = {"rtol": 1e-3, "atol": 1e-3 * scale, "err_msg": f"{state} of {told}"}
    if state.is_same:
        np.testing.assert_array_equal(parts[0], parts[1], err_msg=f"{state} of {told}")
        if state.kind is Kind.ZERO:
            np.testing.assert_array_equal(parts[0], 0, err_msg=f"{state} of {told}")
        for dim in state.even:
            first = np.take(parts[0], [0], dim) if parts[0].shape[dim] else parts[0]
            np.testing.assert_array_equal(parts[0], np.broadcast_to(first, parts[0].shape))
    elif one is not None and state.is_sum:
        np.testing.assert_allclose(parts[0] + parts[1], one, **near)
    elif one is not None and state.kind is Kind.PARTIAL and state.used is None:
        join = np.maximum if state.part == "maximum" else np.minimum
        np.testing.assert_allclose(join(*parts), one, **near)
    elif one is not None and state.kind is Kind.SPLIT:
        np.testing.assert_allclose(np.concatenate(parts, state.dim), one, **near)
