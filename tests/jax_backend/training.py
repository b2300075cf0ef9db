"""Ten steps of Adam under a spec, and the same ten on one device."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import jax
import numpy as np
import optax

from shardspec.ir.plan import ParamSharding
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.shardings import collector_at_rest
from shardspec.jax_backend.trees import leaves_of
from tests.jax_backend.presets import STRATEGIES, spec_of
from tests.models import layers
from tests.models.layers import PLAIN, Wiring

STEPS = 10
#: Adam divides each gradient by its own size. Where that is next to nothing, what is left is the
#: rounding of it; an `eps` well above f32's rounding of these losses keeps that from being a step.
OPTIMIZER = optax.adam(1e-2, eps=1e-6)

#: The order of sums over the batch and over split dimensions is another one, and Adam carries the
#: difference on. Of 64 runs, the most that was seen: 1e-6 of a loss, and 1e-4 in a parameter, which
#: ten steps may move by 1e-1.
LOSS, PARAMETER = 1e-5, 1e-3

#: What XLA logs where it can move an array only by making it replicated on every device.
REMATERIALIZATION = "Involuntary full rematerialization"


@dataclass(frozen=True)
class Run:
    """What came of ten steps.

    Attributes:
      program: the compiled step, as text.
      log: what XLA had to say while compiling.
    """

    losses: tuple[float, ...]
    params: Any
    program: str
    log: str


@dataclass(frozen=True)
class _Step:
    """A step to compile. What is the same program has the same answer, mesh axes and all."""

    model: ModuleType
    program: str
    lowered: Any = field(compare=False, repr=False)

    @classmethod
    def of(cls, model: ModuleType, lowered: Any) -> _Step:
        """Return a lowered step."""
        return cls(model, lowered.as_text(), lowered)


@cache
def _compiled(step: _Step) -> tuple[Any, str]:
    """Return a compiled step, and what XLA had to say while it compiled.

    Presets that differ in names which a model lacks are one to it: `megatron` and `t5x/1d`.
    """
    with standard_error() as log:
        compiled = step.lowered.compile()
    return compiled, log[0]


@contextmanager
def standard_error() -> Iterator[list[str]]:
    """Collect what anything in this process writes to file descriptor 2, C++ included."""
    found: list[str] = []
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            found.append(file.read().decode(errors="replace"))


def batch() -> dict[str, Any]:
    """Return one batch, the same for every step."""
    shape = layers.BATCH, layers.LENGTH
    tokens = np.random.default_rng(7).integers(1, layers.VOCAB, (2, *shape), dtype=np.int32)
    return {"inputs": tokens[0], "targets": tokens[1]}


@cache
def start(model: ModuleType) -> tuple[Any, Any]:
    """Return the first parameters of a model and their optimizer state, off all devices."""

    def init(key: Any) -> tuple[Any, Any]:
        params = model.init(key)
        return params, OPTIMIZER.init(params)

    key = jax.random.key(0)
    return jax.device_get(jax.jit(init).lower(key).compile()(key))


@cache
def run_of(model: ModuleType, preset: str) -> tuple[Resolver, Run]:
    """Return ten steps under a preset."""
    strategy = STRATEGIES[preset]
    resolver = Resolver(spec_of(strategy, model.EXAMPLE))
    return resolver, trained(model, resolver, is_pipeline=strategy.is_pipeline)


@cache
def reference(model: ModuleType) -> Run:
    """Return ten steps on one device, nothing constrained."""
    params, state = start(model)
    compiled = jax.jit(_step(model, PLAIN)).lower(params, state, batch()).compile()
    losses = []
    for _ in range(STEPS):
        loss, params, state = compiled(params, state, batch())
        losses.append(loss)
    return Run(tuple(map(float, losses)), jax.device_get(params), compiled.as_text(), "")


@collector_at_rest()
def trained(model: ModuleType, resolver: Resolver, *, is_pipeline: bool = False) -> Run:
    """Return ten steps under a spec; before and after each, all arrays lie as it says."""
    params, state = start(model)
    places = resolver.shardings(params), resolver.state_shardings(state, params)
    plan = resolver.plan(params).arrays
    state_plan = list(resolver.state_plan(state, params).arrays)
    tokens = {name: _cut(each) if is_pipeline else each for name, each in batch().items()}
    names = "microbatch batch length" if is_pipeline else "batch length"
    tokens = jax.device_put(tokens, resolver.sharding(names))
    params, state = jax.device_put((params, state), places)

    lowered = jax.jit(
        _step(model, Wiring(resolver.constrain, is_pipeline)),
        in_shardings=(*places, resolver.sharding(names)),
        out_shardings=(None, *places),
        donate_argnums=(0, 1),
    ).lower(params, state, tokens)
    compiled, log = _compiled(_Step.of(model, lowered))

    losses = []
    assert_lie_as_planned(resolver, (*plan, *state_plan), (params, state))
    for _ in range(STEPS):
        before = params
        loss, params, state = compiled(params, state, tokens)
        assert all(array.is_deleted() for array in jax.tree.leaves(before))
        assert_lie_as_planned(resolver, (*plan, *state_plan), (params, state))
        losses.append(loss)
    return Run(tuple(map(float, losses)), params, compiled.as_text(), log)


def _step(model: ModuleType, wiring: Wiring) -> Any:
    def step(params: Any, state: Any, tokens: Any) -> Any:
        loss, gradients = jax.value_and_grad(model.loss)(params, tokens, wiring)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return loss, optax.apply_updates(params, updates), state

    return step


def _cut(tokens: Any) -> Any:
    """Return a batch as microbatches."""
    return tokens.reshape(layers.MICROBATCHES, -1, layers.LENGTH)


def assert_lie_as_planned(
    resolver: Resolver, planned: tuple[ParamSharding, ...], live: Any
) -> None:
    """Compare every array with the plan's trace: its sharding, and what one device has of it."""
    for sharding, leaf in zip(planned, leaves_of(live), strict=True):
        spec = jax.sharding.PartitionSpec(*(dim.mesh_axes or None for dim in sharding.dims))
        expected = jax.sharding.NamedSharding(resolver.mesh, spec)
        found = leaf.value.sharding
        assert found.is_equivalent_to(expected, leaf.value.ndim), (leaf.path, found, expected)
        assert leaf.value.addressable_data(0).shape == sharding.shard_shape, leaf.path


def collectives(program: str) -> Counter[str]:
    """Return how often a compiled program has each collective."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    return Counter(re.findall(rf" ({kinds})(?:-start)?\(", program))


def share_of_one_device(params: Any) -> float:
    """Return what one device holds of the bytes of all parameters."""
    arrays = jax.tree.leaves(params)
    held = max(
        sum(array.addressable_shards[place].data.nbytes for array in arrays)
        for place in range(jax.device_count())
    )
    return held / sum(array.nbytes for array in arrays)
