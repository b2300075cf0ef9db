"""`python -m shardspec`, and the `shardspec` command."""

import os
import sys
from contextlib import suppress

from shardspec.cli.main import main


def run() -> None:
    """Run the command line, and end the process as it then is.

    Taking hundreds of modules down costs a fifth of the start-up. What others have loaded may have
    to end in order: jax and what code of the user's has begun, a profiler, a measure of coverage.
    """
    try:
        main()
    except SystemExit as end:
        if "jax" in sys.modules or sys.gettrace() or sys.getprofile():
            raise
        with suppress(OSError, ValueError, AttributeError):  # closed, full, or none
            sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


if __name__ == "__main__":
    run()
