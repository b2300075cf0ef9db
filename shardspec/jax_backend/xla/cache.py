"""Programs that were compiled before, by the content of what they were made of.

An entry is one JSON file of text and numbers. The folder is `shardspec/compiled` in the user's
cache folder, and it is used only where that is absolute, and no one else's: a stranger's entry
would be believed. Other folders beside it have other kinds of entries.

The key of an entry has what a compile depends on beside the program: flags, variables, and the
compiler's own files. What a reader has to know of it, the flags, is shown beside every figure that
a compiler gave, and in the lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, TypeVar

from shardspec.language.files import open_unnoted
from shardspec.programs.memory import CompiledMemory
from shardspec.records import data_of, record_of
from shardspec.versions import COMPILED

Flags = tuple[tuple[str, str], ...]

#: How the variables begin that compilers read, jax's among them.
_READ = ("LIBTPU_", "TPU_", "XLA_", "TF_", "JAX_", "MEGASCALE_", "CUDA_", "NVIDIA_", "PJRT_")
#: Those that the compiler's process gets from us, or that change nothing in a program.
_NOT_READ = (
    *("JAX_PLATFORMS", "JAX_TRACEBACK", "JAX_LOG", "JAX_COMPILATION_CACHE", "XLA_PYTHON_"),
    "TF_CPP_MIN_LOG_LEVEL",  # set by jax as it is imported
)
#: Those that are shown: who sets them means another program by it.
_SHOWN = (
    *("LIBTPU_INIT_ARGS", "XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_ENABLE_X64"),
    *("JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE"),
)
#: Flags of XLA that say how it reports, and how many CPUs a host plays.
_NO_MATTER = ("--xla_force_host_platform_device_count", "--xla_dump_")
#: What is read of a file of flags.
_MOST_BYTES = 2**16
#: What a fallback is called among flags.
FALLBACK = "fallback"


def flags_here() -> Flags:
    """Return the flags that compilers get from the environment, by variable."""
    found = ((name, _flags(name, os.environ.get(name, ""))) for name in _SHOWN)
    return tuple((name, value) for name, value in found if value)


def surroundings(
    ours: Iterable[str], packages: Iterable[Distribution | None]
) -> dict[str, list[str]]:
    """Return all that the outcome of a compile depends on, beside the program and the machine.

    It is the same before and after jax is imported, which names the library of libtpu.

    Args:
      ours: variables that the compiler's process gets from us.
      packages: those of the compiler and what it stands on.
    """
    apart = (*ours, *_NOT_READ)
    libraries = [(each, _libraries(each)) for each in packages if each is not None]
    own = {path for _, found in libraries for path in found}
    read = (n for n in sorted(os.environ) if n.startswith(_READ) and not n.startswith(apart))
    given = {name: _flags(name, os.environ[name]) for name in read}
    variables = [f"{name}={value}" for name, value in given.items() if value not in ("", *own)]
    return {"variables": variables, "files": [e for each in libraries for e in _files(*each)]}


def _libraries(package: Distribution) -> dict[str, str]:
    """Return the libraries of a package by their places on disk."""
    found = (each for each in package.files or () if each.suffix == ".so")
    return {str(package.locate_file(each)): str(each) for each in found}


def _files(package: Distribution, libraries: Mapping[str, str]) -> Iterator[str]:
    """Yield the version of a package, and its libraries as they are on disk."""
    yield f"{package.name} {package.version}"
    for path, name in libraries.items():
        with suppress(OSError):
            about = os.stat(path)
            yield f"{name} {about.st_size} {about.st_mtime_ns}"


def stated_flags(name: str, value: str) -> str:
    """Return the flags that a variable states: XLA reads those of a file where it names one."""
    if not name.endswith("XLA_FLAGS") or value.lstrip().startswith("-"):
        return value
    with suppress(OSError, ValueError), open(value.strip(), "rb", opener=open_unnoted) as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return value


def _flags(name: str, value: str) -> str:
    words = stated_flags(name, value).split()
    return " ".join(each for each in words if not each.startswith(_NO_MATTER))


#: How many entries of a folder are kept, the newest.
_MOST = 64
_PROGRAMS = "compiled"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made of a step.

    Attributes:
      text: the final program, in HLO.
      memory: None where the compiler did not get as far.
      compiler: its name and version.
      is_whole: whether the compile was let to its end.
      refusal: why the compiler gave up although the program is there: it does not fit.
      warnings: of its log.
      was_kept: whether it was compiled on another day.
      date: of the compile.
      flags: that it was compiled with, by the variable that has them.
      held_bytes: the most memory that the compiler's process was seen to hold; 0 where unknown.
    """

    text: str
    memory: CompiledMemory | None
    compiler: str
    seconds: float
    is_whole: bool
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    was_kept: bool = False
    date: str = ""
    flags: Flags = ()
    held_bytes: int = 0


def key_of(module: bytes, job: dict[str, Any], compiler: str, *, is_whole: bool) -> str:
    """Return the name of a compile: all that its outcome depends on."""
    told = json.dumps([COMPILED, job, compiler, is_whole], sort_keys=True)
    return hashlib.sha256(told.encode() + b"\0" + module).hexdigest()


def kept(key: str) -> Compiled | None:
    """Return what was compiled before; None where nothing was, or not in a form that is known."""
    found = entry(_PROGRAMS, key, Compiled)
    return None if found is None else replace(found, was_kept=True)


def keep(key: str, made: Compiled) -> None:
    """Keep a program, as far as there is room and a folder for it."""
    keep_entry(_PROGRAMS, key, made)


def entry(name: str, key: str, kind: type[T]) -> T | None:
    """Return an entry of a folder, a record; None where there is none in a form that is known."""
    folder = _folder(name)
    if folder is None:
        return None
    try:
        data = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        return record_of(kind, data)
    except (OSError, ValueError, RecursionError):
        return None


def has_entries(name: str) -> bool:
    """Say whether a folder has any."""
    folder = _folder(name)
    return folder is not None and any(folder.glob("*.json"))


def keep_entry(name: str, key: str, made: Any) -> None:
    """Keep a record in a folder, as far as there is room and a folder for it."""
    folder = _folder(name)
    if folder is None:
        return
    with suppress(OSError):
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data_of(made), file)
            os.replace(name, folder / f"{key}.json")
        except BaseException:
            os.unlink(name)
            raise
        _forget_old(folder)


def _folder(name: str = _PROGRAMS) -> Path | None:
    """Return a folder, made if need be; None where there is none that is safe."""
    named = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(named):
        return None
    folder = Path(named) / "shardspec" / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ours = all(_is_ours(each) for each in (folder, folder.parent))
    except OSError:
        return None
    return folder if is_ours else None


def _is_ours(folder: Path) -> bool:
    about = folder.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & others
    )


def _forget_old(folder: Path) -> None:
    entries = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[_MOST:]:
        path.unlink()
