"""The messages of the protocol, each with who answers it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException

from shardspec.language.formatting import formatted
from shardspec.lsp import (
    completion,
    findings,
    hints,
    lenses,
    navigation,
    outline,
    renaming,
    tokens,
)
from shardspec.lsp.family import Family, references
from shardspec.lsp.hover import hover as hovered
from shardspec.lsp.project import Project
from shardspec.lsp.server import SpecServer, watch_files
from shardspec.lsp.snapshot import Snapshot

_REQUEST_FAILED = -32803


def made() -> SpecServer:
    """Return a server that answers all that it can."""
    server = SpecServer()
    _follow_texts(server)
    for feature, answer, *options in _ANSWERS:
        _answer_with(answer, server, feature, *options)
    for feature, through, *options in _OF_FAMILIES:
        _answer_with_family(through, server, feature, *options)
    _through_names(server)
    _decorate(server)
    return server


def _follow_texts(server: SpecServer) -> None:
    @server.feature(types.INITIALIZED)
    async def initialized(params: types.InitializedParams) -> None:
        watch_files(server)
        await server.warm_up()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        text = params.text_document
        server.put(text.uri, text.version, text.text, text.language_id)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        if params.content_changes:
            text = params.text_document
            server.put(text.uri, text.version, params.content_changes[-1].text)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.drop(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        server.files_changed()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def files_changed(params: types.DidChangeWatchedFilesParams) -> None:
        server.files_changed()


Answer: TypeAlias = Callable[[SpecServer, Snapshot, Any], object]


def _answer_with(answer: Answer, server: SpecServer, feature: str, *options: Any) -> None:
    @server.feature(feature, *options)
    async def asked(params: Any) -> object:
        with _refusing():
            uri = params.text_document.uri
            return await server.ask(uri, lambda snapshot: answer(server, snapshot, params))


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
    name = f"{kind.value}."
    return only is None or any(name.startswith(f"{_word(wanted)}.") for wanted in only)


def _word(kind: types.CodeActionKind | str) -> str:
    return kind.value if isinstance(kind, types.CodeActionKind) else kind


def _formatted(snapshot: Snapshot) -> list[types.TextEdit] | None:
    text, _ = formatted(snapshot.source)
    if text is None or not findings.parses_as_well(snapshot.source, text):
        return None
    return snapshot.lines.edits_to(text)


_TRIGGERS = [" ", "/", "[", "(", ",", ">", "|", ":", '"']


def _hover(family: Family, offset: int) -> types.Hover | None:
    text = hovered(family.own, offset, family.tops)
    markup = types.MarkupContent(types.MarkupKind.Markdown, text or "")
    return types.Hover(markup) if text else None


def _completed(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    known = server.last_spec(params.text_document.uri)
    return completion.completions(snapshot, known, snapshot.lines.offset(params.position))


def _hints(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    kinds = hints.wanted(server.settings)
    return hints.hints(snapshot, *snapshot.lines.offsets(params.range), kinds)


_KINDS = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
_ACTIONS = types.CodeActionOptions(code_action_kinds=_KINDS)
_COMPLETIONS = types.CompletionOptions(trigger_characters=_TRIGGERS, resolve_provider=True)
_ANSWERS: tuple[tuple[Any, ...], ...] = (
    (types.TEXT_DOCUMENT_FORMATTING, _of_text(_formatted)),
    (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, _of_text(outline.symbols)),
    (types.TEXT_DOCUMENT_FOLDING_RANGE, _of_text(outline.folds)),
    (types.TEXT_DOCUMENT_COMPLETION, _completed, _COMPLETIONS),
    (types.TEXT_DOCUMENT_DEFINITION, _at_place(navigation.definitions)),
    (types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT, _at_place(navigation.own_references)),
    (types.TEXT_DOCUMENT_PREPARE_RENAME, _at_place(renaming.renamed_range)),
    (types.TEXT_DOCUMENT_INLAY_HINT, _hints),
    (types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, _of_text(tokens.tokens), tokens.LEGEND),
)


_OF_FAMILIES: tuple[tuple[Any, ...], ...] = (
    (types.TEXT_DOCUMENT_CODE_ACTION, _actions, _ACTIONS),
    (types.TEXT_DOCUMENT_HOVER, lambda family, params: _hover(family, _offset(family, params))),
    (types.TEXT_DOCUMENT_CODE_LENS, lambda family, params: lenses.lenses(family)),
)


def _offset(family: Family, params: Any) -> int:
    return family.own.lines.offset(params.position)


def _answer_with_family(
    answer: Callable[[Family, Any], object], server: SpecServer, feature: str, *options: Any
) -> None:
    """Answer through all specs that a text is part of."""

    @server.feature(feature, *options)
    async def asked(params: Any) -> object:
        uri = params.text_document.uri
        if await server.current(uri) is None:
            return None
        family = await server.family(uri)
        return await server.answered(uri, family.own, lambda: answer(family, params))


def _through_names(server: SpecServer) -> None:
    """Answer through all specs and all code that share a name."""

    async def family_of(params: Any) -> Family:
        return await server.family(
            params.text_document.uri, lambda own: own.lines.offset(params.position)
        )

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    async def referred(params: types.ReferenceParams) -> list[types.Location] | None:
        uri = params.text_document.uri
        if await server.current(uri) is None:
            return None
        family = await family_of(params)
        with_stated = params.context.include_declaration

        def answer() -> list[types.Location]:
            return references(family, _offset(family, params), with_stated=with_stated)

        return await server.answered(uri, family.own, answer)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    async def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        uri = params.text_document.uri
        if await server.current(uri) is None:
            return None
        family = await family_of(params)

        def answer() -> types.WorkspaceEdit:
            return renaming.renamed(family, _offset(family, params), params.new_name)

        with _refusing():
            edit = await server.answered(uri, family.own, answer)
        unseen = renaming.unseen(family)
        if unseen is not None:
            warning = types.MessageType.Warning
            server.window_show_message(types.ShowMessageParams(warning, unseen))
        return edit


@contextmanager
def _refusing() -> Iterator[None]:
    """Tell a refusal to the person who asked."""
    try:
        yield
    except renaming.RefusedError as refused:
        raise JsonRpcException(str(refused), _REQUEST_FAILED) from None


def _decorate(server: SpecServer) -> None:
    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.settings = _settings(params.initialization_options)
        named = [each.uri for each in params.workspace_folders or ()] or [params.root_uri or ""]
        folders = [uris.to_fs_path(uri) for uri in named if uri.startswith("file:")]
        too_wide = {os.path.expanduser("~"), os.path.abspath(os.sep)}
        server.project = Project(each for each in folders if each and each not in too_wide)

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configured(params: types.DidChangeConfigurationParams) -> None:
        server.settings = _settings(params.settings)
        workspace = server.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            server.workspace_inlay_hint_refresh(None)

    server.feature(types.COMPLETION_ITEM_RESOLVE)(completion.resolve)


def _settings(given: Any) -> dict[str, Any]:
    """Return what an editor's user has set, with `shardspec` around it or not."""
    stated = given if isinstance(given, dict) else {}
    inner = stated.get("shardspec", stated)
    return inner if isinstance(inner, dict) else {}
