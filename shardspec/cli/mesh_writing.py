"""A layout that a search found, written into its spec once the new text says just that."""

from __future__ import annotations

from typing import NoReturn

from shardspec import pipeline
from shardspec.cli import edits
from shardspec.cli.request import Request
from shardspec.cli.streams import echo, fail, show
from shardspec.diagnostics import Diagnostic
from shardspec.fixing import Changed
from shardspec.ir.spec import Spec, Target
from shardspec.search.candidates import Candidate
from shardspec.search.rewriting import differs, rewritten
from shardspec.search.variants import Refusal


def changed(spec: Spec, today: Target, best: Candidate, request: Request) -> Changed | Refusal:
    """Return a spec with a layout, both texts alike where it has it, or why it cannot have it."""
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
        return Refusal(f"{off} is stated where --write does not reach", by_hand)
    return Changed(source.name, source.text, text)


def written(change: Changed, what: str, request: Request, *, is_shown: bool) -> None:
    """Write a change, or show it as a diff: on stderr where stdout has JSON."""
    if change.new == change.old:
        request.remark(f"{change.name} has this mesh already")
        return
    if is_shown:
        echo("", err=request.form == "json")
        show(edits.diff_text([change]).splitlines(), err=request.form == "json")
        return
    edits.write([change])
    request.remark(f"{change.name}: wrote {what}")


def refuse(refusal: Refusal) -> NoReturn:
    """Say why something cannot be done, and end."""
    fail(refusal.message, refusal.help)
