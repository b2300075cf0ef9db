"""One document, lowered on its own: before it is merged with what it extends."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from shardspec.diagnostics import Excerpt, SourceFile, Span
from shardspec.frontend.grammar.syntax import ArrayType, SizeExpr
from shardspec.ir.param import Params
from shardspec.ir.spec import (
    Activation,
    AxisRule,
    CoverageGate,
    LintLevel,
    Override,
    PathRule,
    Replicate,
    ScanRule,
    Target,
)


class Place(NamedTuple):
    """Where a rule wants to stand among inherited ones."""

    kind: Literal["start", "end", "before", "after"]
    axis: str | None
    span: Span


class PlacedRule(NamedTuple):
    """A rule, and its place where it asks for one."""

    rule: AxisRule
    place: Place | None = None


class AxisDecl(NamedTuple):
    """A logical axis whose size may still be a product of others."""

    name: str
    size: SizeExpr | None
    unit: int
    doc: str
    span: Span
    min_shard: int = 1


class ArrayDecl(NamedTuple):
    """An entry of `arrays:`.

    Attributes:
      written: the type as it stands, and where.
    """

    path: Excerpt
    written: Excerpt
    type: ArrayType


class Layer(NamedTuple):
    """What one document says itself.

    Attributes:
      drops: logical axes whose inherited rules go.
      policy: the keys it sets, and no more.
      state: the same, and the spans.
      arrays: inline ones, whose sizes may need the axes of every layer.
      params: those of its manifests.
      inherited_axes: logical axes that what it extends has rules for, replaced or not.
    """

    source: SourceFile
    doc: str = ""
    axes: tuple[AxisDecl, ...] = ()
    rules: tuple[PlacedRule, ...] = ()
    drops: tuple[Excerpt, ...] = ()
    targets: tuple[Target, ...] = ()
    path_rules: tuple[PathRule, ...] = ()
    overrides: tuple[Override, ...] = ()
    scans: tuple[ScanRule, ...] = ()
    activations: tuple[Activation, ...] = ()
    policy: tuple[tuple[str, str], ...] = ()
    state: tuple[tuple[str, Any], ...] = ()
    coverage: CoverageGate | None = None
    replicate: tuple[Replicate, ...] = ()
    lint_levels: tuple[LintLevel, ...] = ()
    arrays: tuple[ArrayDecl, ...] = ()
    params: Params = ()
    inherited_axes: tuple[str, ...] = ()
