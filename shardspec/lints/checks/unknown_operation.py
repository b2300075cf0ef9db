"""A step has an operation that cannot be counted.

Run `shardspec verify`, which compiles the step. The operation is a foreign kernel, its bytes depend
on values, libtpu may write out what random bits are made of, or XLA's partitioner gave no program
for the step. It is never counted as zero: figures that it adds to are lower bounds, and results
that depend on them are unknown, such as whether the step fits and which mesh is best. If `verify`
shows that random bits take the memory, draw fewer of them (SHD523).

Bad:
    # def step(params):
    #     return jax.ffi.ffi_call("my_kernel", params["w"])(params["w"])
    shardspec: 1
    mesh: {fsdp: 8}
    rules:
      - features -> fsdp
      - embed -> none
    params:
      w: embed features
    arrays:
      w: bf16[4096, 4096]

Good:
    -#     return jax.ffi.ffi_call("my_kernel", params["w"])(params["w"])
    +#     return jnp.tanh(params["w"])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import counted
from shardspec.ir.step import Step, told_once

_SHOWN = 5


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each target on which operations of a traced step cannot be counted."""
    is_compiled = cost.memory.total.basis == "compiled"
    known = {"memory"} if is_compiled else set[str]()
    every = step.unknown if step.source == "code" else ()
    unknown = [each for each in every if not known.issuperset(each.figures)]
    if unknown:
        names = (name for each in unknown for name in each.figures)
        figures = dict.fromkeys(name for name in names if name not in known)
        is_one = len(unknown) == 1
        yield point(
            codes.UNKNOWN_OPERATION,
            f"{counted(len(unknown), 'operation')} of the step on target `{cost.target.name}`"
            f" {'is' if is_one else 'are'} unknown; lower bounds: {', '.join(figures)}",
            cost.target.span,
            notes=tuple(map(str, told_once(unknown)[:_SHOWN])),
            help=f"`shardspec verify` compiles the step, which tells its {_told(figures)}",
        )


def _told(figures: Iterable[str]) -> str:
    """Return figures as words of a sentence: `memory and bytes sent`."""
    return " and ".join("bytes sent" if name == "sends" else name for name in figures)
