"""The bundled presets: what each is for, its rules, and which of them T5X's standard rules are."""

from __future__ import annotations

from functools import cache

from shardspec import assets
from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import AxisRule

#: (activation, parameter) partitioning dims of T5X's `standard_logical_axis_rules` -> its preset.
T5X_PRESETS = {
    (1, 1): "t5x/1d",
    (2, 1): "t5x/activations-2d",
    (1, 2): "t5x/parameters-2d",
    (2, 2): "t5x/2d",
}


@cache
def preset_rules(name: str) -> tuple[AxisRule, ...]:
    """Return the rules of a preset, first to last."""
    from shardspec.language.loader import load_text

    spec, _ = load_text(f"extends: {name}\n")
    assert spec is not None, "presets load"
    return spec.axis_rules


def preset_doc(name: str) -> str:
    """Return the one line that a preset says about itself; "" where it says none."""
    from shardspec.language.yaml_text.reader import read_yaml

    path = assets.spec_path("presets", name)
    if path is None:
        return ""
    source = SourceFile(f"preset:{name}", path.read_text(encoding="utf-8"))
    reading, _ = read_yaml(source, with_comments=False)
    data = reading.data if reading else None
    doc = data.get("doc") if isinstance(data, dict) else None
    return doc if isinstance(doc, str) else ""
