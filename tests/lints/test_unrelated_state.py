"""Large state of no dimension of its parameter: bytes, and a way out that works."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest

from shardspec.diagnostics import Diagnostic, Severity, ShardspecError
from shardspec.jax_backend.resolver import Resolver
from shardspec.public import loads

TEXT = """\
shardspec: 1
mesh: {data: 2, model: 4}
rules:
  - embed -> data
  - mlp -> model
params:
  "**/kernel": embed mlp
"""


class ShampooState(NamedTuple):
    """A square for each dimension, as Shampoo keeps."""

    statistics: Any
    preconditioners: Any


def shampoo() -> optax.GradientTransformation:
    def squares(params: Any) -> Any:
        return jax.tree.map(lambda p: [jnp.eye(size) for size in p.shape], params)

    def init(params: Any) -> ShampooState:
        return ShampooState(squares(params), squares(params))

    return optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))


def model(layers: int = 3, embed: int = 1024, mlp: int = 4096) -> dict[str, Any]:
    kernel = jax.ShapeDtypeStruct((embed, mlp), "float32")
    return {f"layer_{n}": {"kernel": kernel} for n in range(layers)}


def said(text: str, **sizes: int) -> tuple[Diagnostic, ...]:
    params = model(**sizes)
    state = jax.eval_shape(shampoo().init, params)
    return Resolver(loads(text)).state_plan(state, params).diagnostics


def test_it_is_one_finding_with_its_bytes() -> None:
    (found,) = said(TEXT)
    assert (found.code.id, found.severity) == ("SHD409", Severity.WARNING)
    assert found.message == (
        "`statistics/layer_{0..2}/kernel/1` f32[4096, 4096] has no dimension of"
        " `layer_0/kernel` f32[1024, 4096], and is replicated on every device"
    )
    assert found.notes[0] == "12 arrays of such state, 408 MiB on each device"
    assert found.notes[1].startswith("204 MiB  ")


def test_following_the_help_until_it_is_silent() -> None:
    """Each step is what the finding itself says; what is large is split over all devices."""
    text, steps = TEXT + "overrides:\n", 0
    while found := said(text if steps else TEXT):
        entry = re.search(r"`(\{path: .*?\})`", found[0].help or "")
        assert entry is not None
        text += f"  - {entry.group(1).replace('...', 'squares')}\n"
        steps += 1
    assert 1 <= steps <= 4
    params = model()
    state = jax.eval_shape(shampoo().init, params)
    plan = Resolver(loads(text)).state_plan(state, params)
    whole = 2 * 3 * 4 * (1024**2 + 4096**2)
    assert plan.per_device_bytes < whole / 6  # what is left whole is not large


def test_what_is_small_allowed_or_on_one_device_is_fine() -> None:
    assert said(TEXT, embed=16, mlp=32) == ()
    allow = TEXT + 'replicate:\n  - {path: "{statistics,preconditioners}/**", because: small}\n'
    assert said(allow) == ()
    one = Resolver(
        loads(TEXT.replace("data: 2, model: 4", "data: 1, model: 1")), devices=jax.devices()[:1]
    )
    state = jax.eval_shape(shampoo().init, model())
    assert one.state_plan(state, model()).diagnostics == ()


def test_a_size_that_nothing_divides_has_another_way_out() -> None:
    (found,) = said(TEXT, embed=1023, mlp=4095)
    assert found.help == (
        "no mesh axis divides it: allow what should be replicated under `replicate:`, with a reason"
    )


def test_a_level_makes_it_an_error_of_the_shardings() -> None:
    state = jax.eval_shape(shampoo().init, model())
    Resolver(loads(TEXT)).state_shardings(state, model())
    strict = Resolver(loads(TEXT + "lints: {unrelated-state: error}\n"))
    with pytest.raises(ShardspecError, match="SHD409"):
        strict.state_shardings(state, model())


def test_the_entry_of_derive_that_the_help_says_works() -> None:
    (found,) = said(TEXT)
    entry = re.search(r'`("[^"]*": dims [^`]*)`', found.help or "")
    assert entry is not None
    (after,) = said(f"{TEXT}derive: {{{entry[1]}}}\n")
    assert after.message.startswith("`preconditioners/"), "the next largest"
    assert after.notes[0] == "9 arrays of such state, 216 MiB on each device"
