"""What works where a framework is not installed, and what is said where it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardspec.compat.flax import required

ROOT = Path(__file__).parents[2]
HIDDEN = ("flax", "optax", "orbax", "equinox", "haiku")
_HIDE = f"import sys\nfor name in {HIDDEN!r}:\n    sys.modules[name] = None\n"


def run(body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _HIDE + body]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_trees_constraints_and_rules_need_no_framework() -> None:
    done = run("""
import jax, jax.numpy as jnp
import shardspec
from shardspec.compat import flax, t5x
spec = shardspec.loads("mesh: {model: 1}\\nrules: [mlp -> model]\\nparams: {w: _ mlp}")
found = shardspec.Resolver(spec, devices=jax.devices()[:1])
tree = {"w": jnp.ones((4, 8))}
print(found.put(tree)["w"].sharding.spec, spec.compile(tree)["w"].partition_spec)
print(found.constrain(tree["w"], "_ mlp").sharding.spec)
print(flax.logical_to_mesh_axes(("a",), (("a", "model"),)))
print(flax.with_logical_constraint(tree["w"], ("a", "b"), rules=()) is tree["w"])
print(t5x.standard_logical_axis_rules()[0], t5x.PjitPartitioner(1).mesh.axis_names)
""")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("P(None, 'model')")
    assert lines[3:] == ["True", "('batch', 'data') ('data', 'model')"]


@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("flax.param_with_axes", "`shardspec.compat.flax.param_with_axes`"),
        ("flax.axis_rules(())", "`shardspec.compat.flax.axis_rules`"),
        ("t5x.override_params_axes_names({})", "`override_params_axes_names`"),
        ("t5x.PjitPartitioner(1).partition(len, None, None)(1)", "`PjitPartitioner.partition`"),
    ],
)
def test_what_needs_flax_says_what_to_install(use: str, what: str) -> None:
    done = run(f"from shardspec.compat import flax, t5x\n{use}\n")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: {what} needs `flax`: pip install 'shardspec[flax]'"
    assert "During handling" not in done.stderr


def test_a_module_that_is_missing_for_another_reason_is_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'flax\.such'"):
        required("flax.such", extra="flax", for_what="this")


def test_a_module_that_is_there() -> None:
    import flax.linen

    assert required("flax.linen", extra="flax", for_what="this") is flax.linen
