"""Whether all processes of a run plan alike, found out before the first array is placed.

Every process makes its plan by itself, from its own files. One that reads another spec would join
collectives that the others do not, so the processes compare digests when they make their
`Resolver`: one gather of a few bytes over one device of each. Only where they differ is a second
one made, of the facts behind the digest, and then each process tells the same story. A process
whose spec does not load takes part as well, so that the others need not wait for it.

Nothing here blocks for ever: the gather runs in a thread of its own, which is given up after a
while. JAX has no public call for this that has a timeout.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardspec.analysis.layouts import inputs, text_digest
from shardspec.diagnostics import Diagnostic, ShardspecError, SourceFile
from shardspec.diagnostics.codes import PROCESSES_DIFFER
from shardspec.ir.spec import Spec, Target
from shardspec.lints.processes_differ import FAILED, View, finding

if TYPE_CHECKING:
    import jax

Facts = tuple[tuple[str, str], ...]

#: Bytes of a digest, and of the length of what it was made from.
_DIGEST, _LENGTH = 32, 8


def agree(spec: Spec, target: Target, mesh: jax.sharding.Mesh, within_s: float) -> None:
    """Compare what this process plans by with what the others of the mesh do.

    Args:
      within_s: how long to wait for them, in seconds.

    Raises:
      ShardspecError: they differ, one has no plan, or they did not come in time.
    """
    speakers = _speakers(list(mesh.devices.flat))
    if speakers:
        found = _difference(_facts(spec, target, mesh), speakers, within_s)
        if found is not None:
            raise ShardspecError((found,))


@contextmanager
def failure_told(devices: Sequence[jax.Device] | None, within_s: float | None) -> Iterator[None]:
    """Tell the other processes where this one fails to make a plan, so that none waits for it.

    Args:
      devices: those of the mesh to be; None for all.
      within_s: how long to wait for them, in seconds; None tells nobody.
    """
    try:
        yield
    except ShardspecError as error:
        if within_s is not None:
            _report(error, devices, within_s)
        raise


def _report(error: ShardspecError, devices: Sequence[jax.Device] | None, within_s: float) -> None:
    import jax

    speakers = _speakers(jax.devices() if devices is None else devices)
    if speakers:
        first = next(found for found in error.diagnostics if found.is_error)
        _difference(((FAILED, f"{first.code.id}: {first.message}"),), speakers, within_s)


def _facts(spec: Spec, target: Target, mesh: jax.sharding.Mesh) -> Facts:
    """Return what a plan depends on, and little enough to send."""
    bare = replace(spec, source=SourceFile("", ""), sources=())
    order = [(device.process_index, device.id) for device in mesh.devices.flat]
    return (
        ("shardspec", import_module("shardspec").__version__),
        *((f"`{each.name}`", each.digest) for each in inputs(spec)),
        ("the target", f"`{target.name}`"),
        ("the spec as it stands", text_digest(repr(bare))),
        ("the mesh", str(target.mesh)),
        ("the order of the devices", text_digest(repr(order))),
    )


def _speakers(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Return one device of each process, none where there is nobody to compare with."""
    import jax

    if jax.process_count() == 1:
        return []
    ordered = sorted(devices, key=lambda device: device.id, reverse=True)
    lowest = {device.process_index: device for device in ordered}
    if len(lowest) == 1 or jax.process_index() not in lowest:
        return []
    return [lowest[process] for process in sorted(lowest)]


def _difference(facts: Facts, speakers: Sequence[jax.Device], within_s: float) -> Diagnostic | None:
    """Return what the processes do not have in common, None where that is nothing."""
    import jax

    found: list[tuple[View, ...] | Exception] = []

    def gather() -> None:
        try:
            found.append(_views(facts, speakers))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=gather, name="shardspec-agree", daemon=True)
    thread.start()
    thread.join(within_s)
    here = jax.process_index()
    if not found:
        return _alone(here, f"process {here} waited {within_s:g} s for the others to plan")
    if isinstance(found[0], Exception):
        reason = str(found[0]).strip().partition("\n")[0]
        return _alone(here, f"process {here} lost the others while comparing specs: {reason}")
    return finding(found[0]) if found[0] else None


def _alone(process: int, message: str) -> Diagnostic:
    return Diagnostic(
        PROCESSES_DIFFER,
        message,
        help="make the same `Resolver` on every process of the mesh;"
        f" `agree_within_s=None` lets process {process} go on without them",
    )


def _views(facts: Facts, speakers: Sequence[jax.Device]) -> tuple[View, ...]:
    """Return the facts of every process, nothing where all have the same."""
    text = json.dumps(facts).encode()
    heads = _gathered(hashlib.sha256(text).digest() + len(text).to_bytes(_LENGTH, "big"), speakers)
    if len(set(heads)) == 1:
        return ()
    lengths = [int.from_bytes(head[_DIGEST:], "big") for head in heads]
    texts = _gathered(text.ljust(max(lengths), b"\0"), speakers)
    return tuple(
        View(device.process_index, tuple((name, what) for name, what in json.loads(body[:length])))
        for device, body, length in zip(speakers, texts, lengths, strict=True)
    )


def _gathered(row: bytes, speakers: Sequence[jax.Device]) -> list[bytes]:
    """Return the row of every process; all rows have the same length."""
    import jax
    import numpy as np

    array = np.empty(len(speakers), dtype=object)
    array[:] = speakers
    axis = "process"
    mesh = jax.sharding.Mesh(array, (axis,), axis_types=(jax.sharding.AxisType.Auto,))
    spec: Any = jax.sharding.PartitionSpec
    own = np.frombuffer(row, np.uint8)[None]
    make: Any = jax.make_array_from_process_local_data
    rows = make(jax.sharding.NamedSharding(mesh, spec(axis)), own, (len(speakers), len(row)))
    everywhere = jax.jit(_same, out_shardings=jax.sharding.NamedSharding(mesh, spec()))(rows)
    return [bytes(each) for each in np.asarray(everywhere.addressable_data(0))]


def _same(rows: jax.Array) -> jax.Array:
    """Return `rows`: a function with a name, so that JAX compiles it once."""
    return rows
