"""Processes of the package that start by a fork of one that has imported their module.

The package starts Python for a partition or a trial, which takes less time than the imports before
it. Tests whose subject is the answer get it from a fork: a process of its own still, with its
session, folder, environment, streams and exit. Only the imports are those of a server, one for each
module and for what Python and its libraries read of the environment before their first line.

A fork is handed to the process that asks, which then waits for it as for its own: it becomes the
one that orphans below it go to. Only Linux has that, so elsewhere processes start as ever.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import os
import pickle
import runpy
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent

#: What the command line imports for a verb.
_VERBS = (
    *("shardspec.cli.main", "shardspec.cli.check", "shardspec.cli.compile"),
    *("shardspec.cli.explain", "shardspec.cli.fmt", "shardspec.language.document"),
    *("shardspec.cli.lsp", "shardspec.lsp.features"),
)
#: What starts warm, `python -P -m MODULE ...`, and what it imports later on.
MODULES: dict[str, tuple[str, ...]] = {
    "shardspec.jax_backend.cure.again": (),
    "shardspec.jax_backend.cure.worker": ("jaxlib.xla_client",),
    "shardspec.jax_backend.xla.child": (
        *("jaxlib.xla_client", "jax.experimental.topologies"),
        *("shardspec", "shardspec.jax_backend.target_devices"),
    ),
    "shardspec": _VERBS,
    "tests.cli.running": _VERBS,
    "tests.jax_backend.cure.pricing": ("jaxlib.xla_client",),
    "tests.jax_backend.many": (
        *("optax", "jax.experimental.multihost_utils"),
        *("shardspec", "shardspec.jax_backend.resolver"),
    ),
}
#: How variables begin that are read before the first line of a module.
READ = ("PYTHON", "LANG", "LC_", "JAX_", "XLA_", "TF_", "TPU_", "LIBTPU_", "CUDA_", "NVIDIA_")
_NUMBER = struct.Struct("q")
_SET_CHILD_SUBREAPER = 36


class Asked(NamedTuple):
    """A process to start."""

    arguments: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    own_session: bool
    parent: int


class Server:
    """A process that has imported a module, and forks."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        """Start it; it ends when this process does."""
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            asking = str(theirs.fileno())
            command = [sys.executable, "-P", "-m", __name__, asking, module, *MODULES[module]]
            self._process = _COLD(
                command,
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def end(self) -> None:
        """End it, and wait for that."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def start(self, asked: Asked, streams: Sequence[int]) -> int:
        """Return the number of a new process with these streams."""
        told = pickle.dumps(tuple(asked))
        with self._lock:
            socket.send_fds(self._socket, [_NUMBER.pack(len(told))], streams)
            self._socket.sendall(told)
            return int(_NUMBER.unpack(_whole(self._socket, _NUMBER.size))[0])


class Popen(subprocess.Popen[Any]):
    """A process, forked from a server where that is possible."""

    #: Whether processes are forked.
    is_warm = True

    def _execute_child(self, *given: Any) -> None:
        asked = dict(zip(_GIVEN, given, strict=True))
        arguments, own = asked["args"], [sys.executable, "-P", "-m"]
        if not (self.is_warm and [*arguments][:3] == own and arguments[3] in MODULES and _adopts()):
            _COLD._execute_child(self, *given)  # type: ignore[attr-defined]
            return
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        pipes = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [at if pipe == -1 else pipe for at, pipe in enumerate(pipes)]
        folder = os.path.abspath(asked["cwd"] or os.getcwd())
        session = asked["start_new_session"]
        process = Asked(arguments[4:], folder, environment, session, os.getpid())
        self.pid = _server(arguments[3], _read_of(environment)).start(process, streams)
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]


_COLD: Any = subprocess.Popen
_GIVEN = [*inspect.signature(_COLD._execute_child).parameters][1:]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


@cache
def _adopts() -> bool:
    """Make this process the one that orphans below it go to; say whether that can be."""
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _read_of(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what is read of an environment before a module begins; a path is searched later."""
    read = {name: value for name, value in environment.items() if name.startswith(READ)}
    read.pop("PYTHONPATH", None)
    return tuple(sorted(read.items()))


_SERVERS: dict[tuple[str, tuple[tuple[str, str], ...]], Server] = {}


def _server(module: str, read: tuple[tuple[str, str], ...]) -> Server:
    with _STARTING:
        if (module, read) not in _SERVERS:
            environment = {"PATH": os.environ["PATH"], **dict(read)}
            _SERVERS[module, read] = Server(module, environment)
        return _SERVERS[module, read]


def end() -> None:
    """End all servers."""
    while _SERVERS:
        _SERVERS.popitem()[1].end()


_STARTING = threading.Lock()


# in the server


def main(number: int, module: str, *more: str) -> None:
    """Answer until nobody asks; a fork comes back from here, and runs the module."""
    for each in (module, *more):
        importlib.import_module(each)
    gc.freeze()  # so that collections in forks do not copy all pages
    asking = socket.socket(fileno=number)
    while True:
        head, streams, *_ = socket.recv_fds(asking, _NUMBER.size, 3)
        if not head:
            return
        asked = Asked(*pickle.loads(_whole(asking, _NUMBER.unpack(head)[0])))
        process = _handed_over()
        if not process:
            asking.close()
            _become(asked, streams)
            is_package = hasattr(sys.modules[module], "__path__")
            sys.modules.pop(f"{module}.__main__" if is_package else module, None)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        for stream in streams:
            os.close(stream)
        asking.sendall(_NUMBER.pack(process))


def _whole(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _handed_over() -> int:
    """Fork a process that is an orphan at once; return its number, and 0 in it."""
    inside, outside = os.pipe()
    first = os.fork()
    if first:
        os.close(outside)
        with open(inside, "rb") as file:
            process = _NUMBER.unpack(file.read())[0]
        os.waitpid(first, 0)
        return int(process)
    process = os.fork()
    if process:
        os.write(outside, _NUMBER.pack(process))
        os._exit(0)
    os.close(inside)
    os.close(outside)
    return 0


def _become(asked: Asked, streams: Sequence[int]) -> None:
    """Take over what a process of its own would have been started with."""
    while os.getppid() != asked.parent:
        os.sched_yield()
    if asked.own_session:
        os.setsid()
    for to, stream in enumerate(streams):
        os.dup2(stream, to)
    for stream in streams:
        os.close(stream)
    os.chdir(asked.folder)
    before = os.environ["PYTHONPATH"].split(os.pathsep)
    own = {name: os.environ[name] for name in os.environ if name == "LC_CTYPE"}  # set by Python
    os.environ.clear()
    os.environ.update(own | dict(asked.environment))
    path = asked.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, path), *(each for each in sys.path if each not in before)]
    sys.argv[1:] = asked.arguments


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
