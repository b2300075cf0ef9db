"""A file on disk, at a revision, or standard input -> text, or the reason why not.

A spec may name any file as its base or its arrays. Where that file is something else, a list of
passwords or a key, to say what is wrong with it would be to show it. So a message quotes files of
the project that a spec belongs to; of files outside it, and of hidden ones in it, a finding has the
place and what kind of fault it is, and nothing that the file says.

`git:REV:PATH` is a file as it was at a revision of its repository. PATH starts from this folder
(`./spec.yaml`, as git has it). What a spec extends is read from the same revision, since relative
names start from the folder of the spec that says them.

Git obeys the configuration of the folder it runs in, and that folder may be a stranger's: a cloned
repository can hold a bare one, whose `config` names commands to run. So a revision is asked for
on the command line and never by a file, and git runs with everything off that could start another
program: no transports (older gits ignore `GIT_NO_LAZY_FETCH`), no hooks, no file system monitor, no
repository but one with a `.git`, no `GIT_*` of the environment.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from shardspec.assets import bundled_hint
from shardspec.diagnostics import Diagnostic, Excerpt, Label, SourceFile, Span, codes, point

#: What the top folder of a project holds.
_MARKS = (".git", ".hg", "pyproject.toml")

#: What a spec is called that is found without being named.
SPEC_NAMES = ("shardspec.yaml", "shardspec.yml", "spec.yaml", "spec.yml")


class Boundary(NamedTuple):
    """The project of a file that a person has named.

    Attributes:
      folder: the top folder of the project, without links.
      named: where the file would lie if nothing below `folder` were a link.
      others: folders that a person has opened together with it, without links.
    """

    folder: str
    named: str
    others: tuple[str, ...] = ()

    def holds(self, path: str) -> bool:
        """Say whether the file that `path` leads to, links followed, may be quoted."""
        real = real_path(path)
        if real == self.named:
            return True
        tops = (os.path.dirname(self.named), self.folder, *self.others)
        return any(_is_open(os.path.relpath(real, top)) for top in tops)


def _is_open(below: str) -> bool:
    """Say whether a relative path neither leads out nor is hidden."""
    return not any(part.startswith(".") for part in below.split(os.sep))


def real_path(path: str) -> str:
    """Return a path without links; a name that no file can have stays as it is."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return os.path.abspath(path)


def boundary_of(path: str) -> Boundary:
    """Return the boundary of the project of a file that a person has named.

    Its top is the nearest folder above the file with a `.git` or a `pyproject.toml`; else this
    folder, where the file lies below it; else the folder of the file. The home folder and the root
    are no projects, whatever they hold.
    """
    absolute = os.path.abspath(path)
    top = _top(os.path.dirname(absolute), os.path.abspath(os.curdir))
    folder = real_path(top)
    return Boundary(folder, os.path.join(folder, os.path.relpath(absolute, top)))


@lru_cache(maxsize=64)
def _top(folder: str, here: str) -> str:
    too_wide = {os.path.expanduser("~"), os.path.abspath(os.sep)}
    above = folder
    while above not in too_wide and above != os.path.dirname(above):
        if any(os.path.lexists(os.path.join(above, mark)) for mark in _MARKS):
            return above
        above = os.path.dirname(above)
    is_below = os.path.commonpath((folder, here)) == here
    return here if is_below and here not in too_wide else folder


def leads_out(path: str) -> bool:
    """Say whether a link on the way to a file that a person names leads out of the project."""
    return not boundary_of(path).holds(path)


def marked(source: SourceFile, boundary: Boundary, path: str) -> SourceFile:
    """Return a text that knows whether it may be quoted."""
    return source if boundary.holds(path) else replace(source, is_outside=True)


def veiled(faults: Iterable[Diagnostic], shown_by: str) -> Iterator[Diagnostic]:
    """Yield faults of a file outside the project: the kind and the place of each, no more.

    Args:
      shown_by: the command that shows them whole.
    """
    for fault in faults:
        if fault.code is codes.UNREADABLE and not fault.labels:
            yield fault
            continue
        label = fault.primary
        message = f"{fault.code.summary}; the file is outside the project, so its text is not shown"
        place = None if label is None else label.span
        unseen = place and replace(place, source=replace(place.source, is_outside=True))
        yield point(fault.code, message, unseen, help=f"`{shown_by}` shows it")


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
    if name == "-" or name.startswith(("git:", *_STREAMS)) or not leads_out(name):
        return source
    if isinstance(source, SourceFile):
        return replace(source, is_outside=True)
    return next(veiled((source,), f"shardspec check {real_path(name)}"))


def _read_argument(name: str) -> SourceFile | Diagnostic:
    if name == "-":
        raw = read_stdin()
    elif name.startswith("git:"):
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
    """Return what comes from standard input, the same for a verb that asks twice, or why not."""
    for stream, said in _from_stdin:
        if stream is sys.stdin:
            return said
    if sys.stdin is None:
        message = "`-` cannot be read: standard input is closed"
        return _refuse(message, "name a file, or pipe one in")
    with suppress(OSError, ValueError):  # a stream that is no file
        _read.setdefault(_identity(os.fstat(sys.stdin.fileno())), "")
    try:
        found = _not_too_large(sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1), "-")
    except (OSError, ValueError) as fault:
        return _unreadable("-", fault)
    _from_stdin[:] = [(sys.stdin, found)]
    return found


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of the regular file at `path`, for reading; an `opener` of `open`.

    A pipe would wait for its other end, and a device may act on being read.

    Raises:
      OSError: it cannot be opened, or is no regular file.
    """
    try:
        descriptor = open_unnoted(path, flags)
    except OSError:
        _unread.append(os.path.abspath(path))
        raise
    _read[_identity(os.fstat(descriptor))] = os.path.abspath(path)
    return descriptor


def open_unnoted(path: str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor as `open_regular` does, of a file that does not count as read.

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


#: The files that were read since a verb began: device and number of each, and a path; "" of stdin.
_read: dict[tuple[int, int], str] = {}
#: The files that could not be read since then.
_unread: list[str] = []
#: What standard input said since then; it says it once.
_from_stdin: list[tuple[object, bytes | Diagnostic]] = []


def forget_what_was_read() -> None:
    """Begin anew, as each verb does."""
    _read.clear()
    _unread.clear()
    _from_stdin.clear()


def paths_read() -> tuple[str, ...]:
    """Return the files that were read since `forget_what_was_read`, or could not be read."""
    return (*filter(None, _read.values()), *_unread)


def was_read(about: os.stat_result) -> bool:
    """Say whether a file was read since `forget_what_was_read`."""
    return _identity(about) in _read


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _must_be_regular(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is a {_kind(mode)}, not a regular file", path)


def decode(raw: bytes, name: str) -> SourceFile | Diagnostic:
    """Return bytes as text: UTF-8, with or without a byte order mark; line ends stay."""
    for mark, encoding in _FOREIGN_MARKS:
        if raw.startswith(mark):
            return _refuse(f"`{name}` is {encoding}, not UTF-8", _recode(name, encoding))
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
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    return "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "special file"


def _missing_help(path: Path) -> str | None:
    """Return the nearest name beside a file that is not there, or where else to look."""
    from shlex import quote

    from shardspec.diagnostics.words import did_you_mean, nearest

    bundled = bundled_hint(str(path))
    if bundled is not None:
        return bundled
    folder = path.parent
    beside = _names_in(folder)
    if beside is None and folder.exists():
        return f"`{folder}` is no folder that can be read"
    if beside is None:
        others = nearest(folder.name, _names_in(folder.parent) or (), count=3)
        paths = (folder.parent / each / path.name for each in others)
        found = next((each for each in paths if each.exists()), None)
        return f"did you mean `{found}`?" if found else f"there is no folder `{folder}` either"
    return did_you_mean(path.name, beside) or f"`ls {quote(str(folder))}` shows what is there"


def _names_in(folder: Path) -> list[str] | None:
    with suppress(OSError, ValueError):
        return os.listdir(folder)
    return None


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
    return Diagnostic(codes.UNREADABLE, message, (label,), help=_recode(name))


def _null_byte(text: str, name: str) -> Diagnostic:
    start = text.index("\x00")
    span = Span(SourceFile(name, text), start, start + 1)
    message = f"`{name}` holds a NUL character on line {span.line}"
    way_out = f"is it a binary file, or UTF-16 without a byte order mark? {_NOT_TEXT}"
    return Diagnostic(codes.UNREADABLE, message, (Label(span, "NUL"),), help=way_out)


def _recode(name: str, encoding: str = "LATIN1") -> str:
    return f"save it as UTF-8: `iconv -f {encoding} -t UTF-8 {name}`"


def _refuse(message: str, way_out: str | None = None) -> Diagnostic:
    return Diagnostic(codes.UNREADABLE, message, help=way_out)


PREFIX = "git:"

_NO_REVISION = "`git branch -a` lists branches; in GitHub Actions, check out with `fetch-depth: 0`"
_OTHER_PATH = "a new file has nothing to compare with; name one that moved: `git:REV:./old.yaml`"
_PATIENCE_S = 60

#: What beats the configuration of a repository.
_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.pager=cat",
    "core.sshCommand=false",
    "core.askPass=false",
    "core.alternateRefsCommand=true",
    "credential.helper=",
    "diff.external=",
    "protocol.allow=never",
)

#: In place of every `GIT_*`; messages in English, since one of them is recognised.
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def is_revision(name: str) -> bool:
    """Say whether a name of the command line is `git:REV:PATH`."""
    return name.startswith(PREFIX)


def beside(name: str, relative: str) -> str:
    """Return the name of `relative`, seen from the folder of a file, at the same revision.

    >>> beside("git:a/b:./spec.yaml", "base.yaml"), beside("git:v1:x/y.yaml", "../z.yaml")
    ('git:a/b:./base.yaml', 'git:v1:z.yaml')
    """
    revision, path = _parts(name)
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))
    if path.startswith(("./", "../")) and not found.startswith("../"):
        found = f"./{found}"
    return f"{PREFIX}{revision}:{found}"


def git_in_a_file(entry: Excerpt) -> Diagnostic:
    """Return the finding for a revision that a file asks for."""
    message = f"`{entry.text}`: a file cannot ask for a revision, which runs git"
    help = "keep a copy beside the spec and name that: `./base.yaml`"
    return point(codes.GIT_IN_A_FILE, message, entry.span, help=help)


def read_revision(name: str, most_bytes: int) -> bytes | Diagnostic:
    """Return the bytes of `git:REV:PATH`, or why there are none.

    Args:
      most_bytes: larger files are refused unread.
    """
    revision, path = _parts(name)
    if not revision or not path:
        return _refuse(f"`{name}` names no file", "as in `git:main:./spec.yaml`")
    if _is_in_bare_repository():
        help = "`git:REV` needs a repository with a `.git` folder"
        return _refuse("git is not run: this folder holds the insides of a repository", help)
    size = _git("cat-file", "-s", f"{revision}:{path}")
    if isinstance(size, Diagnostic):
        return size
    if not size.strip().isdigit() or int(size) > most_bytes:
        return _refuse(f"`{name}` is no file, or a very large one", "is it a spec or manifest?")
    return _git("cat-file", "blob", f"{revision}:{path}")


def _parts(name: str) -> tuple[str, str]:
    revision, _, path = name.removeprefix(PREFIX).partition(":")
    return revision, path


def _is_in_bare_repository() -> bool:
    """Say whether git, which looks for a repository upwards, would meet one without a `.git`."""
    folder = os.getcwd()
    while True:
        inside = [os.path.join(folder, name) for name in ("HEAD", "objects", "commondir", ".git")]
        head, objects, common, dot_git = map(os.path.lexists, inside)
        if head and (objects or common):
            return True
        above = os.path.dirname(folder)
        own = os.path.isfile(inside[-1]) or os.path.lexists(os.path.join(inside[-1], "HEAD"))
        if above == folder or (dot_git and own):
            return False
        folder = above


def _git(*arguments: str) -> bytes | Diagnostic:
    if arguments[-1].startswith("-"):
        return _refuse(f"`{arguments[-1]}` is no revision")
    program = _program()
    if program is None:
        return _refuse("there is no git on this machine", "`git:REV` needs git, in a repository")
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    import subprocess  # most specs come from files

    try:
        done = subprocess.run(
            [program, "--no-pager", "--no-replace-objects", *settings, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_PATIENCE_S,
            env=_environment(),
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as fault:
        return _refuse(f"git cannot be run: {fault}", "`git:REV` needs git, in a repository")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        message = f"git has no `{arguments[-1]}`: {said[-1].removeprefix('fatal: ')}"
        helps = {"but not in": _OTHER_PATH, "invalid object name": _NO_REVISION}
        return _refuse(message, next((helps[each] for each in helps if each in message), None))
    return done.stdout


def _program() -> str | None:
    """Return the git of `PATH`, its folders without a root left out: one may be a stranger's."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which("git", path=os.pathsep.join(filter(os.path.isabs, folders)))


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _ENVIRONMENT
