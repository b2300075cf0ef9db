"""Messages over two streams: framing, errors, order; and the names that an editor uses."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.lsp import types
from shardspec.lsp.server import SpecServer
from shardspec.lsp.wire import AnswerError, Params, Server, path_of, uri_of


def framed(*messages: Any) -> bytes:
    bodies = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages]
    return b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(each), each) for each in bodies)


def answered(server: Server, *messages: Any, raw: bytes = b"") -> tuple[int, list[Any]]:
    """Return the exit status of a session, and what was said in it."""
    out = io.BytesIO()
    status = server.run(io.BytesIO(framed(*messages) + raw), out)
    said, rest = [], out.getvalue()
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        length = int(head.split(b":")[1])
        said.append(json.loads(rest[:length]))
        rest = rest[length:]
    return status, said


def ask(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def made(heard: list[str]) -> Server:
    server = Server()
    server.on("note")(lambda params: heard.append(params.some_word))
    server.on("heard")(lambda params: [*heard])

    @server.on("refuse")
    def refuse(params: Params) -> None:
        raise AnswerError(-32803, "no")

    @server.on("fail")
    async def fail(params: Params) -> None:
        raise KeyError("gone")

    @server.on("wait")
    async def wait(params: Params) -> None:
        await asyncio.sleep(60)

    return server


def test_questions_are_answered_in_their_kind() -> None:
    heard: list[str] = []
    notes = [{"method": "note", "params": {"someWord": each}} for each in "ab"]
    questions = [ask(n, each) for n, each in enumerate(("heard", "refuse", "fail", "other"))]
    cancelled = [ask(9, "wait"), {"method": "$/cancelRequest", "params": {"id": 9}}]
    broken = [b"{", b"[]", {"method": "note"}, {"method": "unknown"}, {"id": 4, "result": None}]
    last = [ask(7, "shutdown"), ask(8, "heard"), {"method": "exit"}]

    class Slow(io.BytesIO):
        """A pipe whose editor leaves after what it asked is answered."""

        def read(self, size: int | None = -1) -> bytes:
            body = super().read(size)
            if b"exit" in body:
                threading.Event().wait(0.05)
            return body

    out = io.BytesIO()
    status = made(heard).run(Slow(framed(*notes, *questions, *cancelled, *broken, *last)), out)
    bodies = [part.rpartition(b"}")[0] + b"}" for part in out.getvalue().split(b"\r\n\r\n")[1:]]
    said = {each.get("id"): each for each in map(json.loads, bodies)}
    assert status == 0
    assert heard[:2] == ["a", "b"]
    assert said[0]["result"][:2] == ["a", "b"]
    codes = {number: each["error"]["code"] for number, each in said.items() if "error" in each}
    assert codes == {1: -32803, 2: -32603, 3: -32601, 8: -32600, 9: -32800, None: -32700}


def test_a_question_is_not_answered_for_a_text_that_was_typed_after_it() -> None:
    """Its position is of the text before; both messages may be there before an answer begins."""

    class Texts(Server):
        versions = 1

        def version_of(self, params: Params) -> int | None:
            return self.versions if params.text else None

    server, said = Texts(), list[Any]()
    server.on("edit")(lambda params: setattr(server, "versions", params.version))
    server.on("ask")(lambda params: "an answer")

    async def both() -> None:
        for message in (ask(1, "ask", text="a"), ask(2, "ask"), {"method": "edit", "params": {}}):
            server._take(message)
        server._say = lambda **message: said.append(message)  # type: ignore[method-assign]
        await asyncio.gather(*server._running.values())

    asyncio.run(both())
    assert [each.get("result", each.get("error")) for each in said] == [
        {"code": -32801, "message": "the text has changed"},
        "an answer",
    ]


@pytest.mark.parametrize(
    "said", [{}, {"textDocument": "x"}, {"textDocument": {"uri": ["a"]}}, {"textDocument": [1]}]
)
def test_what_is_no_question_about_a_text_has_no_version(said: dict[str, Any]) -> None:
    assert SpecServer().version_of(Params(said)) is None


def test_a_stream_that_ends_or_lies_ends_the_session() -> None:
    assert answered(made([])) == (0, [])
    assert answered(made([]), {"method": "exit"}) == (1, [])
    for raw in (b"Content-Length: 9\r\n\r\n{", b"Content-Length: 1e9\r\n\r\n", b"\r\n" * 99):
        assert answered(made([]), raw=raw) == (0, [])
    assert answered(made([]), raw=b"Content-Length: 99999999999\r\n\r\n{}") == (0, [])


def test_values_have_the_names_of_the_protocol() -> None:
    place = types.Range(types.Position(1, 2), types.Position(1, 3))
    severity = types.DiagnosticSeverity.Error
    server = Server()
    found = types.Diagnostic(place, "é", severity, "SHD201", "shardspec")
    more = types.DocumentSymbol("a", types.SymbolKind.Key, place, place, children=[])
    server.on("all")(lambda params: [found, more, types.FoldingRange(1, 2)])
    out = io.BytesIO()
    server._stdout = out
    asyncio.run(server._answer(1, "all", Params({}), None))
    first, second, third = json.loads(out.getvalue().partition(b"\r\n\r\n")[2])["result"]
    ends = {"start": {"line": 1, "character": 2}, "end": {"line": 1, "character": 3}}
    assert first == {
        "range": ends,
        "message": "é",
        "severity": 1,
        "code": "SHD201",
        "source": "shardspec",
    }
    assert second["selectionRange"] == ends
    assert third == {"startLine": 1, "endLine": 2}


@given(st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1))
def test_files_and_their_uris(name: str) -> None:
    """The law: a file has one URI, which leads back to it."""
    path = os.path.join(os.path.abspath(os.sep), "é b", name.strip(".") or "x")
    uri = uri_of(path)
    assert uri is not None
    assert uri.isascii()
    assert path_of(uri) == str(Path(path))
    assert uri_of(name.replace(os.sep, "")) is None
    assert path_of("untitled:Untitled-1") is None
