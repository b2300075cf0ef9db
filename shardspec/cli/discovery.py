"""Which specs are meant: when none is named, when a folder is; and which pyproject.toml counts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from shardspec.diagnostics import Diagnostic

#: Of a YAML file, what is looked at to tell whether it is a spec.
_LOOKED_AT_BYTES = 2**20
_YAML = (".yaml", ".yml")
_TOP_KEY = re.compile(r"^[\"']?([A-Za-z_][\w.-]*)[\"']?[ \t]*:(?=\s|$)", re.MULTILINE)
#: A spec without a version says one of these, and nothing that is no key of a spec.
_TELLING = frozenset({"rules", "extends", "mesh", "targets"})
_NO_SOURCES = frozenset({"node_modules", "__pycache__"})

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
        return _as_path(os.path.relpath(configured))
    for folder in folders:
        found = [_as_path(os.path.relpath(path)) for path in _candidates(folder)]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(found)
            raise click.UsageError(f"several specs here: {listed}; say which with --spec")
    raise click.UsageError(
        "no spec found: name one with --spec FILE or $SHARDSPEC, or call it shardspec.yaml"
    )


def _as_path(found: str) -> str:
    """Return the name of a file that was found, which is a path whatever it looks like.

    >>> _as_path("spec.yaml"), _as_path("git:main:spec.yaml"), _as_path("-")
    ('spec.yaml', './git:main:spec.yaml', './-')
    """
    looks_otherwise = found == "-" or found.startswith("git:")
    return os.path.join(os.curdir, found) if looks_otherwise else found


def _configured(folder: Path) -> Path | None:
    """Return what `[tool.shardspec] spec` in this folder's pyproject.toml names."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        return None
    import tomllib

    from shardspec.frontend.files import read_source

    shown = os.path.relpath(file)
    source = read_source(file, name=shown)
    if isinstance(source, Diagnostic):
        raise click.UsageError(f"cannot read {shown}: {source.message}")
    try:
        tool = tomllib.loads(source.text).get("tool", {})
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise click.UsageError(f"cannot read {shown}: {why}") from None
    table = tool.get("shardspec") if isinstance(tool, dict) else None
    spec = table.get("spec") if isinstance(table, dict) else None
    if spec is None:
        return None
    if not isinstance(spec, str) or "\0" in spec:
        raise click.UsageError(f"`[tool.shardspec] spec` in {shown} is no path")
    below = os.path.relpath(os.path.realpath(folder / spec), os.path.realpath(folder))
    if below.split(os.sep)[0] == os.pardir:
        where = f"`[tool.shardspec] spec` in {shown}"
        raise click.UsageError(f"{where} leads out of its folder; name the spec with --spec")
    return folder / spec


def _candidates(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in entries if path.name in _NAMES or path.suffix == ".shard"]


class Found(NamedTuple):
    """The specs that some paths lead to.

    Attributes:
      files: each once, folders walked in order of name.
      others: how many YAML files in the folders are no specs.
    """

    files: tuple[str, ...]
    others: int = 0


def expand(paths: Iterable[str]) -> Found:
    """Return the specs at `paths`: files as they are, and of folders all specs in them.

    Raises:
      click.UsageError: a folder has none.
    """
    files: dict[str, str] = {}
    others = 0
    for path in paths:
        if path == "-" or not os.path.isdir(path):
            files.setdefault(os.path.realpath(path), path)
            continue
        inside = tuple(_files_below(path))
        specs = [each for each in inside if _is_spec(each)]
        if not specs:
            raise click.UsageError(
                f"no specs in `{path}`: `*.shard`, or `*.yaml` with keys of a spec"
            )
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
    from shardspec.frontend.files import open_regular

    try:
        with open(path, "rb", opener=open_regular) as stream:
            text = stream.read(_LOOKED_AT_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return False
    keys = set(_TOP_KEY.findall(text))
    if "shardspec" in keys:
        return True
    if not keys & _TELLING or len(keys) < 2:
        return False
    from shardspec.frontend.validate import fields_at

    return keys <= set(fields_at(()))
