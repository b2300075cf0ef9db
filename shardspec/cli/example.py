"""`shardspec example`: one of the examples that come along, as a file of one's own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from shardspec import assets
from shardspec.cli import completion, options, streams
from shardspec.cli.request import Request
from shardspec.cli.streams import fail
from shardspec.diagnostics.words import did_you_mean
from shardspec.language.files import read_source


@options.verb(
    "example",
    click.Argument(["name"], shell_complete=completion.examples),
    click.Argument(["folder"], default=".", shell_complete=completion.folders),
    options.choice_option("--to", "spelling", of=("yaml", "dsl"), help="The spelling of the copy."),
    *options.WRITES,
    example="shardspec example tiny-t5",
    page="presets.md",
)
def command(request: Request, *, name: str, folder: str, spelling: str) -> None:
    """Copy an example and what it refers to into FOLDER; `shardspec explain --list examples`.

    The copy is a spec as any other: `shardspec check` takes it as it is.
    """
    suffix = ".yaml" if spelling == "yaml" else ".shard"
    files = _copies(name, suffix)
    if not os.path.isdir(folder):
        fail(f"there is no folder `{folder}`", f"make it: `mkdir -p {folder}`")
    new = {os.path.normpath(os.path.join(folder, file)): text for file, text in files.items()}
    for path, text in new.items():
        if not request.is_forced and os.path.lexists(path) and not _holds(path, text):
            fail(f"`{path}` already exists and differs", "--force overwrites it")
    for path, text in new.items():
        if not streams.is_dry_run():
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        streams.write_file(path, text, is_forced=True)
        request.wrote(path, f"wrote {path}")


def _copies(name: str, suffix: str) -> dict[str, str]:
    """Return the files of an example by where they go, its arrays and its steps with it."""
    name = name.removesuffix(".yaml").removesuffix(".shard")
    path = assets.spec_path("examples", name, suffix)
    if path is None:
        near = did_you_mean(name, assets.spec_names("examples"))
        fail(f"no example is called `{name}`", near or "`shardspec explain --list examples`")
    text = path.read_text(encoding="utf-8")
    files = {name + suffix: text.replace("../arrays/", "./arrays/")}
    for arrays in re.findall(r"\.\./(arrays/[\w.-]+)", text):
        files[arrays] = (path.parent.parent / arrays).read_text(encoding="utf-8")
    for step in sorted((path.parent / "steps").glob("*.py")):
        code = step.read_text(encoding="utf-8")
        if f" {name}.yaml --step " in code:
            files[f"steps/{step.name}"] = code
    return files


def _holds(path: str, text: str) -> bool:
    """Say whether a file holds this text and no other: several examples share their arrays."""
    return getattr(read_source(Path(path), name=path), "text", None) == text
