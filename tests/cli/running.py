"""Runs command lines, one after the other; behind each both streams have its exit code.

python -P -m tests.cli.running '[["check", "spec.yaml"], ...]'
"""

from __future__ import annotations

import json
import sys

from shardspec.cli.main import cli
from shardspec.cli.streams import settle_streams


def main() -> None:
    settle_streams()
    for arguments in json.loads(sys.argv[1]):
        try:
            cli.main(arguments, prog_name="shardspec")
        except SystemExit as end:
            for stream in (sys.stdout, sys.stderr):
                print(f"@@{end.code}@@", file=stream, flush=True)


if __name__ == "__main__":
    main()
