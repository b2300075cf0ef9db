"""Mesh sizes: what `rest` comes to, and whether a mesh is all of its machine.

A mesh that does not work out is reported, with the arithmetic and with what would fit, and
goes on with size 1 where a size is missing, so that later stages can look at the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardspec.diagnostics import Diagnostic, Label, Span, codes, point, quote
from shardspec.diagnostics.words import counted
from shardspec.ir.spec import Hardware, Mesh, MeshAxis, divisors

if TYPE_CHECKING:
    from shardspec.topology.by_hand import DeviceRun, StatedDigit


class StatedAxis(NamedTuple):
    """A mesh axis as a spec states it.

    Attributes:
      axis: its size is 1 where it takes the rest.
      text: the size as written.
      places: of what it runs over, where it says it: one for each stretch.
    """

    axis: MeshAxis
    text: str
    is_rest: bool = False
    places: tuple[Span, ...] = ()


class StatedMesh(NamedTuple):
    """A mesh that is not solved yet.

    Attributes:
      target: the name of its target.
      span: the word `mesh`, for faults of the mesh as a whole.
      is_read: False where a size or the machine cannot be read: then no size is judged.
      devices: which device stands where, as listed, and the place of the list.
    """

    target: str
    axes: tuple[StatedAxis, ...]
    hardware: Hardware | None
    span: Span
    is_read: bool = True
    devices: tuple[tuple[DeviceRun, ...], Span] | None = None


def solve(stated: StatedMesh) -> tuple[Mesh, tuple[Diagnostic, ...]]:
    """Return the mesh with every size a number, and what does not work out."""
    hardware = stated.hardware
    mesh = Mesh(tuple(each.axis for each in stated.axes))
    rests = [each for each in stated.axes if each.is_rest]
    if len(rests) > 1:
        return mesh, (_two_rest(rests),)
    if not stated.is_read:
        return mesh, ()
    if hardware is None:
        unsolved = (e for e in stated.axes if e.is_rest or e.axis.submesh or e.axis.over)
        return mesh, tuple(_needs_hardware(each, stated.target) for each in unsolved)
    stated, mesh, faults = _laid_by_hand(stated, hardware)
    left, over = divmod(hardware.device_count, mesh.device_count)
    if not faults and (over or (left != 1 and not rests)):
        faults.append(wrong_product(stated.target, stated.axes, hardware, stated.span))
    axes = (
        replace(each.axis, size=max(1, left)) if each.is_rest else each.axis for each in stated.axes
    )
    solved = Mesh(tuple(axes))
    return solved, tuple(faults or _network_faults(solved, hardware))


def _laid_by_hand(
    stated: StatedMesh, hardware: Hardware
) -> tuple[StatedMesh, Mesh, list[Diagnostic]]:
    """Return a mesh whose tiles fit, and whose axes are as long as what they run over.

    Beside it stands what does not work out.
    """
    mesh = Mesh(tuple(each.axis for each in stated.axes))
    tiled = [axis for axis in mesh.axes if axis.submesh is not None]
    if not any(axis.over for axis in mesh.axes):
        return stated, mesh, [*_tile_faults(tiled, hardware)]
    from shardspec.topology.by_hand import left_out, overlap, sized
    from shardspec.topology.machine import machine_of

    machine = machine_of(hardware)
    faults: list[Diagnostic] = []
    digits: list[StatedDigit] = []
    axes: list[StatedAxis] = []
    for each in stated.axes:
        if each.axis.over:
            axis, own, fault = sized(each.axis, each.places, hardware)
            each = each._replace(axis=axis)
            digits += own
            faults += [] if fault is None else [fault]
        axes.append(each)
    stated = stated._replace(axes=tuple(axes))
    mesh = Mesh(tuple(each.axis for each in axes))
    if not faults:
        shared = overlap(digits, machine)
        faults += [] if shared is None else [shared]
    if not faults:
        faults += _tile_faults(tiled, hardware, digits)
    if not faults and all(axis.over for axis in mesh.axes):
        fault = left_out(digits, machine, stated.span, stated.target)
        faults += [] if fault is None else [fault]
    return stated, mesh, faults


def _two_rest(rests: Sequence[StatedAxis]) -> Diagnostic:
    first, second = (each.axis for each in rests[:2])
    labels = ((second.span, "takes the rest as well", True), (first.span, "takes the rest", False))
    return Diagnostic(
        codes.TWO_REST,
        f"both `{first.name}` and `{second.name}` take the rest",
        tuple(Label(span, text, primary=primary) for span, text, primary in labels if span),
        help=f"give one of them a number, as in {quote.size(second.name, 8)}",
    )


def _needs_hardware(each: StatedAxis, target: str) -> Diagnostic:
    what = "how a tile lies in the torus" if each.axis.submesh else "what is left over"
    if each.axis.over:
        what = "what there is to run over"
    return point(
        codes.UNSOLVED_SIZE,
        f"{quote.size(each.axis.name, each.text)} needs hardware; target `{target}` states none",
        each.axis.span,
        f"{what} depends on the machine",
        help=f"{quote.hardware('8 cpu')} (or `tpu v5e 4x4`, `2 * h100`), or write the size as a"
        " number",
    )


def _tile_faults(
    tiled: Sequence[MeshAxis], hardware: Hardware, digits: Sequence[StatedDigit] = ()
) -> Iterator[Diagnostic]:
    """Yield what keeps submeshes from tiling one slice, beside the digits that are stated."""
    if not tiled:
        return
    from shardspec.topology.assignment import tile_fault

    is_alone = len(tiled) == 1 and not digits
    found = [tile_fault(axis, hardware, is_alone=is_alone) for axis in tiled]
    yield from filter(None, found)
    if not is_alone and not any(found):
        from shardspec.topology.by_hand import tiles_fault

        fault = tiles_fault(tiled, digits, hardware)
        if fault is not None:
            yield fault


def wrong_product(
    target: str, axes: Sequence[StatedAxis], hardware: Hardware, span: Span | None
) -> Diagnostic:
    """Return the finding for sizes that do not multiply to the devices, with those that would.

    Args:
      span: the place of the mesh as a whole.
    """
    total = hardware.device_count
    numbered = [each.axis for each in axes if not each.is_rest]
    product = math.prod(axis.size for axis in numbered)
    sum_text = _sum_text(numbered)
    has_rest = len(numbered) < len(axes)
    relation = "does not divide" if has_rest else "is not"
    meant = _nodes_or_gpus(hardware, product, has_rest)
    sizes = _fitting_sizes(numbered, total, has_rest)
    labels = [Label(span, sum_text)] if span else []
    if span and hardware.span is not None:
        labels.append(Label(hardware.span, counted(total, "device"), primary=False))
    return Diagnostic(
        codes.MESH_PRODUCT,
        f"mesh of target `{target}`: {sum_text} {relation} {counted(total, 'device')}",
        tuple(labels),
        notes=() if has_rest or product > total else (f"{total - product} would stand idle",),
        help=f"{meant}; for all {total}, {sizes}" if meant else sizes,
    )


def _nodes_or_gpus(hardware: Hardware, product: int, has_rest: bool) -> str | None:
    """Return what `8 * h100` is, where the mesh fits as many GPUs as nodes were asked for."""
    nodes, node = hardware.slice_count, hardware.devices_per_slice
    fits = nodes % product == 0 if has_rest else nodes == product
    if hardware.chip.platform != "gpu" or nodes == 1 or not fits or node == 1:
        return None
    if nodes > node and nodes % node:
        return None
    name = hardware.chip.name
    wanted = f"{nodes} {name}" if nodes <= node else f"{nodes // node} * {name}"
    return f"`{hardware}` is {nodes} nodes of {node}; `{wanted}` is {nodes} GPUs"


def _sum_text(axes: Sequence[MeshAxis]) -> str:
    """Return `data=4 x tensor=8 = 32`."""
    factors = " x ".join(f"{axis.name}={axis.size}" for axis in axes)
    return factors if len(axes) == 1 else f"{factors} = {math.prod(axis.size for axis in axes)}"


def _fitting_sizes(numbered: Sequence[MeshAxis], total: int, has_rest: bool) -> str:
    """Return, for each axis, the sizes it could have while the others stay."""
    product = math.prod(axis.size for axis in numbered)
    options = []
    for axis in numbered:
        left, over = divmod(total, product // axis.size)
        if over or axis.over:
            continue
        if has_rest:
            near = sorted(divisors(left, left), key=lambda size: abs(size - axis.size))[:4]
            options.append(f"`{axis.name}` in {{{', '.join(map(str, sorted(near)))}}}")
        else:
            options.append(f"`{axis.name}` = {left}")
    if not has_rest and numbered and total > 1:
        options.append(f"`rest` for one of them, where the others divide {total}")
    return "these fit: " + ", or ".join(options) if options else f"sizes must multiply to {total}"


def _network_faults(mesh: Mesh, hardware: Hardware) -> Iterator[Diagnostic]:
    """Yield a fault where `@ dcn` axes and the number of slices or nodes disagree."""
    crossing = [axis for axis in mesh.axes if axis.network == "dcn" and not axis.over]
    product, count = math.prod(axis.size for axis in crossing), hardware.slice_count
    if any(axis.over for axis in mesh.axes):
        from shardspec.topology.by_hand import digits_over
        from shardspec.topology.machine import machine_of

        machine = machine_of(hardware)
        digits = (digit for axis in mesh.axes for digit in digits_over(axis, machine))
        count //= math.prod(each.size for each in digits if machine[each.axis].link == "dcn")
    is_gpu = hardware.chip.platform == "gpu"
    if not crossing or (count % product == 0 if is_gpu else product == count):
        return
    unit = "node" if is_gpu else "slice"
    are = "is" if count == 1 else "are"
    yield point(
        codes.MESH_PRODUCT,
        f"`@ dcn` axes: {_sum_text(crossing)}, but there {are} {counted(count, unit)}",
        crossing[0].span,
        f"this axis crosses {unit}s",
        help="leave `@ dcn` out: nothing is crossed"
        if count == 1
        else f"`@ dcn` axes must multiply to {count}",
    )
