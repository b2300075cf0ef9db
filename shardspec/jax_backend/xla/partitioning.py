"""The program of one device as XLA's own partitioner writes it, in a second and without a compiler.

Every compiler of XLA first runs the same partitioner, which decides what to gather and what to sum.
jaxlib contains it for the CPU. A child process gives it the module that was lowered for the target,
and ends when the partitioned program is written; no code for a CPU is generated.

If there is no program, the reason is returned as a finding: the caller can use Shardy's propagation
instead.
"""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import sha256
from typing import Self

from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.cache import Compiled, flags_here
from shardspec.jax_backend.xla.child import partitioned_text
from shardspec.jax_backend.xla.compiling import Compiling, Process
from shardspec.jax_backend.xla.simplified import simplified

#: One minute. The process ends by itself.
BRIEFLY = Compiling(timeout_s=60.0, is_whole=True)

#: The newest programs of this process, the oldest first. They are not kept on disk: there they
#: would displace programs that took a compiler minutes.
_MADE: dict[tuple[object, ...], Compiled] = {}
_MOST_MADE = 8


class Partitioning(Process):
    """A step that is partitioned in a process of its own, which starts at once.

    Nothing here raises: `result` returns why there is no program.

        with Partitioning(devices) as partitioning:
            partitioning.give(module)
            made = partitioning.result()
    """

    def __init__(self, devices: int, how: Compiling = BRIEFLY, *, for_tpu: bool = False) -> None:
        """Note the number of devices, which is that of the mesh, and whether they are TPUs."""
        super().__init__({"partitions": devices}, replace(how, is_whole=True))
        self._devices, self._for_tpu = devices, for_tpu
        self._found: Compiled | Diagnostic | None = None

    def __enter__(self) -> Self:
        """Start the process."""
        if self._found is None:
            try:
                super().__enter__()
            except ShardspecError as error:
                self._fail(error.diagnostics[0])
        return self

    def _fail(self, why: Diagnostic) -> None:
        self._found = why
        self._stack.close()

    def give(self, module: bytes) -> None:
        """Hand over the bytecode of StableHLO, lowered for the platform of the target.

        A module that this process has partitioned before is not partitioned again.
        """
        self._module, self._since = module, time.monotonic()
        own = sha256(module).hexdigest(), self._devices, self._for_tpu, flags_here()
        self._key: tuple[object, ...] = own
        self._found = self._found or _MADE.get(self._key)
        if self._found is not None:
            self._stack.close()
            return
        try:
            self._module = simplified(module, for_tpu=self._for_tpu)
            self._hand_over()
        except ShardspecError as error:  # this jaxlib lacks a pass of Shardy
            self._fail(error.diagnostics[0])
        except OSError as error:
            self._fail(compiling.no_room(error))

    def result(self) -> Compiled | Diagnostic:
        """Return the partitioned program once it is there, or why there is none."""
        if self._found is None:
            self._found = self._waited_for()
        if isinstance(self._found, Compiled):
            _MADE[self._key] = self._found
            for old in list(_MADE)[:-_MOST_MADE]:
                _MADE.pop(old, None)
        return self._found

    def _waited_for(self) -> Compiled | Diagnostic:
        compiler = f"the partitioner of jaxlib {compiling.installed('jaxlib')}"
        try:
            end = self._end()
            text = partitioned_text(self._folder, self._devices)
            log = compiling.text_of(self._folder / "log.txt")
        except OSError as error:
            return compiling.no_room(error)
        if not text:
            devices = f"{self._devices:,} devices"
            why = compiling.no_answer(self._folder, end, compiler, devices, self._how)
            return replace(why, help=None)
        seconds, held = time.monotonic() - self._since, end.held_bytes
        warnings = compiling.warnings_in(log)
        return Compiled(text, None, compiler, seconds, False, warnings=warnings, held_bytes=held)
