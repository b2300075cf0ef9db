"""The messages of the protocol, each with who answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lsprotocol import types
from pygls.exceptions import JsonRpcException

from shardspec.language.formatting import formatted
from shardspec.lsp import completion, findings, hints, navigation, outline, tokens
from shardspec.lsp.hover import hover as hovered
from shardspec.lsp.server import SpecServer, watch_files
from shardspec.lsp.snapshot import Snapshot

T = TypeVar("T")
_REQUEST_FAILED = -32803


def made() -> SpecServer:
    """Return a server that answers all that it can."""
    server = SpecServer()
    _follow_texts(server)
    _answer_about_findings(server)
    _answer_about_shape(server)
    _answer_about_names(server)
    _find_places(server)
    _rename(server)
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


def _answer_about_findings(server: SpecServer) -> None:
    kinds = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds)
    )
    async def actions(params: types.CodeActionParams) -> list[types.CodeAction] | None:
        only = params.context.only

        def answer(snapshot: Snapshot) -> list[types.CodeAction]:
            found = []
            if _is_asked(types.CodeActionKind.QuickFix, only):
                found += findings.actions(snapshot, *snapshot.lines.offsets(params.range))
            if only and _is_asked(types.CodeActionKind.SourceFixAll, only):
                found += filter(None, [findings.fix_all(snapshot)])
            return found

        return await server.ask(params.text_document.uri, answer)


def _is_asked(
    kind: types.CodeActionKind, only: Sequence[types.CodeActionKind | str] | None
) -> bool:
    """Say whether a kind of actions is among those that an editor wants, or below one of them."""
    name = f"{kind.value}."
    return only is None or any(name.startswith(f"{wanted}.") for wanted in map(_word, only))


def _word(kind: types.CodeActionKind | str) -> str:
    return kind.value if isinstance(kind, types.CodeActionKind) else kind


def _answer_about_shape(server: SpecServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    async def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
        def answer(snapshot: Snapshot) -> list[types.TextEdit] | None:
            text, _ = formatted(snapshot.source)
            return None if text is None else snapshot.lines.edits_to(text)

        return await server.ask(params.text_document.uri, answer)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol] | None:
        return await server.ask(params.text_document.uri, outline.symbols)

    @server.feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
    async def folds(params: types.FoldingRangeParams) -> list[types.FoldingRange] | None:
        return await server.ask(params.text_document.uri, outline.folds)


_TRIGGERS = [" ", "/", "[", "(", ",", ">", "|", ":", '"']


def _answer_about_names(server: SpecServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        def answer(snapshot: Snapshot) -> types.Hover | None:
            text = hovered(snapshot, snapshot.lines.offset(params.position))
            markup = types.MarkupContent(types.MarkupKind.Markdown, text or "")
            return types.Hover(markup) if text else None

        return await server.ask(params.text_document.uri, answer)

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION,
        types.CompletionOptions(trigger_characters=_TRIGGERS, resolve_provider=True),
    )
    async def complete(params: types.CompletionParams) -> list[types.CompletionItem] | None:
        uri = params.text_document.uri

        def answer(snapshot: Snapshot) -> list[types.CompletionItem]:
            offset = snapshot.lines.offset(params.position)
            return completion.completions(snapshot, server.last_spec(uri), offset)

        return await server.ask(uri, answer)

    @server.feature(types.COMPLETION_ITEM_RESOLVE)
    def resolve(item: types.CompletionItem) -> types.CompletionItem:
        return completion.resolve(item)


def _find_places(server: SpecServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def definition(params: types.DefinitionParams) -> list[types.Location] | None:
        def answer(snapshot: Snapshot) -> list[types.Location]:
            return navigation.definitions(snapshot, snapshot.lines.offset(params.position))

        return await server.ask(params.text_document.uri, answer)

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    async def references(params: types.ReferenceParams) -> list[types.Location] | None:
        def answer(snapshot: Snapshot) -> list[types.Location]:
            offset = snapshot.lines.offset(params.position)
            stated = params.context.include_declaration
            return navigation.references(snapshot, offset, with_stated=stated)

        return await server.ask(params.text_document.uri, answer)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    async def highlights(
        params: types.DocumentHighlightParams,
    ) -> list[types.DocumentHighlight] | None:
        def answer(snapshot: Snapshot) -> list[types.DocumentHighlight]:
            return navigation.own_references(snapshot, snapshot.lines.offset(params.position))

        return await server.ask(params.text_document.uri, answer)


def _rename(server: SpecServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    async def prepare(params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder | None:
        def answer(snapshot: Snapshot) -> types.PrepareRenamePlaceholder:
            return navigation.renamed_range(snapshot, snapshot.lines.offset(params.position))

        return await _or_refusal(server, params.text_document.uri, answer)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    async def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        uri = params.text_document.uri
        children = await server.children(uri)

        def answer(snapshot: Snapshot) -> types.WorkspaceEdit:
            offset = snapshot.lines.offset(params.position)
            return navigation.renamed_everywhere(snapshot, children, offset, params.new_name)

        return await _or_refusal(server, uri, answer)


async def _or_refusal(server: SpecServer, uri: str, answer: Callable[[Snapshot], T]) -> T | None:
    """Return an answer; a refusal is told to the person who asked."""
    try:
        return await server.ask(uri, answer)
    except navigation.RefusedError as refused:
        raise JsonRpcException(str(refused), _REQUEST_FAILED) from None


def _decorate(server: SpecServer) -> None:
    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.settings = _settings(params.initialization_options)

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configured(params: types.DidChangeConfigurationParams) -> None:
        server.settings = _settings(params.settings)
        workspace = server.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            server.workspace_inlay_hint_refresh(None)

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    async def inlay(params: types.InlayHintParams) -> list[types.InlayHint] | None:
        kinds = hints.wanted(server.settings)

        def answer(snapshot: Snapshot) -> list[types.InlayHint]:
            return hints.hints(snapshot, *snapshot.lines.offsets(params.range), kinds)

        return await server.ask(params.text_document.uri, answer)

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, tokens.LEGEND)
    async def coloured(params: types.SemanticTokensParams) -> types.SemanticTokens | None:
        return await server.ask(params.text_document.uri, tokens.tokens)


def _settings(given: Any) -> dict[str, Any]:
    """Return what an editor's user has set, with `shardspec` around it or not."""
    stated = given if isinstance(given, dict) else {}
    inner = stated.get("shardspec", stated)
    return inner if isinstance(inner, dict) else {}
