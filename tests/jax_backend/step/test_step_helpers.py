"""A step whose layers all call one product of a module of helpers: each caller has its rows."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardspec
from shardspec.ir.step import Collective, Place, Step
from shardspec.jax_backend.equations import callers_of, stack_at
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.reading import traced_step
from shardspec.jax_backend.step.trace import Call
from shardspec.programs.hlo import Program, program_of
from shardspec.programs.measured import files_of

FOLDER = Path("tests/models/helped")
SPEC = """\
shardspec: 1
axes: {batch: 64, length: 1024}
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 4, tensor: 4}}
rules: [batch -> fsdp, mlp -> tensor, heads -> tensor, vocab -> tensor, embed -> fsdp,
  length -> none, layers -> none]
params:
  "**/{q,k,v}": embed heads
  "**/o": heads embed
  "**/{gate,up}": embed mlp
  "**/down": mlp embed
  "**/table": vocab embed
"""
SCANNED = SPEC + 'scan: {"layers/**": layers@0}\n'
#: How the line of each product begins: query, key, value, out, gate, up, down, logits.
LINES = {
    "plain": ("q =", "k =", "v =", "return dense(o", "gate =", "up =", "return dense(j", "log"),
    "modules": ("q, k, v", "return dense(o", "gate =", "up =", "return dense(j", "return dense(n"),
}


def line_of(module: str, start: str) -> int:
    lines = (FOLDER / f"{module}.py").read_text("utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.strip().startswith(start))


DENSE = str(FOLDER / "linears.py"), line_of("linears", "return jnp.einsum")


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("linears", "plain", "modules"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def step_of(module: str, kind: str) -> Step:
    spec = shardspec.loads(SCANNED if kind == "scanned" else SPEC, "spec.yaml")
    resolver = Resolver(spec, "pod", devices="abstract", agree_within_s=None)
    function, args = getattr(importlib.import_module(module), kind)(resolver)
    return traced_step(resolver, Call(function, args))[1]


@pytest.mark.parametrize("module", ["plain", "modules"])
@pytest.mark.parametrize("kind", ["unrolled", "scanned"])
def test_products_are_shown_at_the_lines_that_call_the_helper(module: str, kind: str) -> None:
    step = step_of(module, kind)
    products = [op for op in step.ops if op.einsum]
    dense = [op for op in products if op.place.own == DENSE]
    file = str(FOLDER / f"{module}.py")
    assert {(op.place.file, op.place.line) for op in dense} == {
        (file, line_of(module, start)) for start in LINES[module]
    }
    assert set(files_of(step)) >= {file, DENSE[0]}, "a capture may have other paths to both"
    others = [op.place for op in products if op not in dense]
    assert others
    assert all(place.file == file and place.via is None for place in others)
    assert all(_is_explained(each) for each in step.collectives if each.carries.kind == "einsum")


def _is_explained(sent: Collective) -> bool:
    return all(cause.kind != "unknown" for cause in sent.because) and sent.place.is_known


def places_of(program: Program) -> Counter[str]:
    bodies = program.computations.values()
    found = (each for body in bodies for each in body.instructions.values())
    return Counter(str(program.place(each)) for each in found if each.operation == "dot")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, partial(jax.named_call, name="own")])
def test_a_compiled_program_says_the_same_as_jax_program(wrap: Any) -> None:
    plain = importlib.import_module("plain")
    plain.dense = wrap(plain.dense)
    p = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in plain.SHAPES.items()}
    x = jax.ShapeDtypeStruct((2, 16, plain.EMBED), jnp.float32)
    traced = jax.jit(plain.block).trace(x, p)
    program = program_of(traced.lower().compile().as_text() or "")
    lines = [line_of("plain", start) for start in LINES["plain"][:-1]]
    assert {each for each in places_of(program) if "linears" in each} == {
        str(Place(str(FOLDER / "plain.py"), line, via=DENSE)) for line in lines
    }


def test_equations_say_the_same() -> None:
    plain = importlib.import_module("plain")
    p = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in plain.SHAPES.items()}
    x = jax.ShapeDtypeStruct((2, 16, plain.EMBED), jnp.float32)
    program = jax.make_jaxpr(plain.block)(x, p).jaxpr
    callers = callers_of(program)
    found = [str(callers.place(stack_at(each), "")) for each in program.eqns]
    at = line_of("plain", "gate = ")
    assert str(Place(str(FOLDER / "plain.py"), at, via=DENSE)) in found
