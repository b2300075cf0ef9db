"""A file on disk, at a revision, or standard input -> text, or the reason why not."""

from __future__ import annotations

import errno
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

from shardspec.diagnostics import Diagnostic, Label, SourceFile, Span
from shardspec.diagnostics.codes import UNREADABLE
from shardspec.frontend.boundary import leads_out, real_path, veiled

LARGEST_FILE_BYTES = 64 * 2**20

#: What a shell calls streams that it has opened: `<(...)` of bash, standard input.
_STREAMS = tuple(os.path.join(os.path.dirname(os.devnull), name) for name in ("fd/", "stdin"))

_NOT_TEXT = "specs and manifests are UTF-8 text"

# The longer marks first: UTF-32-LE starts with the mark of UTF-16-LE.
_FOREIGN_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def read_argument(name: str) -> SourceFile | Diagnostic:
    """Return the text that a person asks for by `name`, or why it cannot be read.

    Beside a path that is `-`, standard input; `git:REV:PATH`, the file at a revision; and a stream
    that the shell has opened, as in `check <(make-spec)`. No file may name these: use `read_source`
    for what one does. Where a link leads out of the project, the text is marked as not to be
    quoted.
    """
    source = _read_argument(name)
    if _is_no_path(name) or not leads_out(name):
        return source
    if isinstance(source, SourceFile):
        return replace(source, is_outside=True)
    return next(veiled((source,), f"shardspec check {real_path(name)}"))


def _is_no_path(name: str) -> bool:
    return name == "-" or name.startswith(("git:", *_STREAMS))


def _read_argument(name: str) -> SourceFile | Diagnostic:
    if name == "-":
        raw = read_stdin()
    elif name.startswith("git:"):
        from shardspec.frontend.revisions import read_revision

        raw = read_revision(name, LARGEST_FILE_BYTES)
    else:
        raw = _read_bytes(Path(name), name, may_be_stream=name.startswith(_STREAMS))
    return raw if isinstance(raw, Diagnostic) else decode(raw, name)


def read_source(path: Path, *, name: str | None = None) -> SourceFile | Diagnostic:
    """Return the text of the file at `path`, or why it cannot be read.

    Args:
      name: what messages call the file; as `path` says when left out.
    """
    name = str(path) if name is None else name
    raw = _read_bytes(path, name)
    return raw if isinstance(raw, Diagnostic) else decode(raw, name)


def read_stdin() -> bytes | Diagnostic:
    """Return what comes from standard input, or why nothing does."""
    if sys.stdin is None:
        return _refuse(
            "`-` cannot be read: standard input is closed", "name a file, or pipe one in"
        )
    try:
        return _not_too_large(sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1), "-")
    except (OSError, ValueError) as fault:
        return _unreadable("-", fault)


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of the regular file at `path`, for reading; an `opener` of `open`.

    A pipe would wait for its other end, and a device may act on being read.

    Raises:
      OSError: it cannot be opened, or is no regular file.
    """
    _must_be_regular(os.stat(path).st_mode, path)
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _must_be_regular(os.fstat(descriptor).st_mode, path)  # it may be another by now
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _must_be_regular(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is a {_kind(mode)}, not a regular file", path)


def decode(raw: bytes, name: str) -> SourceFile | Diagnostic:
    """Return bytes as text: UTF-8, with or without a byte order mark; line ends stay."""
    for mark, encoding in _FOREIGN_MARKS:
        if raw.startswith(mark):
            return _refuse(
                f"`{name}` is {encoding}, not UTF-8", f"save it as UTF-8: {_recode(name, encoding)}"
            )
    body = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as fault:
        if b"\x00" in body:
            return _refuse(f"`{name}` is no text file: it holds NUL bytes", _NOT_TEXT)
        return _not_utf8(body, name, fault.start, len(raw) - len(body))
    if "\x00" in text:
        return _null_byte(text, name)
    return SourceFile(name, text)


def _read_bytes(path: Path, name: str, *, may_be_stream: bool = False) -> bytes | Diagnostic:
    try:
        with open(path, "rb", opener=None if may_be_stream else open_regular) as file:
            return _not_too_large(file.read(LARGEST_FILE_BYTES + 1) or b"", name)
    except FileNotFoundError:
        return _refuse(f"there is no file `{name}`", _missing_help(path))
    except IsADirectoryError:
        return _refuse(f"`{name}` is a folder, not a file", "name a file inside it")
    except PermissionError:
        return _refuse(f"`{name}` may not be read: permission denied", "check its permissions")
    except (OSError, ValueError) as fault:
        return _unreadable(name, fault)


def _unreadable(name: str, fault: OSError | ValueError) -> Diagnostic:
    reason = getattr(fault, "strerror", None) or str(fault)
    return _refuse(f"`{name}` cannot be read: {reason}", "name a file that can be read")


def _not_too_large(raw: bytes, name: str) -> bytes | Diagnostic:
    if len(raw) <= LARGEST_FILE_BYTES:
        return raw
    limit = LARGEST_FILE_BYTES // 2**20
    return _refuse(f"`{name}` is larger than {limit} MiB", "is it a spec or manifest at all?")


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    )
    return next((kind for is_one, kind in kinds if is_one(mode)), "special file")


def _missing_help(path: Path) -> str | None:
    """Return the nearest name beside a file that is not there, or where else to look."""
    from shlex import quote

    from shardspec.diagnostics.suggest import did_you_mean, nearest

    folder = path.parent
    try:
        beside = os.listdir(folder)
    except (OSError, ValueError):
        if folder.exists():
            return f"`{folder}` is no folder that can be read"
        others = nearest(folder.name, _names_in(folder.parent), count=3)
        found = next((each for each in others if (folder.parent / each / path.name).exists()), None)
        if found is not None:
            return f"did you mean `{folder.parent / found / path.name}`?"
        return f"there is no folder `{folder}` either"
    return did_you_mean(path.name, beside) or f"`ls {quote(str(folder))}` shows what is there"


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (OSError, ValueError):
        return []


def _not_utf8(body: bytes, name: str, offset: int, skipped: int) -> Diagnostic:
    line_start = body.rfind(b"\n", 0, offset) + 1
    line = body.count(b"\n", 0, offset) + 1
    before = body[line_start:offset].decode("utf-8")
    rest = body[offset : offset + 60].split(b"\n", 1)[0].decode("utf-8", errors="replace")
    place = f"byte 0x{body[offset]:02x} at offset {offset + skipped}, line {line}"
    message = f"`{name}` is not UTF-8: {place}"
    # The span stands in a text that ends with the bad line, so that the line can be shown.
    text = body[:line_start].decode("utf-8") + before + rest
    start = len(text) - len(rest)
    label = Label(Span(SourceFile(name, text), start, start + 1), "cannot be decoded")
    return Diagnostic(UNREADABLE, message, (label,), help=f"save it as UTF-8: {_recode(name)}")


def _null_byte(text: str, name: str) -> Diagnostic:
    start = text.index("\x00")
    span = Span(SourceFile(name, text), start, start + 1)
    message = f"`{name}` holds a NUL character on line {span.line}"
    way_out = f"is it a binary file, or UTF-16 without a byte order mark? {_NOT_TEXT}"
    return Diagnostic(UNREADABLE, message, (Label(span, "NUL"),), help=way_out)


def _recode(name: str, encoding: str = "LATIN1") -> str:
    return f"`iconv -f {encoding} -t UTF-8 {name}`"


def _refuse(message: str, way_out: str | None = None) -> Diagnostic:
    return Diagnostic(UNREADABLE, message, help=way_out)
