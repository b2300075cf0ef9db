"""Two resolvers that say the same are one static argument; two that do not are two."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from shardspec import Resolver, loads

SPEC = """\
shardspec: 1
targets:
  a: {mesh: {data: 2, model: 4}}
  b: {mesh: {data: 4, model: 2}}
rules:
  - batch, embed -> data
  - mlp -> model
params: {"**/norm": embed}
state: {optimizer: zero1}
"""


def resolver(text: str = SPEC, target: str = "a", **more: Any) -> Resolver:
    return Resolver(loads(text), target, **more)


@pytest.mark.parametrize(
    "text", [SPEC, SPEC + "# a comment\n", SPEC + "doc: in words\n", SPEC.replace(": 1", ":  1")]
)
def test_equal_and_hashed_alike(text: str) -> None:
    one, other = resolver(), resolver(text)
    assert one == other
    assert not one != other  # noqa: SIM202
    assert hash(one) == hash(other)
    assert len({one, other}) == 1


def test_a_file_and_its_text_and_its_copy(tmp_path: Path) -> None:
    found = [resolver()]
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).write_text(SPEC, encoding="utf-8")
        found.append(Resolver(str(tmp_path / name), "a"))
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: resolver(target="b"),
        lambda: resolver(levels={"SHD301": "allow"}),
        lambda: resolver(SPEC.replace("mlp -> model", "mlp -> none")),
        lambda: resolver(SPEC.replace("**/norm", "**/scale")),
        lambda: resolver(SPEC.replace("zero1", "same")),
        lambda: resolver(SPEC.replace("batch, embed -> data", "embed, batch -> data")),
        lambda: resolver(SPEC + "lints: {SHD301: allow}\n"),
        lambda: resolver(SPEC.replace("{data: 2,", "{data: 2 explicit,")),
        lambda: resolver(SPEC.replace("a: {mesh", "c: {mesh"), target="c"),
        lambda: "a resolver",
    ],
    ids=range(10),
)
def test_what_tells_them_apart(other: Any) -> None:
    assert resolver() != other()


def test_devices_tell_them_apart() -> None:
    small = "shardspec: 1\nmesh: {data: 1}\nrules: [batch -> data]\n"
    found = [resolver(small, "auto", devices=jax.devices()[at : at + 1]) for at in (0, 1, 0)]
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_a_lock_tells_them_apart(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from shardspec.cli.main import cli

    paths = [tmp_path / name for name in ("one.yaml", "two.yaml")]
    for path in paths:
        text = SPEC.replace("  b: {mesh: {data: 4, model: 2}}\n", "")
        text += 'axes: {batch: 8, mlp: 8}\narrays: {norm: "f32[embed=8]"}\n'
        path.write_text(text, encoding="utf-8")
    assert CliRunner().invoke(cli, ["lock", str(paths[0])]).exit_code == 0
    assert Resolver(str(paths[0])) == Resolver(str(paths[0]))
    assert Resolver(str(paths[0])) != Resolver(str(paths[1]))


def test_a_resolver_made_anew_is_the_same_static_argument() -> None:
    traced = []

    @partial(jax.jit, static_argnums=0)
    def step(found: Resolver, x: Any) -> Any:
        traced.append(found)
        return found.constrain(x * 2, "batch mlp")

    for found in (resolver(), resolver(), resolver(SPEC.replace("mlp -> model", "mlp -> none"))):
        step(found, jnp.ones((8, 8)))
    assert len(traced) == 2


def test_modules_that_keep_equal_resolvers_are_one_program() -> None:
    traced = []

    class Model(nnx.Module):
        def __init__(self, found: Resolver) -> None:
            self.resolver = found
            self.kernel = nnx.Param(jnp.ones((8, 8)))

    @nnx.jit
    def apply(model: Model, x: Any) -> Any:
        traced.append(model)
        return model.resolver.constrain(x @ model.kernel[...], "batch mlp")

    for _ in range(2):
        apply(Model(resolver()), jnp.ones((8, 8)))
    assert len(traced) == 1
