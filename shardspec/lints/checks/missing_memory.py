"""Arrays are assigned to a memory kind that the target's devices do not have.

JAX knows a memory by its kind, and not all devices have all of them: GPUs have `device` and
`pinned_host`, and no `unpinned_host`. A sharding with a kind that a device lacks is an error the
first time that an array is put there.

Source: openxla/xla, the GPU clients of PJRT, which attach those two memory spaces to a device.

Bad:
    shardspec: 1
    hardware: h100
    mesh: {data: 8}
    rules:
      - embed -> data
    memory:
      "opt_state/**": unpinned_host
    arrays:
      mlp/kernel: bf16[embed=512 _=2048]

Good:
    -  "opt_state/**": unpinned_host
    +  "opt_state/**": pinned_host
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import listed
from shardspec.ir.spec import MemoryRule, Override
from shardspec.lints.context import Context

#: Memories that devices of a platform lack.
_LACKS = {"gpu": "unpinned_host"}


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry with a memory that devices of some targets lack."""
    machines = [(each, each.hardware) for each in context.spec.targets if each.hardware]
    entries: tuple[Override | MemoryRule, ...]
    entries = (*context.spec.overrides, *context.spec.memory)
    for entry in entries:
        lacking = [
            (target, machine)
            for target, machine in machines
            if entry.memory is not None and _LACKS.get(machine.chip.platform) == entry.memory
        ]
        if lacking:
            names = listed(target.name for target, _ in lacking)
            first, machine = lacking[0]
            yield Diagnostic(
                codes.MISSING_MEMORY,
                f"{machine.chip.title} on target {names} has no `{entry.memory}`: its memories are"
                " `device` and `pinned_host`",
                labels_at((entry.span, "JAX refuses it there"), (machine.span, "GPUs")),
                help="write `pinned_host`",
                target=first.name,
            )
