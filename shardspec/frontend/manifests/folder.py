"""What a folder holds that has arrays: found by name, in a fixed order, or an account of it."""

from __future__ import annotations

import os

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import UNREADABLE
from shardspec.diagnostics.suggest import listed
from shardspec.frontend.manifests import orbax
from shardspec.frontend.manifests.arrays import foreign
from shardspec.frontend.manifests.kinds import MODEL_INFO, MSGPACK, NPZ, SAFETENSORS
from shardspec.ir.grouping import natural

_SOUGHT = (
    "looked for an Orbax checkpoint (`_METADATA`), `*.index.json`, `*.safetensors`, `*.msgpack`, "
    "`*.npz`, `model-info.txt`, and folders of steps"
)
_ITEMS = "_CHECKPOINT_METADATA"

#: A checkpoint in a folder of items in a folder of steps.
_DEEPEST = 3


def arrays_in(folder: str, name: str, depth: int = 0) -> tuple[str, str] | Diagnostic:
    """Return path and name of the file, or the folder of one checkpoint, that holds the arrays.

    Args:
      name: what messages call the folder.
    """
    try:
        if orbax.is_checkpoint(folder):
            return folder, name
        names = sorted(os.listdir(folder), key=natural)
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        return Diagnostic(UNREADABLE, f"`{name}` cannot be read: {reason}")
    for suffixes in ((".index.json",), SAFETENSORS.suffixes, MSGPACK.suffixes, NPZ.suffixes):
        found = [each for each in names if each.endswith(suffixes)]
        if found:
            return _only(found, folder, name)
    below = _steps(names, folder) or _items(names, folder)
    if below and depth < _DEEPEST:
        chosen = below[-1] if _is_step(below[-1]) else None
        if chosen is None and len(below) > 1:
            return _several(below, name)
        inner = chosen or below[0]
        return arrays_in(os.path.join(folder, inner), os.path.join(name, inner), depth + 1)
    if MODEL_INFO.suffixes[0] in names:
        return _only([MODEL_INFO.suffixes[0]], folder, name)
    return foreign(f"the folder `{name}` holds no arrays that can be read", _SOUGHT)


def _only(found: list[str], folder: str, name: str) -> tuple[str, str] | Diagnostic:
    if len(found) > 1:
        return _several(found, name)
    return os.path.join(folder, found[0]), os.path.join(name, found[0])


def _several(found: list[str], name: str) -> Diagnostic:
    first = os.path.join(name, found[0])
    return foreign(
        f"the folder `{name}` holds {len(found)} of a kind: {listed(found, 4)}",
        f"name the one you mean: `{first}`",
    )


def _is_step(name: str) -> bool:
    """Say whether a folder is a step of training: `1000`, `checkpoint_1000`."""
    return name.rpartition("_")[2].isdecimal()


def _steps(names: list[str], folder: str) -> list[str]:
    """Return the folders of steps, the newest last."""
    return [each for each in names if _is_step(each) and os.path.isdir(os.path.join(folder, each))]


def _items(names: list[str], folder: str) -> list[str]:
    """Return the items of a step that are trees of arrays: `state`, `default`."""
    if _ITEMS not in names:
        return []
    inside = [each for each in names if os.path.isdir(os.path.join(folder, each))]
    return [each for each in inside if orbax.is_checkpoint(os.path.join(folder, each))]
