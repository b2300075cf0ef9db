"""Standard input, output and error of the process: each may be closed, full, or a terminal.

Everything that a verb prints goes through here. Standard error is for remarks: where it cannot be
written, the job is done all the same. Standard output is the job.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from shardspec.diagnostics.printable import printable


def settle_streams() -> None:
    """Let no file that is opened later take the place of a stream that is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process


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
    except OSError as fault:
        if err:
            _send_nowhere(2)
            return
        if not isinstance(fault, BrokenPipeError):
            raise
        close_quietly()
        raise SystemExit(0) from None


def echo_data(text: str) -> None:
    """Print a text that is the product: byte for byte, but on a terminal as what can be shown."""
    if sys.stdout.isatty():
        echo(text.removesuffix("\n"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def close_quietly() -> None:
    """Let what is still buffered for a closed pipe go nowhere."""
    _send_nowhere(1)


def _send_nowhere(number: int) -> None:
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _harmless(text: str) -> str:
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
