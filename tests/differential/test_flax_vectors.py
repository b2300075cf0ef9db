"""Recorded answers of Flax and T5X. `tests/data/flax_resolution.json` names their source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec.compat.flax import UNASSIGNED, _logical_to_mesh_axes, logical_to_mesh_axes
from shardspec.compat.t5x import standard_logical_axis_rules
from shardspec.ir.spec import Mesh, MeshAxis, Policy
from shardspec.jax_backend.shardings import partition_entries
from shardspec.resolve.match import assign_axes, rule_table
from tests.jax_backend.specs import axis_rules

_DATA = Path(__file__).parent.parent / "data" / "flax_resolution.json"
VECTORS = json.loads(_DATA.read_text())["vectors"]


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(v, id=v["id"]) for v in VECTORS if v["kind"] in kinds]


def decoded(value: Any) -> Any:
    """Return the Python value of a recorded one: lists are tuples, marks are sentinels."""
    if isinstance(value, list):
        return tuple(decoded(entry) for entry in value)
    if isinstance(value, dict):
        return UNASSIGNED if "$unassigned" in value else P.UNCONSTRAINED
    return value


def rules_of(vector: Any) -> Any:
    given = vector["input"]
    if "rules" in given:
        return decoded(given["rules"])
    return tuple(
        standard_logical_axis_rules(
            given["activation_partitioning_dims"], given["parameter_partitioning_dims"]
        )
    )


@pytest.mark.parametrize(
    "vector", of_kind("l2m", "l2m_random", "docs_rules", "standard_rules_resolved")
)
def test_the_drop_in_answers_as_recorded(vector: Any) -> None:
    axes = decoded(vector["input"]["axes"])
    rules = rules_of(vector)
    if "error" in vector:
        kind, _, text = vector["error"].partition(": ")
        with pytest.raises(Exception) as error:  # noqa: PT011
            logical_to_mesh_axes(axes, rules)
        assert (type(error.value).__name__, str(error.value)) == (kind, text)
        return
    assert _logical_to_mesh_axes(axes, rules) == list(decoded(vector["expected"]["raw"]))
    assert logical_to_mesh_axes(axes, rules) == P(*decoded(vector["expected"]["pspec"]))


@pytest.mark.parametrize("vector", of_kind("docs_rules", "standard_rules_resolved"))
def test_our_resolver_answers_as_recorded(vector: Any) -> None:
    mesh = Mesh((MeshAxis("data", 2), MeshAxis("model", 4)))
    table = rule_table(axis_rules(rules_of(vector)), mesh, policy=Policy("keep"))
    axes = decoded(vector["input"]["axes"])
    dims = assign_axes((None,) * len(axes), axes, table)
    assert P(*partition_entries(dims)) == P(*decoded(vector["expected"]["pspec"]))


@pytest.mark.parametrize("vector", of_kind("partition_spec_canonical"))
def test_partition_specs_are_made_canonical(vector: Any) -> None:
    entries = decoded(vector["input"]["entries"])
    rules = [(str(dim), entry) for dim, entry in enumerate(entries)]
    names = tuple(name for name, _ in rules)
    if "error" in vector:
        kind, _, text = vector["error"].partition(": ")
        with pytest.raises(Exception) as error:  # noqa: PT011
            logical_to_mesh_axes(names, rules)
        assert (type(error.value).__name__, str(error.value)) == (kind, text)
        return
    assert tuple(logical_to_mesh_axes(names, rules)) == decoded(vector["expected"])


@pytest.mark.parametrize("vector", of_kind("nnx_pspec"))
def test_nnx_reads_the_same_rules_another_way(vector: Any) -> None:
    """NNX renames by a dictionary; we give Linen's answer for NNX too."""
    given = vector["input"]
    names = decoded(given["out_sharding"])
    rules = decoded(given["sharding_rules"])
    sizes = given["mesh"]
    kinds = (AxisType.Auto,) * len(sizes)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)
    array = jax.ShapeDtypeStruct((8,) * len(names), "float32")
    param = nnx.Param(array, out_sharding=names, sharding_rules=rules, eager_sharding=False)
    state = nnx.State({"w": param})
    with nnx.logical_axis_rules(decoded(given["context_rules"])):
        if "error" in vector:
            with pytest.raises(ValueError, match="Inconsistent logical axis annotations"):
                nnx.get_partition_spec(state)
        else:
            theirs = nnx.get_partition_spec(state)["w"].get_raw_value()
            assert theirs == P(*decoded(vector["expected"]["partition_spec"]))
    ours = logical_to_mesh_axes(names, rules)
    NamedSharding(mesh, P(*(axis if axis in sizes else None for axis in ours)))
    if len({name for name, _ in rules}) == len(rules) == len(set(rules)) > 10:
        # one rule a name, no conflict: both readings agree
        assert ours == P(*decoded(vector["expected"]["partition_spec"]))


def test_where_nnx_and_we_differ() -> None:
    rules = (("head", "model"), ("embed", "model"), ("embed", "data"), ("vocab", "model"))
    state = nnx.State(
        {
            "w": nnx.Param(
                jax.ShapeDtypeStruct((8, 8), "float32"),
                out_sharding=("vocab", "embed"),
                sharding_rules=rules,
                eager_sharding=False,
            )
        }
    )
    assert nnx.get_partition_spec(state)["w"].get_raw_value() == P("model", "data")
    assert logical_to_mesh_axes(("vocab", "embed"), rules) == P(None, "model")
