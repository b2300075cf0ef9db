"""The Language Server Protocol's messages: framing, questions and answers, over two streams.

A thread reads; everything else runs on one event loop. A notification is handled before the next
message is. A question is a task, which may be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

LOG = logging.getLogger("shardspec.lsp")
_LARGEST = 256 * 2**20
_PARSE, _INVALID, _UNKNOWN, _INTERNAL = -32700, -32600, -32601, -32603
REFUSED, _MODIFIED, _CANCELLED = -32803, -32801, -32800


class AnswerError(Exception):
    """A question that is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        """Note the code of the protocol, and the message."""
        super().__init__(message)
        self.code = code


class ModifiedError(AnswerError):
    """The text has changed meanwhile: editors ask again."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__(_MODIFIED, "the text has changed")


class Params:
    """What an editor said: `params.text_document` is its `textDocument`, None where it has none."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        """Wrap an object of JSON, which `said` is."""
        self.said = said

    def __getattr__(self, name: str) -> Any:
        return _given(self.said.get(_spelt(name)))


def _given(value: Any) -> Any:
    if isinstance(value, list):
        return [_given(each) for each in value]
    return Params(value) if isinstance(value, dict) else value


@functools.cache
def _spelt(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, str], ...]:
    return tuple((each.name, _spelt(each.name)) for each in dataclasses.fields(kind))


def _written(value: Any) -> Any:
    """Return a value of `types` as JSON has it, without what it leaves open."""
    fields = _fields(value.__class__)
    return {spelt: each for name, spelt in fields if (each := getattr(value, name)) is not None}


def path_of(uri: str) -> str | None:
    """Return the file of a URI; None of one that is no file."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return None
    path = unquote(f"//{parts.netloc}{parts.path}" if parts.netloc else parts.path)
    return re.sub(r"^/(?=[A-Za-z]:)", "", path) if os.name == "nt" else path


def uri_of(path: str) -> str | None:
    """Return the URI of a file; None of a name that is no path."""
    return Path(path).as_uri() if os.path.isabs(path) else None


class Server:
    """One session.

    Attributes:
      handlers: by method, what is called with the parameters of a message.
    """

    def __init__(self) -> None:
        """Begin without a handler, and without streams."""
        self.handlers: dict[str, Callable[[Params], Any]] = {}
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._stdout: BinaryIO | None = None
        self._asked = 0
        self._is_shut = False

    def on(self, method: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Handle the messages of a method by the function below."""

        def note(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self.handlers[method] = handler
            return handler

        return note

    def run(self, stdin: BinaryIO, stdout: BinaryIO) -> int:
        """Answer until the editor leaves; return the exit status."""
        self._stdout = stdout
        return asyncio.run(self._run(stdin))

    async def _run(self, stdin: BinaryIO) -> int:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def take(message: Any) -> None:
            if message is None or (isinstance(message, dict) and message.get("method") == "exit"):
                if not done.done():
                    done.set_result(0 if message is None or self._is_shut else 1)
            else:
                self._take(message)

        def listen() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                for message in _messages(stdin):
                    loop.call_soon_threadsafe(take, message)
                loop.call_soon_threadsafe(take, None)

        threading.Thread(target=listen, daemon=True).start()
        return int(await done)

    def _take(self, message: Any) -> None:
        if not isinstance(message, dict):
            self._say(id=None, error={"code": _PARSE, "message": "this is no message"})
            return
        method, number = message.get("method"), message.get("id")
        params = message.get("params")
        given = Params(params if isinstance(params, dict) else {})
        if method == "$/cancelRequest":
            task = self._running.get(given.id)
            if task is not None:
                task.cancel()
        elif method is not None and "id" in message:
            is_late, self._is_shut = self._is_shut, self._is_shut or method == "shutdown"
            method = "" if is_late else method
            answer = self._answer(number, method, given, self.version_of(given))
            self._running[number] = asyncio.ensure_future(answer)
            self._running[number].add_done_callback(lambda task: self._end(number, task))
        elif method in self.handlers:
            self._notice(method, given)

    def _notice(self, method: str, params: Params) -> None:
        try:
            made = self.handlers[method](params)
            if inspect.isawaitable(made):
                asyncio.ensure_future(made).add_done_callback(_failed)
        except Exception:
            LOG.exception("%s failed", method)

    def _end(self, number: Any, task: asyncio.Task[None]) -> None:
        self._running.pop(number, None)
        if task.cancelled():  # also before it began
            self._say(id=number, error={"code": _CANCELLED, "message": "cancelled"})

    def version_of(self, params: Params) -> int | None:
        """Return the version of the text that a question is about, as it stands."""
        return None

    async def _answer(self, number: Any, method: str, params: Params, version: int | None) -> None:
        try:
            if self.version_of(params) != version:  # by a message that came before this began
                raise ModifiedError
            self._say(id=number, result=await self._result(method, params))
        except AnswerError as fault:
            self._say(id=number, error={"code": fault.code, "message": str(fault)})
        except Exception as fault:
            LOG.exception("%s failed", method)
            said = f"{type(fault).__name__}: {fault}"
            self._say(id=number, error={"code": _INTERNAL, "message": said})

    async def _result(self, method: str, params: Params) -> Any:
        if method == "shutdown":
            return None
        if not method:
            raise AnswerError(_INVALID, "the server is shut down")
        if method not in self.handlers:
            raise AnswerError(_UNKNOWN, f"`{method}` is not answered here")
        made = self.handlers[method](params)
        return await made if inspect.isawaitable(made) else made

    def notify(self, method: str, params: Any) -> None:
        """Tell the editor something."""
        self._say(method=method, params=params)

    def request(self, method: str, params: Any = None) -> None:
        """Ask the editor something whose answer does not matter."""
        self._asked += 1
        self._say(id=f"s{self._asked}", method=method, params=params)

    def _say(self, **message: Any) -> None:
        said = {"jsonrpc": "2.0", **message}
        body = json.dumps(said, default=_written, separators=(",", ":")).encode()
        if self._stdout is not None:
            try:
                self._stdout.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
                self._stdout.flush()
            except (OSError, ValueError):  # the editor has left
                self._stdout = None


def _failed(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        LOG.error("a notification failed", exc_info=task.exception())


def _messages(stream: BinaryIO) -> Iterator[Any]:
    """Yield the messages of a stream until it ends; of one that is no JSON, its bytes."""
    while True:
        length = 0
        while (line := stream.readline(1024)).strip():
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
        if not line or length > _LARGEST:
            return
        body = stream.read(length)
        if not length or len(body) < length:
            continue
        try:
            yield json.loads(body)
        except (ValueError, RecursionError):
            yield body
