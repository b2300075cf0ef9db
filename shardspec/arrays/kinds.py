"""What kind of file a path is: by its first bytes, and by its suffix where they say nothing.

A suffix says what a file should be, the first bytes what it is, so these come first. Whatever
would have to be unpickled is refused by either, and never tried.

Of the file little is read: names and shapes cost kilobytes of a checkpoint of gigabytes. The limit
is not a matter of taste. Lengths in a damaged or hostile file say anything, and a reader that
believed them would fill the memory.
"""

from __future__ import annotations

import io
import os
from importlib import import_module
from typing import NamedTuple

from shardspec.arrays.reading import Outcome, damaged, foreign, refused, unsafe
from shardspec.diagnostics import Diagnostic
from shardspec.language.files import open_regular


class Kind(NamedTuple):
    """A format of files.

    Attributes:
      module: the one of this package that reads it; it has `read`.
      suffixes: what such files are called, where they keep to it.
      is_text: whether `read` takes a `SourceFile`; else a path and a name.
    """

    name: str
    module: str
    suffixes: tuple[str, ...] = ()
    is_text: bool = False


SAFETENSORS = Kind("safetensors", "safetensors", (".safetensors",))
NPZ = Kind("numpy archive", "npz", (".npz",))
MSGPACK = Kind("Flax msgpack", "flax_msgpack", (".msgpack",))
MODEL_INFO = Kind("T5X model-info", "model_info", ("model-info.txt",), is_text=True)
LISTING = Kind("manifest", "listing", (".json", ".yaml", ".yml"), is_text=True)

#: Every format of single files, in the order in which a folder is searched for them.
KINDS = (SAFETENSORS, MSGPACK, NPZ, MODEL_INFO, LISTING)

#: Bytes that `kind_of` wants to see.
HEAD = 16

#: Bytes of a safetensors header. Source: the format's description, "Benefits: Prevent DOS attacks".
LARGEST_HEADER = 100_000_000

#: What people call files that are pickles, mostly.
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib")
_INSTEAD = (
    "save it as safetensors, or list its arrays in a manifest; reading a pickle can run any code"
)

#: First bytes -> what such a file is, and what to do.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"\x93NUMPY", "one array without a name", "put it into an `.npz`, which has names"),
    (b"\x89HDF\r\n", "an HDF5 file", "save the weights as safetensors or `.npz`"),
    (b"GGUF", "a GGUF file, quantized for llama.cpp", "name the safetensors it was made from"),
    (b"\x1f\x8b", "compressed with gzip", "decompress it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "decompress it first"),
)


def kind_of(head: bytes, name: str) -> Kind | Diagnostic:
    """Return the format of a file, or why it cannot be read.

    Args:
      head: the first `HEAD` bytes.
      name: the file's; messages show it.
    """
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return NPZ
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LARGEST_HEADER:
        return SAFETENSORS
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return unsafe(f"`{name}` is a pickle", _INSTEAD)
    for start, what, help in _FOREIGN:
        if head.startswith(start):
            return foreign(f"`{name}` is {what}", help)
    lowered = name.lower()
    for kind in KINDS:
        if lowered.endswith(kind.suffixes):
            return kind
    if lowered.endswith(PICKLES):
        suffix = lowered[lowered.rindex(".") :]
        return unsafe(f"`{name}`: files with the suffix `{suffix}` are mostly pickles", _INSTEAD)
    if _starts_msgpack(head):
        return MSGPACK
    return MODEL_INFO if head.startswith(b"Variable ") else LISTING


def _starts_msgpack(head: bytes) -> bool:
    """Say whether this is a map with something in it, which no text starts like."""
    first, second = head[:1], head[1:2]
    return b"\x81" <= first <= b"\x8f" or (first in (b"\xde", b"\xdf") and second < b"\x80")


def kind_at(path: str, name: str) -> Kind | Diagnostic:
    """Return the format of the file at `path`, or why it cannot be read.

    Args:
      name: what messages call it.
    """
    with FrugalFile(path) as file:
        return kind_of(file.read(HEAD), name)


def read_checkpoint(path: str, name: str) -> Outcome:
    """Return the arrays of a file that is no text."""
    kind = kind_at(path, name)
    if isinstance(kind, Diagnostic):
        return refused(kind)
    if kind.is_text:
        return refused(foreign(f"`{name}` is text, not a checkpoint", "name a checkpoint"))
    return read_as(kind, path, name)


def read_as(kind: Kind, path: str, name: str) -> Outcome:
    """Return the arrays of a file of a known format."""
    module = import_module(f"{__package__}.{kind.module}")
    try:
        outcome: Outcome = module.read(path, name)
    except DamageError as damage:
        return refused(damaged(f"`{name}` {damage}"))
    return outcome


MIB = 2**20

#: What may be read of one file in all. The largest header that safetensors allows has 100 MB.
MOST_BYTES_READ = 128 * MIB


class DamageError(Exception):
    """A file ends too early or is not what it says; caught where a reader starts.

    Its only argument is the fact, for a message that has the file's name in front.
    """


class FrugalFile(io.FileIO):
    """A file open for reading that refuses more than `MOST_BYTES_READ`.

    Attributes:
      size: of the file, in bytes.
      bytes_read: so far.
    """

    def __init__(self, path: str) -> None:
        """Open the file at `path`."""
        super().__init__(path, "rb", opener=open_regular)
        self.size = os.fstat(self.fileno()).st_size
        self.bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes from where the file stands."""
        wanted = self.size - self.tell() if size is None or size < 0 else size
        if self.bytes_read + wanted > MOST_BYTES_READ:
            limit = MOST_BYTES_READ // MIB
            raise DamageError(f"names and shapes alone would be more than {limit} MiB")
        data = super().read(wanted) or b""
        self.bytes_read += len(data)
        return data

    def exactly(self, size: int) -> bytes:
        """Return `size` bytes; a file that ends before them is damaged."""
        here = self.tell()
        if size > self.size - here:
            at = (
                f"byte {here:,}: {size:,} more are needed and {max(self.size - here, 0):,} are left"
            )
            raise DamageError(f"is cut off at {at}")
        return self.read(size)
