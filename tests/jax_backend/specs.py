"""Small specs for the tests of this folder, built without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardspec.diagnostics import Severity, SourceFile
from shardspec.diagnostics.codes import LintLevel
from shardspec.ir.spec import (
    Activation,
    AxisRule,
    LogicalAxis,
    MemoryKind,
    MemoryRule,
    Mesh,
    MeshAxis,
    Override,
    PathRule,
    Pattern,
    Policy,
    Spec,
    Target,
)

MESH = {"data": 2, "model": 4}

#: Rules under which the small transformer of `models` is split over both mesh axes.
RULES = (
    ("batch", "data"),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("embed", "data"),
    ("kv", ()),
    ("length", ()),
)

#: Names for its arrays, for trees that carry none.
PARAMS = {
    "embedding": "vocab embed",
    "layers_*/attention/{query,key,value}/kernel": "embed heads kv",
    "layers_*/attention/out/kernel": "heads kv embed",
    "layers_*/mlp/wi/kernel": "embed mlp",
    "layers_*/mlp/wo/kernel": "mlp embed",
    "layers_*/{norm_1,norm_2}/scale": "embed",
    "norm/scale": "embed",
}


def axis_rules(rules: Sequence[tuple[str, Any]]) -> tuple[AxisRule, ...]:
    return tuple(
        AxisRule(axis, (target,) if isinstance(target, str) else tuple(target or ()))
        for axis, target in rules
    )


def names(text: str) -> tuple[str | None, ...]:
    return tuple(None if name == "_" else name for name in text.split())


def make_spec(
    rules: Sequence[tuple[str, Any]] = RULES,
    mesh: Mapping[str, int] = MESH,
    *,
    params: Mapping[str, str] | None = None,
    overrides: Sequence[Override] = (),
    axes: Sequence[LogicalAxis] = (),
    activations: Mapping[str, str] | None = None,
    indivisible: Any = "next",
    lints: Mapping[str, Severity] | None = None,
    memory: Mapping[str, MemoryKind] | None = None,
) -> Spec:
    target = Target("here", Mesh(tuple(MeshAxis(name, size) for name, size in mesh.items())))
    return Spec(
        SourceFile("spec.yaml", ""),
        logical_axes=tuple(axes),
        axis_rules=axis_rules(rules),
        path_rules=tuple(PathRule(Pattern(p), names(n)) for p, n in (params or {}).items()),
        overrides=tuple(overrides),
        activations=tuple(Activation(n, names(a)) for n, a in (activations or {}).items()),
        policy=Policy(indivisible),
        targets=(target,),
        memory=tuple(MemoryRule(Pattern(p), kind) for p, kind in (memory or {}).items()),
        lint_levels=tuple(LintLevel(name, level) for name, level in (lints or {}).items()),
    )
