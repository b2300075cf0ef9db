"""`shardspec lsp`: the language server, which editors start."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from shardspec.cli import options
from shardspec.cli.streams import fail


@options.verb(
    "lsp",
    options.option("--stdio", is_flag=True, help="Talk over stdin and stdout, as it always does."),
    options.file_option("--log", help="Write down what goes wrong, for a report."),
    has_request=False,
    example="shardspec lsp --stdio",
    page="editors.md",
)
def command(*, stdio: bool, log: str | None) -> None:
    """Answer an editor about specs: findings as you type, fixes, hover, completion, rename.

    It speaks the Language Server Protocol over stdin and stdout, and is started by the editor:
    docs/editors.md has the lines for each. It runs no code of what it reads.
    """
    from shardspec.lsp.features import made

    _settle_log(log)
    gc.enable()  # it runs all day, unlike other verbs
    gc.set_threshold(100_000, 10, 10)  # a large spec is as many objects, which stay
    with _own_stdout() as stream:
        status = made().run(sys.stdin.buffer, stream)
    raise SystemExit(status)


@contextmanager
def _own_stdout() -> Iterator[BinaryIO]:
    """Give the protocol stdout to itself: what anything else prints meanwhile goes to stderr."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(stdout), "wb") as stream:
            yield stream
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _settle_log(file: str | None) -> None:
    """Send what the server's library says to a file, else nowhere: stdout is the protocol's."""
    logger = logging.getLogger("shardspec.lsp")
    logger.propagate = False
    if file is None:
        logger.addHandler(logging.NullHandler())
        return
    try:
        handler = logging.FileHandler(file, encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror or error}", "name another file with --log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
