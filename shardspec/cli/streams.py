"""Standard input, output and error of the process: each may be closed, full, or a terminal.

Everything that a verb prints goes through here. Standard error is for remarks: where it cannot be
written, the job is done all the same. Standard output is the job; but a reader that has seen enough
(`| head`) ends the text and not the job: what is found, and the exit code, are as ever.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

from shardspec.diagnostics.printable import printable


class _Output(io.FileIO):
    """Standard output, whose reader may go: what is written from then on goes nowhere."""

    def write(self, data: Any, /) -> int:
        """Write to whoever reads."""
        try:
            return super().write(data)
        except BrokenPipeError:
            _send_nowhere(self.fileno())
            return memoryview(data).nbytes


def settle_streams() -> None:
    """Let no file that is opened later take the place of a closed stream, and any reader leave."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process
    stdout = sys.stdout
    is_a_file = isinstance(getattr(stdout, "buffer", None), io.BufferedWriter | io.FileIO)
    if isinstance(stdout, io.TextIOWrapper) and is_a_file and not stdout.isatty():
        stdout.flush()
        output = io.BufferedWriter(_Output(stdout.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(output, stdout.encoding, stdout.errors)


def echo(text: str, *, err: bool = False, is_painted: bool = False) -> None:
    """Print text, in ASCII where the stream cannot hold more.

    Args:
      is_painted: whether escape sequences in it are ours; what comes from files is shown as
        what it is.
    """
    if not is_painted:
        text = _harmless(text)
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text + "\n")
    except OSError:
        if not err:
            raise
        _send_nowhere(2)


def echo_data(text: str) -> None:
    """Print a text that is the product: byte for byte, but on a terminal as what can be shown."""
    if sys.stdout.isatty():
        echo(text.removesuffix("\n"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def give_up() -> None:
    """Let what is still buffered for a standard output that cannot be written go nowhere."""
    _send_nowhere(1)


def _send_nowhere(number: int) -> None:
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _harmless(text: str) -> str:
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
