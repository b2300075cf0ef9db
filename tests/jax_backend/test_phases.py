"""A resolver of a phase."""

from __future__ import annotations

import jax
import pytest

import shardspec

SPEC = """\
targets:
  eight: {hardware: 8 cpu, mesh: {fsdp: 4, tensor: 2}}
rules:
  - embed -> fsdp
  - mlp -> tensor
params:
  "**/wi": embed mlp
phases:
  decode:
    mesh: {tensor: 8}
    rules:
      - embed -> none
"""
TREE = {"wi": jax.ShapeDtypeStruct((16, 32), "float32")}


def resolver(phase: str | None = None) -> shardspec.Resolver:
    return shardspec.Resolver(shardspec.loads(SPEC), phase=phase)


def test_a_phase_has_its_mesh_and_its_rules() -> None:
    train, decode = resolver(), resolver("decode")
    assert dict(decode.mesh.shape) == {"tensor": 8}
    assert train.shardings(TREE)["wi"].spec == jax.sharding.PartitionSpec("fsdp", "tensor")
    assert decode.shardings(TREE)["wi"].spec == jax.sharding.PartitionSpec(None, "tensor")
    assert decode.findings(TREE) == ()
    assert "phase decode, target default: tensor=8" in repr(decode)
    assert train != decode
    assert decode == resolver("decode")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(shardspec.ShardspecError, match="no phase is called `decod`"):
        resolver("decod")
    with pytest.raises(TypeError, match="a phase is named by a string"):
        resolver(3)  # type: ignore[arg-type]


def test_plans_of_phases() -> None:
    spec = shardspec.loads(SPEC)
    assert spec.phases == ("decode",)
    plan = spec.compile([shardspec.Param("a/wi", (16, 32))], phase="decode")
    assert str(plan["a/wi"].partition_spec) == "P(None, 'tensor')"
    assert plan.name == "decode@default"
    with pytest.raises(shardspec.ShardspecError, match="no phase"):
        spec.compile([], phase="serve")
