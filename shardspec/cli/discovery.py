"""Which specs are meant: when none is named, when a folder is; and which pyproject.toml counts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardspec.cli.streams import fail
from shardspec.diagnostics import Diagnostic
from shardspec.language.files import SPEC_NAMES

#: Of a YAML file, what is looked at to tell whether it is a spec.
_LOOKED_AT_BYTES = 2**20
_YAML = (".yaml", ".yml")
_NO_SOURCES = frozenset({"node_modules", "__pycache__"})

_MOST_LISTED = 8
_NAME_IT = "name the spec with --spec FILE"


def find_spec(named: str | None) -> str:
    """Return the path of the spec, as short as it can be written from here.

    What is named, else `$SHARDSPEC`, else `[tool.shardspec] spec` of the nearest pyproject.toml,
    else the one `shardspec.yaml`, `spec.yaml` or `*.shard` in this folder or the nearest parent.
    A folder that is named stands for the one spec in it. None, or more than one, is a failure.
    """
    named = named or os.environ.get("SHARDSPEC")
    if named:
        return _the_one_in(named) if os.path.isdir(named) else named
    here = Path.cwd()
    folders = (here, *here.parents)
    configured = project_path("spec")
    if configured is not None:
        return _as_path(configured)
    for folder in folders:
        found = [_as_path(os.path.relpath(path)) for path in _candidates(folder)]
        if len(found) == 1:
            return found[0]
        if found:
            fail(f"several specs here: {', '.join(found)}", "say which with --spec FILE")
    if others := [path.name for path in _files(here) if _is_called_otherwise(path)]:
        import shlex

        help = f"say which with --spec, as in `--spec {shlex.quote(others[0])}`"
        fail(f"no spec is called shardspec.yaml; here is {_shown(others)}", help)
    return fail(
        "no spec found", "name one with --spec FILE or $SHARDSPEC, or call it shardspec.yaml"
    )


def _the_one_in(folder: str) -> str:
    files = expand((folder,)).files
    if len(files) > 1:
        fail(f"several specs in `{folder}`: {_shown(files)}", "name one of them")
    return files[0]


def _shown(files: Sequence[str]) -> str:
    return ", ".join(files[:_MOST_LISTED]) + (", ..." if len(files) > _MOST_LISTED else "")


def _as_path(found: str) -> str:
    """Return the name of a file that was found, which is a path whatever it looks like.

    >>> _as_path("spec.yaml"), _as_path("git:main:spec.yaml"), _as_path("-")
    ('spec.yaml', './git:main:spec.yaml', './-')
    """
    looks_otherwise = found == "-" or found.startswith("git:")
    return os.path.join(os.curdir, found) if looks_otherwise else found


class Setting(NamedTuple):
    """What `[tool.shardspec]` of a pyproject.toml says under one key.

    Attributes:
      folder: of the pyproject.toml.
      shown: how that file is named from here.
    """

    value: str
    folder: Path
    shown: str


def project_setting(key: str, as_in: str, *, is_needed: bool = True) -> Setting | None:
    """Return what the nearest pyproject.toml that has the key says; None where none has it.

    Args:
      as_in: what it could be, for where it is no text.
      is_needed: whether a pyproject.toml that cannot be read ends the verb; elsewhere, that it
        cannot is a finding.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        value = _table(file, is_needed).get(key) if file.is_file() else None
        if value is None:
            continue
        shown = os.path.relpath(file)
        if not isinstance(value, str) or "\0" in value:
            what = "path" if "." in as_in else "name"
            fail(f"`[tool.shardspec] {key}` in {shown} is no {what}", f'as in `{key} = "{as_in}"`')
        return Setting(value, folder, shown)
    return None


def project_path(key: str, *, is_needed: bool = True) -> str | None:
    """Return the file that the project names under a key, from here; it lies in its folder."""
    as_in = "spec.yaml" if key == "spec" else f"{key}.json"
    found = project_setting(key, as_in, is_needed=is_needed)
    if found is None:
        return None
    path = found.folder / found.value
    below = os.path.relpath(os.path.realpath(path), os.path.realpath(found.folder))
    if below.split(os.sep)[0] == os.pardir:
        option = f"name the {key} with --{key} FILE"
        fail(f"`[tool.shardspec] {key}` in {found.shown} leads out of its folder", option)
    return os.path.relpath(path)


def _table(file: Path, is_needed: bool) -> dict[str, Any]:
    """Return `[tool.shardspec]` of a pyproject.toml."""
    from shardspec.language.files import read_source

    shown = os.path.relpath(file)
    source = read_source(file, name=shown)
    if isinstance(source, Diagnostic):
        if is_needed:
            fail(f"cannot read {shown}: {source.message}", _NAME_IT)
        return {}
    if not is_needed and "shardspec" not in source.text:
        return {}
    import tomllib

    try:
        tool = tomllib.loads(source.text).get("tool", {})
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        if is_needed:
            fail(f"cannot read {shown}: {why}", f"mend it, or {_NAME_IT}")
        return {}
    table = tool.get("shardspec") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _candidates(folder: Path) -> list[Path]:
    return [path for path in _files(folder) if path.name in SPEC_NAMES or path.suffix == ".shard"]


def _is_called_otherwise(path: Path) -> bool:
    return path.suffix in _YAML and _is_spec(str(path))


class Found(NamedTuple):
    """The specs that some paths lead to.

    Attributes:
      files: each once, folders walked in order of name.
      others: how many YAML files in the folders are no specs.
    """

    files: tuple[str, ...]
    others: int = 0


def expand(paths: Iterable[str]) -> Found:
    """Return the specs at `paths`: files as they are, and of folders all specs in them."""
    files: dict[str, str] = {}
    others = 0
    for path in paths:
        if path == "-" or not os.path.isdir(path):
            files.setdefault(os.path.realpath(path), path)
            continue
        inside = tuple(_files_below(path))
        specs = [each for each in inside if _is_spec(each)]
        if not specs:
            help = "a spec is `*.shard`, or `*.yaml` with keys of one, such as `shardspec: 1`"
            fail(f"no specs in `{path}`", help)
        others += len(inside) - len(specs)
        for each in specs:
            files.setdefault(os.path.realpath(each), each)
    return Found(tuple(files.values()), others)


def _files_below(folder: str) -> Iterator[str]:
    """Yield the DSL and YAML files of a folder tree, without hidden folders and environments."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if _may_hold_specs(os.path.join(where, each)))
        for name in sorted(names):
            if name.endswith((".shard", *_YAML)) and not name.startswith("."):
                yield _as_path(os.path.normpath(os.path.join(where, name)))


def _may_hold_specs(folder: str) -> bool:
    name = os.path.basename(folder)
    if name.startswith(".") or name in _NO_SOURCES:
        return False
    return not os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def _is_spec(path: str) -> bool:
    """Say whether a file of a folder is a spec: by its name, or by its keys at the margin."""
    if path.endswith(".shard"):
        return True
    from shardspec.language.files import open_regular

    try:
        with open(path, "rb", opener=open_regular) as stream:
            text = stream.read(_LOOKED_AT_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return False
    from shardspec.language.validate import looks_like_spec

    return looks_like_spec(text)
