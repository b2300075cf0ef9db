"""Targets as written -> their mesh sizes and machine, read; `topology.sizes` solves the mesh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, Excerpt, Span, point
from shardspec.diagnostics.codes import UNKNOWN_HARDWARE
from shardspec.ir.hardware import Hardware
from shardspec.ir.mesh import MeshAxis
from shardspec.ir.spec import Target
from shardspec.language.catalogue import find_hardware, machine_fault
from shardspec.language.grammar import expressions
from shardspec.language.grammar.syntax import MeshSize, SyntaxFault
from shardspec.topology.sizes import StatedAxis, StatedMesh, solve

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


def target_of(decl: TargetDecl) -> tuple[Target, tuple[Diagnostic, ...]]:
    """Return the target with every mesh size a number, and what does not work out."""
    diagnostics: list[Diagnostic] = []
    machine = None if decl.hardware is None else _hardware(decl.hardware)
    if isinstance(machine, Diagnostic):
        diagnostics.append(machine)
        machine = None
    axes = tuple(_axis(name, text, decl, diagnostics) for name, text in decl.sizes)
    is_read = not diagnostics and not decl.is_faulty
    mesh, faults = solve(StatedMesh(decl.name, axes, machine, decl.mesh_span, is_read))
    is_sound = is_read and not faults
    return Target(decl.name, mesh, machine, decl.span, is_sound), (*diagnostics, *faults)


def _hardware(excerpt: Excerpt) -> Hardware | Diagnostic:
    parsed = expressions.parse_hardware(excerpt.text)
    if isinstance(parsed, SyntaxFault):
        return machine_fault(parsed, excerpt.text).diagnostic(excerpt)
    found = find_hardware(parsed, excerpt)
    if isinstance(found, Hardware) and found.device_count > _MOST_DEVICES:
        message = f"`{excerpt.text}` is {found.device_count:,} devices"
        help = f"no machine has more than {_MOST_DEVICES:,}"
        return point(UNKNOWN_HARDWARE, message, excerpt.span, help=help)
    return found


def _axis(
    name: Excerpt, text: Excerpt, decl: TargetDecl, diagnostics: list[Diagnostic]
) -> StatedAxis:
    """Return a mesh axis as stated, of size 1 where its size cannot be read."""
    size = expressions.parse_mesh_size(text.text)
    if isinstance(size, SyntaxFault):
        if not decl.is_faulty:
            diagnostics.append(size.diagnostic(text))
        size = MeshSize("integer", 1)
    ways = {"rest": 1, "submesh": math.prod(size.tile)}
    axis = MeshAxis(
        name.text,
        max(1, ways.get(size.kind, size.count)),
        size.network,
        submesh=size.tile if size.kind == "submesh" else None,
        auto=size.kind == "auto",
        axis_type=size.axis_type,
        span=text.span,
    )
    return StatedAxis(axis, text.text, size.kind == "rest")
