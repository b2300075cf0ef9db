"""Files that cannot be read, and how that is said."""

from __future__ import annotations

import io
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic, SourceFile, codes
from shardspec.diagnostics.render import render
from shardspec.language import files
from shardspec.language.files import decode, read_argument, read_source


def refused(found: SourceFile | Diagnostic) -> Diagnostic:
    assert isinstance(found, Diagnostic)
    assert found.code is codes.UNREADABLE
    return found


def test_text_keeps_line_ends_and_loses_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    source = read_source(path, name="spec.yaml")
    assert isinstance(source, SourceFile)
    assert (source.name, source.text) == ("spec.yaml", "a: 1\r\nb: 2\r\n")


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("a: 1")
    fault = refused(read_source(tmp_path / "sepc.yaml", name="sepc.yaml"))
    assert fault.message == "there is no file `sepc.yaml`"
    assert fault.help == "did you mean `spec.yaml`?"


def test_missing_folder(tmp_path: Path) -> None:
    fault = refused(read_source(tmp_path / "no" / "spec.yaml"))
    assert "no folder" in (fault.help or "")


def test_folder(tmp_path: Path) -> None:
    assert "is a folder" in refused(read_source(tmp_path)).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert "permission denied" in refused(read_source(path)).message


@pytest.mark.parametrize("name", ["a\x00b", "x" * 5000])
def test_impossible_names(name: str) -> None:
    assert "cannot be read" in refused(read_source(Path(name))).message
    assert "cannot be read" in refused(read_argument(name)).message


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_FILE_BYTES", 2**20)
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * (2**20 + 1))
    assert "larger than 1 MiB" in refused(read_source(path)).message


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é: 1".encode())))
    source = read_argument("-")
    assert isinstance(source, SourceFile)
    assert source.text == "é: 1"


def test_stdin_says_it_twice_to_one_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (b"rules: []\n", b"axes: {}\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert files.read_stdin() == files.read_stdin() == text
    files.forget_what_was_read()
    assert files.read_stdin() == b"", "the next verb reads it anew"


def test_closed_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert refused(read_argument("-")).message.endswith("standard input is closed")


def test_only_a_person_names_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that says `-` or `git:` means a file of that name."""
    monkeypatch.chdir(tmp_path)
    for name in ("-", "git:HEAD:x.yaml"):
        assert refused(read_source(Path(name))).message == f"there is no file `{name}`"
        Path(name).write_text("a: 1")
        assert isinstance(read_source(Path(name)), SourceFile)


def special_files(folder: Path) -> Iterator[tuple[str, Path]]:
    os.mkfifo(folder / "fifo.yaml")
    yield "pipe", folder / "fifo.yaml"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "s.yaml"))
        yield "socket", folder / "s.yaml"
    yield "device", Path("/dev/zero")
    (folder / "link.yaml").symlink_to("/dev/zero")
    yield "device", folder / "link.yaml"


def test_special_files_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the name of a socket has to be short
        for kind, path in special_files(Path(folder)):
            for found in (read_source(path), read_argument(str(path))):
                assert f"it is a {kind}, not a regular file" in refused(found).message


def test_a_stream_that_the_shell_has_opened_is_read() -> None:
    """`shardspec check <(make-spec)`."""
    reading, writing = os.pipe()
    os.write(writing, b"a: 1")
    os.close(writing)
    try:
        source = read_argument(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert isinstance(source, SourceFile)
    assert source.text == "a: 1"


def test_not_utf8_says_where() -> None:
    fault = refused(decode(b"a: 1\nb: caf\xe9 \xff\nc: 2\n", "spec.yaml"))
    assert fault.message == "`spec.yaml` is not UTF-8: byte 0xe9 at offset 11, line 2"
    assert fault.primary is not None
    assert str(fault.primary.span) == "spec.yaml:2:7"
    assert " 2 | b: caf" in render(fault)


@pytest.mark.parametrize(("encoding", "named"), [("utf-16", "UTF-16"), ("utf-32", "UTF-32")])
def test_other_unicode(encoding: str, named: str) -> None:
    assert f"is {named}, not UTF-8" in refused(decode("a: 1".encode(encoding), "x")).message


def test_null_byte() -> None:
    fault = refused(decode(b"a: 1\nb\x00: 2", "x"))
    assert fault.message == "`x` holds a NUL character on line 2"


@given(st.binary(max_size=60))
def test_any_bytes(raw: bytes) -> None:
    found = decode(raw, "x")
    if isinstance(found, Diagnostic):
        render(refused(found))


def test_a_binary_file_is_not_to_be_recoded() -> None:
    fault = refused(decode(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "x"))
    assert fault.message == "`x` is no text file: it holds NUL bytes"
    assert "iconv" not in (fault.help or "")
