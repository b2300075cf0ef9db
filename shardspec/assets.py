"""Where the files are that come with the package: grammars, schemas, presets, hardware, examples.

A wheel carries them inside the package, a checkout beside it. The same question gets the same
answer in both.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

SpecKind = Literal["presets", "hardware", "arrays", "examples", "steps"]

#: Where the pages of the documentation are, which `--help` and `explain` name.
DOCS = "docs/"

_PACKAGE = Path(__file__).parent


@cache
def data_folder() -> Path:
    """Return the folder that holds `grammars/` and `specs/`."""
    packed = _PACKAGE / "_data"
    return packed if packed.is_dir() else _PACKAGE.parent


def grammar_path(name: str) -> Path:
    """Return the file of the grammar called `name`: `axis_rule`."""
    return data_folder() / "grammars" / f"{name}.lark"


def table_path(name: str) -> Path:
    """Return the file of the parser's table for the grammar called `name`."""
    return data_folder() / "grammars" / "tables" / f"{name}.json"


@cache
def data_of(file: str) -> Any:
    """Return what is in one of our own YAML files: `grammars/faults.yaml`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((data_folder() / file).read_text("utf-8"), Loader=loader)


def schema_path(name: str) -> Path:
    """Return the file of the JSON Schema called `name`: `cost`."""
    return data_folder() / "specs" / "schemas" / f"{name}.json"


def spec_path(kind: SpecKind, name: str, suffix: str = ".yaml") -> Path | None:
    """Return the file of the bundled spec called `name`, or None where there is none.

    Invariants:
      inside: the file lies in the folder of its kind, whatever the name holds.

    >>> spec_path("presets", "../hardware/h100") is None
    True
    """
    parts = name.split("/")
    if any(not part or part.startswith(".") or not part.isprintable() for part in parts):
        return None
    if any(char in name for char in '\\:*?"<>|'):
        return None
    folder = data_folder() / "specs" / kind
    path = folder.joinpath(*parts[:-1], parts[-1] + suffix)
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


@cache
def spec_names(kind: SpecKind, suffix: str = ".yaml") -> tuple[str, ...]:
    """Return the names of the bundled specs of a kind, sorted: `t5x/2d`."""
    folder = data_folder() / "specs" / kind
    files = (path.relative_to(folder).as_posix() for path in folder.rglob(f"*{suffix}"))
    return tuple(sorted(name.removesuffix(suffix) for name in files))


def bundled_hint(word: str) -> str | None:
    """Return where to go with a name that was taken for a file, and is of something shipped.

    >>> bundled_hint("t5x/2d"), bundled_hint("spec.yaml")
    ('`t5x/2d` is a preset: `extends: [t5x/2d]`; `shardspec explain preset:t5x/2d` shows it', None)
    """
    name = word.removeprefix("preset:").removesuffix(".yaml").removesuffix(".shard")
    if name in spec_names("examples"):
        return f"`{name}` is an example: `shardspec example {name}` copies it into this folder"
    if name in spec_names("presets"):
        use = f"`extends: [{name}]`; `shardspec explain preset:{name}` shows it"
        return f"`{name}` is a preset: {use}"
    return None
