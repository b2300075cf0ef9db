"""What each question of an editor about a text is answered with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from shardspec.language.formatting import formatted
from shardspec.lsp import completion, findings, hover, navigation, types
from shardspec.lsp.hover import hover as hovered
from shardspec.lsp.navigation import Family
from shardspec.lsp.server import SpecServer
from shardspec.lsp.snapshot import Snapshot

Answer: TypeAlias = Callable[[SpecServer, Snapshot, Any], object]


def _of_text(answer: Callable[[Snapshot], object]) -> Answer:
    return lambda server, snapshot, params: answer(snapshot)


def _at_place(answer: Callable[[Snapshot, int], object]) -> Answer:
    return lambda server, snapshot, params: answer(snapshot, snapshot.lines.offset(params.position))


def _actions(family: Family, params: Any) -> object:
    snapshot, only = family.own, params.context.only
    found = []
    if _is_asked(types.CodeActionKind.QuickFix, only):
        offsets = snapshot.lines.offsets(params.range)
        found += findings.actions(snapshot, *offsets, family.tops)
    if only and _is_asked(types.CodeActionKind.SourceFixAll, only):
        found += filter(None, [findings.fix_all(snapshot)])
    return found


def _is_asked(kind: types.CodeActionKind, only: Sequence[str] | None) -> bool:
    """Say whether a kind of actions is among those that an editor wants, or below one of them."""
    return only is None or any(f"{kind}.".startswith(f"{wanted}.") for wanted in only)


def _formatted(snapshot: Snapshot) -> list[types.TextEdit] | None:
    text, _ = formatted(snapshot.source)
    if text is None or not findings.parses_as_well(snapshot.source, text):
        return None
    return snapshot.lines.edits_to(text)


def _hover(family: Family, params: Any) -> types.Hover | None:
    offset = family.own.lines.offset(params.position)
    text = hovered(family.own, offset, family.tops)
    if text and family.total > len(family.tops):
        text += f"\n\n---\n\nlooked at: {family.counted}"
    return types.Hover({"kind": "markdown", "value": text}) if text else None


def _completed(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    known = server.last_spec(params.text_document.uri)
    return completion.completions(snapshot, known, snapshot.lines.offset(params.position))


def _hints(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    kinds = hover.wanted(server.settings)
    return hover.hints(snapshot, *snapshot.lines.offsets(params.range), kinds)


OF_TEXTS: Mapping[str, Answer] = {
    "textDocument/formatting": _of_text(_formatted),
    "textDocument/documentSymbol": _of_text(navigation.symbols),
    "textDocument/foldingRange": _of_text(navigation.folds),
    "textDocument/completion": _completed,
    "textDocument/definition": _at_place(navigation.definitions),
    "textDocument/documentHighlight": _at_place(navigation.own_references),
    "textDocument/prepareRename": _at_place(navigation.renamed_range),
    "textDocument/inlayHint": _hints,
    "textDocument/semanticTokens/full": _of_text(navigation.tokens),
}
OF_FAMILIES: Mapping[str, Callable[[Family, Any], object]] = {
    "textDocument/codeAction": _actions,
    "textDocument/hover": _hover,
    "textDocument/codeLens": lambda family, params: hover.lenses(family),
}
