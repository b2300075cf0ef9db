"""A step of many layers takes what steps of a few of them tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.cure.figures import Figures
from shardspec.cure.lines import Line, Point
from shardspec.jax_backend.cure.inserting import prepared, remaining
from shardspec.jax_backend.cure.shortened import KEPT, Run, Shortened, pruned, runs, shortened
from shardspec.jax_backend.cure.worker import Base
from shardspec.jax_backend.step.passes import bytecode_of
from tests.jax_backend.cure.pricing import prices
from tests.jax_backend.cure.small import (
    SPEC,
    P,
    X,
    base_and_sites,
    layer,
    line,
    mean,
    struct,
    without,
)

Model = tuple[Callable[..., Any], tuple[Any, ...]]
MODELS: dict[str, Callable[[], Model]] = {}
#: Chips without fast memory, into which a step of three layers fits, and one of eight does not.
SLOW = SPEC.replace("tpu v5e 2x4", "tpu v5p 2x2x2")


def model(build: Callable[[], Model]) -> Callable[[], Model]:
    MODELS[build.__name__] = build
    return build


def trained(loss: Callable[..., Any], params: Any, *args: Any) -> Model:
    """Return a step with momentum: an update of each weight, behind all gradients."""

    def step(params: Any, momentum: Any, *args: Any) -> Any:
        grads = jax.grad(loss)(params, *args)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    return step, (params, params, *args)


@model
def plain() -> Model:
    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = layer(without, p, x)
        return mean(x)

    return trained(loss, [P] * 8, X)


@model
def by_name() -> Model:
    """Layers whose names have another order than the layers: 10, 11, 4, 5."""

    def loss(params: Any, x: Any) -> Any:
        for at in range(4, 12):
            x = layer(without, params[f"layers_{at}"], x)
        return mean(x @ params["table"].T)

    table = {"table": struct(4096, 256)}
    return trained(loss, {f"layers_{at}": P for at in range(4, 12)} | table, X)


@model
def computed_again() -> Model:
    @jax.checkpoint
    def own(p: Any, x: Any) -> Any:
        return layer(without, p, x)

    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = own(p, x)
        return mean(x)

    return trained(loss, [P] * 8, X)


@model
def in_turns() -> Model:
    """Layers of two kinds, one after the other."""

    def loss(params: Any, x: Any) -> Any:
        for at, p in enumerate(params):
            x = layer(without, p, x) if at % 2 else x + jnp.tanh(x @ p["wi"]) @ p["wo"]
        return mean(x)

    return trained(loss, [P] * 14, X)


@model
def called() -> Model:
    """A step that another function calls, as one does that sets a mesh or rules around it."""
    step, args = plain()
    inner = jax.jit(step)
    return (lambda *given: inner(*given)), args


@cache
def found_of(name: str) -> tuple[list[tuple[Line, ...]], Base, list[Figures]]:
    """Return trials, and what they take by the whole step and by the shorter ones in turn."""
    base, sites = base_and_sites(*MODELS[name](), SLOW)
    layers, shorter = shortened(base.module)
    short = replace(base, layers=layers, shorter=shorter)
    lines = {
        expression: [line(site, names) for names in ("batch _ _", "_ _ mlp")]
        for expression, site in sites.items()
        if len(site.shape) == 3
    }
    trials = [(), *((one,) for own in lines.values() for one in own)]
    found = prices([(each, trial) for trial in trials for each in (base, short)])
    assert all(isinstance(each, Figures) for each in found)
    return trials, short, [each for each in found if isinstance(each, Figures)]


@pytest.mark.parametrize("name", MODELS)
def test_shorter_steps_tell_what_the_whole_one_takes(name: str) -> None:
    trials, _, found = found_of(name)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len({whole.key for whole, _ in pairs}) >= 3, "lines change what the step takes"
    ranks = [sorted(range(len(pairs)), key=lambda at: pairs[at][way].bytes) for way in (0, 1)]
    assert ranks[0] == ranks[1], "the order of lines is that of the whole step"
    best = pairs[ranks[0][0]]
    assert best[1].is_like(best[0]), trials[ranks[0][0]]
    for whole, told in pairs:
        # where most is held moves, as more layers make more of what is kept
        assert told.memory == pytest.approx(whole.memory, rel=0.2)
        assert told.fits == whole.fits
        assert told.compute == pytest.approx(whole.compute, rel=0.02)
        # weights are gathered again for a backward pass 150 operations away: by all but two or
        # three layers, and shorter steps have no more
        assert dict(told.sent) == pytest.approx(dict(whole.sent), rel=0.16)
        assert told.seconds == pytest.approx(whole.seconds, rel=0.12)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_more_is_all_that_is_different(name: str) -> None:
    _, base, _ = found_of(name)
    assert base.layers == (7 if name == "in_turns" else 8)
    whole = len(shortened_numbers(base))
    for more, less in pairwise(base.shorter):
        one = len(more.numbers) - len(less.numbers)
        assert len(more.numbers) + len(less.numbers) < whole
        assert more.layers - less.layers == 1
        assert whole - len(less.numbers) == one * (base.layers - less.layers)


def shortened_numbers(base: Base) -> list[int]:
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    from shardspec.jax_backend.cure.sites import numbered

    with mlir.make_ir_context():
        return [number for number, _ in numbered(ir.Module.parse(base.module))]


def test_lines_are_at_the_layers_that_stay() -> None:
    base, sites = base_and_sites(*MODELS["plain"]())
    _, shorter = shortened(base.module)
    own, weights = line(sites["x + out"], "batch _ _"), range(len(base.arguments))
    counts = [len(remaining([own], each.numbers, weights)[0].site.points) for each in shorter]
    assert counts == [*KEPT]
    placed = replace(own, site=replace(own.site, at=None, points=(Point(3), Point(5))))
    (left,) = remaining([own, placed], {}, (0, 2, 5))
    assert left.site.points == (Point(2),), "a line without values is left out"


@pytest.mark.parametrize("name", [*MODELS])
def test_arguments_and_results_go_with_their_layers(name: str) -> None:
    """What is left are the weights and their momenta of each layer, and what is around."""
    base, _ = base_and_sites(*MODELS[name]())
    layers, shorter = shortened(base.module)
    for step in shorter:
        found = pruned(replace(step, module=prepared(step.module)))
        for left, count in ((found.arguments, 1), (found.results, 0)):
            around = (name == "by_name") * 2 + count
            weights = len(base.arguments) - 1 - (name == "by_name") * 2
            assert len(left) == weights * step.layers // layers + around
            assert {*left} <= {*range(len(base.arguments))}


def test_what_layers_that_stay_give_back_takes_the_memory_of_their_own() -> None:
    def step(params: Any, x: Any) -> Any:
        for p in params:
            x = jnp.tanh(x @ p["w"])
        return jax.tree.map(lambda p: p + x.sum(), params), x

    assert left_of(step) == ((*range(9),), (*range(9),))


def test_weights_that_are_given_back_as_they_are_go_with_their_layers() -> None:
    def step(params: Any, x: Any) -> Any:
        for p in params[:2]:
            x = jnp.tanh(x @ p["w"])
        return params, x

    assert left_of(step) == ((0, 1, 8), (0, 1, 8))


def left_of(step: Callable[..., Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the arguments and results that are left of a step of eight weights."""
    args = ([{"w": struct(64, 64)}] * 8, struct(8, 64))
    lowered = jax.jit(step, donate_argnums=0, keep_unused=True).lower(*args)
    module = prepared(bytecode_of(lowered.compiler_ir()))
    found = pruned(Shortened(module, 8, dict.fromkeys(range(99), 0)))
    return found.arguments, found.results


def few(params: Any, x: Any) -> Any:
    for p in params:
        x = layer(without, p, x)
    return mean(x)


def tied(p: Any, x: Any) -> Any:
    for _ in range(8):
        x = layer(without, p, x)
    return mean(x)


@pytest.mark.parametrize(("function", "args"), [(few, ([P] * 4, X)), (tied, (P, X)), (mean, (X,))])
def test_a_step_without_many_layers_is_taken_whole(function: Any, args: Any) -> None:
    assert shortened(base_and_sites(jax.grad(function), args)[0].module) == (0, ())


def test_where_shorter_steps_tell_something_else_the_whole_one_is_priced() -> None:
    _, short, found = found_of("plain")
    slower = found[0]._replace(seconds=2 * (found[0].seconds or 0.0))
    other = replace(short, now=slower, layers=short.layers + 4)
    (priced,) = prices([(other, ())])
    assert priced == found[0]


def test_shorter_steps_are_priced_though_the_step_as_it_is_counts_computing_otherwise() -> None:
    """Shardy's propagation and the partitioned program do not read the same bytes on a GPU."""
    _, short, found = found_of("plain")
    slower = found[0]._replace(seconds=1.2 * (found[0].seconds or 0.0))
    (priced,) = prices([(replace(short, now=slower), ())])
    assert isinstance(priced, Figures)
    assert priced == found[1]._replace(places=priced.places)


@given(st.lists(st.integers(0, 3), min_size=24, max_size=40), st.integers(6, 9), st.data())
def test_a_sequence_that_repeats_itself_is_a_run(
    part: list[int], times: int, data: st.DataObject
) -> None:
    other = st.lists(st.integers(4, 99), max_size=30, unique=True)
    before, after = data.draw(other), data.draw(other)
    own = [100, *part]  # what comes once in a part tells how long it is
    found = runs([*before, *own * times, *after])
    assert sum(run.size * run.times for run in found) >= len(own) * times
    assert all(left.end <= right.start for left, right in pairwise(found))


def test_a_run_has_parts_one_after_the_other() -> None:
    run = Run(3, 4, 2)
    assert [*run.part(0), *run.part(1)] == [*range(3, run.end)]


def test_nothing_repeats_itself() -> None:
    assert runs(list(range(100))) == []
    assert runs([]) == []


def test_a_step_of_which_layers_are_a_small_part_is_tried_whole() -> None:
    """Two programs that are nearly as long as the whole one take longer than that."""

    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = layer(without, p, x)
        for at in range(400):  # another thing each time
            x = jnp.pad(x, ((0, 0), (0, 0), (0, at % 7)))[..., at % 7 :] * (at + 2)
        return mean(x)

    base, _ = base_and_sites(*trained(loss, [P] * 8, X))
    assert shortened(base.module) == (0, ())


def factored() -> Model:
    """Adafactor: an update of a weight is longer than its layer, and reads what that has made."""
    tx = optax.adafactor(1e-3, min_dim_size_to_factor=2)

    def loss(params: Any, x: Any) -> Any:
        for at in range(8):
            x = layer(without, params[f"layers_{at}"], x)
        return mean(x)

    def step(params: Any, state: Any, x: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    params = {f"layers_{at}": P for at in range(8)}
    return step, (params, jax.eval_shape(tx.init, params), X)


def test_layers_are_known_by_the_updates_of_their_weights() -> None:
    base, _ = base_and_sites(*factored(), SLOW)
    layers, (*_, longer, shorter) = shortened(base.module)
    assert layers == 7  # the last one is unlike the others, and stays
    assert len(longer.numbers) - len(shorter.numbers) > 200  # its passes, and its update
