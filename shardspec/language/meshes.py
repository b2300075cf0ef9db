"""Meshes whose sizes are named: what they come to, once every layer has had its say.

A child may state a number anew that its parent's meshes use, so no mesh is solved before layers
are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from shardspec.diagnostics import Diagnostic, Excerpt, Span, codes, point, quote
from shardspec.diagnostics.words import did_you_mean
from shardspec.ir.spec import LogicalAxis, Mesh, Target
from shardspec.language.grammar.syntax import MeshSize, Name
from shardspec.topology.sizes import StatedAxis, StatedMesh, solve

_Lets = Mapping[str, int | None]
_Axes = Mapping[str, LogicalAxis]


class TargetDecl(NamedTuple):
    """A target whose mesh is not solved yet.

    Attributes:
      mesh: with size 1 where a name of `let`, or `fit`, says it.
      sizes: by mesh axis, as stated, and where it stands.
      wholes: names that stand for several mesh axes.
      stated: what a `Target` has as it stands.
      by: the file that says how fast the machine is.
    """

    name: str
    mesh: StatedMesh
    sizes: Mapping[str, tuple[MeshSize, Excerpt]]
    wholes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    span: Span | None = None
    stated: Mapping[str, Any] = MappingProxyType({})
    is_sound: bool = True
    by: Excerpt | None = None


class Numbers(NamedTuple):
    """What meshes may name.

    Attributes:
      lets: what the names of `let` come to, None where that is not known, which is reported.
      axes: the logical axes.
    """

    lets: _Lets
    axes: _Axes


def solved(decl: TargetDecl, numbers: Numbers, diagnostics: list[Diagnostic]) -> Target:
    """Return a target with every mesh size a number, and report what does not work out."""
    found: list[Diagnostic] = []
    axes = [_numbered(axis, decl, numbers.lets, found) for axis in decl.mesh.axes]
    is_read = decl.mesh.is_read and None not in axes
    stated = tuple(axis or given for axis, given in zip(axes, decl.mesh.axes, strict=True))
    if is_read:
        stated = _fitted(stated, decl, numbers.axes, found)
        is_read = not found
    mesh, unsolved = solve(decl.mesh._replace(axes=stated, is_read=is_read))
    if unsolved:
        said = tuple(filter(None, [", ".join(_names_said(decl, mesh))]))
        unsolved = tuple(replace(fault, notes=(*fault.notes, *said)) for fault in unsolved)
    diagnostics += [replace(fault, target=decl.name) for fault in (*found, *unsolved)]
    is_sound = decl.is_sound and is_read and not unsolved
    devices: tuple[int, ...] = ()
    if is_sound and decl.mesh.devices is not None:
        devices = _listed(decl, mesh, diagnostics)
        is_sound = bool(devices)
    mesh = replace(mesh, wholes=decl.wholes)
    given = decl.mesh.hardware, decl.span, is_sound
    return Target(decl.name, mesh, *given, devices=devices, **decl.stated)


def _listed(decl: TargetDecl, mesh: Mesh, diagnostics: list[Diagnostic]) -> tuple[int, ...]:
    """Return the devices of a list; none where they are no permutation, which is reported."""
    from shardspec.topology.by_hand import listed_devices

    runs, span = decl.mesh.devices or ((), decl.mesh.span)
    found = listed_devices(runs, mesh.axes, span, mesh.device_count)
    if isinstance(found, Diagnostic):
        diagnostics.append(replace(found, target=decl.name))
        return ()
    return found


def _numbered(
    stated: StatedAxis, decl: TargetDecl, lets: _Lets, found: list[Diagnostic]
) -> StatedAxis | None:
    """Return an axis with its number; None where there is none, which is reported."""
    size, written = decl.sizes[stated.axis.name]
    if size.named is None:
        return stated
    found += (_unknown(name, written, lets) for name in size.named.names if name.text not in lets)
    count = size.named.value(lets.get)
    if count is None:
        return None
    if count < 1:
        message = f"`{stated.axis.name}` has `{written.text}` = {count} devices"
        found.append(point(codes.SYNTAX, message, written.span, help="a mesh axis has 1 or more"))
        return None
    return stated._replace(axis=replace(stated.axis, size=count))


def _fitted(
    stated: tuple[StatedAxis, ...], decl: TargetDecl, axes: _Axes, found: list[Diagnostic]
) -> tuple[StatedAxis, ...]:
    """Return the axes, those of `fit kv_heads` as large as divides it and what is left over."""
    fitted = []
    hardware = decl.mesh.hardware
    left = 0 if hardware is None else hardware.device_count
    for each in stated:
        if decl.sizes[each.axis.name][0].fits is None and not each.is_rest:
            left //= each.axis.size
    for each in stated:
        size, written = decl.sizes[each.axis.name]
        if size.fits is not None:
            fault = _unfit(size.fits, written, decl, axes)
            if fault is not None:
                found.append(fault)
            else:
                axis = axes[size.fits.text]
                ways = math.gcd((axis.size or 1) // axis.unit, max(1, left))
                left //= ways
                each = each._replace(axis=replace(each.axis, size=ways))
        fitted.append(each)
    return tuple(fitted)


def _unfit(name: Name, written: Excerpt, decl: TargetDecl, axes: _Axes) -> Diagnostic | None:
    """Return why nothing can be fitted to an axis: the machine or the size is not stated."""
    place = written.at(name.start, name.end)
    if decl.mesh.hardware is None:
        message = f"`fit {name.text}` needs hardware; target `{decl.name}` states none"
        help = f"{quote.hardware('8 cpu')} (or `tpu v5e 4x4`, `2 * h100`), or write a number"
        return point(codes.UNSOLVED_SIZE, message, place, help=help)
    axis = axes.get(name.text)
    if axis is not None and axis.size:
        return None
    axis_entry = quote.entry_in("axes")
    message = f"`fit {name.text}` needs the size of `{name.text}`, which no {axis_entry} states"
    near = did_you_mean(name.text, axes) if axis is None else None
    help = near or f"add {quote.added('axes', name.text, 'SIZE')}"
    return point(codes.UNKNOWN_SIZE, message, place, help=help, subject=name.text)


def _names_said(decl: TargetDecl, mesh: Mesh) -> Iterator[str]:
    for axis, (size, written) in decl.sizes.items():
        if size.named is not None:
            yield f"`{axis}` is `{written.text}` = {mesh.sizes[axis]} by `let`"
        elif size.fits is not None:
            yield f"`{axis}` is `fit {size.fits.text}` = {mesh.sizes[axis]}"


def _unknown(name: Name, written: Excerpt, lets: _Lets) -> Diagnostic:
    """Return the finding for a name that no entry of `let` has."""
    near = did_you_mean(name.text, [*lets, "rest", "submesh", "auto"])
    new = f"add {quote.added('let', name.text, 'NUMBER')}; what the other axes leave over is `rest`"
    message = f"`{name.text}` is no number: no entry of `let` states it"
    place = written.at(name.start, name.end)
    return point(codes.UNKNOWN_SIZE, message, place, help=near or new, subject=name.text)
