"""`python -m shardspec`, and the `shardspec` command."""

import gc
import os
import sys
import time
from contextlib import suppress


def run() -> None:
    """Run the command line, and end the process as it then is.

    A verb is short-lived: collecting garbage while modules load costs a tenth of the start-up.
    Taking hundreds of modules down costs a fifth of the start-up. What others have loaded may have
    to end in order: jax and what code of the user's has begun, a profiler, a measure of coverage.
    Ctrl-C while modules load, or while the last output is written, ends it as it ends a verb.
    """
    began = time.monotonic()
    gc.disable()
    try:
        from shardspec.cli.main import INTERRUPTED, main

        main(began)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except SystemExit as end:
        if "jax" in sys.modules or sys.gettrace() or sys.getprofile() or _is_monitored():
            raise
        with suppress(OSError, ValueError, AttributeError):  # closed, full, or none
            sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


def _is_monitored() -> bool:
    """Say whether a profiler watches in the way of Python 3.12, as cProfile does from 3.13 on."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


if __name__ == "__main__":
    run()
