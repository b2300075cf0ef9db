from __future__ import annotations

import subprocess
import sys

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Param, PartitionSpec, Spec
from shardspec.resolve.resolver import resolve
from tests import strategies as our

P = jax.P


def spec(*dims: tuple[str, ...]) -> PartitionSpec:
    return PartitionSpec(dims)


def test_it_turns_into_that_of_jax_of_full_rank() -> None:
    found = spec(("data",), (), ("x", "y"), ()).to_jax()
    assert found == P("data", None, ("x", "y"), None)
    assert isinstance(found, jax.sharding.PartitionSpec)


@pytest.mark.parametrize(
    "same", [P("data"), P("data", None), P(("data",)), P("data", ()), P("data", None, None)]
)
def test_it_equals_that_of_jax_by_meaning(same: jax.P) -> None:
    assert spec(("data",), ()) == same
    assert spec(("data",)) == same
    if P().__eq__(object()) is NotImplemented:  # jax 0.10.0 does not ask the other side
        assert same == spec(("data",), ())


@pytest.mark.parametrize(
    "other",
    [
        P(),
        P(None, "data"),
        P("model"),
        P(("data", "model")),
        P("data", P.UNCONSTRAINED),
        P("data", unreduced={"model"}),
        "P('data', None)",
        ("data", None),
        None,
    ],
)
def test_it_differs_from_all_else(other: object) -> None:
    assert spec(("data",), ()) != other
    assert other != spec(("data",), ())


def test_nothing_split_equals_nothing_stated() -> None:
    assert spec((), ()) == P()
    assert spec() == P()
    assert spec((), ()) != spec(), "among ours the rank counts"


@given(our.specs(), st.lists(our.params(), max_size=3))
def test_it_equals_what_it_turns_into(spec: Spec, arrays: list[Param]) -> None:
    for sharding in resolve(spec, spec.targets[0], arrays).arrays:
        found = sharding.partition_spec
        assert found == found.to_jax()
        assert len(found.to_jax()) == len(found.dims)


def test_a_comparison_loads_no_jax() -> None:
    program = (
        "import sys; from shardspec.ir.spec import PartitionSpec as S;"
        "assert S() != 'x' and S((('a',),)) == S((('a',),)); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
