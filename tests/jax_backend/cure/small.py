"""Small steps whose values are marked, traced with and without constraints at the marks.

Each step is made of a function `c`, which is given a mark and a value. Where it gives the value
back, the step lacks a constraint, and `site_of` finds the value by its expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import shardspec
from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.cure.figures import Figures
from shardspec.cure.lines import Layout, Line, Site
from shardspec.jax_backend.cure.layouts import Namer, with_mapped
from shardspec.jax_backend.cure.sites import sites_of
from shardspec.jax_backend.cure.worker import Base
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.graph import free_shapes
from shardspec.jax_backend.step.passes import bytecode_of
from shardspec.jax_backend.step.reading import traced_step
from shardspec.jax_backend.step.trace import Call, Layouts, Traced, traced

SPEC = """\
shardspec: 1
axes: {batch: 32, length: 64}
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {fsdp: 4, tensor: 2}}
rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp, vocab -> tensor, length -> none]
params: {"**/wi": embed mlp, "**/wo": mlp embed, table: vocab embed, "**/stack/wi": _ embed mlp,
  "**/stack/wo": _ mlp embed}
lints: {SHD1: allow, SHD2: allow, SHD3: allow, SHD4: allow, SHD5: allow}
"""
Mark = Callable[[str, Any], Any]
Step = Callable[[Mark], tuple[Any, tuple[Any, ...]]]
STEPS: dict[str, Step] = {}


def small(build: Step) -> Step:
    STEPS[build.__name__] = build
    return build


def struct(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


X = struct(32, 64, 256)
P = {"wi": struct(256, 1024), "wo": struct(1024, 256)}
STACK = {"stack": {"wi": struct(3, 256, 1024), "wo": struct(3, 1024, 256)}}


def layer(c: Mark, p: Any, x: Any) -> Any:
    hidden = c("hidden", x @ p["wi"])
    hidden = c("active", jax.nn.relu(hidden))
    out = c("out", hidden @ p["wo"])
    return c("sum", x + out)


def mean(x: Any) -> Any:
    return jnp.mean(x * x)


@small
def forward(c: Mark) -> Any:
    return partial(layer, c), (P, X)


@small
def gradient(c: Mark) -> Any:
    return jax.grad(lambda p, x: mean(layer(c, p, x))), (P, X)


@small
def jitted(c: Mark) -> Any:
    """Two calls of one function, which is lowered once."""
    own = jax.jit(partial(layer, c))

    def loss(p: Any, x: Any) -> Any:
        return mean(own(p, own(p, x)))

    return jax.grad(loss), (P, X)


@small
def computed_again(c: Mark) -> Any:
    own = jax.checkpoint(partial(layer, c))

    def loss(p: Any, x: Any) -> Any:
        return mean(own(p, own(p, x)))

    return jax.grad(loss), (P, X)


@small
def scanned(c: Mark) -> Any:
    def loss(p: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, p: (layer(c, p, x), None), x, p["stack"])
        return mean(x)

    return jax.grad(loss), (STACK, X)


@small
def cast(c: Mark) -> Any:
    """A layer in half of the precision of its weights, called twice."""

    def half(p: Any, x: Any) -> Any:
        return layer(c, jax.tree.map(lambda each: each.astype(jnp.bfloat16), p), x)

    def loss(p: Any, x: Any) -> Any:
        return mean(half(p, half(p, x)).astype(jnp.float32))

    return jax.grad(loss), (P, struct(*X.shape, dtype=jnp.bfloat16))


@small
def scanned_again(c: Mark) -> Any:
    """Layers in a loop, computed again for the backward pass."""

    def loss(p: Any, x: Any) -> Any:
        body = jax.checkpoint(lambda x, p: (layer(c, p, x), None))
        x, _ = jax.lax.scan(body, x, p["stack"])
        return mean(x)

    return jax.grad(loss), (STACK, X)


@small
def mapped(c: Mark) -> Any:
    """A layer of one example, twice, the second in a function that is computed again."""

    def model(p: Any, x: Any) -> Any:
        return jax.checkpoint(partial(layer, c))(p, layer(c, p, x))

    return jax.grad(lambda p, x: mean(jax.vmap(model, (None, 0))(p, x))), (P, X)


@small
def mapped_inside(c: Mark) -> Any:
    """The same where the batch is the second dimension."""

    def loss(p: Any, x: Any) -> Any:
        return mean(jax.vmap(partial(layer, c), (None, 1))(p, x))

    return jax.grad(loss), (P, struct(64, 32, 256))


@cache
def resolver(text: str = SPEC) -> Resolver:
    return Resolver(
        shardspec.loads(text, "small.yaml"), "pod", devices="abstract", agree_within_s=None
    )


def without(mark: str, x: Any) -> Any:
    return x


def constrained(at: Mapping[str, tuple[str, ...]]) -> Mark:
    """Return what constrains values at some marks, by each of its names in turn."""

    def own(mark: str, x: Any) -> Any:
        for names in at.get(mark, ()):
            *outer, last = names.split(maxsplit=len(names.split()) - x.ndim)
            x = resolver().constrain(x, last, mapped=outer or None)
        return x

    return own


def traced_of(function: Any, *args: Any) -> Traced:
    return traced(resolver(), Call(function, args))


def base_and_sites(
    function: Any, args: tuple[Any, ...], text: str = SPEC
) -> tuple[Base, dict[str, Site]]:
    """Return a step to put lines into, and the values that could be constrained."""
    own = resolver(text)
    traced, step = traced_step(own, Call(function, args))
    namer = Namer(Layouts(own), traced.arguments)
    sites = {text_of(site): site for site in with_mapped(sites_of(traced.module), namer)}
    (plan,) = pipeline.compile_plans(own._arrays.spec, None, [own.target])
    now = Figures.of(cost_of(plan, step))
    return Base(
        bytecode_of(traced.module), plan, step.arguments, now, free_shapes(traced.results)
    ), sites


def text_of(site: Site) -> str:
    """Return the expression of a value."""
    assert site.at is not None
    assert site.at.line == site.at.end_line
    line = Path(site.at.file).read_text("utf-8").splitlines()[site.at.line - 1]
    return line[site.at.column : site.at.end_column]


def sites(function: Any, *args: Any) -> dict[str, Site]:
    """Return the values of a function that could be constrained, by their expressions."""
    found = sites_of(traced_of(function, *args).module)
    named = {text_of(site): site for site in found}
    assert len(named) == len(found), "no two have the same expression"
    return named


def layout(names: str, shape: tuple[int, ...]) -> Layout:
    dims = Layouts(resolver()).dims(names, shape)
    return Layout(names, tuple(dim.mesh_axes for dim in dims))


def line(site: Site, *names: str) -> Line:
    shape = tuple(site.shape[dim] for dim in site.order)
    return Line(site, tuple(layout(each, shape) for each in names))
