"""What an export is made of and what comes of it.

Every format is one module with `write(request) -> (text | None, diagnostics)`. A format of rules
(Flax, T5X, MaxText) says how arrays that are not made yet are placed; a format of answers (regexes,
a Python module) says where the arrays of one plan lie. What a format has no word for is left out
and said. Where it would give an array another layout than the plan does, that is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, Span
from shardspec.formats.foreign.imported import place
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec

Written = tuple[str | None, tuple[Diagnostic, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be written.

    Attributes:
      plan: of one target; without arrays where the spec lists none.
      is_resolved: whether rules are reduced to the target's mesh and the arrays of the plan.
      axis: the one mesh axis that a format with room for one is about.
    """

    plan: ShardingPlan
    is_resolved: bool = False
    axis: str | None = None

    @property
    def spec(self) -> Spec:
        """Return the spec of the plan."""
        return self.plan.spec

    @property
    def title(self) -> str:
        """Return what the text is made of: `spec.yaml, target pod: mesh data=4 model=2`."""
        return f"{source_name(self.spec)}, {self.target_title}"

    @property
    def target_title(self) -> str:
        """Return `target pod: mesh data=4 model=2 on tpu v5e 2x4`."""
        target = self.plan.target
        hardware = "" if target.hardware is None else f" on {target.hardware}"
        return f"target {target.name}: mesh {target.mesh}{hardware}"


def source_name(spec: Spec) -> str:
    """Return the name of the spec's file without its folder, in one line of plain text."""
    name = spec.source.name.replace("\\", "/").rpartition("/")[2]
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in name).replace('"', "?")


def origin(span: Span | None) -> str:
    """Return a trailing comment for a line of Python or YAML: `  # spec.yaml:12`."""
    if span is None:
        return ""
    name = span.source.name
    text = f"{name}:{span.line}" if name.startswith("preset:") else place(span)
    return f"  # {text}" if text.isprintable() and text.isascii() else ""
