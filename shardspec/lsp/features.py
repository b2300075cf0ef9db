"""The messages of the protocol, each with who answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

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
    for feature, answer, *options in _ANSWERS:
        _answer_with(answer, server, feature, *options)
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


Answer: TypeAlias = Callable[[SpecServer, Snapshot, Any], object]


def _answer_with(answer: Answer, server: SpecServer, feature: str, *options: Any) -> None:
    @server.feature(feature, *options)
    async def asked(params: Any) -> object:
        return await _or_refusal(server, params, lambda snapshot: answer(server, snapshot, params))


def _of_text(answer: Callable[[Snapshot], object]) -> Answer:
    return lambda server, snapshot, params: answer(snapshot)


def _at_place(answer: Callable[[Snapshot, int], object]) -> Answer:
    return lambda server, snapshot, params: answer(snapshot, snapshot.lines.offset(params.position))


def _actions(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    only = params.context.only
    found = []
    if _is_asked(types.CodeActionKind.QuickFix, only):
        found += findings.actions(snapshot, *snapshot.lines.offsets(params.range))
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
    return None if text is None else snapshot.lines.edits_to(text)


_TRIGGERS = [" ", "/", "[", "(", ",", ">", "|", ":", '"']


def _hover(snapshot: Snapshot, offset: int) -> types.Hover | None:
    text = hovered(snapshot, offset)
    markup = types.MarkupContent(types.MarkupKind.Markdown, text or "")
    return types.Hover(markup) if text else None


def _completed(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    known = server.last_spec(params.text_document.uri)
    return completion.completions(snapshot, known, snapshot.lines.offset(params.position))


def _references(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    offset = snapshot.lines.offset(params.position)
    return navigation.references(snapshot, offset, with_stated=params.context.include_declaration)


def _hints(server: SpecServer, snapshot: Snapshot, params: Any) -> object:
    kinds = hints.wanted(server.settings)
    return hints.hints(snapshot, *snapshot.lines.offsets(params.range), kinds)


_KINDS = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
_ACTIONS = types.CodeActionOptions(code_action_kinds=_KINDS)
_COMPLETIONS = types.CompletionOptions(trigger_characters=_TRIGGERS, resolve_provider=True)
_ANSWERS: tuple[tuple[Any, ...], ...] = (
    (types.TEXT_DOCUMENT_CODE_ACTION, _actions, _ACTIONS),
    (types.TEXT_DOCUMENT_FORMATTING, _of_text(_formatted)),
    (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, _of_text(outline.symbols)),
    (types.TEXT_DOCUMENT_FOLDING_RANGE, _of_text(outline.folds)),
    (types.TEXT_DOCUMENT_HOVER, _at_place(_hover)),
    (types.TEXT_DOCUMENT_COMPLETION, _completed, _COMPLETIONS),
    (types.TEXT_DOCUMENT_DEFINITION, _at_place(navigation.definitions)),
    (types.TEXT_DOCUMENT_REFERENCES, _references),
    (types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT, _at_place(navigation.own_references)),
    (types.TEXT_DOCUMENT_PREPARE_RENAME, _at_place(navigation.renamed_range)),
    (types.TEXT_DOCUMENT_INLAY_HINT, _hints),
    (types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, _of_text(tokens.tokens), tokens.LEGEND),
)


def _rename(server: SpecServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    async def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        children = await server.children(params.text_document.uri)

        def answer(snapshot: Snapshot) -> types.WorkspaceEdit:
            offset = snapshot.lines.offset(params.position)
            return navigation.renamed_everywhere(snapshot, children, offset, params.new_name)

        return await _or_refusal(server, params, answer)


async def _or_refusal(server: SpecServer, params: Any, answer: Callable[[Snapshot], T]) -> T | None:
    """Return an answer; a refusal is told to the person who asked."""
    try:
        return await server.ask(params.text_document.uri, answer)
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

    server.feature(types.COMPLETION_ITEM_RESOLVE)(completion.resolve)


def _settings(given: Any) -> dict[str, Any]:
    """Return what an editor's user has set, with `shardspec` around it or not."""
    stated = given if isinstance(given, dict) else {}
    inner = stated.get("shardspec", stated)
    return inner if isinstance(inner, dict) else {}
