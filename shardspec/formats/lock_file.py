"""The lock beside a spec: where it is, what it holds, and whether it is still true."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from shardspec.analysis.layouts import inputs
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import STALE_LOCK
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import listed
from shardspec.formats.lock import partition_text
from shardspec.formats.lock_reader import read_lock
from shardspec.frontend.files import read_argument
from shardspec.ir.layout import Layout
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock as it lies on disk.

    Attributes:
      stale: why it can no longer be trusted; None where its inputs are those of today.
    """

    path: str
    layout: Layout = field(repr=False)
    stale: Diagnostic | None = None


def lock_path(spec_name: str) -> str:
    """Return where the lock of a spec lies: `model/spec.yaml` has `model/spec.lock`."""
    return f"{os.path.splitext(spec_name)[0]}.lock"


def find_lock(spec: Spec) -> LockFile | Diagnostic | None:
    """Return the lock beside the spec; what is wrong with it; or None where there is none."""
    path = lock_path(spec.source.name)
    if spec.source.name in {"-", "<string>"} or not os.path.isfile(path):
        return None
    source = read_argument(path)
    layout = source if isinstance(source, Diagnostic) else read_lock(source)
    if isinstance(layout, Diagnostic):
        return layout
    return LockFile(path, layout, _staleness(spec, layout, path))


def lock_remark(plan: ShardingPlan, path: str | None) -> str | None:
    """Return whether the lock agrees about the array at `path`; None where it has no say."""
    found = find_lock(plan.spec)
    if found is None:
        return None
    if isinstance(found, Diagnostic):
        return f"lock: {found.message}; {found.help}"
    if found.stale is not None:
        return f"lock: {found.stale.message}; {found.stale.help}"
    locked = next((t for t in found.layout.targets if t.name == plan.target.name), None)
    arrays = {array.path: array.partition for array in locked.arrays} if locked else {}
    if path not in arrays:
        return None
    if arrays[path] == plan[path].partition_spec:
        return f"lock: {found.path} agrees"
    said = partition_text(arrays[path])
    return (
        f"lock: {found.path} says {said}: made by another shardspec; see `shardspec lock --check`"
    )


def _staleness(spec: Spec, layout: Layout, path: str) -> Diagnostic | None:
    """Return which inputs are others than when the lock was made."""
    then = {each.name: each.digest for each in layout.inputs}
    now = {each.name: each.digest for each in inputs(spec)}
    changed = [name for name, digest in now.items() if then.get(name, digest) != digest]
    said = [
        *([f"{listed(changed)} changed"] if changed else []),
        *(f"{name} is new" for name in now if name not in then),
        *(f"{name} is gone" for name in then if name not in now),
    ]
    if not said:
        return None
    message = f"`{path}` is stale: {'; '.join(said)}"
    help = "`shardspec lock --check` shows what moved, `shardspec lock` writes it anew"
    return point(STALE_LOCK, message, spec.source.whole, help=help)
