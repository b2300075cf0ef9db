"""Every verb on a terminal: the words that a pipe gets, in colours that the terminal shows.

Stdout and stderr are a pseudo-terminal each, so that each can be held to its pipe. One process
runs many command lines, one after the other.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from shardspec.cli import streams
from shardspec.cli.main import cli

pty = pytest.importorskip("pty")

ROOT = Path(__file__).parents[2]

SPEC = """\
shardspec: 1
axes: {embed: 64, mlp: 128}
targets:
  v5e-16: {hardware: tpu v5e 4x4, mesh: {data: rest, model: 8}}
  dgx: {hardware: 2 * h100, mesh: {data: rest, model: 8}}
rules:
  - mlp -> model
  - embed -> data
params:
  "**/wi/kernel": embed mlp
arrays:
  "decoder/layers_{0..3}/mlp/wi/kernel": bf16[64, 128]
"""
BAD = SPEC.replace("mlp -> model", "mlp -> modle")
RULES = "[('embed', 'data'), ('mlp', 'model')]\n"

#: A name for the test -> the arguments, which every one of them runs in a folder of its own.
VERBS = {
    "help": ["--help"],
    "compile": ["compile", "spec.yaml"],
    "compile bad": ["compile", "bad.yaml"],
    "explain": ["explain", "decoder/layers_0/mlp/wi/kernel", "--spec", "spec.yaml"],
    "cost": ["cost", "spec.yaml"],
    "explain draw": ["explain", "--draw", "decoder/layers_0/**", "--spec", "spec.yaml"],
    "explain finding": ["explain", "SHD203"],
    "explain unknown": ["explain", "nothing-here", "--spec", "spec.yaml"],
    "check": ["check", "spec.yaml"],
    "check bad": ["check", "bad.yaml"],
    "check fix": ["check", "bad.yaml", "--fix", "--diff"],
    "check concise": ["check", "bad.yaml", "--format", "concise"],
    "fmt": ["fmt", "--diff", "untidy.yaml"],
    "lock": ["lock", "spec.yaml"],
    "diff": ["diff", "spec.yaml", "other.yaml"],
    "manifest": ["manifest", "arrays.txt"],
    "import": ["import", "flax", "rules.py"],
    "export": ["export", "flax", "spec.yaml"],
    "mesh": ["mesh", "spec.yaml"],
    "mesh nodes": ["mesh", "spec.yaml", "--target", "dgx"],
    "mesh compare": ["mesh", "spec.yaml", "--set", "mesh.model=4", "--compare"],
    "mesh json": ["mesh", "spec.yaml", "--format", "json"],
    "schema": ["schema"],
    "no verb": ["chekc"],
    "no file": ["check", "nowhere.yaml"],
}

_COLOR = re.compile(r"\x1b\[[0-9;]*m")

Lines = list[list[str]]


class Shown(NamedTuple):
    """What one run showed."""

    code: int
    out: str
    err: str


def _folder(path: Path) -> Path:
    path.mkdir()
    files = {
        "spec.yaml": SPEC,
        "bad.yaml": BAD,
        "other.yaml": SPEC.replace("embed -> data", "embed -> none"),
        "untidy.yaml": SPEC.replace("axes: {embed: 64, mlp: 128}", "axes:   {mlp: 128, embed: 64}"),
        "arrays.txt": "decoder/mlp/kernel: bf16[64, 128]\n",
        "rules.py": RULES,
    }
    for name, text in files.items():
        (path / name).write_text(text, encoding="utf-8")
    return path


def _environment(folder: Path, **more: str) -> dict[str, str]:
    home = {"HOME": str(folder)}
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    kept |= {"SHARDSPEC_PROGRESS": "never"}
    return kept | home | more


def _command(runs: Lines) -> list[str]:
    return [sys.executable, "-P", "-m", "tests.cli.running", json.dumps(runs)]


def _apart(out: str, err: str) -> list[Shown]:
    outs, errs = (re.split(r"@@(\d)@@\n", text) for text in (out, err))
    assert outs[1::2] == errs[1::2], "one exit code each"
    return [Shown(int(c), o, e) for c, o, e in zip(outs[1::2], outs[::2], errs[::2], strict=False)]


def _piped(runs: Lines, folder: Path, **more: str) -> list[Shown]:
    done = subprocess.run(
        _command(runs),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        env=_environment(folder, **more),
        check=False,
        timeout=120,
    )
    return _apart(done.stdout, done.stderr)


def _on_terminal(runs: Lines, folder: Path, columns: int = 200, **more: str) -> list[Shown]:
    ends = [pty.openpty() for _ in range(2)]
    for parent, _ in ends:
        fcntl.ioctl(parent, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    (_, out), (_, err) = ends
    process = subprocess.Popen(
        _command(runs),
        cwd=folder,
        stdin=out,
        stdout=out,
        stderr=err,
        env=_environment(folder, **({"TERM": "xterm-256color"} | more)),
    )
    shown: list[str] = ["", ""]
    readers = [
        threading.Thread(target=_read, args=(parent, shown, at))
        for at, (parent, _) in enumerate(ends)
    ]
    for _, child in ends:
        os.close(child)
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(120)
    process.wait(120)
    return _apart(*shown)


def _read(parent: int, shown: list[str], at: int) -> None:
    pieces = []
    while True:
        try:
            piece = os.read(parent, 1 << 16)
        except OSError:  # Linux's way to say that nobody has the other end any more
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(parent)
    shown[at] = b"".join(pieces).decode("utf-8").replace("\r\n", "\n")


def _words(shown: Shown) -> tuple[int, list[str], list[str]]:
    return shown.code, _COLOR.sub("", shown.out).split(), _COLOR.sub("", shown.err).split()


def _has_controls(text: str) -> bool:
    return any(not char.isprintable() for char in text if char not in "\n\t")


@pytest.fixture(scope="module")
def shown_twice(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Shown, Shown]]:
    """Return what a pipe and a terminal get, by verb."""
    folder, runs = tmp_path_factory.mktemp("verbs"), list(VERBS.values())
    piped, shown = _piped(runs, _folder(folder / "a")), _on_terminal(runs, _folder(folder / "b"))
    return dict(zip(VERBS, zip(piped, shown, strict=True), strict=True))


@pytest.mark.parametrize("verb", VERBS)
def test_a_terminal_gets_the_words_of_a_pipe(
    verb: str, shown_twice: dict[str, tuple[Shown, Shown]]
) -> None:
    piped, shown = shown_twice[verb]
    assert _words(shown) == _words(piped)
    for text in (shown.out, shown.err):
        assert not _has_controls(_COLOR.sub("", text)), "more than colours"
        assert "\\x1b" not in text, "an escape sequence as text"
    assert not _has_controls(piped.out + piped.err)


#: What is longer than a narrow terminal at each place where text may be.
WIDE = """\
shardspec: 1
axes: {embed: 1024, mlp: 4096}
targets:
  v4-512: {hardware: tpu v4 4x8x8, mesh: {data: rest, model: submesh 4x2x2x1}}
  v5p-256: {hardware: tpu v5p 4x4x8, mesh: {data: rest, model: 8}}
rules:
  - mlp -> model
  - embed -> data
params:
  "**/kernel": embed mlp
arrays:
  "decoder/layers_{0..23}/encoder_decoder_attention/{key,query,value}/kernel": bf16[1024, 4096]
  "decoder/layers_{0..23}/self_attention/{key,query,value}/kernel": bf16[1024, 4096]
activations:
  the_hidden_state_of_the_feed_forward_part: _ embed mlp
"""
WIDE_VERBS = {
    "compile": ["compile", "wide.yaml"],
    "targets": ["compile", "wide.yaml", "--list-targets"],
    "presets": ["compile", "--list-presets"],
    "explain": ["explain", "decoder/layers_3/self_attention/**", "--spec", "wide.yaml"],
    "explain axis": ["explain", "axis:model", "--spec", "wide.yaml"],
    "explain draw": [
        "explain",
        "--draw",
        "decoder/layers_3/self_attention/**",
        "--spec",
        "wide.yaml",
    ],
    "explain finding": ["explain", "SHD312"],
    "explain field": ["explain", "rules"],
    "explain list": ["explain", "--list"],
    "check": ["check", "faulty.yaml"],
    "diff": ["diff", "spec.yaml", "wide.yaml"],
    "mesh": ["mesh", "wide.yaml"],
    "mesh compare": ["mesh", "wide.yaml", "--set", "mesh.model=4", "--compare"],
    "versions": ["schema", "--versions"],
    "no array": ["explain", "decoder/layers_3/slef_attention/key/kernel", "--spec", "wide.yaml"],
}


def _within(columns: int | None, verb: str, monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.setattr(streams, "width_of", lambda stream=1: columns)
    result = CliRunner().invoke(cli, WIDE_VERBS[verb])
    return Shown(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = _folder(tmp_path / "a")
    (folder / "wide.yaml").write_text(WIDE, encoding="utf-8")
    (folder / "faulty.yaml").write_text(WIDE.replace("[1024, 4096]", "[embed sizeless]"))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("verb", WIDE_VERBS)
@pytest.mark.usefixtures("wide")
def test_a_narrow_terminal_gets_all_but_the_middle_of_paths(
    verb: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, shown = _within(None, verb, monkeypatch), _within(columns, verb, monkeypatch)
    assert [line for line in f"{shown.out}\n{shown.err}".split("\n") if len(line) > columns] == []
    assert max(map(len, f"{whole.out}\n{whole.err}".split("\n"))) > 60
    assert shown.code == whole.code
    if verb in ("check", "explain draw"):  # which cut lines of the spec, and drawings
        return
    for words, full in zip(_words(shown)[1:], _words(whole)[1:], strict=True):
        assert len(words) == len(full)
        for word, other in zip(words, full, strict=True):
            head, cut, tail = word.partition("...")
            assert word == other or (cut and other.startswith(head) and other.endswith(tail))


def test_the_width_is_that_of_the_terminal(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [WIDE_VERBS["compile"]]
    shown = _on_terminal(runs, wide, 60)[0].out
    assert _COLOR.sub("", shown) == _within(60, "compile", monkeypatch).out
    assert _piped(runs, wide)[0].out == _within(None, "compile", monkeypatch).out


@pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_without_colour_a_narrow_terminal_gets_no_escapes(
    more: dict[str, str], tmp_path: Path
) -> None:
    runs = [VERBS[verb] for verb in ("check bad", "compile bad", "mesh", "mesh nodes", "no file")]
    piped = _piped(runs, _folder(tmp_path / "a"))
    shown = _on_terminal(runs, _folder(tmp_path / "b"), columns=20, **more)
    assert not any("\x1b" in each.out + each.err for each in shown)
    assert list(map(_words, shown)) == list(map(_words, piped))


@pytest.mark.parametrize("verb", ["check bad", "compile", "mesh", "mesh nodes"])
def test_with_colour_a_terminal_gets_colours(verb: str, tmp_path: Path) -> None:
    never, always = ([*VERBS[verb], "--color", when] for when in ("never", "always"))
    plain, bare = _on_terminal([VERBS[verb], never], _folder(tmp_path / "a"))
    assert _COLOR.search(plain.out)
    assert not _COLOR.search(bare.out)
    painted, piped = _piped([always, VERBS[verb]], tmp_path / "a")
    assert _COLOR.search(painted.out)
    assert _words(painted) == _words(piped)


@pytest.mark.parametrize("verb", ["check bad", "compile", "mesh", "no file"])
def test_a_pipe_gets_colours_where_the_environment_asks(verb: str, tmp_path: Path) -> None:
    folder, never = _folder(tmp_path / "a"), [*VERBS[verb], "--color", "never"]
    asked, bare = _piped([VERBS[verb], never], folder, FORCE_COLOR="1", TERM="dumb")
    assert _COLOR.search(asked.out + asked.err)
    assert _words(asked) == _words(bare)
    refused = _piped([VERBS[verb]], folder, FORCE_COLOR="1", NO_COLOR="1")[0]
    for plain in (bare, refused, *_piped([VERBS[verb]], folder, FORCE_COLOR="")):
        assert "\x1b" not in plain.out + plain.err


def test_colours_of_a_table_mean_something(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a")
    spec = """\
hardware: tpu v5e 2x2
mesh: {data: 2, model: 2}
state: {dtype: f32}
rules: [mlp -> model, embed -> none]
arrays:
  a/split: bf16[mlp=128]
  b/whole: bf16[embed=64]
  c/uneven: bf16[mlp=129]
  d/large: bf16[_=65536 mlp=131072]
"""
    (folder / "tones.yaml").write_text(spec, encoding="utf-8")
    shown, roomy = _on_terminal([["compile", "tones.yaml"], VERBS["compile"]], folder)
    lines = {line.split()[0]: line for line in shown.out.split("\n") if line.strip()}
    assert "\x1b[36mmodel\x1b[0m" in lines["a/split"]
    assert "\x1b[33mreplicated\x1b[0m" in lines["b/whole"]
    assert lines["\x1b[1;31mc/uneven\x1b[0m"].count("\x1b[") == 4
    assert re.search(r"\x1b\[1;31mDOES NOT FIT\x1b\[0m, [0-9.]+ GiB too much", lines["default"])
    assert re.search(r"\x1b\[32mfits\x1b\[0m, [0-9.]+ GiB left", roomy.out)


def test_an_explanation_shows_what_places_each_dimension(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a")
    (folder / "rules.yaml").write_text(
        "mesh: {data: 2, model: 4}\nrules: [mlp -> model | data, embed -> none]\n"
        "arrays: {kernel: 'bf16[embed=8 mlp=6 length=4]'}\n",
        encoding="utf-8",
    )
    (shown,) = _on_terminal([["explain", "kernel", "--spec", "rules.yaml"]], folder)
    rows = shown.out.split("dims\n")[1].split("\n")[:4]
    assert [re.findall(r"\x1b\[(\d+)m([^\x1b]*)", row)[:1] for row in rows] == [
        [("33", "TAKEN   replicated, as the rule says")],
        [],
        [("36", "TAKEN   6 / 2 = 3")],
        [("33", "replicated: no rule for `length`")],
    ]


def test_a_file_gets_no_colours_from_the_terminal_beside_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a")
    mesh = ["mesh", "spec.yaml", "-o"]
    _on_terminal([[*mesh, "plain.txt"], [*mesh, "painted.txt", "--color", "always"]], folder)
    assert "\x1b" not in (folder / "plain.txt").read_text()
    assert "\x1b" in (folder / "painted.txt").read_text()


# Names that would steer a terminal: clear it, set its title, write upwards, hide text.
_EVIL = "\x1b[2J\x1b]0;t\x07\x9b1A\x1b[8m"
_QUOTED = _EVIL.replace("\x1b", "\\e").replace("\x07", "\\a").replace("\x9b", "\\x9b")
_HOSTILE = f"""\
shardspec: 1
doc: "{_QUOTED}"
targets:
  "v5e{_QUOTED}": {{hardware: tpu v5e 4x4, mesh: {{data: rest, "m{_QUOTED}": 8}}}}
  "dgx{_QUOTED}": {{hardware: "2 * h100{_QUOTED}", mesh: {{data: rest, model: 8}}}}
  fine: {{hardware: tpu v5e 4x4, mesh: {{data: rest, model: 8}}}}
rules: ["mlp -> model", "embed{_QUOTED} -> data"]
params: {{"**/wi{_QUOTED}": "embed mlp{_QUOTED}"}}
arrays: {{"a/wi{_QUOTED}": "bf16[64, 128]", "b{_QUOTED}": "bf16[64{_QUOTED}]"}}
"""
_HOSTILE_VERBS = [
    ["compile", "evil.yaml", "--target", "fine"],
    ["cost", "evil.yaml", "--target", "fine"],
    ["cost", "evil.yaml", "--target", "fine", "--step", _EVIL],
    ["cost", "spec.yaml", "--tokens", _EVIL],
    ["explain", "a/wi" + _EVIL, "--spec", "evil.yaml"],
    ["explain", "axis:data", "--spec", "spec.yaml", "--cost", _EVIL],
    ["explain", _EVIL, "--spec", "evil.yaml"],
    ["check", "evil.yaml"],
    ["check", "evil.yaml", "--fix", "--unsafe-fixes", "--diff"],
    ["check", _EVIL + ".yaml"],
    ["check", "evil.yaml", "--set", _EVIL + "=1"],
    ["check", "evil.yaml", "--ignore", _EVIL],
    ["fmt", "--diff", "evil.yaml"],
    ["fmt", "--diff", "named" + _EVIL + ".yaml"],
    ["lock", "evil.yaml"],
    ["diff", "evil.yaml", "spec.yaml"],
    ["manifest", "evil.txt"],
    ["import", "flax", "evil.py"],
    ["export", "flax", "evil.yaml"],
    ["mesh", "evil.yaml"],
    ["mesh", "evil.yaml", "--target", "fine"],
    ["mesh", "evil.yaml", "--target", _EVIL],
    ["mesh", "evil.yaml", "--target", "fine", "--set", "mesh.model=4", "--compare"],
    ["mesh", "named" + _EVIL + ".yaml", "-o", _EVIL + "/x"],
    [_EVIL],
    ["check", "--" + _EVIL],
    ["check", "spec.yaml", "--format", _EVIL],
]


def _hostile(path: Path) -> Path:
    _folder(path)
    for name in ("evil.yaml", f"named{_EVIL}.yaml"):
        (path / name).write_text(_HOSTILE, encoding="utf-8")
    (path / "evil.txt").write_text(f"a{_EVIL}: bf16[64]\nb: bf16[{_EVIL}]\n", encoding="utf-8")
    (path / "evil.py").write_text(f"[('embed{_EVIL}', 'data'), ('mlp',)]\n", encoding="utf-8")
    return path


def test_what_is_read_cannot_steer_the_terminal(tmp_path: Path) -> None:
    palette = re.compile(r"\x1b\[(?:0|1|2|1;3[1-4]|3[236]|38;5;\d+)m")
    shown = _on_terminal(_HOSTILE_VERBS, _hostile(tmp_path / "a"))
    assert len(shown) == len(_HOSTILE_VERBS)
    for arguments, each in zip(_HOSTILE_VERBS, shown, strict=True):
        for text in (each.out, each.err):
            assert not _has_controls(palette.sub("", text)), (arguments, text)


@pytest.mark.parametrize(
    ("verb", "size", "said"),
    [
        ("cost", 64, "\x1b[32mfits\x1b[0m"),
        ("compile", 64, "\x1b[32mfits\x1b[0m"),
        ("compile", 2**33, "\x1b[1;31mDOES NOT FIT\x1b[0m"),
    ],
)
def test_verdicts_have_one_colour_in_all_verbs(
    verb: str, size: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(
        f"{{hardware: tpu v5e 2x2, mesh: {{a: 4}}, state: {{dtype: f32}}, rules: [x -> none],"
        f" arrays: {{w: 'f32[x={size}]'}}}}"
    )
    shown, plain = (
        CliRunner().invoke(cli, [verb, str(tmp_path / "spec.yaml"), "--color", when]).stdout
        for when in ("always", "never")
    )
    assert said in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == plain
