"""A lowered spec: what a document means, after presets, priorities and placement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from shardspec.diagnostics import Severity, SourceFile, Span
from shardspec.diagnostics.levels import NOTHING_ASKED, Levels, LevelTable
from shardspec.ir.hardware import Hardware
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import LogicalAxes, Params

Dialect = Literal["glob", "regex"]


@dataclass(frozen=True, slots=True)
class LogicalAxis:
    """A model's name for a dimension.

    Attributes:
      size: how long it is, when that is known.
      unit: a shard must hold whole multiples of this many elements (one head, say).
      min_shard: elements below which a shard is not worth having.
    """

    name: str
    size: int | None = None
    unit: int = 1
    doc: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)
    min_shard: int = 1


@dataclass(frozen=True, slots=True)
class AxisRule:
    """ONE alternative: `a -> x | y` is two of these, adjacent in one flat ordered list.

    Attributes:
      mesh_axes: major to minor; `()` is `none`: replicate, and stop looking.
      priority: lower is earlier; ties keep the order of the document.
      span: the alternative itself (`y` of `a -> x | y`).
      is_read: False where the rule cannot be read, which is reported: `none` for its axes.
    """

    logical_axis: str
    mesh_axes: tuple[str, ...]
    priority: int = 0
    span: Span | None = field(default=None, compare=False, repr=False)
    is_read: bool = True

    @property
    def is_none(self) -> bool:
        """Say whether the rule asks for replication."""
        return not self.mesh_axes

    def __str__(self) -> str:
        """Return `embed -> (replica, data)`."""
        return f"{self.logical_axis} -> {target_text(self.mesh_axes)}"


def target_text(mesh_axes: tuple[str, ...]) -> str:
    """Return the right side of a rule as the language spells it."""
    if not mesh_axes:
        return "none"
    return mesh_axes[0] if len(mesh_axes) == 1 else f"({', '.join(mesh_axes)})"


def override_text(dims: Iterable[tuple[str, ...]]) -> str:
    """Return the mesh axes of each dimension as an override spells them: `(none, (a, b))`."""
    return f"({', '.join(map(target_text, dims))})"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern over whole paths.

    Attributes:
      text: a glob, or a Python regular expression under `fullmatch`.
    """

    text: str
    dialect: Dialect = "glob"
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """Return it as a `params:` key: regexes behind `re:`."""
        return self.text if self.dialect == "glob" else f"re:{self.text}"


@dataclass(frozen=True, slots=True)
class PathRule:
    """Logical axes for the arrays whose path matches: an entry of `params:`."""

    pattern: Pattern
    logical_axes: LogicalAxes
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Override:
    """An entry of `overrides:`: it beats what the array itself says.

    Attributes:
      logical_axes: new names; or None, and then `partition` is the answer itself.
      partition: mesh axes per dimension; rules are not asked.
    """

    pattern: Pattern
    logical_axes: LogicalAxes | None = None
    partition: tuple[tuple[str, ...], ...] | None = None
    because: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ScanRule:
    """Stacked axes of the arrays whose path matches, as (name, position in the array)."""

    pattern: Pattern
    axes: tuple[tuple[str, int], ...]
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Activation:
    """A named constraint that code asks for by name."""

    name: str
    logical_axes: LogicalAxes
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices that change the answer.

    Attributes:
      indivisible: what to do with a rule whose mesh axes do not divide the dimension: `next`
        tries the next alternative; `keep` fires it as Flax does, and JAX refuses later.
      order: how a mesh axis counts the chips of a torus: `t5x` row by row, `ring` along a ring
        in which neighbours touch. It moves devices, never a shard's shape.
    """

    indivisible: Literal["next", "keep"] = "next"
    order: Literal["t5x", "ring"] = "t5x"


@dataclass(frozen=True, slots=True)
class StatePolicy:
    """What stands beside every parameter while training, and how it is laid out: `state:`.

    Attributes:
      optimizer: `same` lays state out as its parameter; `zero1` splits it further over the mesh
        axes `over`, along the first dimension that they divide; `zero2` gradients as well.
      over: mesh axes, major to minor; `()` for those of the first rule of `batch`.
      moments: arrays of a parameter's size that the optimizer keeps (Adam: 2), for memory.
      dtype: of those.
      over_span: the mesh axes as written.
    """

    optimizer: Literal["same", "zero1", "zero2"] = "same"
    over: tuple[str, ...] = ()
    moments: int = 2
    dtype: str = "f32"
    span: Span | None = field(default=None, compare=False, repr=False)
    over_span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CoverageGate:
    """How much every device may hold whole: `coverage: {max_replicated_bytes: 2%}`.

    Attributes:
      max_share: of the bytes of all arrays, 0 to 1; None where `max_bytes` is stated.
      max_bytes: per device; None where `max_share` is stated.
    """

    max_share: float | None = None
    max_bytes: int | None = None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Replicate:
    """An entry of `replicate:`: arrays that are meant to be whole, with the reason."""

    pattern: Pattern
    because: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """One machine and the mesh on it. It prints as its name, and is equal to it.

    Attributes:
      hardware: None where the spec gives a mesh alone.
      is_sound: False where the mesh has a fault that is reported, and a size may be a stand-in; or
        where a what-if is refused, and the mesh is not the one asked about. Nothing is shown of
        such a target.
    """

    name: str
    mesh: Mesh
    hardware: Hardware | None = None
    span: Span | None = field(default=None, compare=False, repr=False)
    is_sound: bool = field(default=True, compare=False, repr=False)

    def __eq__(self, other: object) -> bool:
        """Say whether `other` is the same machine with the same mesh, or the target's name."""
        if isinstance(other, str):
            return self.name == other
        if not isinstance(other, Target):
            return NotImplemented
        told = (other.name, other.mesh, other.hardware)
        return (self.name, self.mesh, self.hardware) == told

    def __hash__(self) -> int:
        """Return the hash of the name, as what equals the name must."""
        return hash(self.name)

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class LintLevel:
    """A finding's severity as the spec sets it, by code id or name, or the start of an id."""

    finding: str
    severity: Severity
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything one document says, with its presets merged in.

    Attributes:
      axis_rules: the flat list the resolver walks: priorities and placement are applied.
      params: arrays the document itself lists, inline and by manifest.
      sources: this document and all it extends or includes, itself first.
      inherited_axes: logical axes that presets have rules for, even where the document
        replaces or drops those.
      axes_of_code: logical axes that rules are for and code alone may name, as `constrain` does.
      placed_rules: axis_rules in the order of the document, before priorities.
      lint_levels: what the document's own `lints:` asks for.
      project_levels: what the project around it asks for, which `lints:` beats.
      call_levels: what whoever loaded it asks for, which beats both.
      is_whole: False where an error of syntax took lines away: good for findings and no more.

    Invariants:
      flat: axis_rules are sorted by priority, and stable in it.
    """

    source: SourceFile
    logical_axes: tuple[LogicalAxis, ...] = ()
    axis_rules: tuple[AxisRule, ...] = ()
    path_rules: tuple[PathRule, ...] = ()
    overrides: tuple[Override, ...] = ()
    scans: tuple[ScanRule, ...] = ()
    activations: tuple[Activation, ...] = ()
    policy: Policy = Policy()
    targets: tuple[Target, ...] = ()
    params: Params = ()
    lint_levels: tuple[LintLevel, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    inherited_axes: tuple[str, ...] = ()
    axes_of_code: tuple[str, ...] = ()
    doc: str = ""
    state: StatePolicy | None = None
    coverage: CoverageGate | None = None
    replicate: tuple[Replicate, ...] = ()
    placed_rules: tuple[AxisRule, ...] = field(default=(), compare=False, repr=False)
    project_levels: LevelTable = NOTHING_ASKED
    call_levels: LevelTable = NOTHING_ASKED
    is_whole: bool = field(default=True, compare=False, repr=False)

    @property
    def levels(self) -> Levels:
        """Return how loud findings are about this spec, wherever it is used."""
        own = LevelTable(tuple((each.finding, each.severity) for each in self.lint_levels))
        return Levels((self.project_levels, own, self.call_levels))

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Return every pattern over paths: of overrides, of `params:`, `scan:`, `replicate:`."""
        return (
            *(override.pattern for override in self.overrides),
            *(rule.pattern for rule in self.path_rules),
            *(scan.pattern for scan in self.scans),
            *(entry.pattern for entry in self.replicate),
        )

    @property
    def mesh_axis_names(self) -> frozenset[str]:
        """Return the names of the mesh axes of all targets."""
        return frozenset(name for target in self.targets for name in target.mesh.names)
