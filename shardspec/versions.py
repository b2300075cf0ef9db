"""Every version that a file can state, each said once: language, lock, manifest, JSON.

The language has `shardspec: 1` at the head of a spec, a lock `lock 1`, a manifest
`shardspec-arrays: 1`; JSON says `"schema": "shardspec.check/1"`. A version rises where a reader of
the one before would read something wrong; what is only added leaves it. docs/versions.md says how
long each is read.

Words of the version before keep working for this one, and say the new word (`renamed`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

#: Of the package; pyproject.toml says the same.
PACKAGE = "0.2.0"
LANGUAGE = 1
LOCK = 1
MANIFEST = 1
CALIBRATION = 1
#: Of programs that are kept in the cache of the user.
COMPILED = 4
BASELINE_JSON = "shardspec.baseline/1"
CHECK_JSON = "shardspec.check/1"
COMPILE_JSON = "shardspec.compile/1"
COST_JSON = "shardspec.cost/1"
DIFF_JSON = "shardspec.diff/1"
MESH_JSON = "shardspec.mesh/1"
SEARCH_JSON = "shardspec.search/1"
CURE_JSON = "shardspec.cure/1"
VERIFY_JSON = "shardspec.verify/1"
NUMBERS_JSON = "shardspec.numbers/1"


def version_lines() -> Iterator[str]:
    """Yield the versions with what holds them, as `shardspec schema --versions` prints them."""
    yield f"{'shardspec':<20} {PACKAGE}"
    yield f"{'language':<20} {LANGUAGE:<5} `shardspec: {LANGUAGE}` in a spec"
    yield f"{'lock':<20} {LOCK:<5} `lock {LOCK}` in spec.lock"
    yield f"{'manifest':<20} {MANIFEST:<5} `shardspec-arrays: {MANIFEST}` in a manifest"
    yield f"{'calibration':<20} {CALIBRATION:<5} `shardspec-calibration: {CALIBRATION}` in a file"
    by_verb = (CHECK_JSON, COMPILE_JSON, COST_JSON, DIFF_JSON, MESH_JSON, SEARCH_JSON, VERIFY_JSON)
    verbs = {schema: schema.removeprefix("shardspec.").partition("/")[0] for schema in by_verb}
    commands = {
        BASELINE_JSON: "check --write-baseline FILE",
        **{schema: f"{verb} --format json" for schema, verb in verbs.items()},
        CURE_JSON: "search --step MODULE:FUNCTION --format json",
        NUMBERS_JSON: "verify --numbers --format json",
    }
    for schema, command in commands.items():
        name, _, version = schema.partition("/")
        yield f"{name:<20} {version:<5} `shardspec {command}`"


def renamed(old: str, new: str) -> None:
    """Warn whoever called the caller that what they use has another name now."""
    message = f"`{old}` is called `{new}` now; the old word goes with 0.3"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
