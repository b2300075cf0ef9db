"""MaxText's mesh: `mesh_axes`, and sizes inside a slice (`ici_*`) times sizes across (`dcn_*`).

One size of each kind may be -1: it takes the devices of a slice, or the slices, that are left over.
Source: AI-Hypercomputer/maxtext, `max_utils.fill_unspecified_mesh_axes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Span
from shardspec.formats.foreign.imported import Options, bad, lost
from shardspec.formats.foreign.machine import machine_named
from shardspec.formats.foreign.maxtext_config import MaxTextConfig
from shardspec.frontend.reading import Data
from shardspec.ir.hardware import Hardware

_FLAGS = {"stage": "pipeline", "model": "tensor"}
_HELP = "say the machine, --hardware 'tpu v5p 4x4x4', or the sizes, --mesh 'fsdp=16 tensor=4'"
_SIZES = "a whole number, or -1 for what is left over"

Sizes = dict[str, int]


class MaxTextMesh(NamedTuple):
    """The mesh, and what cannot be said of it.

    Attributes:
      sizes: of all mesh axes; None where only the machine can tell.
    """

    sizes: Mapping[str, int] | None
    data: Mapping[str, Data] = {}
    faults: tuple[Diagnostic, ...] = ()


def maxtext_mesh(config: MaxTextConfig, axes: tuple[str, ...], options: Options) -> MaxTextMesh:
    """Return the mesh of a configuration; --mesh beats it, with 1 for what it does not name."""
    if options.mesh:
        asked = dict(options.mesh)
        whole: dict[str, Data] = {axis: asked.get(axis, 1) for axis in axes}
        numbers = {axis: int(text) if text.isdecimal() else 0 for axis, text in asked.items()}
        sizes = {axis: numbers.get(axis, 1) for axis in axes}
        return MaxTextMesh(sizes, {"mesh": whole} if axes and asked.keys() <= set(axes) else {})
    if not any(key.startswith(("ici_", "dcn_")) for key in config.values):
        return MaxTextMesh(None, faults=(lost("the files state no sizes", None, help=_HELP),))
    inside, across = _flags(config, axes, "ici"), _flags(config, axes, "dcn")
    wrong = tuple(found for found in (inside, across) if isinstance(found, Diagnostic))
    if isinstance(inside, Diagnostic) or isinstance(across, Diagnostic):
        return MaxTextMesh(None, faults=wrong)
    faults = tuple(_ignored(config, axes))
    machine = None if options.hardware is None else machine_named(options.hardware)
    if isinstance(machine, Hardware):
        per_slice, slices = machine.devices_per_slice, machine.slice_count
        near = _filled(inside, per_slice, "ICI", f"{per_slice} devices of a slice", config)
        far = _filled(across, slices, "DCN", f"{slices} slices", config)
    else:
        near, far = _fill_none(inside, config), _fill_none(across, config)
    for found in (near, far):
        if isinstance(found, Diagnostic):
            return MaxTextMesh(None, faults=(*faults, found))
    assert isinstance(near, dict)
    assert isinstance(far, dict)
    return _mesh(config, near, far, options, faults)


def _mesh(
    config: MaxTextConfig, near: Sizes, far: Sizes, options: Options, faults: tuple[Diagnostic, ...]
) -> MaxTextMesh:
    is_explicit = config.text("shard_mode").lower() == "explicit"
    mesh: dict[str, Data] = {}
    for axis, inside in near.items():
        size = inside * far[axis]
        network = " @ dcn" if far[axis] > 1 and inside == 1 else ""
        words = f"{size}{network}{' explicit' if is_explicit else ''}"
        mesh[axis] = size if words.isdecimal() else words
    mixed = [axis for axis, inside in near.items() if inside > 1 and far[axis] > 1]
    if mixed:
        axis = mixed[0]
        message = (
            f"`{axis}` is {far[axis]} across slices times {near[axis]} inside one; "
            f"{far[axis] * near[axis]} stands in the spec"
        )
        faults += (lost(message, None, help="two mesh axes, one of them `@ dcn`, would say both"),)
    data: dict[str, Data] = {"mesh": mesh}
    if options.hardware is not None:
        data["hardware"] = options.hardware
    return MaxTextMesh({axis: near[axis] * far[axis] for axis in near}, data, faults)


def _flags(config: MaxTextConfig, axes: tuple[str, ...], kind: str) -> Sizes | Diagnostic:
    """Return the stated size of each mesh axis; 1 where no key states it."""
    sizes: Sizes = {}
    for axis in axes:
        node = config.values.get(f"{kind}_{_FLAGS.get(axis, axis)}_parallelism")
        if node is None:
            sizes[axis] = 1
            continue
        text = node.text.strip()
        number = int(text) if text.lstrip("-").isdecimal() and len(text) < 10 else 0
        if number < -1 or number == 0:
            message = f"`{kind}_{_FLAGS.get(axis, axis)}_parallelism` is {node.described()}"
            return bad(message, node.span, help=_SIZES)
        sizes[axis] = number
    return sizes


def _ignored(config: MaxTextConfig, axes: tuple[str, ...]) -> Iterator[Diagnostic]:
    """Yield sizes of axes that the mesh does not have: MaxText passes over them in silence."""
    flags = {_FLAGS.get(axis, axis) for axis in axes}
    for key, node in config.values.items():
        kind, _, rest = key.partition("_")
        flag = rest.removesuffix("_parallelism")
        is_size = kind in ("ici", "dcn") and rest != flag
        if is_size and flag not in flags and node.text not in ("1", "-1"):
            message = f"`{key}: {node.text}` is for no axis of `mesh_axes`: nothing uses it"
            yield lost(message, node.span, help="MaxText passes over it as well")


def _fill_none(sizes: Sizes, config: MaxTextConfig) -> Sizes | Diagnostic:
    """Return the sizes, where none is left to the machine."""
    open_ones = [axis for axis, size in sizes.items() if size < 0]
    if not open_ones:
        return sizes
    message = f"`{open_ones[0]}` takes what is left over (-1), which depends on the machine"
    return lost(f"{message}: no mesh stands in the spec", None, help=_HELP)


def _filled(
    sizes: Sizes, total: int, kind: str, what: str, config: MaxTextConfig
) -> Sizes | Diagnostic:
    """Return the sizes with a number for -1; their product is `total`."""
    open_ones = [axis for axis, size in sizes.items() if size < 0]
    product = math.prod(size for size in sizes.values() if size > 0)
    shown = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "1"
    if len(open_ones) > 1:
        named = " and ".join(f"`{axis}`" for axis in open_ones)
        message = f"{named} both take what is left over (-1) of the {what}"
        return bad(message, _span(config, kind, open_ones[1]), help="one -1 for each network")
    if total % product or (not open_ones and total != product):
        message = f"{kind} sizes {shown} do not fit the {what}"
        span = _span(config, kind, open_ones[0]) if open_ones else None
        return bad(message, span, help=f"their product has to be {total}, or -1 takes the rest")
    return {axis: total // product if size < 0 else size for axis, size in sizes.items()}


def _span(config: MaxTextConfig, kind: str, axis: str) -> Span:
    return config.values[f"{kind.lower()}_{_FLAGS.get(axis, axis)}_parallelism"].span
