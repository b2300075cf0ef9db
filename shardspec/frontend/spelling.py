"""Which of the two spellings a text is in: YAML, or the DSL."""

from __future__ import annotations

from shardspec.diagnostics import SourceFile


def is_dsl(source: SourceFile) -> bool:
    """Say whether a file is in the DSL: by its name, or where that says nothing, its text."""
    is_yaml = source.name.endswith((".yaml", ".yml", ".json"))
    return source.name.endswith(".shard") or (not is_yaml and looks_like_dsl(source.text))


def looks_like_dsl(text: str) -> bool:
    """Say whether `text` is the DSL: its first line of substance is no `key:`."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            first = stripped.split("#", 1)[0]
            return ":" not in first and not first.startswith(("-", "{", "%", "["))
    return False
