"""What `import layout` reads from running trees, in whatever form they say where arrays lie."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec.diagnostics import ShardspecError
from shardspec.foreign.formats import NotRead
from shardspec.foreign.layout import LaidOut, Layout
from shardspec.jax_backend.layout import read_layout

MESH = AbstractMesh((4, 2), ("fsdp", "tp"), (AxisType.Auto,) * 2)
SPLIT = NamedSharding(MESH, P("fsdp", "tp"))
BOTH = (("fsdp",), ("tp",))


def shape(*sizes: int, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=sharding)


@pytest.fixture
def layout_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Layout]:
    def layout_of(found: Any, mesh: Any = None) -> Layout:
        module = types.ModuleType("its_layout")
        vars(module)["layout"] = found
        monkeypatch.setitem(sys.modules, "its_layout", module)
        return read_layout("its_layout:layout", mesh)

    return layout_of


Reader = Callable[..., Layout]


def by_path(layout: Layout) -> dict[str, LaidOut]:
    return {each.param.path: each for each in layout.arrays}


@pytest.mark.parametrize(
    "made",
    [
        {"a": {"w": shape(8, 8, sharding=SPLIT)}},
        {"a": {"w": (shape(8, 8), P("fsdp", "tp"))}},
        {"a": {"w": (shape(8, 8), SPLIT)}},
        ({"a": {"w": shape(8, 8)}}, {"a": {"w": P("fsdp", "tp")}}),
        ({"a": {"w": shape(8, 8)}}, {"a": P("fsdp", "tp")}),
        ({"a": {"w": shape(8, 8)}}, P("fsdp", "tp")),
        ({"a": {"w": shape(8, 8)}}, {"a": {"w": SPLIT}}, MESH),
        [{"a": {"w": (shape(8, 8), P("fsdp", "tp"))}}, MESH],
    ],
)
def test_a_tree_or_what_gives_it(made: Any, layout_of: Reader) -> None:
    for found in (made, lambda: made):
        layout = layout_of(found)
        assert {path: each.dims for path, each in by_path(layout).items()} == {"a/w": BOTH}
        assert layout.mesh in ((), (("fsdp", 4), ("tp", 2)))
        has_mesh = "AbstractMesh" in repr(made)
        assert bool(layout.mesh) is has_mesh


def test_what_places_traced_arrays_is_in_the_program(layout_of: Reader) -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, SPLIT), x

    def made() -> Any:
        whole = NamedSharding(MESH, P())
        x = jnp.zeros((8, 8))
        put = jax.lax.with_sharding_constraint(x, SPLIT)
        constrained, passed = inner(put)
        return {
            "cast": put.astype(jnp.bfloat16),
            "jitted": jax.jit(lambda: jnp.ones((8, 8)), out_shardings=SPLIT)(),
            "inside": constrained,
            "passed": passed,
            "again": jax.lax.with_sharding_constraint(put, whole),
            "computed": put + 1,
            "plain": x,
        }

    found = {path: each.dims for path, each in by_path(layout_of(made)).items()}
    assert found == {
        **dict.fromkeys(("cast", "jitted", "inside", "passed"), BOTH),
        "again": (),
        "computed": None,
        "plain": None,
    }


def test_a_function_with_an_argument_gets_the_mesh(layout_of: Reader) -> None:
    def made(mesh: Any) -> Any:
        return {"w": shape(8, 8, sharding=NamedSharding(mesh, P("fsdp", "tp")))}

    assert by_path(layout_of(made, MESH))["w"].dims == BOTH
    with pytest.raises(ShardspecError, match="takes `mesh`, and no mesh is given"):
        layout_of(made)
    with pytest.raises(ShardspecError, match="2 arguments"):
        layout_of(lambda a, b: None, MESH)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (P(P.UNCONSTRAINED, "tp"), "XLA chooses"),
        (NamedSharding(AbstractMesh((2,), ("x",)), P("x")), "another mesh, x=2"),
    ],
)
def test_what_no_spec_can_say_is_not_known(spec: Any, reason: str, layout_of: Reader) -> None:
    made = {"a": (shape(8, 8), SPLIT), "b": (shape(8, 8), SPLIT), "c": (shape(8, 8), spec)}
    found = by_path(layout_of(made))["c"].dims
    assert isinstance(found, NotRead)
    assert reason in found.reason


@pytest.mark.parametrize("made", [{}, {"a": P("x")}, None, "text"])
def test_no_arrays(made: Any, layout_of: Reader) -> None:
    with pytest.raises(ShardspecError, match="gives"):
        layout_of(lambda: made)


def test_names_of_nnx_whatever_it_would_place(layout_of: Reader) -> None:
    nnx = pytest.importorskip("flax.nnx")

    def made() -> Any:
        init = nnx.with_partitioning(nnx.initializers.ones, ("embed", "mlp"))
        model = nnx.Linear(8, 8, rngs=nnx.Rngs(0), kernel_init=init)
        return model, [("embed", "fsdp"), ("mlp", ("tp",)), ("kv", None)]

    layout = layout_of(made)
    assert by_path(layout)["kernel"].names == (("embed",), ("mlp",))
    assert by_path(layout)["kernel"].family == "nnx"
    assert by_path(layout)["bias"].names is None
    assert [(rule.name, rule.mesh_axes) for rule in layout.rules] == [
        ("embed", ("fsdp",)),
        ("mlp", ("tp",)),
        ("kv", ()),
    ]


def test_names_and_rules_of_linen(layout_of: Reader) -> None:
    nn = pytest.importorskip("flax.linen")
    rules = (("embed", "fsdp"), ("mlp", "tp"))
    logical = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"), rules=rules)
    plain = nn.with_partitioning(nn.initializers.ones, ("fsdp", ("tp",)))

    def made() -> Any:
        one = nn.Dense(8, kernel_init=logical).init(jax.random.key(0), jnp.ones((1, 8)))
        two = nn.Dense(8, kernel_init=plain).init(jax.random.key(0), jnp.ones((1, 8)))
        return {"one": one, "two": two}

    layout = layout_of(made)
    found = {
        path: (each.family, each.names) for path, each in by_path(layout).items() if each.names
    }
    assert sorted(found.values()) == [
        ("logical", (("embed",), ("mlp",))),
        ("partitioned", (("fsdp",), ("tp",))),
    ]
    assert [rule.name for rule in layout.rules] == ["embed", "mlp"]


def test_a_module_of_equinox_is_a_tree_though_it_can_be_called(layout_of: Reader) -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.Linear(8, 8, key=jax.random.key(0))
    placed = jax.tree.map(
        lambda x: shape(*x.shape, sharding=NamedSharding(MESH, P("tp"))),
        eqx.filter(model, eqx.is_array),
    )
    assert {each.dims for each in layout_of(placed).arrays} == {(("tp",),)}
