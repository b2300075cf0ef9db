"""What Flax's own tests of partitioning and boxes hold to, with our resolver plugged in.

The behaviours are those that `tests/linen/partitioning_test.py`, `tests/linen/linen_meta_test.py`
and `tests/core/core_meta_test.py` of google/flax check; the tests are ours. `plugged` puts our
functions where Flax's modules look for theirs, so Flax's own machinery runs on our answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flax
import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax.core import freeze, init, lift, meta, unfreeze
from flax.core import nn as core_nn
from flax.linen import partitioning as theirs
from flax.linen import spmd
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec import Resolver, loads
from shardspec.compat import flax as ours

FREE = P.UNCONSTRAINED
RULES = (("foo", "data"), ("bar", "model"), ("baz", None))
OTHER_RULES = (("foo", "model"), ("bar", None), ("baz", "data"))


@pytest.fixture(autouse=True)
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("logical_to_mesh_axes", "_logical_to_mesh_axes", "logical_to_mesh"):
        monkeypatch.setattr(spmd, name, getattr(ours, name))
    for name in ("logical_to_mesh_axes", "logical_to_mesh", "logical_to_mesh_sharding"):
        monkeypatch.setattr(nn, name, getattr(ours, name))
    monkeypatch.setattr(spmd, "logical_to_mesh_sharding", ours.logical_to_mesh_sharding)
    monkeypatch.setattr(spmd, "with_logical_constraint", ours.with_logical_constraint)
    monkeypatch.setattr(theirs, "with_sharding_constraint", ours.with_sharding_constraint)
    monkeypatch.setattr(theirs, "logical_to_mesh_axes", ours.logical_to_mesh_axes)
    yield
    ours.set_axis_rules(())


@pytest.fixture
def constraints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the specs that arrays get constrained to, noted instead of applied."""
    noted: list[Any] = []

    def note(array: Any, spec: Any, mesh: Any) -> Any:
        noted.append((spec, mesh))
        return array

    monkeypatch.setattr(ours, "_placed", note)
    return noted


def mesh(shape: tuple[int, int] = (2, 4), kind: AxisType = AxisType.Auto) -> Any:
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2)


# partitioning_test: rules, and the resolver


def test_rules_are_set_and_nested() -> None:
    assert ours.get_axis_rules() == ()
    ours.set_axis_rules(RULES)
    assert ours.get_axis_rules() == nn.get_logical_axis_rules() == RULES
    with ours.axis_rules(OTHER_RULES):
        assert ours.get_axis_rules() == OTHER_RULES
        assert ours.logical_to_mesh_axes(("foo", "bar")) == P("model", None)
    assert ours.logical_to_mesh_axes(("foo", "bar")) == P("data", "model")


def test_the_resolver() -> None:
    names = ("foo", FREE, FREE, None, None)
    assert ours.logical_to_mesh_axes(names, RULES) == P("data", FREE, FREE, None, None)
    with ours.axis_rules(RULES), pytest.raises(ValueError, match="more than once"):
        ours.logical_to_mesh_axes(("foo", "foo", "baz"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("foo", "bar", "baz"), ("model", None, "data")),
        (("bar", "foo", "baz"), (None, "model", "data")),
        (("baz", "bar", "foo"), ("data", None, "model")),
        (("baz", "bar", "foo", "unknown"), ("data", None, "model", None)),
    ],
)
def test_priority_is_that_of_the_rules(names: Any, expected: Any) -> None:
    rules = (("foo", "model"), ("bar", "model"), ("baz", "data"))
    assert ours.logical_to_mesh_axes(names, rules) == P(*expected)


@pytest.mark.parametrize(
    ("rules", "names", "expected"),
    [
        ((("a", ("model", "data")), ("b", "data")), "ab", (("model", "data"), None)),
        ((("a", ("model", "replica")), ("b", "data")), "ab", (("model", "replica"), "data")),
        ((("a", ("x", "y")), ("b", ("z", "x"))), "ab", (("x", "y"), None)),
        ((("a", ("x", "y")), ("b", "x")), "abc", (("x", "y"), None, None)),
        ((), "abc", (None, None, None)),
        ((("a", None), ("a", "model")), "ab", (None, None)),
        ((("a", "x"), ("b", None), ("c", "y"), ("c", "x")), "abc", ("x", None, "y")),
    ],
)
def test_tuples_nones_and_fallbacks(rules: Any, names: str, expected: Any) -> None:
    with ours.axis_rules(rules):
        assert ours.logical_to_mesh_axes(tuple(names)) == P(*expected)


# partitioning_test: constraints


def test_no_constraint_without_rules_or_names(constraints: list[Any]) -> None:
    x = jnp.ones((2, 2))
    assert ours.with_sharding_constraint(x, ("foo", "bar")) is x
    with ours.axis_rules(RULES):
        assert ours.with_sharding_constraint(x, None) is x
        assert constraints == []
        ours.with_sharding_constraint(x, ("foo", "bar"))
        ours.with_sharding_constraint(x, P("foo", FREE), mesh="a mesh")
    assert constraints == [(P("data", "model"), None), (P("data", FREE), "a mesh")]


@pytest.mark.parametrize("enumeration", [ours.RulesFallback, spmd.RulesFallback])
def test_fallbacks(constraints: list[Any], enumeration: Any) -> None:
    x, names = jnp.ones((2, 2)), ("foo", "unheard")
    with ours.axis_rules(RULES):
        ours.with_sharding_constraint(x, names)
        ours.with_sharding_constraint(x, names, fallback=enumeration.AXIS_IS_UNSHARDED)
        assert constraints == [(P("data", None), None)] * 2
        constraints.clear()
        with pytest.raises(ValueError, match=r"Axis names \('foo', 'unheard'\) did not match"):
            ours.with_sharding_constraint(x, names, fallback=enumeration.RAISE_ERROR)
        assert ours.with_sharding_constraint(x, names, fallback=enumeration.NO_CONSTRAINT) is x
        assert constraints == []
        ours.with_sharding_constraint(x, ("foo", "baz"), fallback=enumeration.RAISE_ERROR)
        assert constraints == [(P("data", None), None)]


def test_trees_of_arrays(constraints: list[Any]) -> None:
    tree = {"a": jnp.ones((2, 2)), "b": (jnp.ones(2), jnp.ones(2))}
    names = {"a": ("foo", "bar"), "b": (("foo",), None)}
    with ours.axis_rules(RULES):
        ours.with_logical_constraint(tree, names)
    assert [spec for spec, _ in constraints] == [P("data", "model"), P("data")]


def lowered(x: Any, rules: Any = RULES, **options: Any) -> str:
    def constrained(x: Any) -> Any:
        return ours.with_logical_constraint(x, ("foo", "bar"), rules=rules, **options)

    return jax.jit(constrained).lower(x).as_text()


def test_constraints_reach_the_compiler_under_every_kind_of_mesh() -> None:
    x = jnp.ones((8, 8))
    assert "sharding_constraint" not in lowered(x)
    assert lowered(x, mesh=mesh()).count("sharding_constraint") == 1
    with jax.set_mesh(mesh()):
        assert lowered(x).count("sharding_constraint") == 1
    eager = ours.with_logical_constraint(x, ("foo", "bar"), rules=RULES, mesh=mesh())
    assert eager.sharding.spec == P("data", "model")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_older_context_counts_as_it_did() -> None:
    """Flax dropped `with mesh:` in 0.12.2, which T5X enters around every step; here it counts."""
    x = jnp.ones((8, 8))
    with mesh():
        assert lowered(x).count("sharding_constraint") == 1


def test_explicit_axes_are_resharded() -> None:
    with jax.set_mesh(mesh(kind=AxisType.Explicit)):
        x = jnp.ones((8, 8))
        found = ours.with_logical_constraint(x, ("foo", "bar"), rules=RULES)
        assert jax.typeof(found).sharding.spec == P("data", "model")


def test_a_constant_in_a_function_under_jit_is_resharded() -> None:
    with jax.set_mesh(mesh(kind=AxisType.Explicit)):
        x = jnp.ones((8, 8))
        found = jax.jit(lambda: ours.with_logical_constraint(x, ("foo", "bar"), rules=RULES))()
        assert jax.typeof(found).sharding.spec == P("data", "model")


# partitioning_test: parameters and variables with axes


def made_by(function: Any, *args: Any, axes: Any, **options: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            found = function(*args, axes=axes, **options)
            return jax.tree.leaves(getattr(found, "value", found))[0] + x

    with ours.axis_rules((("foo", "model"), ("bar", "data"), ("baz", None))):
        return Model().init(jax.random.key(0), jnp.ones((2, 2)))


def param(axes: Any, init: Any = nn.initializers.zeros) -> Any:
    return made_by(ours.param_with_axes, "w", init, (2, 2), axes=axes)


def variable(axes: Any, **options: Any) -> Any:
    args = ("test", "w", jnp.zeros, (2, 2))
    return made_by(ours.variable_with_axes, *args, axes=axes, **options)


def test_parameters_keep_their_names_in_a_collection(constraints: list[Any]) -> None:
    found = param(("foo", "bar"))
    assert found["params_axes"]["w_axes"] == ours.AxisMetadata(names=("foo", "bar"))
    assert ours.get_axis_names(found["params_axes"]) == {"w": P("foo", "bar")}
    assert constraints == [(P("model", "data"), None)]
    assert "params_axes" not in param(None)
    assert ours.get_axis_names(param(())["params_axes"]) == {"w": P()}


def test_a_parameter_may_be_a_tree(constraints: list[Any]) -> None:
    axes = {"a": ("foo", "bar"), "b": (("foo", "bar"), ("bar", "foo"))}

    def init(key: Any, sizes: Any) -> Any:
        return {"a": jnp.zeros(sizes), "b": (jnp.zeros(sizes), jnp.zeros(sizes))}

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return x + ours.param_with_axes("w", init, (4, 4), axes=axes)["a"]

    found = Model().init(jax.random.key(0), jnp.ones((4, 4)))
    names = ours.get_axis_names(found["params_axes"])
    assert names == freeze({"w": {"a": P("foo", "bar"), "b": (P("foo", "bar"), P("bar", "foo"))}})
    specs = [sharding.spec for sharding in jax.tree.leaves(resolver().shardings(found)["params"])]
    assert specs == [P("data", "model"), P("data", "model"), P("model", "data")]


def test_variables_keep_their_names_too(constraints: list[Any]) -> None:
    found = variable(("foo", "bar"))
    assert found["test_axes"]["w_axes"] == ours.AxisMetadata(names=("foo", "bar"))
    assert ours.get_axis_names(found["test_axes"]) == {"w": P("foo", "bar")}
    assert {spec for spec, _ in constraints} == {P("model", "data")}
    assert "test_axes" not in variable(None)
    assert ours.get_axis_names(variable(())["test_axes"]) == {"w": P()}


def test_a_variables_fallback(constraints: list[Any]) -> None:
    found = variable(("foo", "unheard"), fallback=ours.RulesFallback.NO_CONSTRAINT)
    assert constraints == []
    assert ours.get_axis_names(found["test_axes"]) == {"w": P("foo", "unheard")}


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        normal = nn.initializers.lecun_normal()
        w = ours.param_with_axes("w", normal, (8, 8), axes=("foo", "bar"))
        y = x @ w
        ours.variable_with_axes("stats", "y", lambda: y, axes=("baz", "bar"))
        return y, None


def test_scan_with_axes_names_the_stacked_axis() -> None:
    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layers = ours.scan_with_axes(
                Layer,
                in_axes=(),
                variable_axes={"params": 0, "stats": 1},
                split_rngs={"params": True},
                axis_name="layer",
                axes_collections=("params", "stats"),
                length=3,
            )(name="layers")
            x, _ = layers(x)
            return layers(x)[0]  # names sown twice agree

    with ours.axis_rules(RULES):
        found = Stack().init(jax.random.key(0), jnp.ones((2, 8)))
        Stack().apply(found, jnp.ones((2, 8)))  # where `params_axes` cannot change
    assert ours.get_axis_names(found["params_axes"]) == {"layers": {"w": P("layer", "foo", "bar")}}
    assert ours.get_axis_names(found["stats_axes"]) == {"layers": {"y": P("baz", "layer", "bar")}}
    assert found["params"]["layers"]["w"].shape == (3, 8, 8)
    specs = {p.param.path: str(p.partition_spec) for p in resolver().plan(found).arrays}
    assert specs["layers/w"] == "P(None, 'data', 'model')"
    assert specs["stats/layers/y"] == "P(None, None, 'model')"


def test_vmap_with_axes_names_the_mapped_axis() -> None:
    class Single(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            uniform = nn.initializers.uniform()
            return ours.param_with_axes("w", uniform, (4, 3), axes=("out", "in")) @ x

    class Mapped(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return ours.vmap_with_axes(
                Single,
                variable_axes={"params": 1},
                split_rngs={"params": True},
                partitioning_axis_names={"params": "mapped"},
            )(name="inner")(x)

    with ours.axis_rules((("out", None), ("in", "data"), ("mapped", "model"))):
        found = unfreeze(Mapped().init(jax.random.key(0), jnp.ones((2, 3))))
    assert found["params"]["inner"]["w"].shape == (4, 2, 3)
    assert found["params_axes"]["inner"]["w_axes"].names == ("out", "mapped", "in")


def test_boxes_with_a_mesh_and_rules_of_their_own() -> None:
    own, rules = mesh((8, 1)), (("a", "data"), ("b", "model"))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            ones = nn.initializers.ones_init()
            kernel = nn.with_logical_partitioning(ones, ("a", "b"), mesh=own, rules=rules)
            w = self.param("w", kernel, (8, 4))
            assert self.get_variable("params", "w").names == ("a", "b")
            return x @ w

    @jax.jit
    def create() -> Any:
        found = Model().init(jax.random.key(0), jnp.zeros((4, 8)))
        logical = nn.get_partition_spec(found)
        shardings = ours.logical_to_mesh_sharding(logical, own, rules)
        return jax.lax.with_sharding_constraint(found, shardings)

    box = create()["params"]["w"]
    assert (box.names, box.mesh, box.rules) == (("a", "b"), own, rules)
    assert box.value.sharding.is_equivalent_to(NamedSharding(own, P("data", None)), 2)
    assert resolver("a -> data", "b -> model").shardings({"w": box})["w"].mesh is own


# linen_meta_test and core_meta_test: boxes through lifted transforms


def resolver(*rules: str) -> Resolver:
    lines = rules or ("foo -> data", "bar -> model", "baz, layer -> none")
    text = "\n".join(f"  - {rule}" for rule in lines)
    levels = "lints: {unknown-logical-axis: allow, axis-without-array: allow, unnamed-array: allow}"
    return Resolver(loads(f"shardspec: 1\nmesh: {{data: 2, model: 4}}\nrules:\n{text}\n{levels}\n"))


def kernel_init() -> Any:
    return nn.with_partitioning(nn.initializers.ones_init(), ("in", "out"))


class Boxed(nn.Module):
    as_variable: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        shape = (x.shape[-1], 2)
        if self.as_variable:
            held = self.variable("params", "w", kernel_init(), self.make_rng("params"), shape)
            held.value += 1.0
            assert held.value.sum() == held.value.size * 2
            w = held.value
        else:
            w = self.param("w", kernel_init(), shape)
        box = self.get_variable("params", "w")
        assert isinstance(box, nn.Partitioned)
        assert box.names == ("in", "out")
        return x @ w


@pytest.mark.parametrize("as_variable", [False, True])
def test_vmap_names_the_axis_in_the_box(as_variable: bool) -> None:
    class Mapped(nn.Module):
        @nn.compact
        def __call__(self, xs: Any) -> Any:
            mapped = nn.vmap(
                Boxed,
                in_axes=0,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                metadata_params={nn.PARTITION_NAME: "batch"},
            )
            return mapped(as_variable, name="inner")(xs)

    found = Mapped().init(jax.random.key(0), jnp.zeros((8, 4)))
    assert found["params"]["inner"]["w"].names == ("batch", "in", "out")
    specs = resolver("batch -> data", "in -> model").shardings(found, boxed=False)
    assert specs["params"]["inner"]["w"].spec == P("data", "model", None)


def test_core_vmap_and_a_name_that_was_not_given() -> None:
    def inner(scope: Any, x: Any) -> Any:
        return x @ scope.param("w", kernel_init(), (x.shape[-1], 2))

    def mapped(metadata: dict[str, Any]) -> Any:
        return lambda scope, xs: lift.vmap(
            inner,
            in_axes=0,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            metadata_params=metadata,
        )(scope, xs)

    xs = jnp.zeros((8, 3))
    _, found = init(mapped({meta.PARTITION_NAME: "batch"}))(jax.random.key(0), xs)
    assert found["params"]["w"].names == ("batch", "in", "out")
    with pytest.raises(flax.errors.PartitioningUnspecifiedError):
        init(mapped({}))(jax.random.key(0), xs)


def test_unboxing_boxes_of_arrays_and_of_trees() -> None:
    tree = {
        "w": meta.Partitioned(jnp.zeros((4, 2)), ("in", "out")),
        "tree": meta.Partitioned({"k": jnp.zeros((4,)), "b": jnp.zeros((8,))}, ("in",)),
    }
    assert jax.tree.map(jnp.shape, meta.unbox(tree)) == {
        "w": (4, 2),
        "tree": {"k": (4,), "b": (8,)},
    }
    placed = resolver("in -> data", "out -> none").shardings(tree, boxed=False)
    specs = jax.tree.map(lambda sharding: sharding.spec, placed)
    assert specs == {"w": P("data", None), "tree": {"k": P("data"), "b": P("data")}}


def test_core_scan_over_layers_and_specs_of_what_is_not_boxed() -> None:
    def stacked(scope: Any, x: Any) -> Any:
        def body(scope: Any, x: Any) -> Any:
            return core_nn.dense(scope, x, 3, kernel_init=kernel_init()), ()

        metadata = {meta.PARTITION_NAME: "layers"}
        options = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 8}
        return lift.scan(body, **options, metadata_params=metadata)(scope, x)[0]

    _, found = init(stacked)(jax.random.key(0), jnp.zeros((8, 3)))
    shapes = jax.tree.map(jnp.shape, unfreeze(found["params"]))
    assert shapes["kernel"] == meta.Partitioned((8, 3, 3), ("layers", "in", "out"))
    assert shapes["bias"] == (8, 3)
    specs = meta.get_partition_spec(found["params"])
    assert specs["kernel"] == P("layers", "in", "out")
    assert specs["bias"] == P()
    assert meta.get_partition_spec({"f": len}) == {"f": None}


def test_a_jitted_scan_over_layers_by_mesh_axes() -> None:
    """Names that are mesh axes themselves, and a stacked axis without a name."""

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            def dense(size: int, *names: str) -> Any:
                normal = nn.linear.default_kernel_init
                return nn.Dense(size, kernel_init=nn.with_partitioning(normal, names))

            h = nn.relu(dense(64, "data", "model")(x))
            return dense(x.shape[-1], "model", "data")(h), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            scanned = nn.scan(
                Mlp,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=8,
                metadata_params={nn.PARTITION_NAME: None},
            )
            return scanned(name="mlp")(x, None)[0]

    x, rng = jnp.ones((8, 32)), jax.random.key(0)
    abstract = jax.eval_shape(Model().init, rng, x)
    specs = nn.get_partition_spec(abstract)["params"]["mlp"]
    assert specs["Dense_0"] == {"bias": P(), "kernel": P(None, "data", "model")}
    assert specs["Dense_1"] == {"bias": P(), "kernel": P(None, "model", "data")}
    found = resolver("data -> data", "model -> model")
    shardings = found.shardings(abstract)
    by_flax = nn.logical_to_mesh_sharding(nn.get_partition_spec(abstract), found.mesh, ())
    assert jax.tree.structure(nn.unbox(shardings)) == jax.tree.structure(by_flax)
    batch = NamedSharding(found.mesh, P("data", "model"))
    variables = jax.jit(Model().init, in_shardings=(None, batch), out_shardings=shardings)(rng, x)
    kernel = variables["params"]["mlp"]["Dense_0"]["kernel"]
    assert kernel.value.sharding.spec == P(None, "data", "model")
    step = jax.jit(Model().apply, in_shardings=(shardings, batch), out_shardings=batch)
    assert step(variables, x).shape == (8, 32)
    assert step(variables, x).sharding == batch


# the drop-in as a module


def test_every_public_name_of_flaxs_module_is_there() -> None:
    names = [name for name in vars(theirs) if not name.startswith("_")]
    assert len(names) > 30
    for name in names:
        assert hasattr(ours, name), name
    with pytest.raises(AttributeError, match="has no attribute 'such'"):
        _ = ours.such
