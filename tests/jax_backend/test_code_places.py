"""`at:` of an activation: constraints in code that is not the user's, put there from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.ir.program import CodePlace
from shardspec.jax_backend.resolver import Resolver
from shardspec.language.document_to_layer import parse_code_place
from shardspec.language.grammar.syntax import SyntaxFault
from tests.jax_backend import external_model as model

P = {"wi": jnp.ones((16, 32)), "wo": jnp.ones((32, 16))}
X = jnp.ones((8, 4, 16))
LINE = 1 + next(
    at
    for at, line in enumerate(Path(model.__file__).read_text("utf-8").splitlines())
    if "# MARK" in line
)
SPEC = """\
shardspec: 1
mesh: {data: 4, model: 2}
rules: [batch -> data, mlp -> model, length -> none, embed -> none]
"""


def resolver(**places: str) -> Resolver:
    """Return one with places: `hidden="batch length mlp at model.py:f"`."""
    stated = (text.split(" at ") for text in places.values())
    rows = [
        f"  {name}: {{axes: {axes}, at: '{place}'}}\n"
        for name, (axes, place) in zip(places, stated, strict=True)
    ]
    text = SPEC + ("activations:\n" if rows else "") + "".join(rows)
    return Resolver(shardspec.loads(text, "spec.yaml"), devices=jax.devices()[:8])


def constraints(function: Any, *args: Any) -> list[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Return the shapes and the specs of all constraints in a traced function."""
    found = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "sharding_constraint":
                aval, sharding = eqn.invars[0].aval, eqn.params["sharding"]
                spec = tuple(sharding.spec)
                found.append((aval.shape, spec + (None,) * (aval.ndim - len(spec))))
            for each in jax.extend.core.jaxprs_in_params(eqn.params):
                walk(getattr(each, "jaxpr", each))

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return found


HIDDEN = ((8, 4, 32), ("data", None, "model"))
OUT = ((8, 4, 16), ("data", None, None))
WRAPPED = ("plain", "scanned", "again", "jitted", "custom", "either", "counted", "nested")


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (f"batch length mlp at external_model.py:mlp line {LINE}", HIDDEN),
        ("batch length embed at external_model.py:mlp", OUT),
        ("batch length embed at external_model.py:mlp argument x", OUT),
    ],
    ids=("line", "result", "argument"),
)
def test_a_value_inside_is_constrained(name: str, place: str, expected: Any) -> None:
    function = getattr(model, name)
    own = resolver(value=place).constrained(function)
    times = 2 if name == "plain" else 1
    assert constraints(own, P, X) == [expected] * times
    assert not constraints(function, P, X), "and the code is as before"
    np.testing.assert_allclose(own(P, X), function(P, X))


@pytest.mark.parametrize("name", WRAPPED[:-2])
def test_a_gradient_is_constrained_as_well(name: str) -> None:
    own = resolver(value="batch length embed at external_model.py:mlp").constrained(
        getattr(model, name)
    )
    stated = constraints(jax.grad(lambda p, x: own(p, x).sum(), argnums=(0, 1)), P, X)
    forward_only = name == "custom"  # its backward rule is written by hand
    assert len(stated) == 1 if forward_only else len(stated) >= 2
    assert set(stated) == {OUT}
    mine, yours = (
        jax.grad(lambda p, x, f=f: f(p, x).sum(), argnums=(0, 1))(P, X)
        for f in (own, getattr(model, name))
    )
    jax.tree.map(np.testing.assert_allclose, mine, yours)


def test_a_vmapped_value_is_constrained_behind_its_new_dimension() -> None:
    own = resolver(value="length embed at external_model.py:mlp").constrained(model.batched)
    ((shape, spec),) = constraints(own, P, X)
    assert shape == (8, 4, 16)
    assert spec[1:] == (None, None)


@pytest.mark.parametrize("place", ["mlp", "**/mlp", "re:m.p", "mlp result", "mlp result[0]"])
@pytest.mark.parametrize("name", ["plain", "scanned", "jitted"])
def test_the_result_of_a_scope_is_constrained(name: str, place: str) -> None:
    own = resolver(value=f"batch length embed at {place}").constrained(getattr(model, name))
    assert set(constraints(own, P, X)) == {OUT}


def test_scopes_around_a_program_are_part_of_the_path() -> None:
    def outer(p: Any, x: Any) -> Any:
        with jax.named_scope("decoder"):
            return model.scanned(p, x) + model.again(p, x)

    own = resolver(value="batch length embed at decoder/mlp").constrained(outer)
    assert constraints(own, P, X) == [OUT] * 2
    with pytest.raises(ShardspecError, match="SHD236"):
        resolver(value="batch length embed at encoder/mlp").constrained(outer)(P, X)


def test_the_argument_of_a_scope_is_that_of_its_function() -> None:
    own = resolver(value="batch length embed at mlp argument x").constrained(model.scanned)
    assert constraints(own, P, X) == [OUT]


def test_a_line_of_a_scope() -> None:
    own = resolver(value=f"batch length mlp at mlp line {LINE}").constrained(model.scanned)
    assert constraints(own, P, X) == [HIDDEN]


def test_one_of_several_results() -> None:
    place = "batch length embed at external_model.py:pair result[1]"
    assert constraints(resolver(value=place).constrained(model.pair), P, X) == [OUT]


def test_several_entries_at_once() -> None:
    own = resolver(
        hidden=f"batch length mlp at external_model.py:mlp line {LINE}",
        out="batch length embed at external_model.py:Block.__call__",
    ).constrained(model.scanned)
    assert sorted(constraints(own, P, X)) == sorted([HIDDEN, OUT])


def test_around_a_shard_map() -> None:
    mesh = resolver().mesh
    spec = jax.sharding.PartitionSpec("data")

    def own(p: Any, x: Any) -> Any:
        y = model.block(p, x)
        local = jax.shard_map(lambda y: model.block(P, y), mesh=mesh, in_specs=spec, out_specs=spec)
        return local(y)

    placed = resolver(value="batch length embed at external_model.py:block")
    assert constraints(placed.constrained(own), P, X) == [OUT], "the one outside"

    def all_inside(x: Any) -> Any:
        local = jax.shard_map(lambda y: model.block(P, y), mesh=mesh, in_specs=spec, out_specs=spec)
        return local(x)

    with pytest.raises(ShardspecError, match="body of a `shard_map`"):
        placed.constrained(all_inside)(X)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("batch length embed at external_model.py:nothing", "where no value is"),
        ("batch length embed at other.py:block", "where no value is"),
        ("batch length embed at **/attention", "where no value is"),
        ("batch length embed at external_model.py:mlp line 1", "where no value is"),
        ("batch length embed at external_model.py:mlp argument y", "where no value is"),
        ("batch length embed at external_model.py:mlp result[3]", "has 1 result"),
        (
            "batch length embed at external_model.py:pair",
            r"different ranks: .*\[8, 4\].*\[8, 4, 16\]",
        ),
        ("batch embed at external_model.py:mlp", r"2 names, and .* is .\[8, 4, 16\]"),
    ],
)
def test_a_place_that_does_not_fit_is_refused_with_what_is_there(place: str, message: str) -> None:
    own = resolver(value=place).constrained(model.pair)
    with pytest.raises(ShardspecError, match=message) as raised:
        own(P, X)
    (found,) = raised.value.diagnostics
    assert found.code.id == "SHD236"
    assert found.labels[0].span.source.name == "spec.yaml"


def test_a_function_that_was_traced_before_is_traced_anew() -> None:
    inner = jax.jit(model.block)
    outer = jax.jit(lambda p, x: inner(p, x))
    outer(P, X)
    own = resolver(value="batch length embed at external_model.py:mlp").constrained(outer)
    assert constraints(own, P, X) == [OUT]
    assert not constraints(outer, P, X)


def test_without_places_a_function_stays_what_it_is() -> None:
    assert resolver().constrained(model.plain) is model.plain


def test_arguments_and_results_may_be_any_trees() -> None:
    def own(settings: Any, *, x: Any, p: Any) -> Any:
        assert settings == {"name": "a", "depth": 2}
        return {"y": model.block(p, x), "name": settings["name"], "none": None, "count": 3}

    placed = resolver(value="batch length embed at external_model.py:mlp").constrained(own)
    found = placed({"name": "a", "depth": 2}, x=X, p=P)
    assert found.keys() == {"y", "name", "none", "count"}
    assert (found["name"], found["none"], found["count"]) == ("a", None, 3)
    np.testing.assert_allclose(found["y"], model.block(P, X))


def test_it_compiles_as_if_it_stood_in_the_code() -> None:
    own = resolver(value="batch length embed at external_model.py:block").constrained(model.block)
    made = jax.jit(own)(P, X)
    assert tuple(made.sharding.spec)[:1] == ("data",)


def test_linen_modules_have_scopes_by_their_paths() -> None:
    nn = pytest.importorskip("flax.linen")

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(16, name="wo")(nn.relu(nn.Dense(32, name="wi")(x)))

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for at in range(2):
                x = x + Mlp(name=f"layers_{at}")(x)
            return x

    decoder = Decoder()
    params = jax.eval_shape(decoder.init, jax.random.key(0), X)
    for place, expected in (
        ("batch length mlp at **/layers_*/wi", [HIDDEN] * 2),
        ("batch length embed at **/layers_1", [OUT]),
        ("batch length embed at **/layers_* argument x", [OUT] * 2),
    ):
        own = resolver(value=place).constrained(decoder.apply)
        assert constraints(own, params, X) == expected, place


TEXT = st.text(st.sampled_from("ab*/.:[]{}() \t12_<>re:argument line result.py"), max_size=40)


@given(TEXT)
def test_a_text_is_a_place_or_a_fault(text: str) -> None:
    found = parse_code_place(text)
    if isinstance(found, SyntaxFault):
        assert 0 <= found.start <= found.end <= len(text)
    else:
        assert bool(found.scope) != bool(found.file)
        assert parse_code_place(found.text) == found


@given(
    st.sampled_from(["model.py:f", "a/b.py:C.__call__", "**/mlp", "re:a b", "layers_{0,1}/x"]),
    st.sampled_from(["", " result", " result[2]", " argument x", " line 7"]),
)
def test_which_value_is_read_behind_the_place(place: str, value: str) -> None:
    found = parse_code_place(place + value)
    assert isinstance(found, CodePlace)
    where = f"{found.file}:{found.function}" if found.file else found.scope
    shown = {
        "result": " result" if found.index is None else f" result[{found.index}]",
        "argument": f" argument {found.name}",
        "line": f" line {found.line}",
    }[found.value]
    assert where == place
    assert shown == (value or " result")


@pytest.mark.parametrize("text", ["", "  ", "model.py", "a b", "model.py:f result[x]", "x" * 2000])
def test_what_is_no_place_is_a_fault(text: str) -> None:
    assert isinstance(parse_code_place(text), SyntaxFault)
