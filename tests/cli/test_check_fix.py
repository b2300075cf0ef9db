"""`check --fix`, `--diff` and `--unsafe-fixes`: what changes, and what never does."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from shardspec.cli.check import Checked, Fixing, check_file
from shardspec.cli.main import cli
from shardspec.cli.request import Request
from shardspec.diagnostics.diagnostic import apply
from shardspec.fixing import fixes_within
from tests.test_cases import CASES, files_of

BAD = """\
shardspec: 1
polcy: {indivisible: next}  # kept
mesh: {tensor: 4}
axes: {embed: 64}
rules:
  - mlp -> tenosr | tensor | tensor
  - 'embd -> none'   # kept, too
arrays:
  mlp/kernel: bf16[embed mlp=128]
"""
GOOD = (
    BAD.replace("polcy", "policy")
    .replace("tenosr | tensor | tensor", "tensor")
    .replace("embd", "embed")
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(cli, ["check", *arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["\n", ""])
def test_only_the_spans_change(folder: Path, mark: bytes, line_end: str, last: str) -> None:
    def spelt(text: str) -> bytes:
        return mark + (text.removesuffix("\n") + last).replace("\n", line_end).encode()

    file = put(folder / "spec.yaml", spelt(BAD))
    file.chmod(0o640)
    result = run("--fix")
    assert result.exit_code == 0
    assert file.read_bytes() == spelt(GOOD)
    assert file.stat().st_mode & 0o777 == 0o640
    assert "Fixed 5." in result.stdout
    assert os.listdir(folder) == ["spec.yaml"]
    before = file.stat().st_mtime_ns
    assert "Fixed 0." in run("--fix").stdout
    assert file.stat().st_mtime_ns == before


def test_diff_writes_nothing_and_is_a_patch(folder: Path) -> None:
    file = put(folder / "spec.yaml", BAD.rstrip("\n"))
    result = run("--diff")
    assert result.exit_code == 1
    assert result.stderr == "Would fix 5.\n"
    assert file.read_text() == BAD.rstrip("\n")
    patched = subprocess.run(
        ["git", "apply", "-p0", "-"], input=result.stdout, text=True, check=False, cwd=folder
    )
    assert patched.returncode == 0
    assert file.read_text() == GOOD.rstrip("\n")
    assert run("--diff").exit_code == 0
    assert run("--diff").stdout == ""


def test_unsafe_fixes_are_asked_for(folder: Path) -> None:
    text = BAD.replace("rules:\n", "rules:\n  - heads -> none\n  - heds -> none\n")
    text = text.replace("mlp=128]", "mlp=128]\n  kv/kernel: bf16[heads=8]")
    file = put(folder / "spec.yaml", text)
    assert "1 more with --fix --unsafe-fixes" in run().stdout
    assert "Fixed 5 (1 more with --unsafe-fixes)." in run("--fix").stdout
    assert "heds -> none" in file.read_text()
    run("--fix", "--unsafe-fixes")
    assert "heds -> none" not in file.read_text()
    assert run("--unsafe-fixes").exit_code == 2


def test_standard_input_goes_to_standard_output(folder: Path) -> None:
    result = run("-", "--fix", stdin=BAD)
    assert result.stdout == GOOD
    assert "Fixed 5." in result.stderr
    assert run("-", "--fix", stdin=GOOD.rstrip("\n")).stdout == GOOD.rstrip("\n")
    marked = run("-", "--fix", stdin=b"\xef\xbb\xbf" + BAD.encode())
    assert marked.stdout_bytes == b"\xef\xbb\xbf" + GOOD.encode()
    assert "tensor" in run("-", "--diff", stdin=BAD).stdout


def test_only_files_of_the_folder_change(folder: Path) -> None:
    """What lies beside or below is fixed with the spec; what lies above, or a preset, is not."""
    (folder / "deep" / "below").mkdir(parents=True)
    base = "shardspec: 1\npolcy: {indivisible: next}\n"
    above = put(folder / "above.yaml", base)
    below = put(folder / "deep" / "below" / "base.yaml", base)
    names = "[./below/base.yaml, ../above.yaml, t5x/1d]"
    put(folder / "deep" / "spec.yaml", f"extends: {names}\n" + BAD)
    run("deep/spec.yaml", "--fix")
    assert below.read_text() == base.replace("polcy", "policy")
    assert above.read_text() == base
    run("deep/spec.yaml", "above.yaml", "--fix")
    assert above.read_text() == base.replace("polcy", "policy")


def test_one_file_under_two_names_is_fixed_once(folder: Path) -> None:
    put(folder / "base.yaml", BAD)
    put(folder / "a.yaml", "extends: ./base.yaml\n")
    put(folder / "b.yaml", "extends: [base.yaml]\n")
    (folder / "link.yaml").symlink_to("base.yaml")
    result = run("a.yaml", "./b.yaml", "link.yaml", "--fix")
    assert (folder / "base.yaml").read_text() == GOOD
    assert (folder / "link.yaml").is_symlink()
    assert "Fixed 5" in result.stdout


def test_a_fix_that_breaks_the_text_is_not_taken(folder: Path) -> None:
    """The quoted number would be text where a number has to stand."""
    text = GOOD.replace("embed: 64", "embed: 64, mlp: {size: 128, min_shard: 010}")
    file = put(folder / "spec.yaml", text)
    result = run("--fix", "--unsafe-fixes")
    assert file.read_text() == text
    assert 'not done, since the text could not be read then: quote it: "010"' in result.stdout
    assert "Fixed 0." in result.stdout
    assert result.exit_code == 1


def test_a_file_that_changed_meanwhile_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(folder / "spec.yaml", BAD)
    fixing = Fixing(("spec.yaml",), REQUEST, is_unsafe=False)
    fixing.run()
    put(file, BAD + "# by somebody else\n")
    from click import ClickException

    from shardspec.cli.edits import write

    with pytest.raises(ClickException, match="has changed"):
        write(fixing.changed)
    assert file.read_text().endswith("else\n")


# laws

REQUEST = Request()
TEXTS = [
    (name, text)
    for case in CASES
    for name, text in files_of(case.read_text(encoding="utf-8")).items()
    if name.endswith((".yaml", ".shard"))
]
_WORD = re.compile(r"[a-z]{4,}")


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """A text of a case, as it stands or with slips of the fingers and other line ends."""
    name, text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(0, 2))):
        words = list(_WORD.finditer(text))
        if words:
            at = draw(st.sampled_from(words)).start() + draw(st.integers(0, 2))
            text = text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return Path(name).suffix, text.rstrip() if draw(st.booleans()) else text


def check(path: str, text: str | None = None) -> Checked:
    return check_file(path, REQUEST, None if text is None else {os.path.realpath(path): text})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laws")


@given(drawn=texts(), is_unsafe=st.booleans())
def test_the_second_run_changes_nothing(
    place: Path, drawn: tuple[str, str], is_unsafe: bool
) -> None:
    path = put(place / f"spec{drawn[0]}", drawn[1])
    first = Fixing((str(path),), REQUEST, is_unsafe)
    first.run()
    for changed in first.changed:
        put(path, changed.new)
    second = Fixing((str(path),), REQUEST, is_unsafe)
    second.run()
    assert second.changed == ()
    assert not first.changed or first.fixed


@given(drawn=texts())
def test_a_fix_mends_its_finding_or_is_refused(place: Path, drawn: tuple[str, str]) -> None:
    """Taken alone it changes its own spans, and the finding it belongs to is gone."""
    path = str(put(place / f"spec{drawn[0]}", drawn[1]))
    before = check(path).diagnostics
    counts = Counter((each.code.id, each.message) for each in before)
    fixing = Fixing((path,), REQUEST, is_unsafe=True)
    for finding in before:
        for fix in fixes_within([finding], [path]):
            edited = fixing._readable([fixing._canonical(fix)])
            if not edited.taken:
                continue
            new = edited.texts[os.path.realpath(path)]
            assert new == apply([fix]).texts[path]
            after = Counter((each.code.id, each.message) for each in check(path, new).diagnostics)
            key = (finding.code.id, finding.message)
            assert after[key] < counts[key], finding.message


@given(drawn=texts())
def test_order_and_labels(place: Path, drawn: tuple[str, str]) -> None:
    """Two runs say the same in the same order, and every label and edit lies in its source."""
    path = str(put(place / f"spec{drawn[0]}", drawn[1]))
    found = check(path).diagnostics
    assert found == check(path).diagnostics
    for each in found:
        spans = [label.span for label in each.labels]
        spans += [edit.span for edit in each.fix.edits] if each.fix else []
        for span in spans:
            assert 0 <= span.start <= span.end <= len(span.source.text)
        assert sum(label.primary for label in each.labels) == bool(each.labels)
