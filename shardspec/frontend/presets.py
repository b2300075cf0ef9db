"""What the bundled presets are for."""

from __future__ import annotations

from shardspec import assets
from shardspec.diagnostics import SourceFile


def preset_doc(name: str) -> str:
    """Return the one line that a preset says about itself; "" where it says none."""
    from shardspec.frontend.yaml_text.reader import read_yaml

    path = assets.spec_path("presets", name)
    if path is None:
        return ""
    source = SourceFile(f"preset:{name}", path.read_text(encoding="utf-8"))
    reading, _ = read_yaml(source, with_comments=False)
    data = reading.data if reading else None
    doc = data.get("doc") if isinstance(data, dict) else None
    return doc if isinstance(doc, str) else ""
