"""Trace a step once more from changed sources; run as a process of its own.

    python -P -m shardspec.jax_backend.cure.again PARENT

A pickled `Asked` comes in on stdin, and a pickled `Lowered` or the findings go out on stdout. The
files on disk stay as they are: Python is given the new text where it imports one of them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import SourceFileLoader
from typing import Any

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.spec import Spec
from shardspec.jax_backend.entry_point import with_call
from shardspec.jax_backend.on_target import on_target, start_on_cpu
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.xla.compiling import started
from shardspec.jax_backend.xla.verifying import Lowered, lowered
from shardspec.orphans import end_group, end_with

Diagnostics = tuple[Diagnostic, ...]
#: The processes that trace now.
_RUNNING: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, slots=True)
class Asked:
    """What is traced.

    Attributes:
      step: `module:function`, which makes it of a resolver.
      folder: is searched for modules first.
      sources: new texts of files, by their real paths.
      given: what the step is called with beside the resolver, by name.
    """

    spec: Spec
    target: str
    step: str
    folder: str
    sources: Mapping[str, str]
    given: Mapping[str, int] = field(default_factory=dict)


def traced_again(asked: Asked, timeout_s: float = 600.0) -> Lowered | Diagnostics | None:
    """Return the step that changed sources make, or why they make none; None after `timeout_s`."""
    path = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))  # as this process finds modules
    process = started("shardspec.jax_backend.cure.again", PYTHONPATH=path)
    _RUNNING.add(process)
    try:
        answer, _ = process.communicate(pickle.dumps(asked), timeout_s)
        found: Lowered | Diagnostics = pickle.loads(answer)
    except subprocess.TimeoutExpired:
        return None
    except (EOFError, pickle.UnpicklingError, OSError) as error:
        message = f"`{asked.step}` could not be traced again: {type(error).__name__}"
        return (Diagnostic(codes.BAD_STEP, message),)
    finally:
        _RUNNING.discard(process)
        end_group(process.pid)
        process.communicate()
    return found


@contextlib.contextmanager
def tracing(most: int) -> Iterator[ThreadPoolExecutor]:
    """Yield threads that trace again; an interrupt ends what they wait for."""
    with ThreadPoolExecutor(most) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*_RUNNING]:
                end_group(process.pid)
            raise


def _with_sources(sources: Mapping[str, str]) -> None:
    """Have imports take new texts: Python asks a loader for the text of a file, or its bytecode."""
    texts = {path: text.encode("utf-8", "surrogateescape") for path, text in sources.items()}
    read, stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        text = texts.get(os.path.realpath(path))
        return read(self, path) if text is None else text

    def path_stats(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
        if os.path.realpath(path) in texts:
            raise OSError("no bytecode stands for this text")
        return stats(self, path)

    SourceFileLoader.get_data = get_data  # type: ignore[assignment,method-assign]
    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]


def _traced(asked: Asked) -> Lowered:
    start_on_cpu()
    target = pipeline.sound_target(pipeline.find_target(asked.spec, asked.target))
    with on_target(target, asked.spec, has_imports=True):
        resolver = Resolver(asked.spec, asked.target, agree_within_s=None)

        work, folder, given = partial(lowered, resolver), asked.folder, asked.given
        return with_call(asked.step, folder, resolver, lambda stage: None, work, given)


def main() -> int:
    """Answer what comes in on stdin; end with the parent, a process with this number."""
    end_with(int(sys.argv[1]))
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked: Asked = pickle.load(sys.stdin.buffer)
    _with_sources(asked.sources)
    found: Lowered | Diagnostics
    try:
        found = _traced(asked)
    except ShardspecError as error:
        found = tuple(error.diagnostics)
    pickle.dump(found, answer)
    answer.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
