"""What readers share: kinds of files, what comes back, how a file can be no good, JSON, dtypes.

What kind of file a path is say its first bytes, and its suffix where they say nothing: a suffix
says what a file should be, the first bytes what it is. Whatever would have to be unpickled is
refused by either, and never tried.

Of the file little is read: names and shapes cost kilobytes of a checkpoint of gigabytes. The limit
is not a matter of taste. Lengths in a damaged or hostile file say anything, and a reader that
believed them would fill the memory.

A checkpoint of a Linen or NNX model holds one component more than the tree it was saved from: a
box (`Partitioned`, `Param`) is saved as a node whose only child is called `value`. That component
is left out (`paths_of`), as the box is in a live tree.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from shardspec.diagnostics import Diagnostic, Span, codes, point
from shardspec.ir.spec import Arrays, Param, Params, Shape, dtype_name, tree_path
from shardspec.language.files import open_regular

#: A file that lists more is damaged or hostile: the largest models have some 100,000.
MOST_ARRAYS = 1_000_000


Outcome = tuple[Arrays, tuple[Diagnostic, ...]]


def in_bytes(number: int) -> str:
    """Return a number of bytes for a message.

    >>> in_bytes(1), in_bytes(20_000)
    ('1 byte', '20,000 bytes')
    """
    return f"{number:,} byte{'' if number == 1 else 's'}"


def refused(*diagnostics: Diagnostic) -> Outcome:
    """Return no arrays, and why."""
    return Arrays(), diagnostics


def damaged(message: str, span: Span | None = None, help: str | None = None) -> Diagnostic:
    """Return the finding for a file that breaks the rules of its own format."""
    return point(
        codes.BAD_CHECKPOINT,
        message,
        span,
        help=help or "the file may be cut off or damaged: fetch or save it again",
    )


def foreign(message: str, help: str) -> Diagnostic:
    """Return the finding for a sound file that holds no arrays we can name."""
    return point(codes.BAD_CHECKPOINT, message, None, help=help)


def unsafe(message: str, help: str) -> Diagnostic:
    """Return the finding for a file that cannot be read without running what is in it."""
    return point(codes.UNSAFE_MANIFEST, message, None, help=help)


def no_dtype(path: str, dtype: str, name: str) -> Diagnostic:
    """Return the finding for an array whose elements are of no dtype we know."""
    message = f"`{path}` in `{name}` has the dtype `{dtype}`, which shardspec does not know"
    return point(
        codes.BAD_MANIFEST, message, None, help="list the arrays in a manifest: docs/arrays.md"
    )


#: Signs in the JSON of one array, generously: what has more lists more arrays than there are.
_BRACKETS, _COMMAS = 4, 16


def parse_json(raw: bytes | str, name: str) -> Any:
    """Return the data of a JSON text, or the `Diagnostic` that says why there is none.

    Args:
      name: what messages call the text: "the header of `model.safetensors`".
    """
    twice: list[str] = []
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        if _is_endless(text):
            return damaged(f"{name} lists more than {MOST_ARRAYS:,} arrays")
        data = loaded_json(text, twice)
        if "\\u" in text and not is_text(data):
            return damaged(f"{name} has a name that is no text: half of a surrogate pair")
    except UnicodeDecodeError as fault:
        return damaged(f"{name} is not UTF-8 at byte {fault.start:,}")
    except json.JSONDecodeError as fault:
        why = f"{fault.msg[0].lower()}{fault.msg[1:]}"
        return damaged(f"{name} is not JSON: {why}, line {fault.lineno}, column {fault.colno}")
    except RecursionError:
        return damaged(f"{name} is not JSON: brackets are nested too deep")
    except ValueError as fault:
        return damaged(f"{name} is not JSON: {str(fault).partition(';')[0].lower()}")
    return damaged(f"{name} has `{twice[0]}` twice") if twice else data


def loaded_json(text: str, twice: list[str]) -> Any:
    """Return the data of a JSON text.

    Args:
      twice: where the first repeated key of each object is added.

    Raises:
      ValueError: it is no JSON.
      RecursionError: its brackets are nested too deep.
    """

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            seen: set[str] = set()
            twice.append(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
        return data

    return json.loads(text, object_pairs_hook=mapping)


def _is_endless(text: str) -> bool:
    brackets = text.count("{") + text.count("[")
    return brackets > _BRACKETS * MOST_ARRAYS or text.count(",") > _COMMAS * MOST_ARRAYS


def is_text(data: Any) -> bool:
    """Say whether every text in `data` can be written as UTF-8, which half a pair cannot."""
    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def sizes_of(data: Any) -> tuple[int, ...] | None:
    """Return a list of sizes as a shape, or None for anything else.

    >>> sizes_of([2, 3]), sizes_of([-1]), sizes_of([True])
    ((2, 3), None, None)
    """
    if not isinstance(data, list) or len(data) > MOST_DIMS:
        return None
    if not all(type(size) is int and 0 <= size < LARGEST_SIZE for size in data):
        return None
    return tuple(data)


#: No array has more dimensions, or a larger one.
MOST_DIMS = 64
LARGEST_SIZE = 1 << 48


_BOXED = "value"


class Leaf(NamedTuple):
    """An array of a saved tree: the keys from the root down, and what it is."""

    keys: tuple[str, ...]
    shape: Shape
    dtype: str


def params_of_leaves(leaves: Sequence[Leaf]) -> Params:
    """Return the arrays of a saved tree."""
    paths = paths_of([leaf.keys for leaf in leaves])
    return tuple(
        Param(path, leaf.shape, leaf.dtype) for path, leaf in zip(paths, leaves, strict=True)
    )


def paths_of(routes: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the path of each leaf, the components that boxes add left out.

    >>> paths_of([("params", "kernel", "value"), ("params", "bias")])
    ['kernel', 'bias']
    """
    children = Counter(keys[:-1] for keys in routes)
    below = {keys[:depth] for keys in routes for depth in range(1, len(keys) - 1)}
    return [tree_path(keys[:-1] if _is_boxed(keys, children, below) else keys) for keys in routes]


def _is_boxed(
    keys: tuple[str, ...], children: Counter[tuple[str, ...]], below: set[tuple[str, ...]]
) -> bool:
    """Say whether the last key is the only one of its node, and a box's."""
    parent = keys[:-1]
    return len(keys) > 1 and keys[-1] == _BOXED and children[parent] == 1 and parent not in below


_CODE = re.compile(r"[<>|=]?([a-zA-Z])([0-9]{1,2})")
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


def numpy_dtype(code: str) -> str | None:
    """Return our name of `<f4`, `|b1` or `bfloat16`; None for what is no dtype of JAX.

    >>> numpy_dtype("<f4"), numpy_dtype("|b1"), numpy_dtype("bfloat16"), numpy_dtype("|V2")
    ('f32', 'bool', 'bf16', None)
    """
    found = _CODE.fullmatch(code)
    if not found:
        return dtype_name(code)
    if (found[1], found[2]) == ("b", "1"):
        return "bool"
    kind = _KINDS.get(found[1])
    return None if kind is None else dtype_name(f"{kind}{int(found[2]) * 8}")


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
    # A map with something in it, which no text starts like.
    is_long = head[:1] in (b"\xde", b"\xdf") and head[1:2] < b"\x80"
    if b"\x81" <= head[:1] <= b"\x8f" or is_long:
        return MSGPACK
    return MODEL_INFO if head.startswith(b"Variable ") else LISTING


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
            raise cut_off(here, size, max(self.size - here, 0))
        return self.read(size)


def cut_off(at: int, needed: int, left: int) -> DamageError:
    """Return the fault of a file that ends before all that it announces."""
    where = f"byte {at:,}: {needed:,} more are needed and {left:,} are left"
    return DamageError(f"is cut off at {where}")
