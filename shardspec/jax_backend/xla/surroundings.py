"""What a compile depends on beside the program: flags, variables, and the compiler's own files.

The key of the cache has all of it. What a reader has to know of it, the flags, stands beside every
figure that a compiler gave, and in the lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import Distribution

from shardspec.language.files import open_unnoted

Flags = tuple[tuple[str, str], ...]

#: How the variables begin that compilers read, jax's among them.
_READ = ("LIBTPU_", "TPU_", "XLA_", "TF_", "JAX_", "MEGASCALE_", "CUDA_", "NVIDIA_", "PJRT_")
#: Those that the compiler's process gets from us, or that change nothing in a program.
_NOT_READ = ("JAX_PLATFORMS", "JAX_TRACEBACK", "JAX_LOG", "JAX_COMPILATION_CACHE", "XLA_PYTHON_")
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


def flags_here(environment: Mapping[str, str] = os.environ) -> Flags:
    """Return the flags that compilers get from the environment, by variable."""
    found = ((name, _flags(name, environment.get(name, ""))) for name in _SHOWN)
    return tuple((name, value) for name, value in found if value)


def surroundings(
    ours: Iterable[str], packages: Iterable[Distribution | None]
) -> dict[str, list[str]]:
    """Return all that the outcome of a compile depends on, beside the program and the machine.

    Args:
      ours: variables that the compiler's process gets from us.
      packages: those of the compiler and what it stands on.
    """
    apart = (*ours, *_NOT_READ)
    read = (n for n in sorted(os.environ) if n.startswith(_READ) and not n.startswith(apart))
    variables = (f"{name}={_flags(name, os.environ[name])}" for name in read)
    files = (each for package in packages if package is not None for each in _files(package))
    return {"variables": [each for each in variables if each[-1] != "="], "files": list(files)}


def _files(package: Distribution) -> Iterator[str]:
    """Yield the version of a package, and its libraries as they are on disk."""
    yield f"{package.name} {package.version}"
    for each in package.files or ():
        if each.suffix == ".so":
            try:
                about = os.stat(str(package.locate_file(each)))
            except OSError:
                continue
            yield f"{each} {about.st_size} {about.st_mtime_ns}"


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
