"""New texts of files: shown as a diff, or written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shardspec import pipeline
from shardspec.cli import streams
from shardspec.cli.request import Request
from shardspec.cli.streams import echo, fail, show
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.fixing import Changed
from shardspec.ir.spec import Spec, Target
from shardspec.language.files import read_source

if TYPE_CHECKING:
    from shardspec.search.variants import Candidate, Refusal

#: What some editors write ahead of a text.
_BOM = "\ufeff"


def write(changed: Iterable[Changed]) -> None:
    """Write the new texts, each file whole or not at all; a byte order mark stays."""
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


# A layout that a search found, written into its spec once the new text says just that.


def changed(spec: Spec, today: Target, best: Candidate, request: Request) -> Changed | Refusal:
    """Return a spec with a layout, both texts alike where it has it, or why it cannot have it."""
    from shardspec.search.rewriting import differs, harm, rewritten
    from shardspec.search.variants import Refusal

    source = spec.source
    if source.name == "-":
        return Refusal("stdin cannot be written", "name the file of the spec")
    text = rewritten(spec, today, best)
    if isinstance(text, Refusal):
        return text
    by_hand = f"write `{best}` by hand"
    again = request.reload(source.name, text)
    if again is None:
        return Refusal(f"{source.name} would no longer be read", by_hand)
    target = pipeline.find_target(again, today.name)
    off = "the target" if isinstance(target, Diagnostic) else differs(again, target, best)
    if off is not None:
        return Refusal(f"--write does not reach the place that states {off}", by_hand)
    before, after = (pipeline.check(each, (), request.params(each)).shown for each in (spec, again))
    worse = harm(before, after, today)
    if worse is not None:
        return Refusal(worse, by_hand)
    return Changed(source.name, source.text, text)


def written(change: Changed, what: str, request: Request, *, is_shown: bool) -> None:
    """Write a change, or show it as a diff: on stderr where stdout has JSON."""
    if change.new == change.old:
        request.remark(f"{change.name} has this mesh already")
        return
    if is_shown:
        echo("", err=request.form == "json")
        show(diff_text([change]).splitlines(), err=request.form == "json")
        return
    write([change])
    request.wrote(change.name, f"{change.name}: wrote {what}")


def refuse(refusal: Refusal) -> NoReturn:
    """Say why something cannot be done, and end."""
    fail(refusal.message, refusal.help)
