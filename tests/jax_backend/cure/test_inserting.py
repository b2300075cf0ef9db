"""A line put into a lowered step is the line written into its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir

from shardspec.cure.figures import Figures
from shardspec.cure.lines import Point, Site
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import StepArgument
from shardspec.jax_backend.cure.inserting import arguments_with, inserted, prepared
from shardspec.jax_backend.cure.sites import numbered, sites_of
from shardspec.jax_backend.cure.worker import Base
from shardspec.jax_backend.step.passes import bytecode_of
from shardspec.jax_backend.xla.simplified import simplified
from tests.jax_backend.cure.pricing import Pair, prices
from tests.jax_backend.cure.small import (
    STEPS,
    X,
    base_and_sites,
    constrained,
    line,
    resolver,
    text_of,
    traced_of,
    without,
)

#: The expressions at the marks of a layer.
AT = {
    "hidden": 'x @ p["wi"]',
    "active": "jax.nn.relu(hidden)",
    "out": 'hidden @ p["wo"]',
    "sum": "x + out",
}
Lines = Mapping[str, Sequence[str]]
CASES: dict[str, Lines] = {
    "hidden": {"hidden": ["_ _ mlp"]},
    "active": {"active": ["_ _ mlp"]},
    "out": {"out": ["_ _ embed"]},
    "out on rows": {"out": ["batch _ _"]},
    "sum": {"sum": ["_ _ embed"]},
    "sum on rows": {"sum": ["batch _ _"]},
    "out moved": {"out": ["batch _ _", "_ _ embed"]},
    "two": {"hidden": ["_ _ mlp"], "out": ["_ _ embed"]},
}
#: The gradient of a sum is that of its parts, and no operation of it says so.
UNLIKE = {
    ("gradient", "sum moved"),
    ("scanned", "sum"),
}


class Priced(NamedTuple):
    base: Figures
    inserted: Figures
    written: Figures


def base_of(name: str) -> tuple[Base, dict[str, Site]]:
    return base_and_sites(*STEPS[name](without))


@cache
def priced(name: str) -> dict[str, Priced]:
    """Return what a step takes with the lines of each case, and with these in its code."""
    base, sites = base_of(name)
    asked: list[Pair] = [(base, ())]
    cases = {**CASES, "sum moved": {"sum": ["batch _ _", "_ _ embed"]}}
    for lines in cases.values():
        asked.append((base, [line(sites[AT[mark]], *names) for mark, names in lines.items()]))
        function, args = STEPS[name](constrained(lines))
        module = bytecode_of(traced_of(function, *args).module)
        asked.append((replace(base, module=module), ()))
    own, *found = prices(asked)
    assert isinstance(own, Figures), own
    pairs = zip(cases, found[::2], found[1::2], strict=True)
    return {
        case: Priced(own, one, other)
        for case, one, other in pairs
        if isinstance(one, Figures) and isinstance(other, Figures)
    }


@pytest.mark.parametrize("name", STEPS)
def test_a_line_inserted_is_the_line_written(name: str) -> None:
    found = priced(name)
    assert found.keys() >= CASES.keys()
    unlike = {
        case
        for case in CASES
        if (name, case) not in UNLIKE
        and (found[case].inserted.key, dict(found[case].inserted.sent))
        != (found[case].written.key, dict(found[case].written.sent))
    }
    assert not unlike
    changed = [case for case in CASES if found[case].written.key != found[case].base.key]
    assert len(changed) >= 5, "most lines change what the step takes"


@pytest.mark.parametrize(("name", "case"), sorted(UNLIKE))
def test_what_is_known_to_be_unlike_is(name: str, case: str) -> None:
    found = priced(name)[case]
    assert found.inserted.key != found.written.key


def test_all_that_reads_a_value_reads_the_constraint() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y + 1, jnp.tanh(y), y

    traced = traced_of(f, X)
    site = next(each for each in sites_of(traced.module) if text_of(each) == "x * 2")
    with mlir.make_ir_context():
        made = inserted(
            prepared(bytecode_of(traced.module)), [line(site, "batch _ _", "_ _ embed")]
        )
        module = ir.Module.parse(made)
        (product,) = (op for _, op in numbered(module) if op.name == "stablehlo.multiply")
        (first,) = (use.owner for use in product.results[0].uses)
        (second,) = (use.owner for use in first.results[0].uses)
        assert {first.name, second.name} == {"sdy.sharding_constraint"}
        assert '[{"fsdp"}, {}, {}]' in str(first)
        assert '[{}, {}, {"fsdp"}]' in str(second)
        assert len(list(second.results[0].uses)) == 3


def test_nothing_inserted_changes_nothing() -> None:
    base, _ = base_of("gradient")
    with mlir.make_ir_context():
        made, right = inserted(prepared(base.module), ()), simplified(base.module)
        assert str(ir.Module.parse(made)) == str(ir.Module.parse(right))


def test_what_calls_yield_and_read_is_constrained_at_every_call() -> None:
    @jax.jit
    def called(x: Any) -> Any:
        z = x * 3
        return jnp.sin(z) + z

    def f(x: Any) -> Any:
        y = called(x)
        return jax.grad(lambda y: jnp.sum(jnp.tanh(called(y)) ** 2))(y)

    traced = traced_of(f, X)
    module, sites = prepared(bytecode_of(traced.module)), sites_of(traced.module)
    counts = {}
    for site in sites:
        with mlir.make_ir_context():
            found = ir.Module.parse(inserted(module, [line(site, "batch _ _")]))
            ops = [op for _, op in numbered(found)]
            made = [op for op in ops if op.name == "sdy.sharding_constraint"]
            counts[text_of(site)] = counts.get(text_of(site), 0) + len(made)
            assert not any("shardspec." in str(op.attributes) for op in ops)
    assert counts["called(x)"] >= 1
    assert counts["x * 3"] >= 2, "once a call"
    assert all(counts.values()), counts


def test_a_layout_that_does_not_fit_is_refused() -> None:
    base, sites = base_of("forward")
    site = sites[AT["out"]]
    flat = line(site, "batch _ _").layouts[0]._replace(split=(("fsdp",), ()))
    good = line(site, "_ _ embed")
    why, known = prices([(base, [replace(good, layouts=(flat,))]), (base, [good])])
    assert isinstance(why, str)
    assert why
    assert isinstance(known, Figures)


def test_an_argument_is_placed() -> None:
    base, _ = base_of("forward")
    at = next(number for number, each in enumerate(base.arguments) if each.array.shape[0] == 32)
    argument: StepArgument = base.arguments[at]
    site = Site(argument.array.shape, "f32", path="x", points=(Point(at),))
    whole, wide = line(site, "_ _ _"), line(site, "_ _ embed")
    sizes = resolver().target.mesh.sizes
    found = arguments_with(base.arguments, [wide], sizes)
    assert found[at].array.split == PartitionSpec(((), (), ("fsdp",)))
    assert found[at].array.shard_shape == (32, 64, 64)
    assert [each for number, each in enumerate(found) if number != at] == [
        each for number, each in enumerate(base.arguments) if number != at
    ]
    own, one, other = prices([(base, ()), (base, [whole]), (base, [wide])])
    assert isinstance(own, Figures)
    assert isinstance(one, Figures)
    assert isinstance(other, Figures)
    assert len({own.key, one.key, other.key}) == 3
