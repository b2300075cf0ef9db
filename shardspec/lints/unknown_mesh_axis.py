"""A rule names a mesh axis that no target has.

The rule can never fire, so the dimension it is for stays whole on every device. Flax passes
such a rule through and fails later, naming neither rule nor array, or not at all where only
activations use it. An axis that some targets have and others lack is fine: it drops out there.

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tenosr
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]

Good:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Label, Span
from shardspec.diagnostics.codes import UNKNOWN_MESH_AXIS as CODE
from shardspec.diagnostics.suggest import did_you_mean, listed
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each unknown mesh axis in a rule or a stated partition."""
    spec = context.spec
    if not spec.targets:
        return
    known = spec.mesh_axis_names
    asked: dict[tuple[str, Span | None], Span | None] = {}
    for rule in spec.axis_rules:
        asked.update(((axis, rule.span), rule.span) for axis in rule.mesh_axes if axis not in known)
    for override in spec.overrides:
        axes = [axis for dim in override.partition or () for axis in dim]
        asked.update(((axis, override.span), override.span) for axis in axes if axis not in known)
    for (axis, _), span in asked.items():
        labels = [] if span is None else [Label(part(span, axis), "no target has this axis")]
        for target in spec.targets[:1]:
            if target.span is not None and labels:
                text = f"its mesh axes: {', '.join(target.mesh.names)}"
                labels.append(Label(target.span, text, primary=False))
        yield Diagnostic(
            CODE,
            f"unknown mesh axis `{axis}`",
            tuple(labels),
            help=did_you_mean(axis, known) or f"the targets have {listed(sorted(known))}",
        )


def part(span: Span, word: str) -> Span:
    """Return the place of `word` inside `span`, or all of it."""
    at = span.text.find(word)
    return span if at < 0 else Span(span.source, span.start + at, span.start + at + len(word))
