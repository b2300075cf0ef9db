"""numpy's `.npz`: a zip of `.npy` files, each with a header and then the elements.

The header is read, and of the elements nothing. An array of Python objects is a pickle, and is
refused. numpy's own reader of headers is no help: it reads as many bytes as a header says it has,
up to 4 GiB of a zip of a few, before it looks at its limit (numpy 2.4, `_read_array_header`).
Source: the format's description, `numpy.lib.format`.
"""

from __future__ import annotations

import ast
import re
import warnings
import zlib
from typing import IO, Any, NamedTuple

from shardspec.arrays import reading
from shardspec.arrays.reading import MOST_ARRAYS, FrugalFile, damaged, in_bytes, refused, unsafe
from shardspec.diagnostics import Diagnostic, parted
from shardspec.ir.spec import Arrays, Param, Shape

_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"
_KEYS = {"descr", "fortran_order", "shape"}
#: Text and bytes: no arrays of a model, and left out as strings are anywhere.
_TEXT = re.compile(r"[<>|=]?[SUa][0-9]+")
#: Python objects: numpy pickles these.
_OBJECTS = re.compile(r"[<>|=]?O[0-9]*")

#: Stored and deflated, the two that numpy writes.
_COMPRESSIONS = {0, 8}

#: numpy refuses to read a longer header unless asked to. Source: `numpy.lib.format`.
LONGEST_HEADER = 10_000


class _Header(NamedTuple):
    descr: str
    shape: Shape
    length: int


def read(path: str, name: str) -> reading.Outcome:
    """Return the arrays of an `.npz`; those of strings are left out."""
    import zipfile

    unsound = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)
    with FrugalFile(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                other = _other_archive([member.filename for member in members], name)
                if other:
                    return refused(other)
                found = [_array(archive, member, name) for member in members]
        except unsound as fault:
            why = str(fault) or type(fault).__name__
            return refused(damaged(f"`{name}` is no sound zip: {why[0].lower()}{why[1:]}"))
    params, faults = parted(each for each in found if each is not None)
    return refused(*faults) if faults else (Arrays(params), ())


def _other_archive(names: list[str], name: str) -> Diagnostic | None:
    """Return what a zip is that is no `.npz`."""
    if any(each.endswith(".pkl") for each in names):
        return unsafe(
            f"`{name}` holds a pickle, as PyTorch saves it: reading it could run any code",
            "save it as safetensors: `safetensors.torch.save_file(model.state_dict(), ...)`",
        )
    strange = next((each for each in names if not each.endswith(_SUFFIX)), None)
    if strange is not None:
        return reading.foreign(
            f"`{name}` is a zip with `{strange}` in it; an `.npz` holds `.npy` files alone",
            "name a file that holds arrays",
        )
    if len(names) > MOST_ARRAYS:
        return damaged(f"`{name}` lists more than {MOST_ARRAYS:,} arrays")
    return None


def _array(archive: Any, member: Any, name: str) -> Param | Diagnostic | None:
    """Return the array of one `.npy`, None for one of strings."""
    path = member.filename.removesuffix(_SUFFIX)
    if member.compress_type not in _COMPRESSIONS:
        return damaged(f"`{path}` in `{name}` is compressed in a way that numpy never is")
    with archive.open(member) as stream:
        header = _header(stream)
    if isinstance(header, str):
        return damaged(f"`{path}` in `{name}` {header}")
    if _OBJECTS.fullmatch(header.descr):
        return unsafe(
            f"`{path}` in `{name}` is an array of Python objects, which numpy pickles",
            "save arrays of numbers, or list the arrays in a manifest",
        )
    if _TEXT.fullmatch(header.descr):
        return None
    dtype = reading.numpy_dtype(header.descr)
    if dtype is None:
        return reading.no_dtype(path, header.descr, name)
    param = Param(path, header.shape, dtype)
    room = member.file_size - header.length
    if room != param.bytes:
        needed = f"its shape needs {param.bytes:,}"
        return damaged(f"`{path}` in `{name}` has {in_bytes(room)}; {needed}")
    return param


def _header(stream: IO[bytes]) -> _Header | str:
    """Return the header of a `.npy`, or what it is instead."""
    start = stream.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC or len(start) < len(_MAGIC) + 2:
        return "is no `.npy` file"
    width = 2 if start[-2] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if start[-2] not in {1, 2, 3}:
        return f"has version {start[-2]} of the format, which is not known"
    if length > LONGEST_HEADER:
        return f"has a header of {in_bytes(length)}; numpy allows {LONGEST_HEADER:,}"
    raw = stream.read(length)
    if len(raw) < length:
        return "is cut off in its header"
    stated = _stated(raw)
    return stated if isinstance(stated, str) else _Header(*stated, len(start) + width + length)


def _stated(raw: bytes) -> tuple[str, Shape] | str:
    """Return the dtype code and shape that a header states, or what is wrong with it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            data = ast.literal_eval(raw.decode("utf-8", "replace").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return "has a header that is no Python dict"
    if not isinstance(data, dict) or set(data) != _KEYS:
        return "has a header without dtype, order and shape alone"
    shape = reading.sizes_of(list(data["shape"])) if isinstance(data["shape"], tuple) else None
    if shape is None:
        return "has a shape that is no tuple of sizes"
    if not isinstance(data["descr"], str):
        return "has records, not numbers, for elements"
    return data["descr"], shape
