"""The two readings of a rule list, against Flax itself and its recorded answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.foreign.formats import (
    ForeignRule,
    NoAnswer,
    linen_axes,
    nnx_axes,
    read_rules,
    writable,
)
from shardspec.foreign.python_text import read_python

NAMES = ("batch", "embed", "mlp", "heads", "Embed", "data")
MESH_AXES = ("data", "model", "expert")
VECTORS = json.loads((Path(__file__).parents[1] / "data" / "flax_resolution.json").read_text())

names = st.lists(st.one_of(st.sampled_from(NAMES), st.none()), max_size=5).map(tuple)
values = st.one_of(
    st.sampled_from(MESH_AXES),
    st.none(),
    st.lists(st.sampled_from(MESH_AXES), max_size=3, unique=True).map(tuple),
)
rule_lists = st.lists(st.tuples(st.sampled_from((*NAMES, None)), values), max_size=8)


def read(text: str) -> tuple[tuple[ForeignRule, ...], list[str]]:
    bindings = read_python(SourceFile("rules.py", f"RULES = {text}"))
    assert isinstance(bindings, tuple)
    rules, faults = read_rules(bindings[-1].value, "`RULES`")
    return rules, [fault.message for fault in faults]


def rules_of(pairs: Any) -> tuple[ForeignRule, ...]:
    rules, faults = read(repr(list(pairs)))
    assert faults == []
    return rules


@given(names, rule_lists)
def test_linen_is_flax(axes: Any, pairs: Any) -> None:
    spmd = pytest.importorskip("flax.linen.spmd")
    from jax.sharding import PartitionSpec

    ours = linen_axes(axes, rules_of(pairs))
    if isinstance(ours, NoAnswer):
        assert "occur more than once" in ours.reason
        with pytest.raises(ValueError, match="occur more than once"):
            spmd.logical_to_mesh_axes(axes, pairs)
        return
    theirs = spmd.logical_to_mesh_axes(axes, pairs)
    assert PartitionSpec(*(dim or None for dim in ours)) == theirs


@given(names, rule_lists)
def test_nnx_is_flax(axes: Any, pairs: Any) -> None:
    spmd = pytest.importorskip("flax.core.spmd")
    from jax.sharding import PartitionSpec

    named = [pair for pair in pairs if pair[0] is not None]
    ours = nnx_axes(axes, rules_of(named))
    assert not isinstance(ours, NoAnswer)
    expected = spmd.get_pspec(PartitionSpec(*axes), named)
    assert PartitionSpec(*(dim or None for dim in ours)) == expected


def _is_ours(vector: Any) -> bool:
    given_rules = vector["input"].get("rules")
    is_plain = "$unconstrained" not in json.dumps(vector)
    return vector["kind"] in ("l2m", "l2m_random", "docs_rules") and is_plain and bool(given_rules)


RECORDED = [vector for vector in VECTORS["vectors"] if _is_ours(vector)]


@pytest.mark.parametrize("vector", RECORDED, ids=lambda vector: vector["id"])
def test_linen_gives_the_recorded_answers(vector: Any) -> None:
    axes = vector["input"]["axes"]
    if axes is None or not all(isinstance(axis, str | None) for axis in axes):
        pytest.skip("not names")
    rules, faults = read(repr(vector["input"]["rules"]))
    ours = linen_axes(axes, rules)
    if "error" in vector:
        assert faults or isinstance(ours, NoAnswer)
        return
    assert not isinstance(ours, NoAnswer)
    expected = [
        () if dim is None else (dim,) if isinstance(dim, str) else tuple(dim)
        for dim in vector["expected"]["pspec"]
    ]
    assert list(ours) == expected


def test_there_are_recorded_answers() -> None:
    assert len(RECORDED) > 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "`RULES` is no list of rules: it is a number"),
        ("f()", "`RULES` is no list of rules: it is a call"),
        ("[('a', 'b', 'c')]", "a rule is a pair, and this is a list of 3"),
        ("['ab']", "a rule is a pair, and this is `ab`"),
        ("[(1, 'data')]", "a rule starts with a logical axis, and this is a number"),
        ("[('a', ('data', ('model',)))]", "a mesh axis is a name, and this is a list of 1"),
        ("[('a', AXIS)]", "a mesh axis is a name, and this is a name: AXIS"),
        ("[[x for x in y]]", "a rule cannot be read: it is worked out when the file runs"),
    ],
)
def test_what_is_no_rule_is_said(text: str, message: str) -> None:
    assert read(text)[1] == [message]


def test_all_faults_are_said_at_once() -> None:
    rules, faults = read("[('a', 1), ('b', 'data'), ('c', 2)]")
    assert [rule.name for rule in rules] == ["b"]
    assert len(faults) == 2


def test_unconstrained_is_no_answer() -> None:
    rules, _ = read("[('a', PartitionSpec.UNCONSTRAINED), ('a', 'data')]")
    assert rules[0].is_free
    found = linen_axes(("b", "a"), rules)
    assert isinstance(found, NoAnswer)
    assert found.reason == "UNCONSTRAINED leaves dim 1 to the compiler"


def test_rules_that_no_spec_can_say_are_left_out() -> None:
    rules, _ = read(
        "[(None, 'data'), ('a b', 'data'), ('none', None), ('a', 'x y'), ('a', ('m', 'm')),"
        " ('ok', 'data')]"
    )
    found = list(writable(rules, "Flax"))
    assert [isinstance(each, ForeignRule) for each in found] == [False] * 5 + [True]
    codes = {each.code.id for each in found if not isinstance(each, ForeignRule)}
    assert codes == {"SHD601"}
