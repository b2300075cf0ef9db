"""Whatever is passed to any public method: an answer, a finding, or an error that we raise."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec import Resolver, load, loads
from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import jax_entries
from shardspec.jax_backend.trees import refuse_unmovable, unreduced_axes

TEXT = """
shardspec: 1
axes: {batch: 8, embed: 8}
mesh: {data: 2, model: 4}
rules:
  - batch -> data
  - mlp -> model
  - embed -> none
params:
  "**/kernel": embed mlp
activations:
  hidden: batch mlp
arrays:
  kernel: f32[8, 16]
"""
SPEC = loads(TEXT)
FOUND = Resolver(SPEC)
GOOD = {"kernel": jnp.ones((8, 16))}
STATE = optax.adam(1.0).init(GOOD)
OURS = str(Path(shardspec.__file__).parent)


def deleted() -> jax.Array:
    array = jnp.ones((8, 16))
    array.delete()
    return array


def donated() -> jax.Array:
    array = jnp.ones((8, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    return array


def unreduced() -> jax.Array:
    mesh = Mesh(FOUND.mesh.devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        a = jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh, P(None, "data")))
        b = jax.device_put(np.ones((16, 16), np.float32), NamedSharding(mesh, P("data", None)))
        out = P(None, None, unreduced={"data"})
        return jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=out))(a, b)


class Thing:
    """Nothing that anything here takes."""


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "int": lambda: 5,
    "float": lambda: 5.0,
    "nan": lambda: float("nan"),
    "bool": lambda: True,
    "complex": lambda: 1j,
    "huge": lambda: 10**30,
    "text": lambda: "hello",
    "no text": lambda: "",
    "bytes": lambda: b"x",
    "no dict": dict,
    "no list": list,
    "no tuple": tuple,
    "set": lambda: {1, 2},
    "ints": lambda: [8, 16],
    "negative": lambda: (-1, 8),
    "ragged": lambda: [[1, 2], [3]],
    "generator": lambda: (each for each in range(3)),
    "thing": Thing,
    "type": lambda: int,
    "function": lambda: lambda x: x,
    "array": lambda: jnp.ones(8),
    "wrong structure": lambda: {"a": {"b": jnp.ones((8, 16))}},
    "scalar of numpy": lambda: np.float32(1),
    "array of rank 0": lambda: np.array(1.0),
    "objects": lambda: np.array([object(), None]),
    "tree of objects": lambda: {"kernel": np.array([[object()] * 16] * 8)},
    "tree of text": lambda: {"kernel": np.array(["a"])},
    "date": lambda: np.datetime64("2020"),
    "masked": lambda: {"kernel": np.ma.ones((8, 16))},
    "records": lambda: {"kernel": np.zeros(8, dtype=[("a", "f4")])},
    "float0": lambda: {"kernel": np.zeros((8, 16), jax.dtypes.float0)},
    "deleted": deleted,
    "tree of a deleted one": lambda: {"kernel": deleted()},
    "tree of a donated one": lambda: {"kernel": donated()},
    "partial sums": lambda: {"kernel": unreduced()},
    "key": lambda: jax.random.key(0),
    "tree of keys": lambda: {"kernel": jax.random.split(jax.random.key(0), 8)},
    "partition": lambda: P("data"),
    "tree of partitions": lambda: {"kernel": P("data", None)},
    "sharding": lambda: FOUND.sharding("batch _"),
    "mesh": lambda: FOUND.mesh,
    "shape": lambda: jax.ShapeDtypeStruct((8, 16), "float32"),
    "tree of shapes": lambda: {"kernel": jax.ShapeDtypeStruct((8, 16), "float32")},
    "keys that cannot be sorted": lambda: {"a": jnp.ones(8), 1: jnp.ones(8)},
    "tree of None": lambda: {"kernel": None},
    "no elements": lambda: {"kernel": jnp.ones((0, 16))},
    "rank 3": lambda: {"kernel": jnp.ones((2, 2, 2))},
    "resolver": lambda: FOUND,
    "spec": lambda: SPEC,
    "plan": lambda: FOUND.plan(GOOD),
    "state": lambda: STATE,
    "good": lambda: GOOD,
}

BATCH, TREE = FOUND.batch("batch embed"), FOUND.batch({"x": "batch embed"})
ROWS = np.ones((8, 8), np.float32)
PLAN, STATE_PLAN, COMPILED = FOUND.plan(GOOD), FOUND.state_plan(STATE, GOOD), SPEC.compile()

CALLS: dict[str, Callable[[Any], Any]] = {
    "shardings": FOUND.shardings,
    "state_shardings of": lambda v: FOUND.state_shardings(v, GOOD),
    "state_shardings by": lambda v: FOUND.state_shardings(STATE, v),
    "state_plan of": lambda v: FOUND.state_plan(v, GOOD),
    "state_plan by": lambda v: FOUND.state_plan(STATE, v),
    "grad_shardings": FOUND.grad_shardings,
    "partition_spec": FOUND.partition_spec,
    "sharding": FOUND.sharding,
    "sharding, shape": lambda v: FOUND.sharding("batch embed", v),
    "constrain": lambda v: FOUND.constrain(v, "batch embed"),
    "constrain, names": lambda v: FOUND.constrain(jnp.ones((8, 8)), v),
    "constrain, activation": lambda v: FOUND.constrain(jnp.ones((8, 16)), activation=v),
    "constrain, by activation": lambda v: FOUND.constrain(v, activation="hidden"),
    "constrain, name": lambda v: FOUND.constrain(jnp.ones((8, 8)), "batch embed", name=v),
    "put": FOUND.put,
    "put, memory": lambda v: FOUND.put(GOOD, memory_kind=v),
    "batch": FOUND.batch,
    "batch, put": lambda v: FOUND.batch(v).put(ROWS),
    "batch, sharding": lambda v: FOUND.batch(v).sharding(),
    "batch, layout": lambda v: FOUND.batch(v).layout(),
    "Batch.sharding": BATCH.sharding,
    "Batch.sharding of a tree": TREE.sharding,
    "Batch.put": BATCH.put,
    "Batch.put of a tree": TREE.put,
    "Batch.put, global_batch": lambda v: BATCH.put(ROWS, global_batch=v),
    "Batch.put, global_shape": lambda v: BATCH.put(ROWS, global_shape=v),
    "Batch.local_rows": BATCH.local_rows,
    "Batch.local_rows of a tree": TREE.local_rows,
    "Batch.local_slice": BATCH.local_slice,
    "Batch.local_rows, process": lambda v: BATCH.local_rows((8, 8), process=v),
    "Batch.layout": BATCH.layout,
    "Batch.layout, process": lambda v: BATCH.layout(process=v),
    "abstract": FOUND.abstract,
    "abstract by": lambda v: FOUND.abstract(STATE, v),
    "restore": lambda v: FOUND.restore(v, GOOD),
    "restore into": lambda v: FOUND.restore("/nowhere", v),
    "checkpoint_findings": lambda v: FOUND.checkpoint_findings(v, GOOD),
    "plan": FOUND.plan,
    "findings": FOUND.findings,
    "verify_placement": FOUND.verify_placement,
    "verify_placement, strict": lambda v: FOUND.verify_placement(v, strict=True),
    "verify_placement, state": lambda v: FOUND.verify_placement(GOOD, v),
    "visualize": FOUND.visualize,
    "Plan[] of a tree": lambda v: PLAN[v],
    "Plan.explain of a tree": PLAN.explain,
    "Plan.visualize of a tree": PLAN.visualize,
    "Plan[] of state": lambda v: STATE_PLAN[v],
    "Plan.explain of state": STATE_PLAN.explain,
    "Plan[]": lambda v: COMPILED[v],
    "Plan.explain": COMPILED.explain,
    "Plan.visualize": COMPILED.visualize,
    "Spec.compile": SPEC.compile,
    "Spec.compile, target": lambda v: SPEC.compile(target=v),
    "Spec.findings": SPEC.findings,
    "Resolver": Resolver,
    "Resolver, target": lambda v: Resolver(SPEC, v),
    "Resolver, devices": lambda v: Resolver(SPEC, devices=v),
}


def fault(call: Callable[[Any], Any], value: Any) -> str | None:
    """Return the error of a call that comes from inside, None for what is ours to say."""
    try:
        call(value)
    except ShardspecError:
        return None
    except (TypeError, ValueError, KeyError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if not (last.filename.startswith(OURS) and (last.line or "").startswith("raise ")):
            return "".join(traceback.format_exception(error))
    except jax.errors.JAXTypeError as error:
        return repr(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_no_argument_ends_in_an_error_from_inside(name: str) -> None:
    for value, make in VALUES.items():
        found = fault(CALLS[name], make())
        assert found is None, f"{name}({value}):\n{found}"


@pytest.mark.parametrize("name", CALLS)
def test_nor_does_one_that_is_traced(name: str) -> None:
    def traced(value: Any) -> int:
        for each in (value, {"kernel": value}):
            found = fault(CALLS[name], each)
            assert found is None, f"{name}(tracer):\n{found}"
        return 0

    jax.jit(traced)(jnp.ones((8, 16)))


def test_a_fault_is_seen() -> None:
    """The guard of the two tests above: what JAX or Python raise is no error of ours."""
    assert "TypeError" in str(fault(lambda value: value + "", 5.0))
    assert "ValueError" in str(fault(lambda value: jax.tree.map(len, {"a": 1}, value), 5.0))
    with pytest.raises(AttributeError):
        fault(lambda value: value.lower(), 5.0)


@pytest.mark.parametrize("verb", ["put", "batch"])
def test_put_refuses_what_is_traced(verb: str) -> None:
    put = FOUND.put if verb == "put" else BATCH.put
    with pytest.raises(ShardspecError, match=r"`kernel` is being traced.*\n.*constraint\("):
        jax.jit(lambda x: put({"kernel": x}))(jnp.ones((8, 8)))


@pytest.mark.parametrize("put", [FOUND.put, BATCH.put])
def test_put_says_which_array_has_no_values(put: Any) -> None:
    with pytest.raises(ShardspecError, match="`b/kernel` has been deleted, or donated"):
        put({"a": {"kernel": jnp.ones((8, 16))}, "b": {"kernel": donated()}})


def test_a_batch_of_partial_sums_is_summed_up_where_they_all_are_here() -> None:
    sums = unreduced()
    made = BATCH.put({"kernel": sums})["kernel"]
    assert (np.asarray(made) == np.asarray(BATCH.put({"kernel": whole(sums)})["kernel"])).all()
    assert not unreduced_axes(made.sharding)
    with pytest.raises(ShardspecError, match="holds partial sums, one on each part of data"):
        refuse_unmovable({"kernel": sums}, "put")


def whole(sums: Any) -> Any:
    """Return partial sums as what they sum up to, by JAX itself."""
    spec = jax.sharding.PartitionSpec(*jax_entries(sums.sharding.spec))
    with jax.set_mesh(sums.sharding.mesh):
        return jax.sharding.reshard(sums, spec)


def test_a_batch_that_is_not_like_its_names() -> None:
    said = r"SHD004.*not a tree like its names.*\n.*the names are a dict of `x`, and this is {}"
    for value, shown in ((5.0, "5.0"), ({"y": ROWS}, "a dict of `y`"), ([ROWS], "a `list`")):
        with pytest.raises(ShardspecError, match=said.format(shown)):
            TREE.put(value)
        with pytest.raises(ShardspecError, match=said.format(shown)):
            TREE.sharding(value)
    with pytest.raises(TypeError, match=r"there is none in 5\.0"):
        BATCH.put(5.0)


def test_names_and_shapes_of_the_wrong_kind_are_named() -> None:
    with pytest.raises(TypeError, match='a string such as "batch embed", not None'):
        FOUND.partition_spec(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pass its `shape`"):
        FOUND.sharding("batch embed", jnp.ones((8, 8)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="it is of 0"):
        BATCH.layout(process=3)
    assert FOUND.sharding("batch embed", np.array([8, 8])) == FOUND.sharding("batch embed", (8, 8))


def _resolver() -> Resolver:
    text = (
        "shardspec: 1\nmesh: {data: 2, model: 4}\nrules:\n  - batch -> data\n  - mlp -> model\n"
        'params:\n  "**/kernel": embed mlp\naxes: {embed: 8}\nactivations:\n  act: batch mlp\n'
    )
    return Resolver(loads(text))


def _wrong_trees(resolver: Resolver) -> dict[str, tuple[Any, str]]:
    params = {"l": {"kernel": jnp.zeros((8, 16))}}
    shardings = resolver.shardings(params)
    return {
        "nothing": (None, "not None: pass arrays"),
        "names": ("batch embed", "resolver.sharding"),
        "a tree of names": ({"a": "batch embed"}, "whose first leaf is 'batch embed'"),
        "shardings": (shardings, "boxed where they were, that the shardings are for"),
        "one sharding": (shardings["l"]["kernel"], "not a `NamedSharding`"),
        "a plan": (resolver.plan(params), "pass the arrays; `params` and `like=` take"),
        "a spec": (loads("shardspec: 1\nmesh: {data: 8}\n"), "a spec has rules"),
        "a function": (lambda: params, "`jax.eval_shape(function, ...)`"),
        "an optimizer": (optax.adam(1e-3), "`jax.eval_shape(function, ...)`"),
        "a set": ({1, 2}, "in dicts, lists, tuples"),
    }


@pytest.mark.parametrize("kind", sorted(_wrong_trees(_resolver())))
def test_what_is_no_tree_of_arrays_is_told(kind: str) -> None:
    resolver = _resolver()
    wrong, said = _wrong_trees(resolver)[kind]
    params = {"l": {"kernel": jnp.zeros((8, 16))}}
    state = optax.adam(1e-3).init(params)
    calls: list[Callable[[], Any]] = [
        lambda: resolver.shardings(wrong),
        lambda: resolver.findings(wrong),
        lambda: resolver.verify_placement(wrong),
        lambda: resolver.put(wrong),
        lambda: resolver.abstract(wrong),
        lambda: resolver.state_shardings(wrong, params),
        lambda: resolver.state_plan(wrong, params),
        lambda: resolver.restore("nowhere", wrong),
    ]
    if kind != "nothing":  # None is what `like` is where it is not given
        calls.append(lambda: resolver.verify_placement(params, wrong))
    if kind not in ("a plan", "nothing"):
        calls += [
            lambda: resolver.put(params, like=wrong),
            lambda: resolver.abstract(params, like=wrong),
            lambda: resolver.verify_placement(params, like=wrong),
        ]
    if kind != "a plan":
        calls += [
            lambda: resolver.state_shardings(state, wrong),
            lambda: resolver.grad_shardings(wrong),
        ]
    if kind != "names":
        calls += [lambda: resolver.plan(wrong), lambda: resolver.visualize(wrong)]
    for call in calls:
        with pytest.raises(TypeError, match="is a tree of arrays, not") as caught:
            call()
        assert said in str(caught.value)


def test_shardings_are_not_what_like_takes() -> None:
    resolver = _resolver()
    params = {"l": {"kernel": jnp.zeros((8, 16))}}
    with pytest.raises(TypeError, match=r"or `resolver\.plan` of those"):
        resolver.put(params, like=resolver.shardings(params))
    resolver.put(params, like=resolver.plan(params))
    resolver.put(params, like=params)


def test_trees_without_leaves_are_fine() -> None:
    resolver = _resolver()
    params = {"l": {"kernel": jnp.zeros((8, 16))}}
    assert resolver.shardings({}) == {}
    assert resolver.shardings({"a": None}) == {"a": None}
    state = optax.sgd(1e-3).init(params)
    assert resolver.state_shardings(state, params) == state
    assert resolver.shardings({"f": len, "x": 1.0})["f"] is None


def test_swapped_arguments_of_constrain() -> None:
    resolver = _resolver()
    x = jnp.ones((4, 8))
    for call in (
        lambda: resolver.constrain("batch mlp", x),
        lambda: resolver.constrain("batch mlp", activation="act"),
        lambda: resolver.constrain({"a": "batch mlp"}, {"a": x}),
    ):
        with pytest.raises(TypeError, match="comes first: `constrain"):
            call()
    with pytest.raises(TypeError, match="not a PartitionSpec"):
        resolver.constrain(x, jax.sharding.PartitionSpec("data"))
    for call in (resolver.constrain, lambda _, names: resolver.batch(names).sharding((4, 8))):
        with pytest.raises(ShardspecError, match="an activation, of axes `batch mlp`: those, or "):
            call(x, "act")
    with pytest.raises(ShardspecError, match="SHD206"):
        resolver.constrain([1, 2], "batch mlp")


def test_what_has_a_partition_has_no_axes_to_ask_for() -> None:
    text = 'mesh: {data: 8 explicit}\nactivations: {part: {spec: "(none, data)"}}\n'
    resolver = Resolver(loads(text))
    with pytest.raises(ShardspecError, match=r'place of axes: `constrain\(x, activation="part"\)`'):
        resolver.batch("part").sharding((4, 8))


def test_plain_arguments_of_the_wrong_type() -> None:
    resolver = _resolver()
    spec = loads("shardspec: 1\nmesh: {data: 8}\n")
    params = {"l": {"kernel": jnp.zeros((8, 16))}}
    calls: list[tuple[Callable[..., Any], str]] = [
        (
            lambda: resolver.verify_placement(params, memory_kinds="pinned_host"),
            r"`\(\"pinned_host\",\)`",
        ),
        (lambda: resolver.verify_placement(params, memory_kinds=cast(Any, 5)), "not 5"),
        (lambda: Resolver(spec, cast(Any, jax.devices())), "devices go by name, `devices=`"),
        (lambda: Resolver(spec, levels=cast(Any, "uneven")), "levels are a dict such as"),
        (lambda: load(cast(Any, 5)), "a path is a string or a `Path`, not a `int`"),
        (lambda: loads(cast(Any, None)), "`text` is a string"),
        (lambda: loads("", cast(Any, {"uneven": "warn"})), "levels go by name, `levels=`"),
    ]
    for call, said in calls:
        with pytest.raises(TypeError, match=said):
            call()
    with pytest.raises(ShardspecError, match=r"shardspec\.loads\(text\)"):
        load("shardspec: 1\nmesh: {data: 8}\n")
    with pytest.raises(ShardspecError, match=r"shardspec\.load\(path\)"):
        loads("spec.yaml")
