"""The programs that a capture carries, as text.

A capture may be a stranger's, and XLA ends a process that gives it a damaged program. So a process
of its own reads them, with a time and a memory that are bounded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.compiling import Compiling, Process

#: Two minutes. The process ends by itself.
_BRIEFLY = Compiling(timeout_s=120.0, is_whole=True)


class _Printing(Process):
    """Prints serialized programs, one behind the other."""

    def texts(self, protos: bytes) -> list[str]:
        """Return the text of each program.

        Raises:
          ShardspecError: they cannot be read.
        """
        self._module, self._since = protos, time.monotonic()
        try:
            self._hand_over()
            end = self._end()
            text = compiling.text_of(self._folder / "final.txt")
        except OSError as error:
            raise ShardspecError((compiling.no_room(error),)) from error
        if not text:
            reader, what = f"jaxlib {compiling.installed('jaxlib')}", "a program of the capture"
            fault = compiling.no_answer(self._folder, end, reader, "its devices", self._how, what)
            raise ShardspecError((fault,))
        found: list[str] = json.loads(text)
        return found


def texts_of(programs: Mapping[str, bytes]) -> dict[str, str]:
    """Return programs as text, by their names.

    Raises:
      ShardspecError: they cannot be read.
    """
    if not programs:
        return {}
    sizes = [len(each) for each in programs.values()]
    with _Printing({"programs": sizes}, _BRIEFLY) as printing:
        texts = printing.texts(b"".join(programs.values()))
    return dict(zip(programs, texts, strict=True))
