"""A process that answers cases: a line of JSON in, `{"recipe", "seed", "timeout_s"}`, a row out."""

from __future__ import annotations

import json
import os
import resource
import sys

#: Bytes of data that this process may hold, and each compiler that it starts.
MOST_BYTES = 9 * 2**30


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is no answer
    from tests.generated.rows import row_of

    for line in sys.stdin:
        asked = json.loads(line)
        row = row_of(asked["recipe"], asked["seed"], asked["timeout_s"])
        print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    main()
