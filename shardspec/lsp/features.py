"""The protocol messages that the server handles. Their handlers load after the first answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException

from shardspec.lsp.kinds import LEGEND, RefusedError
from shardspec.lsp.server import SpecServer, watch_files

if TYPE_CHECKING:
    from shardspec.lsp.family import Family

_REQUEST_FAILED = -32803


def made() -> SpecServer:
    """Return a server with all features registered."""
    server = SpecServer()
    _follow_texts(server)
    for feature, *options in _OF_TEXTS:
        _answer(server, feature, *options)
    for feature, *options in _OF_FAMILIES:
        _answer_with_family(server, feature, *options)
    _find_names(server)
    _rename_names(server)
    _decorate(server)
    return server


def _answers() -> object:
    """Load the handlers of requests."""
    from shardspec.lsp import answers

    return answers


def _follow_texts(server: SpecServer) -> None:
    @server.feature(types.INITIALIZED)
    async def initialized(params: types.InitializedParams) -> None:
        watch_files(server)
        await server.warm_up(_answers)

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


def _answer(server: SpecServer, feature: str, *options: Any) -> None:
    @server.feature(feature, *options)
    async def asked(params: Any) -> object:
        from shardspec.lsp.answers import OF_TEXTS

        answer = OF_TEXTS[feature]
        uri = params.text_document.uri
        typed = server.typed(uri) if feature == types.TEXT_DOCUMENT_COMPLETION else None
        if typed is not None:
            return await server.answered(uri, typed, lambda: answer(server, typed, params))
        if feature in _AT_EVERY_KEY:
            await server.rested(uri)
        with _refusing():
            return await server.ask(uri, lambda snapshot: answer(server, snapshot, params))


#: What editors ask by themselves after an edit.
_AT_EVERY_KEY = frozenset(
    {
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.TEXT_DOCUMENT_CODE_LENS,
        types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT,
        types.TEXT_DOCUMENT_DOCUMENT_SYMBOL,
        types.TEXT_DOCUMENT_FOLDING_RANGE,
        types.TEXT_DOCUMENT_INLAY_HINT,
        types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL,
    }
)


_TRIGGERS = [" ", "/", "[", "(", ",", ">", "|", ":", '"']


_KINDS = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
_ACTIONS = types.CodeActionOptions(code_action_kinds=_KINDS)
_COMPLETIONS = types.CompletionOptions(trigger_characters=_TRIGGERS, resolve_provider=True)
#: What is answered, with what an editor is told of it; `answers` has the answers.
_OF_TEXTS: tuple[tuple[Any, ...], ...] = (
    (types.TEXT_DOCUMENT_FORMATTING,),
    (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL,),
    (types.TEXT_DOCUMENT_FOLDING_RANGE,),
    (types.TEXT_DOCUMENT_COMPLETION, _COMPLETIONS),
    (types.TEXT_DOCUMENT_DEFINITION,),
    (types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT,),
    (types.TEXT_DOCUMENT_PREPARE_RENAME,),
    (types.TEXT_DOCUMENT_INLAY_HINT,),
    (types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, LEGEND),
)
_OF_FAMILIES: tuple[tuple[Any, ...], ...] = (
    (types.TEXT_DOCUMENT_CODE_ACTION, _ACTIONS),
    (types.TEXT_DOCUMENT_HOVER,),
    (types.TEXT_DOCUMENT_CODE_LENS,),
)


def _answer_with_family(server: SpecServer, feature: str, *options: Any) -> None:
    """Answer through all specs that a text is part of."""

    @server.feature(feature, *options)
    async def asked(params: Any) -> object:
        uri = params.text_document.uri
        if feature in _AT_EVERY_KEY:
            await server.rested(uri)
        if await server.current(uri) is None:
            return None
        from shardspec.lsp.answers import OF_FAMILIES

        family = await server.family(uri)
        return await server.answered(uri, family.own, lambda: OF_FAMILIES[feature](family, params))


async def _family_of(server: SpecServer, params: Any) -> Family:
    """Return all specs and all code that share the name at a position."""
    return await server.family(
        params.text_document.uri, lambda own: own.lines.offset(params.position)
    )


def _find_names(server: SpecServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    async def referred(params: types.ReferenceParams) -> list[types.Location] | None:
        uri = params.text_document.uri
        if await server.current(uri) is None:
            return None
        family = await _family_of(server, params)
        with_stated = params.context.include_declaration

        def answer() -> list[types.Location]:
            from shardspec.lsp.family import references

            offset = family.own.lines.offset(params.position)
            return references(family, offset, with_stated=with_stated)

        return await server.answered(uri, family.own, answer)


def _rename_names(server: SpecServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    async def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        uri = params.text_document.uri
        if await server.current(uri) is None:
            return None
        family = await _family_of(server, params)

        from shardspec.lsp import renaming

        offset = family.own.lines.offset(params.position)
        with _refusing():
            edit = await server.answered(
                uri, family.own, lambda: renaming.renamed(family, offset, params.new_name)
            )
        unseen = renaming.unseen(family, offset)
        if unseen is not None:
            warning = types.MessageType.Warning
            server.window_show_message(types.ShowMessageParams(warning, unseen))
        return edit


@contextmanager
def _refusing() -> Iterator[None]:
    """Tell a refusal to the person who asked."""
    try:
        yield
    except RefusedError as refused:
        raise JsonRpcException(str(refused), _REQUEST_FAILED) from None


def _decorate(server: SpecServer) -> None:
    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.settings = _settings(params.initialization_options)
        named = [each.uri for each in params.workspace_folders or ()] or [params.root_uri or ""]
        folders = [uris.to_fs_path(uri) for uri in named if uri.startswith("file:")]
        too_wide = {os.path.expanduser("~"), os.path.abspath(os.sep)}
        server.folders = tuple(each for each in folders if each and each not in too_wide)

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configured(params: types.DidChangeConfigurationParams) -> None:
        server.settings = _settings(params.settings)
        workspace = server.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            server.workspace_inlay_hint_refresh(None)

    @server.feature(types.COMPLETION_ITEM_RESOLVE)
    def resolved(item: types.CompletionItem) -> types.CompletionItem:
        from shardspec.lsp.completion import resolve

        return resolve(item)


def _settings(given: Any) -> dict[str, Any]:
    """Return what an editor's user has set, with `shardspec` around it or not."""
    stated = given if isinstance(given, dict) else {}
    inner = stated.get("shardspec", stated)
    return inner if isinstance(inner, dict) else {}
