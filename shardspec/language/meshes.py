"""Meshes whose sizes are named: what they come to, once every layer has had its say.

A child may state a number anew that its parent's meshes use, so no mesh is solved before layers
are merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Excerpt, Span, codes, point
from shardspec.diagnostics.words import did_you_mean
from shardspec.ir.spec import Mesh, Target
from shardspec.language.grammar.syntax import Name, SizeExpr
from shardspec.topology.sizes import StatedAxis, StatedMesh, solve


class TargetDecl(NamedTuple):
    """A target whose mesh is not solved yet.

    Attributes:
      mesh: with size 1 where `sizes` says it.
      sizes: by mesh axis, those that names of `let` make, and where they stand.
    """

    name: str
    mesh: StatedMesh
    sizes: Mapping[str, tuple[SizeExpr, Excerpt]]
    span: Span | None = None
    is_sound: bool = True


def solved(
    decl: TargetDecl, lets: Mapping[str, int | None], diagnostics: list[Diagnostic]
) -> Target:
    """Return a target with every mesh size a number, and report what does not work out.

    Args:
      lets: what the names of `let` come to, None where that is not known, which is reported.
    """
    found: list[Diagnostic] = []
    axes = [_numbered(axis, decl, lets, found) for axis in decl.mesh.axes]
    is_read = decl.mesh.is_read and None not in axes
    stated = tuple(axis or given for axis, given in zip(axes, decl.mesh.axes, strict=True))
    mesh, unsolved = solve(decl.mesh._replace(axes=stated, is_read=is_read))
    if decl.sizes:
        unsolved = tuple(_with_names(fault, decl, mesh) for fault in unsolved)
    diagnostics += [replace(fault, target=decl.name) for fault in (*found, *unsolved)]
    is_sound = decl.is_sound and is_read and not unsolved
    return Target(decl.name, mesh, decl.mesh.hardware, decl.span, is_sound)


def _numbered(
    stated: StatedAxis,
    decl: TargetDecl,
    lets: Mapping[str, int | None],
    found: list[Diagnostic],
) -> StatedAxis | None:
    """Return an axis with its number; None where there is none, which is reported."""
    if stated.axis.name not in decl.sizes:
        return stated
    size, written = decl.sizes[stated.axis.name]
    found += (_unknown(name, written, lets) for name in size.names if name.text not in lets)
    count = size.value(lets.get)
    if count is None:
        return None
    if count < 1:
        message = f"`{stated.axis.name}` has `{written.text}` = {count} devices"
        found.append(point(codes.SYNTAX, message, written.span, help="a mesh axis has 1 or more"))
        return None
    return stated._replace(axis=replace(stated.axis, size=count))


def _with_names(fault: Diagnostic, decl: TargetDecl, mesh: Mesh) -> Diagnostic:
    """Return a fault of the arithmetic with what the names in it come to."""
    sizes = mesh.sizes
    named = {axis: written.text for axis, (_, written) in decl.sizes.items()}
    said = ", ".join(f"`{axis}` is `{text}` = {sizes[axis]}" for axis, text in named.items())
    return replace(fault, notes=(*fault.notes, f"by `let`, {said}"))


def _unknown(name: Name, written: Excerpt, lets: Mapping[str, int | None]) -> Diagnostic:
    """Return the finding for a name that no entry of `let` has."""
    near = did_you_mean(name.text, [*lets, "rest", "submesh", "auto"])
    new = f"add `{name.text}: NUMBER` to `let`; what the other axes leave over is `rest`"
    return point(
        codes.UNKNOWN_SIZE,
        f"`{name.text}` is no number: no entry of `let` states it",
        written.at(name.start, name.end),
        help=near or new,
        subject=name.text,
    )
