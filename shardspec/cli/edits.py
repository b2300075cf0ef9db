"""New texts of files: shown as a diff, or written."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardspec.cli import streams
from shardspec.diagnostics import SourceFile
from shardspec.fixing import Changed

#: What some editors write ahead of a text.
_BOM = "\ufeff"


def write(changed: Iterable[Changed]) -> None:
    """Write the new texts, each file whole or not at all; a byte order mark stays."""
    from pathlib import Path

    from shardspec.language.files import read_source

    for file in changed:
        if file.name == "-":
            continue
        source = read_source(Path(file.name), name=file.name)
        if not isinstance(source, SourceFile) or source.text != file.old:
            streams.fail(
                f"{file.name} has changed since it was read, and is left as it is", "run it again"
            )
        with open(file.name, "rb") as stream:
            has_mark = stream.read(3) == _BOM.encode()
        text = _BOM + file.new if has_mark else file.new
        streams.write_file(file.name, text, is_forced=True)


def diff_text(changed: Iterable[Changed]) -> str:
    """Return a unified diff that `patch -p0` takes."""
    import difflib

    lines: list[str] = []
    for file in changed:
        old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (file.old, file.new))
        for line in difflib.unified_diff(old, new, file.name, file.name):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)
