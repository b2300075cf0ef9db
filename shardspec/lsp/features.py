"""The protocol messages that the server handles. Their handlers load after the first answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardspec import __version__
from shardspec.lsp import types
from shardspec.lsp.server import SpecServer, watch_files
from shardspec.lsp.types import LEGEND, RefusedError
from shardspec.lsp.wire import REFUSED, AnswerError, Params, path_of

if TYPE_CHECKING:
    from shardspec.lsp.navigation import Family

_UNITS = frozenset(types.PositionEncodingKind)
_WARNING = 2


def made() -> SpecServer:
    """Return a server with all features registered."""
    server = SpecServer()
    _follow_texts(server)
    for feature, by_itself in _QUESTIONS.items():
        _answer(server, feature, by_itself=by_itself)
    _find_names(server)
    _rename_names(server)
    _decorate(server)
    return server


def _answers() -> object:
    """Load the handlers of requests."""
    from shardspec.lsp import answers

    return answers


def _follow_texts(server: SpecServer) -> None:
    @server.on("initialized")
    async def initialized(params: Params) -> None:
        watch_files(server)
        await server.warm_up(_answers)

    @server.on("textDocument/didOpen")
    def opened(params: Params) -> None:
        text = params.text_document
        server.put(text.uri, text.version, text.text, text.language_id)

    @server.on("textDocument/didChange")
    def changed(params: Params) -> None:
        if params.content_changes:
            text = params.text_document
            server.put(text.uri, text.version, params.content_changes[-1].text)

    @server.on("textDocument/didClose")
    def closed(params: Params) -> None:
        server.drop(params.text_document.uri)

    @server.on("textDocument/didSave")
    def saved(params: Params) -> None:
        server.files_changed()

    @server.on("workspace/didChangeWatchedFiles")
    def files_changed(params: Params) -> None:
        server.files_changed()


def _answer(server: SpecServer, feature: str, *, by_itself: bool) -> None:
    """Answer a question about a text alone, or through all specs that it is part of."""

    @server.on(feature)
    async def asked(params: Any) -> object:
        from shardspec.lsp.answers import OF_FAMILIES, OF_TEXTS

        uri = params.text_document.uri
        typed = server.typed(uri) if feature == "textDocument/completion" else None
        if typed is not None:
            answer = OF_TEXTS[feature]
            return await server.answered(uri, typed, lambda: answer(server, typed, params))
        if by_itself:
            await server.rested(uri)
        if feature in OF_TEXTS:
            answer = OF_TEXTS[feature]
            with _refusing():
                return await server.ask(uri, lambda snapshot: answer(server, snapshot, params))
        if await server.current(uri) is None:
            return None
        family = await server.family(uri)
        return await server.answered(uri, family.own, lambda: OF_FAMILIES[feature](family, params))


#: What editors ask about a text, and whether they ask it by themselves after an edit.
_QUESTIONS = {
    "textDocument/codeAction": True,
    "textDocument/codeLens": True,
    "textDocument/completion": False,
    "textDocument/definition": False,
    "textDocument/documentHighlight": True,
    "textDocument/documentSymbol": True,
    "textDocument/foldingRange": True,
    "textDocument/formatting": False,
    "textDocument/hover": False,
    "textDocument/inlayHint": True,
    "textDocument/prepareRename": False,
    "textDocument/semanticTokens/full": True,
}
#: What an editor is told that is answered.
_CAPABILITIES = {
    "textDocumentSync": {"openClose": True, "change": 1, "save": True},
    "completionProvider": {
        "triggerCharacters": [" ", "/", "[", "(", ",", ">", "|", ":", '"'],
        "resolveProvider": True,
    },
    **dict.fromkeys(
        (
            *("hoverProvider", "definitionProvider", "referencesProvider"),
            *("documentHighlightProvider", "documentSymbolProvider", "documentFormattingProvider"),
            *("foldingRangeProvider", "inlayHintProvider"),
        ),
        True,
    ),
    "codeActionProvider": {"codeActionKinds": [*types.CodeActionKind]},
    "codeLensProvider": {"resolveProvider": False},
    "semanticTokensProvider": {"legend": LEGEND, "full": True},
    "workspace": {"workspaceFolders": {"supported": True, "changeNotifications": True}},
}


async def _family_of(server: SpecServer, params: Any) -> Family:
    """Return all specs and all code that share the name at a position."""
    return await server.family(
        params.text_document.uri, lambda own: own.lines.offset(params.position)
    )


def _find_names(server: SpecServer) -> None:
    @server.on("textDocument/references")
    async def referred(params: Params) -> list[types.Location] | None:
        uri = params.text_document.uri
        if await server.current(uri) is None:
            return None
        family = await _family_of(server, params)
        with_stated = params.context.include_declaration

        def answer() -> list[types.Location]:
            from shardspec.lsp.navigation import references

            offset = family.own.lines.offset(params.position)
            return references(family, offset, with_stated=with_stated)

        return await server.answered(uri, family.own, answer)


def _rename_names(server: SpecServer) -> None:
    @server.on("textDocument/rename")
    async def rename(params: Params) -> types.WorkspaceEdit | None:
        uri = params.text_document.uri
        if await server.current(uri) is None:
            return None
        family = await _family_of(server, params)

        from shardspec.lsp import navigation

        offset = family.own.lines.offset(params.position)
        with _refusing():
            edit = await server.answered(
                uri, family.own, lambda: navigation.renamed(family, offset, params.new_name)
            )
        unseen = navigation.unseen(family, offset)
        if unseen is not None:
            server.notify("window/showMessage", {"type": _WARNING, "message": unseen})
        return edit


@contextmanager
def _refusing() -> Iterator[None]:
    """Tell a refusal to the person who asked."""
    try:
        yield
    except RefusedError as refused:
        raise AnswerError(REFUSED, str(refused)) from None


def _decorate(server: SpecServer) -> None:
    @server.on("initialize")
    def initialize(params: Params) -> dict[str, Any]:
        server.capabilities = params.capabilities or Params({})
        server.settings = _settings(params.said.get("initializationOptions"))
        named = [each.uri for each in params.workspace_folders or ()] or [params.root_uri or ""]
        server.folders = _folders(named)
        general = server.capabilities.general
        wanted = [each for each in (general and general.position_encodings) or () if each in _UNITS]
        server.encoding = types.PositionEncodingKind([*wanted, "utf-16"][0])
        about = server.capabilities.text_document
        can_prepare = bool(about and about.rename and about.rename.prepare_support)
        rename = {"prepareProvider": True} if can_prepare else True
        told = {**_CAPABILITIES, "renameProvider": rename, "positionEncoding": server.encoding}
        return {"capabilities": told, "serverInfo": {"name": "shardspec", "version": __version__}}

    @server.on("workspace/didChangeWorkspaceFolders")
    def folders_changed(params: Params) -> None:
        gone = _folders(each.uri for each in params.event.removed or ())
        more = _folders(each.uri for each in params.event.added or ())
        server.put_folders(tuple(each for each in server.folders if each not in gone) + more)

    @server.on("workspace/didChangeConfiguration")
    def configured(params: Params) -> None:
        server.settings = _settings(params.said.get("settings"))
        workspace = server.capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            server.request("workspace/inlayHint/refresh")

    @server.on("completionItem/resolve")
    def resolved(item: Params) -> dict[str, Any]:
        from shardspec.lsp.completion import page_of

        page = page_of(item.label, item.kind)
        more = {} if page is None else {"documentation": {"kind": "plaintext", "value": page}}
        return {**item.said, **more}


def _folders(named: Iterable[str]) -> tuple[str, ...]:
    """Return folders by their URIs, but for those that are too wide to be a project."""
    too_wide = {os.path.expanduser("~"), os.path.abspath(os.sep)}
    folders = (path_of(uri) for uri in named)
    return tuple(each for each in folders if each and each.rstrip(os.sep) not in {*too_wide, ""})


def _settings(given: Any) -> dict[str, Any]:
    """Return what an editor's user has set, with `shardspec` around it or not."""
    stated = given if isinstance(given, dict) else {}
    inner = stated.get("shardspec", stated)
    return inner if isinstance(inner, dict) else {}
