"""The server: which texts are open, when they are looked at, and who answers what.

One worker does all the work, so that messages are read while it does. Every edit has a number: an
answer that is worked out for an older text than the one that is open is never given, findings wait
until the typing pauses, and what was asked meanwhile is answered as "content modified", upon
which editors ask again.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from shardspec.ir.spec import Spec
from shardspec.language.files import SPEC_NAMES, real_path
from shardspec.lsp import types
from shardspec.lsp.types import Use
from shardspec.lsp.wire import REFUSED, AnswerError, ModifiedError, Params, Server, path_of

if TYPE_CHECKING:
    from shardspec.lsp.navigation import Family
    from shardspec.lsp.python_calls import Project
    from shardspec.lsp.snapshot import Opened, Snapshot

T = TypeVar("T")

#: How long typing has to pause before findings are looked for, in seconds.
PAUSE_S = 0.05
#: Characters of a text that is looked at whenever typing pauses.
SHORT = 20_000
#: A look at a longer one that takes more than this many seconds waits until typing rests for so
#: many times as long, within bounds.
QUICK_S, REST, LEAST_REST_S, MOST_REST_S = 0.02, 3.0, 0.5, 2.0
#: Specs that one base is looked at through, those that a name is looked for in, and those whose
#: looks are kept.
MOST_TOPS, MOST_SEARCHED, _MOST_KEPT = 64, 1000, 256
#: What a spec is made of, whose files an editor is to watch.
_WATCHED = (
    "**/*.shard",
    "**/*.yaml",
    "**/*.yml",
    "**/*.json",
    "**/*.py",
    "**/*.ipynb",
    "**/pyproject.toml",
)
_LANGUAGE = "shardspec"
#: A spec whose check loads what most need: patterns, and proposals for names.
_SMALL = """\
mesh: {x: 2}
rules: [a -> x]
params: {"**/k": a}
arrays: {m/k: "f32[a=8]", m/wi/kernel: "f32[8, 64]"}
"""


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


class SpecServer(Server):
    """What the handlers share.

    Attributes:
      open: the open texts by URI.
      settings: what the editor's user has set.
      capabilities: what the editor can do.
      encoding: the units that it counts columns in.
    """

    def __init__(self) -> None:
        """Start with nothing open."""
        super().__init__()
        self.open: dict[str, OpenText] = {}
        self.settings: dict[str, Any] = {}
        self.capabilities = Params({})
        self.encoding = types.PositionEncodingKind.Utf16
        self._snapshots: dict[str, Snapshot] = {}
        self._specs: dict[str, Spec] = {}
        self.folders: tuple[str, ...] = ()
        self._closed: dict[str, OpenText] = {}
        self._told: dict[str, dict[str, list[types.Diagnostic]]] = {}
        self._costs: dict[str, float] = {}
        self._shown: dict[str, list[types.Diagnostic]] = {}
        self._versions: dict[str, int | None] = {}
        self._typed: dict[str, str] = {}
        self._hurrying: dict[str, asyncio.Task[None]] = {}
        self._is_to_read = True
        self._pending: dict[tuple[str, int], asyncio.Future[Snapshot]] = {}
        self._announcing: dict[str, asyncio.Task[None]] = {}
        self._changes: dict[str, int] = {}
        self._stamp = 0
        self._files_stamp = 0
        self._worker = ThreadPoolExecutor(1, "shardspec")
        self._slow: set[str] = set()
        self._slow_worker = ThreadPoolExecutor(1, "shardspec-slow")

    @functools.cached_property
    def project(self) -> Project:
        """Return the files of the folders that the editor has open."""
        from shardspec.lsp.python_calls import Project

        return Project(self.folders)

    def put_folders(self, folders: tuple[str, ...]) -> None:
        """Take in which folders the editor has open now."""
        self.folders = folders
        vars(self).pop("project", None)
        self.files_changed()

    def version_of(self, params: Params) -> int | None:
        """Return the version of the open text that a question is about, as it stands."""
        uri = getattr(getattr(params, "text_document", None), "uri", None)
        known = self.open.get(uri) if isinstance(uri, str) else None
        return known.version if known else None

    def run(self, stdin: BinaryIO, stdout: BinaryIO) -> int:
        """Answer until the editor leaves, and start no more work then."""
        try:
            return super().run(stdin, stdout)
        finally:
            for worker in (self._worker, self._slow_worker):
                worker.shutdown(wait=False, cancel_futures=True)

    # texts

    def put(self, uri: str, version: int, text: str, language: str = "") -> None:
        """Take in a text that was opened or edited, and look at it soon."""
        known = self.open.get(uri)
        path = known.path if known else _path_of(uri, language)
        self._touch(path)
        is_spec = (known is not None and known.is_spec) or _is_spec(path, text)
        self.open[uri] = OpenText(uri, version, text, path, is_spec, self._stamp)
        self._is_to_read |= known is None
        self._announce_soon(uri, self._rest(uri) if known else 0.0)
        if known is not None and self._is_large(uri):
            self._hurry(uri, known.text)
        self._announce_dependents(path, but=uri)

    def drop(self, uri: str) -> None:
        """Forget a text that was closed; its file counts again."""
        closed = self.open.pop(uri, None)
        if closed is None:
            return
        self._touch(closed.path)
        self._is_to_read = True
        self._snapshots.pop(uri, None)
        self._specs.pop(uri, None)
        if uri in self._announcing:
            self._announcing.pop(uri).cancel()
        self._untell()
        self._announce_dependents(closed.path, but=uri)

    def files_changed(self) -> None:
        """Look at all open texts anew: files may have changed that they are made of."""
        self._stamp += 1
        self._files_stamp = self._stamp
        self._is_to_read = True
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

    @property
    def _texts(self) -> dict[str, str]:
        """Return by real path what the open buffers hold."""
        return {real_path(each.path): each.text for each in self.open.values()}

    async def look_around(self, *, again: bool = True) -> None:
        """Read what has changed of the files of the project.

        Args:
          again: also where nothing has told of a change: an editor need not watch files.
        """
        for each in self.open.values():
            again |= self.project.with_folder_of(each.path)
        if not (again or self._is_to_read):
            return
        self._is_to_read = False
        texts, before = self._texts, self._tops
        await self.work(lambda: self.project.read(texts))
        for uri, tops in self._tops.items():
            own = self._announcing.get(uri)
            if before.get(uri, tops) != tops and own is not asyncio.current_task():
                self._announce_soon(uri, PAUSE_S)
        for real, known in [*self._closed.items()]:
            spec = self.project.specs.get(real)
            if spec is None or spec.source.text != known.text:
                self._touch(real)
                del self._closed[real]
        self._untell()

    @property
    def _tops(self) -> dict[str, list[str]]:
        """Return by open text the specs that it is part of."""
        tops = self.project.tops
        return {uri: tops(real_path(each.path)) for uri, each in self.open.items()}

    def _text_of(self, uri: str) -> OpenText | None:
        """Return an open text, or that of a closed spec of the project."""
        opened = self.open.get(uri)
        path = path_of(uri) if opened is None else None
        real = "" if path is None else real_path(path)
        spec = self.project.specs.get(real)
        if spec is None:
            return opened
        if real not in self._closed:
            self._closed[real] = OpenText(uri, 0, spec.source.text, real, True, self._stamp)
        return self._closed[real]

    def uri_of(self, real: str) -> str:
        """Return what the editor calls a file."""
        return self._opened.uri(real) or ""

    @property
    def _opened(self) -> Opened:
        from shardspec.lsp.snapshot import Opened

        folders = tuple((real_path(each), each.rstrip(os.sep)) for each in self.folders)
        return Opened({real_path(each.path): each.uri for each in self.open.values()}, folders)

    async def tops(self, uri: str, most: int = MOST_TOPS) -> list[Snapshot]:
        """Return what there is to know of the specs that a text is part of, itself among them.

        Raises:
          AnswerError: a name is looked for, in more than can be searched.
        """
        known = self._text_of(uri)
        tops = [] if known is None else self.project.tops(real_path(known.path))
        if most == MOST_SEARCHED < len(tops):
            raise AnswerError(
                REFUSED, f"{len(tops):,} specs extend this: at most {most:,} are read"
            )
        found = [await self.current(self.uri_of(each)) for each in tops[:most]]
        return [each for each in found if each is not None]

    async def family(self, uri: str, offset_of: Callable[[Snapshot], int] | None = None) -> Family:
        """Return all that a text belongs to, and all specs that share the name at an offset.

        Raises:
          ModifiedError: the text has changed meanwhile.
        """
        from shardspec.lsp.navigation import Family, use_at

        await self.look_around(again=offset_of is not None)
        own = await self.current(uri)
        if own is None:
            raise ModifiedError
        most = MOST_TOPS if offset_of is None else MOST_SEARCHED
        found = dict.fromkeys(await self.tops(uri, most))
        use = None if offset_of is None else use_at(own, offset_of(own))
        seen = {real_path(own.path)}
        pending = [*found]
        while use is not None and pending:
            member = pending.pop()
            alike = await self.work(functools.partial(_files_with, member, use))
            for real in alike - seen:
                seen.add(real)
                tops = await self.tops(self.uri_of(real), most)
                more = [each for each in tops if each not in found]
                found |= dict.fromkeys(more)
                pending += more
        project = self.project
        specs = {path: each.source for path, each in project.specs.items()}
        code = tuple(project.code.values())
        count = max(len(found), len(project.tops(real_path(own.path))))
        return Family(own, tuple(found), count, code, specs, project.unread)

    # typing in a large text

    def _is_large(self, uri: str) -> bool:
        """Say whether a look at a text takes so long that it waits until typing rests."""
        opened = self.open.get(uri)
        is_long = opened is not None and len(opened.text) > SHORT
        return is_long and self._costs.get(uri, 0.0) > QUICK_S

    def _rest(self, uri: str) -> float:
        """Return how long typing has to rest before all of a text is looked at."""
        cost = self._costs.get(uri, 0.0)
        return (
            PAUSE_S if not self._is_large(uri) else min(MOST_REST_S, max(LEAST_REST_S, REST * cost))
        )

    def _hurry(self, uri: str, old: str) -> None:
        """Show soon what the blocks say that have changed, and move the rest along."""
        self._typed.setdefault(uri, old)
        if uri not in self._hurrying:
            self._hurrying[uri] = asyncio.ensure_future(self._show_blocks(uri))
            self._hurrying[uri].add_done_callback(lambda done: self._hurrying.pop(uri, None))

    async def _show_blocks(self, uri: str) -> None:
        from shardspec.lsp.findings import while_typing
        from shardspec.lsp.snapshot import Lines

        await asyncio.sleep(PAUSE_S)
        opened, old = self.open.get(uri), self._typed.pop(uri, None)
        if opened is None or old is None or not opened.is_spec:
            return
        known, lines = self._shown.get(uri, []), Lines(opened.text, self.encoding)
        found = await self.work(lambda: while_typing(known, old, lines, opened.path), uri)
        if self.open.get(uri) is opened and self._shown.get(uri, []) is known:
            self._send(uri, opened.version, found)
        else:
            self._typed.setdefault(uri, old)

    async def rested(self, uri: str) -> None:
        """Wait until a large text is looked at, for what an editor asks at every key.

        Raises:
          ModifiedError: it is typed on meanwhile.
        """
        looking = self._announcing.get(uri)
        if looking is None or looking.done() or not self._is_large(uri):
            return
        await asyncio.wait([looking])
        if looking.cancelled():
            raise ModifiedError

    def typed(self, uri: str) -> Snapshot | None:
        """Return the last look at a large text with the text as it stands; None of others."""
        opened, known = self.open.get(uri), self._snapshots.get(uri)
        if opened is None or known is None or not self._is_large(uri):
            return None
        return (
            known if known.version == opened.version else known.typed(opened.version, opened.text)
        )

    # looking

    async def current(self, uri: str) -> Snapshot | None:
        """Return what there is to know of a text as it stands; None of what is no spec."""
        opened = self._text_of(uri)
        if opened is None or not (opened.is_spec or self.project.is_base(opened.path, opened.text)):
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
        texts = {real_path(opened.path): opened.text, **self._texts}
        from shardspec.lsp.snapshot import Snapshot

        encoding, around = self.encoding, self._opened

        def made() -> Snapshot:
            where = (opened.uri, opened.version, opened.path, texts)
            began = time.thread_time()
            snapshot = Snapshot(*where, opened=around, stamp=stamp, encoding=encoding)
            self._costs[opened.uri] = time.thread_time() - began
            return snapshot

        started = time.monotonic()
        snapshot = await self.work(made, opened.uri)
        is_slow = time.monotonic() - started > _SLOW_S
        (self._slow.add if is_slow else self._slow.discard)(opened.uri)
        now = self._text_of(opened.uri)
        if now is not None and self._is_fresh(snapshot, now):
            if opened.uri in self.open or len(self._snapshots) < _MOST_KEPT:
                self._snapshots[opened.uri] = snapshot
            others = self.project.learn(real_path(opened.path), snapshot.reads)
            for uri, each in self.open.items() if others else ():
                if uri != opened.uri and real_path(each.path) in others:
                    self._announce_soon(uri, PAUSE_S)
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

    async def warm_up(self, load_answers: Callable[[], object]) -> None:
        """Load what the first look at a text needs, while the editor is still starting."""

        def load() -> None:
            from shardspec.lsp.snapshot import Snapshot

            load_answers()
            name = os.path.abspath("spec.yaml")
            Snapshot("", 0, name, {real_path(name): _SMALL})

        await self.work(load)

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
          ModifiedError: the text has changed meanwhile, so that the answer is stale.
        """
        snapshot = await self.current(uri)
        if snapshot is None:
            return None
        return await self.answered(uri, snapshot, lambda: answer(snapshot))

    async def answered(self, uri: str, snapshot: Snapshot, answer: Callable[[], T]) -> T:
        """Return an answer that was worked out for a text, unless that has changed meanwhile.

        Raises:
          ModifiedError: it has.
        """
        found = await self.work(answer, uri)
        now = self.open.get(uri)
        if now is None or now.version != snapshot.version:
            raise ModifiedError
        return found

    # findings

    def _announce_soon(self, uri: str, after_s: float) -> None:
        """Publish the findings of a text once it stays as it is for a while."""
        before = self._announcing.get(uri)
        if before is not None:
            before.cancel()
        task = asyncio.ensure_future(self._announce(uri, after_s))
        self._announcing[uri] = task

    async def _announce(self, uri: str, after_s: float) -> None:
        """Publish what the specs find that a text is part of, each in the file at fault."""
        await asyncio.sleep(after_s)
        from shardspec.lsp.findings import diagnostics

        await self.look_around(again=False)
        if await self.current(uri) is None:
            return
        tops = await self.tops(uri)
        told = [(each, await self.work(lambda: diagnostics(each), each.uri)) for each in tops]  # noqa: B023
        files = set[str]()
        for snapshot, found in told:
            known = self._text_of(snapshot.uri)
            if known is not None and self._is_fresh(snapshot, known):
                files |= {*self._told.get(snapshot.path, ()), *found}
                self._told[snapshot.path] = found
        opened = self.open.get(uri)
        if opened is not None and uri not in {each.uri for each in tops}:
            files |= {*self._told.pop(opened.path, ()), real_path(opened.path)}
        for file in files:
            self._publish(file)

    def _untell(self) -> None:
        """Take back what was told of specs that no open text is part of any more."""
        wanted = {top for found in self._tops.values() for top in found}
        gone = [path for path in self._told if real_path(path) not in wanted]
        for file in {file for path in gone for file in self._told.pop(path)}:
            self._publish(file)

    def _publish(self, file: str) -> None:
        """Publish what all specs find in a file."""
        from shardspec.lsp.findings import merged

        told = {spec: found[file] for spec, found in sorted(self._told.items()) if file in found}
        uri = self.uri_of(file)
        opened = self.open.get(uri)
        version = None if opened is None else opened.version
        total = len(self.project.tops(file))
        unseen = f" ({MOST_TOPS} of {total} specs are looked at)" if total > MOST_TOPS else ""
        found = merged(told, file if opened is None else opened.path, unseen)
        self._send(uri, version, found)

    def _send(self, uri: str, version: int | None, found: list[types.Diagnostic]) -> None:
        if (version, found) == (self._versions.get(uri), self._shown.get(uri)):
            return
        self._shown[uri], self._versions[uri] = found, version
        stated = {} if version is None else {"version": version}
        told = {"uri": uri, **stated, "diagnostics": found}
        self.notify("textDocument/publishDiagnostics", told)


def _files_with(member: Snapshot, use: Use) -> set[str]:
    """Return the real paths of the files of a spec that have a name."""
    alike = (each for each in member.all_uses if (each.kind, each.name) == (use.kind, use.name))
    return {real_path(each.span.source.name) for each in alike}


def _path_of(uri: str, language: str) -> str:
    """Return the file of a URI; for a text that has none, a name in this folder."""
    path = path_of(uri)
    if path is not None:
        return os.path.normpath(path)
    name = "".join(char if char.isalnum() or char in "-." else "_" for char in uri[-40:])
    suffix = ".shard" if language == _LANGUAGE else ".yaml"
    return os.path.abspath(name if name.endswith(suffix) else f"{name}{suffix}")


def _is_spec(path: str, text: str) -> bool:
    """Say whether a text is a spec, and not a file of something else that is YAML as well."""
    from shardspec.language.validate import looks_like_spec

    if path.endswith(".shard") or os.path.basename(path) in SPEC_NAMES:  # without telling keys yet
        return True
    return path.endswith((".yaml", ".yml")) and looks_like_spec(text)


def watch_files(server: SpecServer) -> None:
    """Ask an editor that can to tell of files that change on disk."""
    workspace = server.capabilities.workspace
    watching = workspace.did_change_watched_files if workspace else None
    if not (watching and watching.dynamic_registration):
        return
    watchers = [{"globPattern": pattern} for pattern in _WATCHED]
    method = "workspace/didChangeWatchedFiles"
    asked = {"id": "files", "method": method, "registerOptions": {"watchers": watchers}}
    server.request("client/registerCapability", {"registrations": [asked]})
