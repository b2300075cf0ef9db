"""Which dimensions of values are the rows of a batch: told by what a step does along them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardspec.jax_backend.cure.layouts import Namer
from shardspec.jax_backend.cure.rows import Rows
from shardspec.jax_backend.cure.sites import sites_of
from shardspec.jax_backend.step.trace import Layouts, Traced
from tests.jax_backend.cure.small import resolver, struct, traced_of

#: A batch as long as its sequences.
N = 256
TOKENS, P = struct(N, N, dtype=jnp.int32), {"table": struct(512, N), "wi": struct(N, 1024)}
T, F = True, False
SPEC = """\
shardspec: 1
axes: {batch: 256, length: 256, embed: 256, mlp: 1024}
targets: {pod: {hardware: tpu v5e 2x4, mesh: {fsdp: 4, tensor: 2}}}
rules: [batch -> fsdp, length -> tensor, mlp -> tensor]
params: {table: _ embed, wi: embed mlp}
lints: {SHD1: allow, SHD2: allow}
"""


def embedded(p: Any, tokens: Any) -> Any:
    return p["table"][tokens] @ p["wi"]


def shifted(p: Any, tokens: Any) -> Any:
    return (embedded(p, tokens)[:, 1:] ** 2).sum()


def shifted_first(p: Any, tokens: Any) -> Any:
    return (embedded(p, tokens.T)[1:] ** 2).sum()


def attention(p: Any, tokens: Any) -> Any:
    x = embedded(p, tokens)
    return jnp.einsum("bqe,bke->bqk", x, x).sum()


def positions(p: Any, tokens: Any) -> Any:
    return (embedded(p, tokens) * jnp.arange(N)[:, None]).sum()


def learned(p: Any, tokens: Any) -> Any:
    return (embedded(p, tokens) + p["table"][:N, :1]).sum()


def rolled(p: Any, tokens: Any) -> Any:
    x = embedded(p, tokens)
    return (x * jnp.roll(x, -1, axis=np.int64(1))).sum()


def recurrent(p: Any, tokens: Any) -> Any:
    x = jnp.swapaxes(embedded(p, tokens), 0, 1)
    return jax.lax.scan(lambda state, now: (state + now, None), jnp.zeros((N, 1024)), x)[0].sum()


def pairs(p: Any, tokens: Any) -> Any:
    x = embedded(p, tokens[:, 1:]).sum(1)
    return jax.nn.log_softmax(x @ x.T).sum()


def each_alone(p: Any, tokens: Any) -> Any:
    return (embedded(p, tokens) ** 2).mean()


def rows(function: Any, text: str) -> set[tuple[bool | None, ...]]:
    """Return what is known of the values of three dimensions that a line makes."""
    found = traced_of(jax.jit(jax.grad(function)), P, TOKENS)
    return {each for _, each in sites(found, text)}


def sites(found: Traced, text: str) -> list[Any]:
    known = Rows(found)
    lines = Path(__file__).read_text("utf-8").splitlines()
    return [
        (site, known.of(site.at, site.shape))
        for site in sites_of(found.module)
        if site.at and len(site.shape) == 3 and text in lines[site.at.line - 1]
    ]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (shifted, (T, F, F)),
        (shifted_first, (F, T, F)),
        (attention, (T, F, F)),
        (positions, (T, F, F)),
        (learned, (T, F, F)),
        (rolled, (T, F, F)),
        (recurrent, (T, F, F)),
        (pairs, (None, None, F)),
        (each_alone, (None, None, F)),
    ],
)
def test_rows_do_not_meet(function: Any, expected: tuple[bool | None, ...]) -> None:
    assert rows(function, "@ p[") == {expected}


def test_names_of_a_length_that_is_as_long_as_the_batch_go_by_rows() -> None:
    namer = Namer(Layouts(resolver(SPEC)), traced_of(lambda p: p, P).arguments)
    assert namer.layouts((N, N, 1024), rows=(F, T, F))[0].names == "length batch mlp"
    assert namer.layouts((N, N, 1024), rows=(T, F, F))[0].names == "batch length mlp"
    assert namer.layouts((N, 1024), rows=(F, F))[0].names == "length mlp"
    assert namer.layouts((N, 1024))[0].names == "batch mlp", "nothing else is known"


def test_rows_of_what_the_spec_calls_no_batch_have_their_names() -> None:
    """As nodes and edges of a graph, which no operation mixes."""
    spec = SPEC.replace("batch", "edges")
    namer = Namer(Layouts(resolver(spec)), traced_of(lambda p: p, P).arguments)
    assert namer.layouts((N, N, 1024), rows=(T, F, F))[0].names == "edges length mlp"
