"""What `search --step` found, kept for the help of other verbs while spec and code are the same.

The key is the program without the lines that it was written on, the files of the spec, and the
target. An entry has digests of the files that its lines are for: where one of them has changed,
nothing is named, even if the program is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from shardspec.analysis.layout_diff import inputs
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.step import Cure
from shardspec.jax_backend.step.passes import bytecode_of
from shardspec.jax_backend.xla.cache import entry, has_entries, keep_entry
from shardspec.programs.op_names import shown
from shardspec.versions import PACKAGE

_FOLDER = "found"
#: Lines and files of an entry that is believed, and bytes of a file: those of a search are fewer.
_MOST_LINES, _MOST_FILES, _LARGEST = 64, 16, 2_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry.

    Attributes:
      files: of each file that the lines are for, by its real path, a digest of its text.
    """

    cure: Cure
    files: dict[str, str]


def remember(module: bytes, plan: ShardingPlan, cure: Cure, files: Iterable[str]) -> None:
    """Keep what a search found.

    Args:
      module: bytecode of StableHLO, as JAX lowered the step.
      files: that the lines are for.
    """
    found = {os.path.realpath(each): _digest_of(each) for each in files}
    keep_entry(_FOLDER, _key(module, plan), Kept(cure, found))


def remembered(module: bytes, plan: ShardingPlan) -> Cure | None:
    """Return what a search found for a step; None where none ran, or something changed since."""
    if not has_entries(_FOLDER):
        return None
    found = entry(_FOLDER, _key(module, plan), Kept)
    if found is None or len(found.cure.lines) > _MOST_LINES or len(found.files) > _MOST_FILES:
        return None
    is_known = all(os.path.realpath(line.file) in found.files for line in found.cure.lines)
    is_same = all(text and _digest_of(each) == text for each, text in found.files.items())
    if not is_known or not is_same:
        return None
    lines = tuple(replace(line, file=shown(line.file)) for line in found.cure.lines)
    return replace(found.cure, lines=lines)


def _key(module: bytes, plan: ShardingPlan) -> str:
    target = plan.target
    hardware = "" if target.hardware is None else target.hardware.chip.title
    own = (PACKAGE, target.name, plan.mesh.heading, hardware, repr(plan.spec.policy.order))
    about = json.dumps([own, [(each.name, each.digest) for each in inputs(plan.spec)]])
    return hashlib.sha256(about.encode() + b"\0" + _bare(module)).hexdigest()


def _bare(module: bytes) -> bytes:
    """Return a module without the lines of its operations: other verbs come to it otherwise."""
    with mlir.make_ir_context():
        found = ir.Module.parse(module)
        PassManager.parse("builtin.module(strip-debuginfo)").run(found.operation)
        return bytecode_of(found)


def _digest_of(file: str) -> str:
    """Return a digest of a file; empty where it cannot be read, or is too large for code."""
    try:
        with open(file, "rb") as stream:
            text = stream.read(_LARGEST + 1)
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(text).hexdigest() if len(text) <= _LARGEST else ""
