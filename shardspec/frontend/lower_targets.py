"""Mesh sizes: integers, `rest`, submeshes and `auto`, solved against a machine.

A mesh that does not work out is reported, with the arithmetic and with what would fit, and
goes on with size 1 where a size is missing, so that later stages can look at the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, Excerpt, Label, Span
from shardspec.diagnostics.codes import (
    MESH_PRODUCT,
    SUBMESH_TILING,
    TWO_REST,
    UNKNOWN_HARDWARE,
    UNSOLVED_SIZE,
)
from shardspec.diagnostics.diagnostic import point
from shardspec.frontend.catalogue import find_hardware, machine_fault
from shardspec.frontend.grammar import expressions
from shardspec.frontend.grammar.syntax import MeshSize, SyntaxFault
from shardspec.ir.grouping import counted
from shardspec.ir.hardware import Hardware
from shardspec.ir.mesh import Mesh, MeshAxis
from shardspec.ir.spec import Target

#: Beyond any machine there is; a placement is worked out device by device.
_MOST_DEVICES = 1 << 18


@dataclass(frozen=True, slots=True)
class TargetDecl:
    """A target as written.

    Attributes:
      sizes: (axis, size) in mesh order.
      mesh_span: the word `mesh`, for faults of the mesh as a whole.
      span: the target's name.
      is_faulty: whether a size is missing for a reason that is reported already.
    """

    name: str
    hardware: Excerpt | None
    sizes: tuple[tuple[Excerpt, Excerpt], ...]
    mesh_span: Span
    span: Span
    is_faulty: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    name: Excerpt
    text: Excerpt
    size: MeshSize

    @property
    def known(self) -> int | None:
        """Return the size, None for `rest`."""
        if self.size.kind == "rest":
            return None
        return math.prod(self.size.tile) if self.size.kind == "submesh" else self.size.count


def lower_target(decl: TargetDecl) -> tuple[Target, tuple[Diagnostic, ...]]:
    """Return the target with every mesh size a number, and what does not work out."""
    diagnostics: list[Diagnostic] = []
    hardware = None
    if decl.hardware is not None:
        hardware = _hardware(decl.hardware, diagnostics)
    axes = _parsed(decl, diagnostics)
    sizes = _solve(decl, axes, hardware, diagnostics)
    if hardware is not None and not diagnostics:
        diagnostics += _network_faults(axes, sizes, hardware)
    mesh = Mesh(
        tuple(
            MeshAxis(
                axis.name.text,
                size,
                axis.size.network,
                submesh=axis.size.tile if axis.size.kind == "submesh" else None,
                auto=axis.size.kind == "auto",
                axis_type=axis.size.axis_type,
                span=axis.text.span,
            )
            for axis, size in zip(axes, sizes, strict=True)
        )
    )
    is_sound = not diagnostics and not decl.is_faulty
    return Target(decl.name, mesh, hardware, decl.span, is_sound), tuple(diagnostics)


def _hardware(excerpt: Excerpt, diagnostics: list[Diagnostic]) -> Hardware | None:
    parsed = expressions.parse_hardware(excerpt.text)
    if isinstance(parsed, SyntaxFault):
        diagnostics.append(machine_fault(parsed, excerpt.text).diagnostic(excerpt))
        return None
    found = find_hardware(parsed, excerpt)
    if isinstance(found, Diagnostic):
        diagnostics.append(found)
        return None
    if found.device_count > _MOST_DEVICES:
        message = f"`{excerpt.text}` is {found.device_count:,} devices"
        help = f"no machine has more than {_MOST_DEVICES:,}"
        diagnostics.append(point(UNKNOWN_HARDWARE, message, excerpt.span, help=help))
        return None
    return found


def _parsed(decl: TargetDecl, diagnostics: list[Diagnostic]) -> tuple[_Axis, ...]:
    axes = []
    for name, text in decl.sizes:
        parsed = expressions.parse_mesh_size(text.text)
        if decl.is_faulty and isinstance(parsed, SyntaxFault):
            parsed = MeshSize("integer", 1)
        elif isinstance(parsed, SyntaxFault):
            diagnostics.append(parsed.diagnostic(text))
            parsed = MeshSize("integer", 1)
        axes.append(_Axis(name, text, parsed))
    return tuple(axes)


def _solve(
    decl: TargetDecl,
    axes: tuple[_Axis, ...],
    hardware: Hardware | None,
    diagnostics: list[Diagnostic],
) -> tuple[int, ...]:
    """Return a size for each axis."""
    rests = [axis for axis in axes if axis.known is None]
    if len(rests) > 1:
        diagnostics.append(_two_rest(rests))
    elif diagnostics or decl.is_faulty:
        pass
    elif hardware is None:
        diagnostics += [
            _needs_hardware(axis, decl) for axis in axes if axis.size.kind in {"rest", "submesh"}
        ]
    else:
        return _fill(decl, axes, hardware, diagnostics)
    return tuple(axis.known or 1 for axis in axes)


def _fill(
    decl: TargetDecl, axes: tuple[_Axis, ...], hardware: Hardware, diagnostics: list[Diagnostic]
) -> tuple[int, ...]:
    diagnostics += [
        fault for axis in axes if axis.size.kind == "submesh" for fault in _tiling(axis, hardware)
    ]
    product = math.prod(axis.known or 1 for axis in axes)
    total = hardware.device_count
    has_rest = any(axis.known is None for axis in axes)
    if not diagnostics and (total % product if has_rest else total != product):
        diagnostics.append(_wrong_product(decl, axes, hardware))
    rest = max(1, total // product) if has_rest else 1
    return tuple(axis.known or rest for axis in axes)


def _two_rest(rests: list[_Axis]) -> Diagnostic:
    first, second = rests[0], rests[1]
    return Diagnostic(
        TWO_REST,
        f"both `{first.name.text}` and `{second.name.text}` take the rest",
        (
            Label(second.text.span, "takes the rest as well"),
            Label(first.text.span, "takes the rest", primary=False),
        ),
        help="give one of them a number",
    )


def _needs_hardware(axis: _Axis, decl: TargetDecl) -> Diagnostic:
    what = "what is left over" if axis.size.kind == "rest" else "how a tile lies in the torus"
    return point(
        UNSOLVED_SIZE,
        f"`{axis.name.text}: {axis.text.text}` needs hardware; target `{decl.name}` states none",
        axis.text.span,
        f"{what} depends on the machine",
        help="add `hardware: 8 cpu` (or `tpu v5e 4x4`, `2 * h100`), or write the size as a number",
    )


def _tiling(axis: _Axis, hardware: Hardware) -> list[Diagnostic]:
    """Return what keeps a submesh from tiling one slice, dimension by dimension."""
    tile, chip = axis.size.tile, hardware.chip
    if chip.torus_rank == 0:
        why = f"`submesh` is a tile of a TPU torus, and {chip.title} has none"
        return [point(SUBMESH_TILING, why, axis.text.span, help=f"write `{axis.known}`")]
    if len(tile) != 4:
        why = f"a submesh is (x, y, z, core), and `{axis.text.text}` has {len(tile)} numbers"
        return [point(SUBMESH_TILING, why, axis.text.span, help="as in `submesh 4x2x2x1`")]
    slice_shape = (*(*hardware.topology, 1, 1)[:3], chip.devices_per_chip)
    bad = [
        f"{name}: {want} does not divide {have}"
        for name, want, have in zip(("x", "y", "z", "core"), tile, slice_shape, strict=True)
        if want == 0 or have % want
    ]
    if not bad:
        return []
    shown = "x".join(map(str, slice_shape))
    notes = []
    if slice_shape[3] == 1 and tile[3] > 1:
        joined = ", its two cores joined (megacore)" if chip.cores_per_chip > 1 else ""
        notes.append(
            f"`core` counts the JAX devices of one chip; {chip.title} shows one{joined}, so core"
            " must be 1"
        )
    return [
        point(
            SUBMESH_TILING,
            f"submesh {'x'.join(map(str, tile))} does not tile the slice: {'; '.join(bad)}",
            axis.text.span,
            f"one slice is {shown} (x, y, z, core)",
            notes=tuple(notes),
            help=_tilings(tile, slice_shape),
        )
    ]


def _tilings(tile: tuple[int, ...], slice_shape: tuple[int, ...]) -> str:
    """Return the submeshes of the wanted size that do tile, or the divisors of each dimension."""
    wanted = math.prod(tile)
    divisors = [[d for d in range(1, n + 1) if n % d == 0] for n in slice_shape]
    fits = [
        (x, y, z, c)
        for x in divisors[0]
        for y in divisors[1]
        for z in divisors[2]
        for c in divisors[3]
        if x * y * z * c == wanted
    ]
    if fits:
        fits.sort(key=lambda fit: sum(abs(a - b) for a, b in zip(fit, tile, strict=True)))
        return "these do: " + ", ".join("x".join(map(str, fit)) for fit in fits[:4])
    return "per dimension, one of " + "; ".join(
        f"{name}: {', '.join(map(str, options))}"
        for name, options in zip(("x", "y", "z", "core"), divisors, strict=True)
    )


def _wrong_product(decl: TargetDecl, axes: tuple[_Axis, ...], hardware: Hardware) -> Diagnostic:
    total = hardware.device_count
    numbered = [axis for axis in axes if axis.known is not None]
    product = math.prod(axis.known or 1 for axis in numbered)
    sum_text = _sum_text([(axis.name.text, axis.known or 1) for axis in numbered])
    has_rest = len(numbered) < len(axes)
    relation = "does not divide" if has_rest else "is not"
    meant = _nodes_or_gpus(hardware, product, has_rest)
    sizes = _fitting_sizes(numbered, total, has_rest)
    labels = [Label(decl.mesh_span, sum_text)]
    if decl.hardware is not None:
        labels.append(Label(decl.hardware.span, counted(total, "device"), primary=False))
    return Diagnostic(
        MESH_PRODUCT,
        f"mesh of target `{decl.name}`: {sum_text} {relation} {counted(total, 'device')}",
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


def _sum_text(sizes: list[tuple[str, int]]) -> str:
    """Return `data=4 x tensor=8 = 32`."""
    factors = " x ".join(f"{name}={size}" for name, size in sizes)
    return factors if len(sizes) == 1 else f"{factors} = {math.prod(s for _, s in sizes)}"


def _fitting_sizes(numbered: list[_Axis], total: int, has_rest: bool) -> str:
    """Return, for each axis, the sizes it could have while the others stay."""
    product = math.prod(axis.known or 1 for axis in numbered)
    options = []
    for axis in numbered:
        others = product // (axis.known or 1)
        if others == 0 or total % others:
            continue
        left = total // others
        if has_rest:
            near = sorted(
                (d for d in range(1, left + 1) if left % d == 0),
                key=lambda d: abs(d - (axis.known or 1)),
            )
            options.append(f"`{axis.name.text}` in {{{', '.join(map(str, sorted(near[:4])))}}}")
        else:
            options.append(f"`{axis.name.text}` = {left}")
    if not has_rest and numbered and total > 1:
        options.append(f"`rest` for one of them, where the others divide {total}")
    return "these fit: " + ", or ".join(options) if options else f"sizes must multiply to {total}"


def _network_faults(
    axes: tuple[_Axis, ...], sizes: tuple[int, ...], hardware: Hardware
) -> list[Diagnostic]:
    """Return a fault where `@ dcn` axes and the number of slices or nodes disagree."""
    crossing = [
        (axis, size) for axis, size in zip(axes, sizes, strict=True) if axis.size.network == "dcn"
    ]
    product = math.prod(size for _, size in crossing)
    fits = product == hardware.slice_count
    if hardware.chip.platform == "gpu":
        fits = hardware.slice_count % product == 0
    if not crossing or fits:
        return []
    unit = "node" if hardware.chip.platform == "gpu" else "slice"
    are = "is" if hardware.slice_count == 1 else "are"
    shown = _sum_text([(axis.name.text, size) for axis, size in crossing])
    return [
        point(
            MESH_PRODUCT,
            f"`@ dcn` axes: {shown}, but there {are} {counted(hardware.slice_count, unit)}",
            crossing[0][0].text.span,
            f"this axis crosses {unit}s",
            help="leave `@ dcn` out: nothing is crossed"
            if hardware.slice_count == 1
            else f"`@ dcn` axes must multiply to {hardware.slice_count}",
        )
    ]
