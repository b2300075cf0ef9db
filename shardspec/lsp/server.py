"""The server: which texts are open, when they are looked at, and who answers what.

One worker does all the work, so that messages are read while it does. Every edit has a number: an
answer that is worked out for an older text than the one that is open is never given, findings wait
until the typing pauses, and what was asked meanwhile is answered as "content modified", upon
which editors ask again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcContentModified
from pygls.lsp.server import LanguageServer

from shardspec import __version__
from shardspec.ir.spec import Spec
from shardspec.language.files import SPEC_NAMES, real_path
from shardspec.language.validate import looks_like_spec
from shardspec.lsp.findings import diagnostics
from shardspec.lsp.snapshot import Snapshot

T = TypeVar("T")

#: How long typing has to pause before findings are looked for, in seconds.
PAUSE_S = 0.05
#: What a spec is made of, whose files an editor is to watch.
_WATCHED = ("**/*.shard", "**/*.yaml", "**/*.yml", "**/*.json", "**/pyproject.toml")
_LANGUAGE = "shardspec"
_SMALL = "mesh: {x: 2}\nrules: [a -> x]\nparams: {k: a}\narrays: {k: 'f32[a=8]'}\n"


@dataclass(slots=True)
class OpenText:
    """A text that is open in the editor.

    Attributes:
      path: of its file; of a text that has none yet, where it would lie.
      is_spec: whether it is one, or was one since it was opened: while it is written it may not
        look like one.
      stamp: how many changes of any text came before its last.
    """

    uri: str
    version: int
    text: str
    path: str
    is_spec: bool
    stamp: int


#: Texts of more characters, and those that took longer to look at, have a worker of their own.
_LONG, _SLOW_S = 200_000, 2.0


class SpecServer(LanguageServer):
    """What the handlers share.

    Attributes:
      open: the open texts by URI.
      settings: what the editor's user has set.
    """

    def __init__(self) -> None:
        """Start with nothing open."""
        kind = types.TextDocumentSyncKind.Full
        super().__init__(_LANGUAGE, __version__, text_document_sync_kind=kind)
        self.open: dict[str, OpenText] = {}
        self.settings: dict[str, Any] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._specs: dict[str, Spec] = {}
        self._pending: dict[tuple[str, int], asyncio.Future[Snapshot]] = {}
        self._announcing: dict[str, asyncio.Task[None]] = {}
        self._changes: dict[str, int] = {}
        self._stamp = 0
        self._files_stamp = 0
        self._worker = ThreadPoolExecutor(1, "shardspec")
        self._slow: set[str] = set()
        self._slow_worker = ThreadPoolExecutor(1, "shardspec-slow")

    # texts

    def put(self, uri: str, version: int, text: str, language: str = "") -> None:
        """Take in a text that was opened or edited, and look at it soon."""
        known = self.open.get(uri)
        path = known.path if known else _path_of(uri, language)
        self._touch(path)
        is_spec = (known is not None and known.is_spec) or _is_spec(path, text)
        self.open[uri] = OpenText(uri, version, text, path, is_spec, self._stamp)
        self._announce_soon(uri, PAUSE_S if known else 0.0)
        self._announce_dependents(path, but=uri)

    def drop(self, uri: str) -> None:
        """Forget a text that was closed; its file counts again."""
        closed = self.open.pop(uri, None)
        if closed is None:
            return
        self._touch(closed.path)
        self._snapshots.pop(uri, None)
        self._specs.pop(uri, None)
        if closed.is_spec:
            self._publish(uri, None, [])
        self._announce_dependents(closed.path, but=uri)

    def files_changed(self) -> None:
        """Look at all open texts anew: files may have changed that they are made of."""
        self._stamp += 1
        self._files_stamp = self._stamp
        for uri in self.open:
            self._announce_soon(uri, PAUSE_S)

    def _touch(self, path: str) -> None:
        self._stamp += 1
        self._changes[real_path(path)] = self._stamp

    def _announce_dependents(self, path: str, *, but: str) -> None:
        real = real_path(path)
        for uri, snapshot in [*self._snapshots.items()]:
            if uri != but and uri in self.open and (real in snapshot.reads or snapshot.misses):
                self._announce_soon(uri, PAUSE_S)

    # looking

    async def current(self, uri: str) -> Snapshot | None:
        """Return what there is to know of a text as it stands; None of what is no spec."""
        opened = self.open.get(uri)
        if opened is None or not opened.is_spec:
            return None
        known = self._snapshots.get(uri)
        if known is not None and self._is_fresh(known, opened):
            return known
        key = (uri, self._stamp)
        if key not in self._pending:
            self._pending[key] = asyncio.ensure_future(self._look(opened, self._stamp))
            self._pending[key].add_done_callback(lambda done: self._pending.pop(key, None))
        # whoever stops waiting does not stop the others
        return await asyncio.shield(self._pending[key])

    async def _look(self, opened: OpenText, stamp: int) -> Snapshot:
        texts = {real_path(each.path): each.text for each in self.open.values()}
        encoding = self.workspace.position_encoding or types.PositionEncodingKind.Utf16

        def made() -> Snapshot:
            where = (opened.uri, opened.version, opened.path, texts)
            return Snapshot(*where, stamp=stamp, encoding=encoding)

        started = time.monotonic()
        snapshot = await self.work(made, opened.uri)
        is_slow = time.monotonic() - started > _SLOW_S
        (self._slow.add if is_slow else self._slow.discard)(opened.uri)
        now = self.open.get(opened.uri)
        if now is not None and self._is_fresh(snapshot, now):
            self._snapshots[opened.uri] = snapshot
        if snapshot.spec is not None:
            self._specs[opened.uri] = snapshot.spec
        return snapshot

    def last_spec(self, uri: str) -> Spec | None:
        """Return the last spec that could be made of a text: its names are offered meanwhile."""
        return self._specs.get(uri)

    def _is_fresh(self, snapshot: Snapshot, opened: OpenText) -> bool:
        """Say whether nothing has changed that a snapshot is made of."""
        if snapshot.version != opened.version or opened.stamp > snapshot.stamp:
            return False
        if snapshot.misses:
            return snapshot.stamp == self._stamp
        last = max((self._changes.get(path, 0) for path in snapshot.reads), default=0)
        return snapshot.stamp >= max(last, self._files_stamp)

    async def warm_up(self) -> None:
        """Load what the first look at a text needs, while the editor is still starting."""
        name = os.path.abspath("spec.yaml")
        await self.work(lambda: Snapshot("", 0, name, {real_path(name): _SMALL}))

    async def work(self, job: Callable[[], T], uri: str = "") -> T:
        """Return what a job makes, done apart from the reading of messages.

        Args:
          uri: of the text that it is about: one that takes long keeps no other waiting.
        """
        opened = self.open.get(uri)
        is_long = opened is not None and len(opened.text) > _LONG
        worker = self._slow_worker if is_long or uri in self._slow else self._worker
        return await asyncio.get_running_loop().run_in_executor(worker, job)

    async def ask(self, uri: str, answer: Callable[[Snapshot], T]) -> T | None:
        """Return an answer about a text as it stands; None about what is no spec.

        Raises:
          JsonRpcContentModified: the text has changed meanwhile, so that the answer is stale.
        """
        opened = self.open.get(uri)
        snapshot = await self.current(uri)
        if snapshot is None:
            return None
        found = await self.work(lambda: answer(snapshot), uri)
        now = self.open.get(uri)
        if now is None or opened is None or now.version != opened.version:
            raise JsonRpcContentModified()
        return found

    async def children(self, uri: str) -> list[Snapshot]:
        """Return what there is to know of the other open specs that extend a text."""
        opened = self.open.get(uri)
        others = [await self.current(other) for other in [*self.open] if other != uri]
        real = None if opened is None else real_path(opened.path)
        return [other for other in others if other is not None and real in other.reads]

    # findings

    def _announce_soon(self, uri: str, after_s: float) -> None:
        """Publish the findings of a text once it stays as it is for a while."""
        before = self._announcing.get(uri)
        if before is not None:
            before.cancel()
        task = asyncio.ensure_future(self._announce(uri, after_s))
        self._announcing[uri] = task

    async def _announce(self, uri: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        snapshot = await self.current(uri)
        if snapshot is None:
            return
        found = await self.work(lambda: diagnostics(snapshot), uri)
        opened = self.open.get(uri)
        if opened is not None and self._is_fresh(snapshot, opened):
            self._publish(uri, snapshot.version, found)

    def _publish(self, uri: str, version: int | None, found: list[types.Diagnostic]) -> None:
        params = types.PublishDiagnosticsParams(uri=uri, version=version, diagnostics=found)
        self.text_document_publish_diagnostics(params)


def _path_of(uri: str, language: str) -> str:
    """Return the file of a URI; for a text that has none, a name in this folder."""
    path = uris.to_fs_path(uri) if uri.startswith("file:") else None
    if path is not None:
        return os.path.normpath(path)
    name = "".join(char if char.isalnum() or char in "-." else "_" for char in uri[-40:])
    suffix = ".shard" if language == _LANGUAGE else ".yaml"
    return os.path.abspath(name if name.endswith(suffix) else f"{name}{suffix}")


def _is_spec(path: str, text: str) -> bool:
    """Say whether a text is a spec, and not a file of something else that is YAML as well."""
    if (
        path.endswith(".shard") or os.path.basename(path) in SPEC_NAMES
    ):  # which has no telling keys yet
        return True
    return path.endswith((".yaml", ".yml")) and looks_like_spec(text)


def watch_files(server: SpecServer) -> None:
    """Ask an editor that can to tell of files that change on disk."""
    workspace = server.client_capabilities.workspace
    watching = workspace.did_change_watched_files if workspace else None
    if not (watching and watching.dynamic_registration):
        return
    watchers = [types.FileSystemWatcher(glob_pattern=pattern) for pattern in _WATCHED]
    options = types.DidChangeWatchedFilesRegistrationOptions(watchers=watchers)
    method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
    registration = types.Registration(id="files", method=method, register_options=options)
    server.client_register_capability(types.RegistrationParams([registration]))
