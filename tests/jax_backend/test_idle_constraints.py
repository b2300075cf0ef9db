"""Constraints of Flax that have no rules in context are reported, at the lines that call them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner
from flax import linen as nn
from flax.linen import spmd
from flax.linen import with_logical_constraint as constrained
from flax.linen.partitioning import param_with_axes, variable_with_axes
from flax.linen.partitioning import with_sharding_constraint as by_partitioning

from shardspec import Resolver, loads
from shardspec.cli.main import cli

SPEC = """
shardspec: 1
hardware: tpu v5e 2x4
mesh: {data: 2, model: 4}
axes: {batch: 64, mlp: 1024}
rules: ["batch -> data", "mlp -> model", "embed -> none"]
params: {wi: embed mlp}
"""
RULES = [("batch", "data"), ("mlp", "model"), ("embed", None)]


def notes(function: Any) -> list[str]:
    resolver = Resolver(loads(SPEC), devices="abstract")
    w = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((64, 512), jnp.bfloat16)
    found = resolver.cost(function, {"wi": w}, x).step
    assert found is not None
    return [note for note in found.notes if "of Flax" in note]


def line_of(function: Any, offset: int) -> str:
    return f"{Path(__file__).name}:{function.__code__.co_firstlineno + offset}"


def bare(params: Any, x: Any) -> Any:
    h = constrained(x @ params["wi"], ("batch", "mlp"))
    return nn.with_logical_constraint(h * 2, ("batch", "mlp")).sum()


def repeated(params: Any, x: Any) -> Any:
    for _ in range(3):
        x = constrained(x, ("batch", None))
    return (x @ params["wi"]).sum()


def test_constraints_without_rules_are_named_by_line_whatever_they_are_called() -> None:
    (note,) = notes(bare)
    assert note.startswith("2 constraints of Flax do nothing: no `nn.logical_axis_rules` are in")
    assert line_of(bare, 1) in note
    assert line_of(bare, 2) in note


def test_a_line_counts_once() -> None:
    (note,) = notes(repeated)
    assert note.startswith("1 constraint of Flax does nothing")


def in_context(params: Any, x: Any) -> Any:
    with nn.logical_axis_rules(RULES):
        return bare(params, x)


def with_own_rules(params: Any, x: Any) -> Any:
    return constrained(x @ params["wi"], ("batch", "mlp"), rules=RULES).sum()


def without_names(params: Any, x: Any) -> Any:
    return constrained(x @ params["wi"], None).sum()


def boxed_weight(params: Any, x: Any) -> Any:
    box = spmd.LogicallyPartitioned(params["wi"], ("embed", "mlp"))
    return (x @ box.unbox()).sum()


STATS = {"mean": jnp.ones((1024,), jnp.bfloat16)}


def kept(h: Any) -> Any:
    return by_partitioning(h, ("batch", "mlp"))


class Declaring(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        axes = ("embed", "mlp")
        wi = param_with_axes("wi", nn.initializers.ones, (512, 1024), jnp.bfloat16, axes=axes)
        table = variable_with_axes("stats", "mean", jnp.ones, (1024,), axes=("mlp",))
        h = x @ wi + table.value
        return kept(h) if self.name == "constrained" else h


def declared(params: Any, x: Any) -> Any:
    return Declaring().apply({"params": params, "stats": STATS}, x).sum()


def test_a_constraint_beside_a_declared_parameter_is_reported() -> None:
    def function(params: Any, x: Any) -> Any:
        return Declaring(name="constrained").apply({"params": params, "stats": STATS}, x).sum()

    (note,) = notes(function)
    assert note.startswith("1 constraint of Flax does nothing")
    assert line_of(kept, 1) in note


@pytest.mark.parametrize(
    "function", [declared, in_context, with_own_rules, without_names, boxed_weight]
)
def test_others_are_not(function: Any) -> None:
    assert notes(function) == []


def test_flax_is_as_it_was_afterwards() -> None:
    before = spmd.get_logical_axis_rules
    notes(bare)
    assert spmd.get_logical_axis_rules is before


def test_the_help_works_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = (Path(__file__).parents[1] / "cases" / "SHD030-no-rules.md").read_text()
    spec, code = (part.partition("```")[0] for part in case.split("```yaml\n")[1].split("python\n"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "spec.yaml").write_text(spec)
    asked = ["check", "spec.yaml", "--step", "idle_step:step"]
    (tmp_path / "idle_step.py").write_text(code)
    found = CliRunner().invoke(cli, asked)
    assert "SHD030" in found.output
    assert "idle_step.py:9:9" in found.output

    CliRunner().invoke(cli, ["export", "flax", "spec.yaml", "-o", "rules.py"])
    call = 'return Mlp().apply({"params": params}, x).sum()'
    changed = code.replace(call, f"with nn.logical_axis_rules(RULES):\n        {call}")
    (tmp_path / "idle_ruled.py").write_text(f"from rules import RULES\n{changed}")
    found = CliRunner().invoke(cli, [*asked[:-1], "idle_ruled:step"])
    assert "SHD030" not in found.output
    assert found.exit_code == 0, found.output

    changed = code.replace("nn.with_logical_constraint(h, (", "shardspec.constrain(h, (")
    (tmp_path / "idle_own.py").write_text(f"import shardspec\n{changed}")
    found = CliRunner().invoke(cli, [*asked[:-1], "idle_own:step"])
    assert "1 constraint of Flax does nothing" in found.output
