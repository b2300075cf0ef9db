"""The drop-in against the rules of Linen's resolver, one test per fact.

Each fact was read off flax 0.12.8; `tests/differential` compares with Linen itself.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec.compat.flax import (
    UNASSIGNED,
    _logical_to_mesh_axes,
    logical_to_mesh,
    logical_to_mesh_axes,
    logical_to_mesh_sharding,
)

FREE = P.UNCONSTRAINED
RULES = (("foo", "data"), ("bar", "model"), ("baz", None))


def test_none_is_none_and_no_names_are_an_empty_spec() -> None:
    assert logical_to_mesh_axes(None, RULES) is None
    assert logical_to_mesh_axes((), RULES) == P()
    assert _logical_to_mesh_axes(None, RULES) is None


def test_rules_of_the_context() -> None:
    assert logical_to_mesh_axes(("foo",)) == P(None)
    with nn.logical_axis_rules(RULES):
        assert logical_to_mesh_axes(("foo", "bar")) == P("data", "model")
        assert logical_to_mesh_axes(("foo",), ()) == P(None)
        with nn.logical_axis_rules((("bar", "x"),)):
            assert logical_to_mesh_axes(("foo", "bar")) == P(None, "x")
        with nn.logical_axis_rules(()):
            assert logical_to_mesh_axes(("foo",)) == P(None)
    assert logical_to_mesh_axes(("foo",)) == P(None)


def test_duplicates_come_before_anything_else() -> None:
    message = r"Unsupported: Dimensions \('foo', 'bar'\) occur more than once in array names\."
    with pytest.raises(ValueError, match=message):
        logical_to_mesh_axes(("foo", "foo", "bar", "bar"), {"not": "rules"})
    with pytest.raises(ValueError, match=r"Dimensions \('foo',\) occur"):
        logical_to_mesh_axes(("foo", "foo"), ())
    assert logical_to_mesh_axes((None, None, FREE, FREE), ()) == P(None, None, FREE, FREE)


@pytest.mark.parametrize("rules", [{"foo": "data"}, iter(RULES), (r for r in RULES), "ab", 3])
def test_rules_of_the_wrong_type(rules: Any) -> None:
    with pytest.raises(ValueError, match=r"^Unknown axis rule specification type\.$"):
        logical_to_mesh_axes(("foo",), rules)


def test_any_pair_is_a_rule() -> None:
    assert logical_to_mesh_axes(("a",), ("ab",)) == P("b")
    assert logical_to_mesh_axes(["a"], [["a", "data"]]) == P("data")
    assert logical_to_mesh_axes(("a",), [("a", ["x", "y"])]) == P(("x", "y"))
    with pytest.raises(ValueError, match="too many values to unpack"):
        logical_to_mesh_axes(("a",), [("a", "data", "extra")])
    with pytest.raises(ValueError, match="not enough values to unpack"):
        logical_to_mesh_axes(("a",), ["a"])
    with pytest.raises(TypeError, match="cannot unpack"):
        logical_to_mesh_axes(("a",), [3])


def test_what_is_no_name_keeps_its_value_and_its_mesh_axes_are_in_use() -> None:
    rules = [("a", "x"), ("a", "y"), ("b", ("x", "z"))]
    assert logical_to_mesh_axes((("x",), "a", None, FREE), rules) == P("x", "y", None, FREE)
    assert logical_to_mesh_axes(("b", ("x", "y")), rules) == P(None, ("x", "y"))
    assert logical_to_mesh_axes(("a", ("x",), ("x", "y")), rules) == P(None, "x", ("x", "y"))


@pytest.mark.parametrize(
    ("names", "rules", "expected"),
    [
        (("embed", "head"), (("head", "m"), ("embed", "m")), P(None, "m")),
        (("head", "embed"), (("head", "m"), ("embed", "m")), P("m", None)),
        (("a",), (("a", None), ("a", "model")), P(None)),
        (("a",), (("a", ()), ("a", "model")), P(())),
        (("a", "b"), (("a", FREE), ("a", "data"), ("b", "data")), P(FREE, "data")),
        (("a", "b"), (("a", "data"), ("b", ("data", "model")), ("b", "model")), P("data", "model")),
        (("a", "b"), (("a", ("data", FREE)), ("b", "data")), P(("data", FREE), None)),
        (("a",), (("a", ("x", "x")),), P(("x", "x"))),
        ((None,), ((None, "data"),), P(None)),
        ((FREE,), ((FREE, "data"),), P(FREE)),
        (("data",), (("a", "data"),), P(None)),
        (("A", ""), (("a", "data"), ("", "model")), P(None, "model")),
        (("a",), (("a", "no such axis"),), P("no such axis")),
        (("unknown", "foo"), RULES, P(None, "data")),
        ("ab", (("a", "x"), ("b", "y")), P("x", "y")),
        (P("a", "b"), (("a", "x"), ("b", "y")), P("x", "y")),
    ],
)
def test_the_walk(names: Any, rules: Any, expected: Any) -> None:
    assert logical_to_mesh_axes(names, rules) == expected
    assert logical_to_mesh_axes(names, list(rules)) == expected
    assert nn.logical_to_mesh_axes(names, rules) == expected


def test_what_no_rule_placed_is_told_apart() -> None:
    rules = (("a", "x"), ("b", "x"), ("c", None))
    raw = _logical_to_mesh_axes(("a", "b", "c", "d", None), rules)
    assert raw == ["x", UNASSIGNED, None, UNASSIGNED, None]
    assert not UNASSIGNED
    assert repr(UNASSIGNED) == "UnassignedAxis"


def test_trees() -> None:
    tree = {"a": P("foo", "bar"), "b": None, "c": [P(), P("foo")], "d": ("fo",)}
    expected = {"a": P("data", "model"), "b": None, "c": [P(), P("data")]}
    assert logical_to_mesh({**tree, "d": None}, RULES) == {**expected, "d": None}
    # a tuple is no leaf, and a name alone is read letter by letter
    assert logical_to_mesh(("x", P("foo")), (("x", "data"),)) == (P("data"), P(None))
    assert logical_to_mesh(tree, RULES) == nn.logical_to_mesh(tree, RULES)
    with nn.logical_axis_rules(RULES):
        assert logical_to_mesh({"a": P("foo")}) == {"a": P("data")}


def test_shardings() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    tree = {"a": P("foo", "bar"), "b": P("foo", "bar"), "n": None}
    found = logical_to_mesh_sharding(tree, mesh, RULES)
    assert found == nn.logical_to_mesh_sharding(tree, mesh, RULES)
    assert found["a"] is found["b"]
    assert found["a"] == NamedSharding(mesh, P("data", "model"))


@pytest.mark.parametrize("rules", [(("a", "fsdp"),), (("a", ("data", "data")),)])
def test_errors_of_shardings(rules: Any) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    texts = []
    for function in (logical_to_mesh_sharding, nn.logical_to_mesh_sharding):
        with pytest.raises(Exception) as error:  # noqa: PT011
            function({"w": P("a", None)}, mesh, rules)
        texts.append((type(error.value), str(error.value)))
    assert texts[0] == texts[1]


def test_signatures_are_those_of_flax() -> None:
    import inspect

    for ours in (logical_to_mesh_axes, logical_to_mesh, logical_to_mesh_sharding):
        theirs = getattr(nn, ours.__name__)
        pairs = zip(
            inspect.signature(ours).parameters.values(),
            inspect.signature(theirs).parameters.values(),
            strict=True,
        )
        for mine, other in pairs:
            assert (mine.name, mine.kind, mine.default) == (other.name, other.kind, other.default)


def test_it_works_where_flax_is_not_installed() -> None:
    code = (
        "import sys; sys.modules['flax'] = None\n"
        "from shardspec.compat.flax import logical_to_mesh_axes as f\n"
        "print(f(('a', 'b'), [('a', 'x')]), f(('a',)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "PartitionSpec('x', None) PartitionSpec(None,)\n" or (
        result.stdout == "P('x', None) P(None,)\n"
    ), result.stderr


def test_constraints_are_remembered_and_follow_rules_and_meshes() -> None:
    from shardspec.compat.flax import RulesFallback, with_logical_constraint

    meshes = [
        jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        for sizes in ((2, 4), (4, 2))
    ]
    x = jax.numpy.ones((8, 8))
    for _ in range(2):  # the second time from memory
        for mesh in meshes:
            for rules in (RULES, tuple(reversed(RULES)), (("foo", "model"),), list(RULES)):
                found = with_logical_constraint(x, ("foo", "bar"), rules=rules, mesh=mesh)
                wanted = nn.with_logical_constraint(x, ("foo", "bar"), rules=rules, mesh=mesh)
                assert found.sharding == wanted.sharding
                with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
                    found = jax.jit(lambda x: with_logical_constraint(x, ("foo", "bar")))(x)
                    wanted = jax.jit(lambda x: nn.with_logical_constraint(x, ("foo", "bar")))(x)
                assert found.sharding == wanted.sharding
        with pytest.raises(ValueError, match="did not match a rule"):
            with_logical_constraint(
                x, ("foo", "?"), RULES, meshes[0], fallback=RulesFallback.RAISE_ERROR
            )
        none = RulesFallback.NO_CONSTRAINT
        assert with_logical_constraint(x, ("foo", "?"), RULES, meshes[0], none) is x
