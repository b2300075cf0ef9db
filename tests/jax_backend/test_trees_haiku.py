"""Haiku: two-level dicts whose module names have slashes in them."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from tests.jax_backend.verbs import TEXT, assert_jit_obeys, specs_by_every_verb

PARAMS = """\
params:
  "**/wi/w": embed mlp
  "**/wo/w": mlp embed
  "**/wi/b": mlp
  "**/wo/b": embed
"""
X = jnp.ones((2, 8))


class Block(hk.Module):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.wi = hk.Linear(16, name="wi")

    def __call__(self, x: Any) -> Any:
        return hk.Linear(8, name="wo")(jax.nn.relu(self.wi(x)))


def forward(x: Any) -> Any:
    return Block("second")(Block("first")(x))


def test_params() -> None:
    init = hk.transform(forward).init
    tree = init(jax.random.key(0), X)
    expected = {
        f"{block}/{name}": spec
        for block in ("first", "second")
        for name, spec in {
            "wo/b": "P('data')",
            "wo/w": "P('model', 'data')",
            "~/wi/b": "P('model')",
            "~/wi/w": "P('data', 'model')",
        }.items()
    }
    assert specs_by_every_verb(tree, TEXT + PARAMS) == expected
    assert_jit_obeys(init, jax.random.key(0), X, text=TEXT + PARAMS)


def test_library_modules() -> None:
    tree = hk.transform(lambda x: hk.nets.MLP([16, 8])(x)).init(jax.random.key(0), X)
    text = f'{TEXT}params: {{"mlp/~/linear_0/w": embed mlp, "re:mlp/~/linear_1/w": mlp embed}}\n'
    specs = specs_by_every_verb(tree, text)
    assert specs["mlp/~/linear_0/w"] == "P('data', 'model')"
    assert specs["mlp/~/linear_1/w"] == "P('model', 'data')"


def test_stacked_layers() -> None:
    def stacked(x: Any) -> Any:
        return hk.experimental.layer_stack(3)(lambda x: Block("block")(x))(x)

    tree = hk.transform(stacked).init(jax.random.key(0), X)
    text = f'{TEXT}{PARAMS}scan: {{"**/__layer_stack*/**": layers@0}}\n'
    specs = specs_by_every_verb(tree, text)
    (wi,) = (spec for path, spec in specs.items() if path.endswith("wi/w"))
    assert wi == "P(None, 'data', 'model')"


def test_params_and_state_together() -> None:
    def normed(x: Any) -> Any:
        return hk.BatchNorm(True, True, 0.9, name="norm")(x, is_training=True)

    init = hk.transform_with_state(normed).init
    params, state = init(jax.random.key(0), X)
    text = f'{TEXT}params: {{"norm/{{scale,offset}}": _ embed}}\n'
    assert set(specs_by_every_verb(params, text)) == {"norm/offset", "norm/scale"}
    text = f'{TEXT}params: {{"norm/~/*/{{hidden,average}}": _ embed}}\n'
    specs = specs_by_every_verb(state, text)
    assert specs.pop("norm/~/mean_ema/counter") == specs.pop("norm/~/var_ema/counter") == "P()"
    assert set(specs.values()) == {"P(None, 'data')"}
