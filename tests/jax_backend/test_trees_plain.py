"""Plain pytrees: containers, custom nodes, and leaves of every kind."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import array_bytes
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.trees import params_of
from tests.jax_backend.specs import make_spec
from tests.jax_backend.verbs import TEXT, assert_jit_obeys, specs_by_every_verb

PARAMS = 'params:\n  "**/wi": embed mlp\n  "**/wo": mlp embed\n'
SPECS = {"wi": "P('data', 'model')", "wo": "P('model', 'data')"}
Pair = collections.namedtuple("Pair", "wi wo")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    wi: Any
    wo: Any
    name: str = dataclasses.field(default="block", metadata={"static": True})


@jax.tree_util.register_pytree_with_keys_class
class WithKeys:
    def __init__(self, wi: Any, wo: Any) -> None:
        self.wi, self.wo = wi, wo

    def tree_flatten_with_keys(self) -> Any:
        keys = jax.tree_util.GetAttrKey
        return ((keys("wi"), self.wi), (keys("wo"), self.wo)), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class WithoutKeys:
    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> Any:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


def wi() -> Any:
    return jnp.ones((8, 16))


def wo() -> Any:
    return jnp.ones((16, 8))


@pytest.mark.parametrize(
    "make",
    [
        lambda wi, wo: {"wi": wi, "wo": wo},
        lambda wi, wo: collections.OrderedDict(wo=wo, wi=wi),
        lambda wi, wo: collections.defaultdict(dict, wi=wi, wo=wo),
        Pair,
        Block,
        WithKeys,
    ],
)
def test_containers_that_name_their_children(make: Any) -> None:
    tree = {"layers": [make(wi(), wo()), make(wi(), wo())], "none": None}
    expected = {f"layers/{n}/{name}": SPECS[name] for n in range(2) for name in ("wi", "wo")}
    assert specs_by_every_verb(tree, TEXT + PARAMS) == expected
    assert_jit_obeys(lambda: tree, text=TEXT + PARAMS)


@pytest.mark.parametrize("make", [lambda *pair: list(pair), lambda *pair: pair, WithoutKeys])
def test_containers_that_count_their_children(make: Any) -> None:
    text = f'{TEXT}params: {{"*/0": embed mlp, "*/1": mlp embed}}\n'
    expected = {"a/0": SPECS["wi"], "a/1": SPECS["wo"]}
    assert specs_by_every_verb({"a": make(wi(), wo())}, text) == expected
    assert_jit_obeys(lambda: {"a": make(wi(), wo())}, text=text)


def test_a_flattened_dict_has_the_paths_of_the_nested_one() -> None:
    nested = {"params": {"layers_0": {"wi": wi(), "wo": wo()}}}
    expected = specs_by_every_verb(nested, TEXT + PARAMS)
    assert expected == {"layers_0/wi": SPECS["wi"], "layers_0/wo": SPECS["wo"]}
    for join in (tuple, "/".join):
        flat = {join(("params", "layers_0", name)): make() for name, make in MAKERS.items()}
        assert specs_by_every_verb(flat, TEXT + PARAMS) == expected


MAKERS = {"wi": wi, "wo": wo}


def test_leaves_of_every_kind() -> None:
    tree = {
        "array": jnp.ones((8, 2)),
        "numpy": np.ones((8, 2)),
        "numpy scalar": np.float32(1),
        "number": 1.5,
        "flag": True,
        "none": None,
        "key": jax.random.key(0),
        "keys": jax.random.split(jax.random.key(0), 8),
        "raw key": jax.random.PRNGKey(0),
    }
    text = f'{TEXT}params: {{"{{array,numpy}}": embed _, keys: embed}}\n'
    specs = specs_by_every_verb(tree, text)
    assert specs.pop("array") == specs.pop("numpy") == "P('data', None)"
    assert specs.pop("keys") == "P('data')"
    assert set(specs.values()) == {"P()", "P(None)"}


def test_what_is_no_array_gets_none_and_stays_where_it_is() -> None:
    tree = {
        "f": len,
        "text": "relu",
        "type": jnp.float32,
        "numpy type": np.float32,
        "dtype": np.dtype("float32"),
        "texts": np.array(["a", "b"]),
        "objects": np.array([object()]),
        "w": wi(),
    }
    found = Resolver(make_spec(params={"w": "embed mlp"}))
    assert [param.path for param in params_of(tree)] == ["w"]
    shardings = found.shardings(tree)
    assert {key for key, value in shardings.items() if value is not None} == {"w"}
    moved = found.put(tree)
    assert moved["f"] is len
    assert moved["texts"] is tree["texts"]
    assert moved["w"].sharding == shardings["w"]


def test_numpy_has_the_dtype_it_gets_on_a_device() -> None:
    tree = {"wide": np.ones(2), "int": np.ones(2, np.int64), "narrow": np.ones(2, np.float16)}
    assert {p.path: p.dtype for p in params_of(tree)} == {
        "wide": "f32",
        "int": "s32",
        "narrow": "f16",
    }
    with jax.enable_x64(True):
        assert {p.path: p.dtype for p in params_of({**tree, "number": 1})} == {
            "wide": "f64",
            "int": "s64",
            "narrow": "f16",
            "number": "s64",
        }


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_weigh_what_jax_says(kind: str) -> None:
    keys = jax.random.split(jax.random.key(0, impl=kind), 6)
    (param,) = params_of({"k": keys})
    assert array_bytes(param.shape, param.dtype) == 6 * keys.dtype.itemsize


def test_shapes_alone_serve_for_a_plan_but_cannot_be_put() -> None:
    tree = jax.eval_shape(lambda: {"layers_0": {"wi": wi(), "wo": wo()}})
    assert specs_by_every_verb(tree, TEXT + PARAMS) == {
        f"layers_0/{name}": spec for name, spec in SPECS.items()
    }
    found = Resolver(make_spec(params={"**/wi": "embed mlp", "**/wo": "mlp embed"}))
    with pytest.raises(ShardspecError, match=r"`layers_0/wi` is a ShapeDtypeStruct, which has no"):
        found.put(tree)


def test_whole_below_goes_by_bytes_whatever_the_paths_and_trees_have_in_common() -> None:
    rules = "rules: [embed -> data, mlp -> model]\nparams: {'**/w': embed mlp}\n"
    text = f"mesh: {{data: 2, model: 4}}\n{rules}policy: {{whole_below: 16 KiB}}\n"
    resolver = Resolver(shardspec.loads(text))
    shapes = {dtype: jax.ShapeDtypeStruct((64, 64), dtype) for dtype in ("bfloat16", "float32")}
    tree = {f"layer_{i}": {"w": shapes["bfloat16" if i % 2 else "float32"]} for i in range(4)}
    split = P("data", "model")
    for each in (tree, {"layer_0": {"w": shapes["bfloat16"]}}):
        found = resolver.shardings(each)
        for layer, array in each.items():
            wanted = split if array["w"].dtype == jnp.float32 else P(None, None)
            assert found[layer]["w"].spec == wanted


@jax.tree_util.register_pytree_with_keys_class
class Counted(WithKeys):
    opened = 0

    def tree_flatten_with_keys(self) -> Any:
        Counted.opened += 1
        return super().tree_flatten_with_keys()


def test_a_first_call_opens_a_node_as_often_as_a_second() -> None:
    resolver = Resolver(make_spec(params={"**/wi": "embed mlp", "**/wo": "mlp embed"}))
    tree = {"layers": [Counted(jnp.ones((8, 16)), jnp.ones((16, 8))) for _ in range(3)]}
    opened = []
    for _ in range(2):
        Counted.opened = 0
        resolver.shardings(tree)
        opened.append(Counted.opened)
    assert opened[0] == opened[1] > 0
