"""What a verb says and writes: standard output and error, each closed, full or a terminal; files.

Everything that a verb prints goes through here. Standard error is for remarks: where it cannot be
written, the job is done all the same. Standard output is the job; but a reader that has seen enough
(`| head`) ends the text and not the job: what is found, and the exit code, are as ever. Why a job
cannot be done is a `Failure`, which looks like a finding and names a way out.

The user's cache folder keeps the text that was replaced last in each file, and a digest of the text
that took its place, for `shardspec --undo FILE`. It is put back only where the file still holds
that text.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.lines import fitted, joined, verdicts_painted
from shardspec.diagnostics.render import render_plain
from shardspec.orphans import forked

if TYPE_CHECKING:
    from shardspec.language.loader import Kind

_FOLDER = "replaced"
_MOST_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Replaced:
    """A text that was written over.

    Attributes:
      path: of the file, without links.
      old: what it held.
      new: a digest of what it was given.
    """

    path: str
    old: str
    new: str


def text_of(path: str) -> str | None:
    """Return the text of a file as it is stored; None where there is none of UTF-8."""
    try:
        with open(path, "rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return None


def keep_replaced(path: str, text: str) -> None:
    """Keep what a file holds, before `text` takes its place."""
    if not os.path.isfile(path) or os.path.getsize(path) >= _MOST_BYTES:
        return
    old = text_of(path)
    if old is not None and old != text:
        from shardspec.jax_backend.xla.cache import keep_entry

        keep_entry(_FOLDER, _digest(path), Replaced(path, old, _digest(text)))


def replaced(path: str) -> str | None:
    """Return the text that was last replaced in a file; None where another has changed it since."""
    from shardspec.jax_backend.xla.cache import entry

    found = entry(_FOLDER, _digest(path), Replaced)
    now = text_of(path)
    if found is None or now is None or (found.path, found.new) != (path, _digest(now)):
        return None
    return found.old


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


FINE, FINDINGS, FAILED = 0, 1, 2
#: In the context of a command line on which `--dry-run` is.
DRY_RUN = "shardspec.dry_run"
_DEVICES = os.path.dirname(os.devnull)
#: What the system calls stdout, and all streams: they are written to, and no file behind them is
#: replaced.
STDOUT = tuple(os.path.join(_DEVICES, name) for name in ("stdout", "fd/1"))
_STREAMS = tuple(os.path.join(_DEVICES, name) for name in ("std", "fd/"))
#: How often what is being done is said anew on a terminal.
_TICK_SECONDS = 0.2
#: After how long a verb that has printed nothing says that it is at work.
_PATIENCE_SECONDS = 0.4
#: Elsewhere than on a terminal: the least time between two lines of progress, and the longest.
_LEAST_SECONDS, _MOST_SECONDS = 2.0, 10.0


class Failure(click.ClickException):
    """Why a verb cannot do its job, and the way out. The exit code is 2.

    Attributes:
      ctx: the command line that failed, None where there is none.
    """

    exit_code = FAILED

    def __init__(self, message: str, help: str) -> None:
        """Keep what is wrong and what helps, for `show_failure`."""
        super().__init__(message)
        self.help = help
        self.ctx = click.get_current_context(silent=True)

    def format_message(self) -> str:
        """Return both on one line, for whoever runs a verb by itself."""
        return f"{self.message}; {self.help}"


def fail(message: str, help: str) -> NoReturn:
    """End with exit code 2, an error on stderr and what to do about it."""
    raise Failure(message, help)


def show_failure(failure: click.ClickException) -> None:
    """Print why a job cannot be done as a finding is printed; click's own words put into ours."""
    context: click.Context | None = getattr(failure, "ctx", None)
    paint = _wants_color(2, context)
    text = render_plain("error", *_said(failure, context), color=paint, width=width_of(2))
    echo(text, err=True, is_painted=True)


def _said(failure: click.ClickException, context: click.Context | None) -> tuple[str, str]:
    """Return what is wrong with a command line, and the way out."""
    if isinstance(failure, Failure):
        return failure.message, failure.help
    path = context.command_path if context else "shardspec"
    help = f"`{path} --help` says more"
    if isinstance(failure, click.NoSuchOption):
        from shardspec.diagnostics.words import one_of

        near = _near_options(failure)
        help = f"did you mean {one_of(near)}?" if near else f"`{path} --help` lists the options"
        return f"`{path}` has no option `{failure.option_name}`", help
    if context:
        help = f"as in `{context.get_usage().partition(': ')[2]}`; {help}"
    said = re.sub(r"'([^']*)'", r"`\1`", failure.format_message()).removesuffix(".")
    return said[:1].lower() + said[1:], re.sub(r"\s+", " ", help)


def _near_options(failure: click.NoSuchOption) -> tuple[str, ...]:
    """Return the options that a wrong one is a slip of: nearer than click's own guesses."""
    from shardspec.diagnostics.words import nearest

    bare = {each.lstrip("-"): each for each in failure.possibilities or ()}
    near = nearest(failure.option_name.lstrip("-"), bare, count=3, cutoff=0.7)
    return tuple(bare[each] for each in near)


def wants_color(when: str, stream: int = 1) -> bool:
    """Say whether to colour what goes to stdout (1) or stderr (2)."""
    if when != "auto":
        return when == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if os.environ.get("TERM") == "dumb":
        return False
    return (sys.stdout if stream == 1 else sys.stderr).isatty()


def _wants_color(stream: int, context: click.Context | None = None) -> bool:
    """Say whether to colour what goes to a stream, as the command line asks."""
    context = context or click.get_current_context(silent=True)
    return wants_color(context.params.get("color", "auto") if context else "auto", stream)


def width_of(stream: int = 1) -> int | None:
    """Return how wide the terminal behind stdout (1) or stderr (2) is; None where there is none."""
    size = _size_of(stream)
    return None if size is None else size.columns


def _size_of(stream: int) -> os.terminal_size | None:
    with suppress(OSError, ValueError):
        return os.get_terminal_size((sys.stdout if stream == 1 else sys.stderr).fileno())
    return None


def rows_of_terminal() -> int:
    """Return how many lines the terminal behind stdout shows; 0 where there is none to write on."""
    is_plain = os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    size = None if is_plain else _size_of(1)
    return 0 if size is None else size.lines


@contextmanager
def waiting(name: str, *, is_quiet: bool, began: float | None = None) -> Iterator[None]:
    """Say on stderr that a verb is at work, unless it prints something in its first half second.

    On a terminal the line is gone once there is something to print.

    Args:
      began: when the user started to wait: modules that load before this take their time, too.
    """
    if is_quiet or _is_silent():
        yield
        return
    _FIRST.start(f"{name} is working ...")
    patience = _PATIENCE_SECONDS - (0.0 if began is None else time.monotonic() - began)
    timer = threading.Timer(patience, _FIRST.say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _FIRST.end()


@contextmanager
def unbroken() -> Iterator[None]:
    """Keep Ctrl-C until the end. A native module that it interrupts while it loads aborts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


class _First:
    """Whether a verb has printed anything, and the line that is shown until it has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_ended, self._has_said, self._stands = True, False, False
        self._text = ""

    def start(self, text: str) -> None:
        """Wait for the first output."""
        with self._lock:
            self._has_ended, self._has_said, self._text = False, False, text

    def say(self) -> None:
        """Print the line, unless something was printed."""
        with self._lock:
            self._say()

    def _say(self) -> None:
        if self._has_ended or self._has_said:
            return
        self._has_said, self._stands = True, sys.stderr.isatty()
        with suppress(OSError, ValueError):
            sys.stderr.write(self._text if self._stands else f"{self._text}\n")
            sys.stderr.flush()

    def split(self) -> int:
        """Fork as `forked` does; the child is the one that prints from now on.

        A fork while the timer's thread writes would leave the child a lock that nobody releases.
        """
        with self._lock:
            self._say()
            child = forked()
            if child:
                self._has_ended, self._stands = True, False
        return child

    def end(self) -> None:
        """Make room for output."""
        if self._has_ended:
            return
        with self._lock, suppress(OSError, ValueError):
            self._has_ended = True
            if self._stands:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self._stands = False


_FIRST = _First()


def split() -> int:
    """Fork this process; return the number of the child, which prints from now on, and 0 in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    return _FIRST.split()


def _is_silent() -> bool:
    """Say whether no progress is printed: where the user says so, and on a dumb terminal."""
    is_dumb = sys.stderr.isatty() and os.environ.get("TERM") == "dumb"
    return is_dumb or os.environ.get("SHARDSPEC_PROGRESS") == "never"


@contextmanager
def progress(*, is_quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield what says on stderr what is being done, and for how long.

    On a terminal that is one line below what the job itself writes to stderr, and gone after it.
    Elsewhere it is a line when other work begins, and every ten seconds.
    """
    if is_quiet or _is_silent():
        yield lambda doing: None
        return
    _FIRST.end()
    line = _LastLine(sys.stderr) if sys.stderr.isatty() else _Lines(sys.stderr)
    ended, started = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(_TICK_SECONDS):
            line.tick(time.monotonic() - started)

    watcher = threading.Thread(target=tick, daemon=True)
    watcher.start()
    try:
        with redirect_stderr(line) if isinstance(line, _LastLine) else nullcontext():
            yield line.say
    finally:
        ended.set()
        watcher.join()
        line.close()


class _Lines:
    """A file or a pipe that gets a line of progress now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._doing, self._shown, self._at = "starting", "", _PATIENCE_SECONDS - _LEAST_SECONDS

    def say(self, doing: str) -> None:
        """Say something else from now on."""
        self._doing = doing

    def tick(self, seconds: float) -> None:
        """Write a line, where there is something new or nothing was written for long."""
        from shardspec.diagnostics.words import template

        is_same = template(self._doing) == template(self._shown)  # but for how much is done
        least = _MOST_SECONDS if is_same else _LEAST_SECONDS
        if seconds - self._at < least:
            return
        self._shown, self._at = self._doing, seconds
        with suppress(OSError, ValueError):
            self._stream.write(f"{printable(self._doing)} ... {seconds:.0f} s\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave what was written."""


class _LastLine(io.TextIOBase):
    """A terminal whose last line says what is being done; others write above it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.doing = "starting"
        self._is_between = True

    def say(self, doing: str) -> None:
        """Say something else from now on."""
        self.doing = doing

    def tick(self, seconds: float) -> None:
        """Show for how long it has been done."""
        self.show(f"{self.doing} ... {seconds:.0f} s")

    def close(self) -> None:
        """Remove the last line."""
        self.show("")

    def show(self, text: str) -> None:
        """Write the last line anew, unless another is half written."""
        if self._is_between:
            width = width_of(2) or 80
            self._put(f"\r\x1b[K{printable(text)[: width - 1]}")

    def write(self, text: str) -> int:
        """Write above the last line."""
        self._put(f"\r\x1b[K{text}" if self._is_between else text)
        self._is_between = text.endswith("\n") or (self._is_between and not text)
        return len(text)

    def flush(self) -> None:
        """Write out what is waiting."""
        self.stream.flush()

    def isatty(self) -> bool:
        """Say that it is a terminal."""
        return True

    def fileno(self) -> int:
        """Return the number of the terminal."""
        return self.stream.fileno()

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


class _Output(io.FileIO):
    """Standard output, whose reader may go: what is written from then on goes nowhere."""

    has_no_reader = False

    def write(self, data: Any, /) -> int:
        """Write to whoever reads."""
        try:
            return super().write(data)
        except BrokenPipeError:
            self.has_no_reader = True
            _send_nowhere(self.fileno())
            return memoryview(data).nbytes


def settle_streams() -> None:
    """Let no file that is opened later take the place of a closed stream, and any reader leave."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process
    stdout = sys.stdout
    is_a_file = isinstance(getattr(stdout, "buffer", None), io.BufferedWriter | io.FileIO)
    if isinstance(stdout, io.TextIOWrapper) and is_a_file and not stdout.isatty():
        stdout.flush()
        output = io.BufferedWriter(_Output(stdout.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(output, stdout.encoding, stdout.errors)


def has_reader() -> bool:
    """Say whether somebody still reads standard output, as far as was noticed."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not getattr(raw, "has_no_reader", False)


def echo(text: str, *, err: bool = False, is_painted: bool = False, end: str = "\n") -> None:
    """Print text, in ASCII where the stream cannot hold more.

    Args:
      is_painted: whether escape sequences in it are ours; what comes from files is shown as
        what it is.
    """
    _FIRST.end()
    if not is_painted:
        text = _harmless(text)
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text + end)
    except OSError:
        if not err:
            raise
        _send_nowhere(2)


def show(
    lines: Iterable[str],
    *,
    err: bool = False,
    color: bool = False,
    is_painted: bool = False,
    is_page: bool = False,
) -> None:
    """Print the lines of a report: on a terminal within its width, else as they are.

    Args:
      color: whether cells of tables show their tones; verdicts are in colour wherever there is any.
      is_painted: as in `echo`.
      is_page: whether lines are sentences and may be joined, to be broken elsewhere.
    """
    width = width_of(2 if err else 1)
    paints = not is_page and not is_painted and (color or _wants_color(2 if err else 1))
    if not is_painted:
        lines = (line if line.isprintable() else _harmless(line) for line in lines)
    for line in fitted(joined(lines) if is_page and width else lines, width, color=color):
        said = verdicts_painted(line) if paints else line
        echo(said, err=err, is_painted=is_painted or color or paints)


def echo_data(text: str) -> None:
    """Print a text that is the product: byte for byte, but on a terminal as what can be shown."""
    if sys.stdout.isatty():
        echo(text.removesuffix("\n"))
    else:
        echo_bytes(text)


def echo_bytes(text: str) -> None:
    """Print a text as it is, wherever that goes."""
    _FIRST.end()
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def give_up() -> None:
    """Let what is still buffered for a standard output that cannot be written go nowhere."""
    _send_nowhere(1)


def _send_nowhere(number: int) -> None:
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def write_file(path: str, text: str, own: Kind | None = None, *, is_forced: bool = False) -> None:
    """Write a file whole or not at all, and over none that was read.

    `-` is stdout. A link is followed within its folder: one that leads out may be a stranger's, who
    says where to write. A device or a pipe is written to, not replaced.

    Args:
      own: as in `writing.refusal`.
      is_forced: whether the user accepts the loss of what was there.
    """
    if path == "-":
        echo_data(text)
        return
    from shardspec.language.writing import replace_file, write_device

    _refuse_loss(path, text, own, is_forced=is_forced)
    real = os.path.realpath(path)
    if is_dry_run():
        _show_change(path, text)
        return
    place = path if os.path.exists(path) else real  # a pipe of the shell has no name
    try:
        if _is_stream(path) or (os.path.exists(place) and not os.path.isfile(place)):
            write_device(place, text)
        else:
            keep_replaced(real, text)
            replace_file(real, text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        fail(f"cannot write {real}: {reason}", "say with -o a file that can be written")


def is_dry_run() -> bool:
    """Say whether `--dry-run` is given: files are shown and not written."""
    context = click.get_current_context(silent=True)
    return context is not None and DRY_RUN in context.meta


def _show_change(path: str, text: str) -> None:
    """Print what a file would gain and lose, as a diff for `git apply`."""
    from shardspec.cure.patching import unified

    old = text_of(path)
    if old == text:
        echo(f"{path} would not change", err=True)
        return
    name = os.path.relpath(path).replace(os.sep, "/")
    before, *lines = unified(name, old or "", text)
    echo_data("".join(["--- /dev/null\n" if old is None else before, *lines]))


def _refuse_loss(path: str, text: str, own: Kind | None, *, is_forced: bool) -> None:
    """Fail where a text may not be written to a path."""
    from shardspec.language.writing import refusal

    if path.startswith("git:"):
        fail(f"{path} is at a revision, which cannot be written", "say where to write with -o FILE")
    if _leads_out(path):
        help = f"remove it, or name the file itself: {os.path.realpath(path)}"
        fail(f"{path} is a link that leads out of its folder, and is not written", help)
    why = None if is_forced else refusal(path, text, own)
    if why is not None:
        fail(*why)


def require_place(path: str | None, own: Kind | None = None, *, is_forced: bool = False) -> None:
    """Fail before a long job where its answer could not be written, or may not be.

    Args:
      own: the kind of file that the job writes; None for a report.
    """
    if path in (None, "-") or _is_stream(path):
        return
    folder = os.path.dirname(os.path.realpath(path))
    is_replaced = not os.path.exists(path) or os.path.isfile(path)
    if is_replaced and not os.access(folder, os.W_OK):
        why = "permission denied" if os.path.isdir(folder) else "no such file or directory"
        fail(f"cannot write {path}: {why}", "say with -o a file that can be written")
    _refuse_loss(path, "", own, is_forced=is_forced)


def _leads_out(path: str) -> bool:
    """Say whether a link takes a file out of its folder; the system's own, to streams, do not."""
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    below = os.path.relpath(os.path.realpath(path), folder)
    return below.split(os.sep)[0] == os.pardir and not _is_stream(path)


def _is_stream(path: str) -> bool:
    return os.path.abspath(path).startswith(_STREAMS)


def _harmless(text: str) -> str:
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


# `--watch`: a verb again, whenever a file that it read has changed.
#
# Files are looked at by size and time, a few times a second: that works on every file system, and a
# spec with its presets, manifests and checkpoints is few files.


#: Why `--watch` is refused, and the way out.
NOT_AGAIN = "--watch reads specs again, and no code or stdin", "leave the other out"
_POLL_SECONDS = 0.3
_CLEAR = "\x1b[2J\x1b[H"


def watched(
    work: Callable[[], NoReturn], named: Iterable[str], remark: Callable[[str], None]
) -> NoReturn:
    """Do some work now, and after each change of a file that it read; Ctrl-C ends it.

    It also ends where there is no file to look at.

    Args:
      named: files that are looked at even if they could not be read.
      remark: says something to the reader.
    """
    from shardspec.diagnostics.words import counted
    from shardspec.language.files import forget_what_was_read, paths_read

    while True:
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        forget_what_was_read()
        try:
            work()
        except SystemExit:
            pass
        except Failure as failure:
            show_failure(failure)
        sys.stdout.flush()
        files = {*paths_read(), *map(os.path.abspath, named)}
        if not files:
            raise SystemExit(FAILED)
        remark(f"watching {counted(len(files), 'file')}; Ctrl-C ends it")
        wait_for_change(files)


def wait_for_change(files: Iterable[str]) -> None:
    """Return once one of the files has changed, is gone or has come."""
    before = {file: _stamp(file) for file in files}
    while all(_stamp(file) == stamp for file, stamp in before.items()):
        time.sleep(_POLL_SECONDS)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        about = os.stat(file)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
