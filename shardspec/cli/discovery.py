"""Which spec is meant, when none is named."""

from __future__ import annotations

import os
from pathlib import Path

import click

_NAMES = ("shardspec.yaml", "shardspec.yml", "spec.yaml", "spec.yml")


def find_spec(named: str | None) -> str:
    """Return the path of the spec, as short as it can be written from here.

    `--spec`, else `$SHARDSPEC`, else `[tool.shardspec] spec` of the nearest pyproject.toml, else
    the one `shardspec.yaml`, `spec.yaml` or `*.shard` in this folder or the nearest parent.

    Raises:
      click.UsageError: there is none, or more than one.
    """
    if named:
        return named
    if os.environ.get("SHARDSPEC"):
        return os.environ["SHARDSPEC"]
    here = Path.cwd()
    folders = (here, *here.parents)
    configured = next((path for folder in folders if (path := _configured(folder))), None)
    if configured is not None:
        return os.path.relpath(configured)
    for folder in folders:
        found = _candidates(folder)
        if len(found) == 1:
            return os.path.relpath(found[0])
        if found:
            listed = ", ".join(os.path.relpath(path) for path in found)
            raise click.UsageError(f"several specs here: {listed}; say which with --spec")
    raise click.UsageError(
        "no spec found: name one with --spec FILE or $SHARDSPEC, or call it shardspec.yaml"
    )


def _configured(folder: Path) -> Path | None:
    """Return what `[tool.shardspec] spec` in this folder's pyproject.toml names."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        return None
    import tomllib

    try:
        tool = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"cannot read {os.path.relpath(file)}: {error}") from None
    table = tool.get("shardspec") if isinstance(tool, dict) else None
    spec = table.get("spec") if isinstance(table, dict) else None
    if spec is None or isinstance(spec, str):
        return None if spec is None else folder / spec
    raise click.UsageError(f"`[tool.shardspec] spec` in {os.path.relpath(file)} is no path")


def _candidates(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in entries if path.name in _NAMES or path.suffix == ".shard"]
