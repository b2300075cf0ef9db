"""A live array is sharded differently from the plan.

`resolver.verify_placement(tree)` compares where every array really is with where its plan wants it.
What was made without `out_shardings`, came from a checkpoint of another mesh, or went through a
step that lost its sharding still computes the right numbers, only on too few devices or with too
many bytes on each. An array in another memory kind than that of its device (`pinned_host`) is
reported as well, unless `memory:` of the spec says so, and so is one that `memory:` places
elsewhere; `resolver.verify_placement(tree, memory_kinds=["pinned_host"])` says that it may be
there. So are partial sums, which an array of explicit axes may hold, where the spec does not say
`unreduced`.

Bad:
    # params = init(rng)                      all on the first device, uncommitted
    # resolver.verify_placement(params)
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - embed -> data
      - mlp -> model
    params:
      mlp/kernel: embed mlp
    arrays:
      mlp/kernel: f32[512, 2048]

Good:
    -# params = init(rng)                      all on the first device, uncommitted
    +# shardings = resolver.shardings(jax.eval_shape(init, rng))
    +# params = jax.jit(init, out_shardings=shardings)(rng)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes, quote
from shardspec.diagnostics.words import binary_bytes, counted
from shardspec.lints.evidence.arrays import cut, rows

_PUT = "`resolver.put(tree)` moves them; "
_OUT = "where `jax.jit` makes them, pass it `out_shardings=resolver.shardings(tree)`"


class Cause(StrEnum):
    """Why an array is not where it should be: the end of `3 arrays ...`."""

    HOST = "in host memory, on no device"
    UNCOMMITTED = "on one device, uncommitted: nothing has placed"
    ONE_DEVICE = "on one device"
    ELSEWHERE = "on other devices than the mesh"
    ORDER = "on the devices of the mesh, in another order"
    SPLIT = "sharded differently from the plan"
    MEMORY = "in another memory than planned"
    UNREDUCED = "not summed up: each part of a mesh axis holds a partial sum"
    NOT_PARTS = "no partial sums over the mesh axes that the plan has them over"
    REDUCED = "summed up over other mesh axes than planned, as gradients will tell"


_HELP = {
    Cause.HOST: _PUT + "so does a `jax.jit` with `in_shardings`, at every call",
    Cause.UNCOMMITTED: _PUT + _OUT,
    Cause.ONE_DEVICE: _PUT + _OUT,
    Cause.ELSEWHERE: _PUT
    + "where they are right, make the resolver with the `devices` they are on",
    Cause.ORDER: _PUT + "make every sharding with `resolver.mesh`, never with another mesh",
    Cause.SPLIT: _PUT + _OUT,
    Cause.MEMORY: _PUT + f"{quote.section('memory:')} in the spec says where arrays are placed, or"
    ' `resolver.verify_placement(tree, memory_kinds=["pinned_host"])` where they may',
    Cause.UNREDUCED: "`resolver.put(tree)` sums them up; so does `jax.sharding.reshard` in a step",
    Cause.NOT_PARTS: "`resolver.put(tree)` makes them partial sums",
    Cause.REDUCED: "`resolver.put(tree)` makes them what is planned",
}


class Differing(NamedTuple):
    """One live array that lies otherwise than planned.

    Attributes:
      type: `f32[512, 2048]`.
      planned: a partition spec, or the like of it for people.
      found: what the array says of itself.
      more_bytes: what the fullest device holds more than planned; negative if less.
    """

    path: str
    type: str
    planned: str
    found: str
    cause: Cause
    more_bytes: int


def findings(arrays: Sequence[Differing], mesh: str) -> Iterator[Diagnostic]:
    """Yield a finding for each cause, layers that agree in everything taken together."""
    for cause in Cause:
        group = [array for array in arrays if array.cause is cause]
        if group:
            yield _finding(cause, group, mesh)


def _finding(cause: Cause, group: Sequence[Differing], mesh: str) -> Diagnostic:
    more = sum(max(array.more_bytes, 0) for array in group)
    is_sum = more and len(group) > 1
    wasted = (f"+{binary_bytes(more)} on the fullest device, in all",) if is_sum else ()
    found = rows((each.path, each._replace(path="")) for each in group)
    lines = (f"{name} {_text(first, count)}" for name, count, first in found)
    return Diagnostic(
        codes.SHARDING_DIFFERS,
        _message(cause, group, mesh),
        notes=(*cut(lines), *wasted),
        help=_HELP[cause],
    )


def _message(cause: Cause, group: Sequence[Differing], mesh: str) -> str:
    who = f"`{group[0].path}`" if len(group) == 1 else counted(len(group), "array")
    is_one = len(group) == 1
    end = {Cause.UNCOMMITTED: " it" if is_one else " them", Cause.ELSEWHERE: f" {mesh}"}
    return f"{who} {'is' if is_one else 'are'} {cause}{end.get(cause, '')}"


def _text(array: Differing, count: int) -> str:
    """Return what is said of so many arrays that differ in numbers of their paths only."""
    more = array.more_bytes
    size = f", {'+' if more > 0 else '-'}{binary_bytes(abs(more))} on a device" if more else ""
    each = " each" if size and count > 1 else ""
    return f"{array.type}: planned {array.planned}, found {array.found}{size}{each}"
