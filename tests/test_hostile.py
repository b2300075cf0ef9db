"""Files of a hostile author: an answer in bounded time and memory, and never a traceback."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: A run may take this long on a busy machine, and this much address space.
SECONDS, BYTES = 100, 2 * 2**30

HEAD = "shardspec: 1\nmesh: {data: 2, model: 2}\nrules: [mlp -> model]\n"
SPEC = f"{HEAD}arrays: {{a: 'f32[mlp=2]'}}\n"


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "shardspec", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=SECONDS,
        preexec_fn=limited,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert "MemoryError" not in done.stderr
    assert done.returncode in (0, 1, 2), done
    assert len(done.stdout) + len(done.stderr) < 2**22
    return done


def laughs() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines)


TEXTS: dict[str, Callable[[], str]] = {
    "billion laughs": laughs,
    "merge keys": lambda: (
        "a: &a {x: 1}\n" + "\n".join(f"b{n}: &b{n} {{<<: [*a, *a, *a, *a]}}" for n in range(2000))
    ),
    "alias of itself": lambda: "a: &a [*a]\nrules: *a",
    "deep brackets": lambda: "rules: " + "[" * 200_000,
    "deep braces": lambda: "{a: " * 200_000,
    "deep block": lambda: "\n".join(" " * n + "a:" for n in range(3000)),
    "deep lists": lambda: "rules:\n" + "- " * 100_000,
    "deep rule": lambda: f"rules: ['a -> {'(' * 50_000}x']",
    "long key": lambda: f"{'k' * 1_000_000}: 1",
    "long line": lambda: f"rules: ['{'a ' * 500_000}']",
    "long number": lambda: f"axes: {{embed: {'9' * 200_000}}}",
    "long product": lambda: f"arrays: {{a: 'f32[{'*'.join(['9999'] * 50_000)}]'}}",
    "many dimensions": lambda: f"arrays: {{a: 'f32[{' '.join(['a=2'] * 20_000)}]'}}",
    "power of axes": lambda: (
        "axes: {a0: 9999999999, "
        + ", ".join(f"a{n}: a{n - 1}*a{n - 1}" for n in range(1, 200))
        + "}"
    ),
    "wide range": lambda: "arrays: {'a_{0..999999999999}/k': 'f32[2]'}",
    "ranges of ranges": lambda: "arrays: {'" + "/".join(["a_{0..99}"] * 12) + "': 'f32[2]'}",
    "braces in braces": lambda: "params: {'" + "{a," * 30_000 + "': a}",
    "alternatives": lambda: "params: {'" + "{a,b}" * 200 + "': a}",
    "huge mesh": lambda: "mesh: {data: 999999999999999999999999, x: 99999999999999999999}",
    "many mesh axes": lambda: "mesh: {" + ", ".join(f"m{n}: 2" for n in range(3000)) + "}",
    "huge machine": lambda: "hardware: 99999999999 * h100",
    "huge slice": lambda: "hardware: tpu v4 99999999x99999999x99999999",
    "many targets": lambda: (
        "targets: {"
        + ", ".join(f"t{n}: {{hardware: 8 * h100, mesh: {{a: rest}}}}" for n in range(1000))
        + "}"
    ),
    "itself many times": lambda: f"extends: [{', '.join(['./spec.yaml'] * 5000)}]",
    "presets many times": lambda: f"extends: [{', '.join(['t5x/2d'] * 5000)}]",
    "nobody many times": lambda: f"extends: [{', '.join(f'./no{n}.yaml' for n in range(5000))}]",
    "one manifest many times": lambda: f"manifest: [{', '.join(['./big.json'] * 5000)}]",
    "devices": lambda: "extends: [/dev/zero, /dev/urandom, /dev/tty, /proc/self/mem, /proc/kmsg]",
    "odd names": lambda: 'extends: ["./\\0.yaml", "./' + "x" * 5000 + '.yaml", "./\\x1b[2J.yaml"]',
    "percent": lambda: "rules: ['%s -> %(x)d', '{0} -> {x}', '$HOME -> `id`', '$(id) -> ~']",
    "tag": lambda: "rules: !!python/object/apply:os.system ['touch ran']",
    "tag of a name": lambda: "a: !!python/name:os.system\nb: !!python/module:os\nc: !include x",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(tmp_path: Path, name: str) -> None:
    (tmp_path / "big.json").write_text(json.dumps({f"a/{n}": "f32[2]" for n in range(20_000)}))
    (tmp_path / "spec.yaml").write_text(f"shardspec: 1\n{TEXTS[name]()}\n")
    run(tmp_path, "check", "spec.yaml")
    assert not (tmp_path / "ran").exists()


DSL: dict[str, Callable[[], str]] = {
    "braces": lambda: "rules " + "{" * 100_000,
    "parentheses": lambda: f"rules {{ a -> {'(' * 50_000} }}",
    "one line": lambda: f"rules {{ {'a -> b; ' * 1000} }}",
    "open string": lambda: 'params { "' + "a" * 500_000,
    "comments": lambda: "# x\n" * 100_000,
}


@pytest.mark.parametrize("name", DSL)
def test_the_dsl(tmp_path: Path, name: str) -> None:
    (tmp_path / "spec.shard").write_text(f"shardspec 1\n{DSL[name]()}\n")
    run(tmp_path, "check", "spec.shard")


def zip_bomb(path: Path) -> None:
    """A header that says it is gigabytes long, and unpacks to that."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("a.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31 - 1))
        for _ in range(64):
            member.write(bytes(2**22))


def zip_of_many(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(5000):
            archive.writestr(f"{number}.npy", b"")


def zip_of_one_twice(path: Path) -> None:
    """Members that lie on one another: each entry of the list reads the same bytes."""
    zip_bomb(path)
    raw = path.read_bytes()
    at = raw.index(b"PK\x01\x02")
    entry = raw[at : raw.index(b"PK\x05\x06")]
    end = bytearray(raw[raw.index(b"PK\x05\x06") :])
    struct.pack_into("<HHI", end, 8, 5000, 5000, 5000 * len(entry))
    path.write_bytes(raw[:at] + entry * 5000 + bytes(end))


def tensors(header: bytes, size: int | None = None) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(struct.pack("<Q", len(header) if size is None else size) + header)

    return write


def deep_msgpack(path: Path) -> None:
    path.write_bytes(b"\x81\xa1a" * 200_000)


def wide_msgpack(path: Path) -> None:
    path.write_bytes(b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc0" * 1000)


CHECKPOINTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "zip bomb": ("a.npz", zip_bomb),
    "zip of many": ("a.npz", zip_of_many),
    "zip of one twice": ("a.npz", zip_of_one_twice),
    "header of nothing": ("a.safetensors", tensors(b"{", 99_999_999)),
    "header without end": ("a.safetensors", tensors(b"{" * 100, 2**63)),
    "deep header": ("a.safetensors", tensors(b'{"a":' * 200_000)),
    "deep list": ("a.safetensors", tensors(b"{" + b"[" * 1_000_000)),
    "long number": ("a.safetensors", tensors(b'{"a":' + b"9" * 1_000_000 + b"}")),
    "deep msgpack": ("a.msgpack", deep_msgpack),
    "wide msgpack": ("a.msgpack", wide_msgpack),
    "deep manifest": ("a.json", lambda path: path.write_text('{"a":' * 200_000) and None),
    "long manifest number": (
        "a.json",
        lambda path: (
            path.write_text(f'{{"a": {{"shape": [{"9" * 100_000}], "dtype": "f32"}}}}') and None
        ),
    ),
    "endless index": (
        "a.safetensors.index.json",
        lambda path: (
            path.write_text(
                json.dumps(
                    {"metadata": {}, "weight_map": {"a": "../../../../etc/passwd", "b": "."}}
                )
            )
            and None
        ),
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints(tmp_path: Path, name: str) -> None:
    file, write = CHECKPOINTS[name]
    write(tmp_path / file)
    (tmp_path / "spec.yaml").write_text(f"{HEAD}manifest: ./{file}\n")
    assert run(tmp_path, "check", "spec.yaml").returncode == 1


def test_a_file_named_many_times_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text("rules: [mlp -> model]\n" + "# x\n" * 2_000_000)
    names = ", ".join(["./big.yaml"] * 3000)
    (tmp_path / "spec.yaml").write_text(f"{SPEC}extends: [{names}]\n")
    assert run(tmp_path, "check", "spec.yaml").returncode == 0


def test_a_spec_of_too_many_files(tmp_path: Path) -> None:
    for number in range(1200):
        (tmp_path / f"{number}.yaml").write_text(f"rules: [a{number} -> data]\n")
    names = ", ".join(f"./{number}.yaml" for number in range(1200))
    for key in ("extends", "manifest"):
        (tmp_path / "spec.yaml").write_text(f"{SPEC}{key}: [{names}]\n")
        done = run(tmp_path, "check", "spec.yaml", "--select", "SHD007")
        assert done.returncode == 1
        assert "more than 1,000 files" in done.stdout


def test_a_project_file(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    for text in ("x = " + "[" * 50_000, "[tool.shardspec]\nspec = 3", "x = '''" + "a" * 1_000_000):
        (tmp_path / "pyproject.toml").write_text(text + " # shardspec")
        run(tmp_path, "check", "spec.yaml")
        run(tmp_path, "check")


def test_a_folder_of_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "again").symlink_to(".")
    (tmp_path / "up.yaml").symlink_to("up.yaml")
    assert run(tmp_path, "check", ".").returncode == 0
    (tmp_path / "spec.yaml").write_text(f"{SPEC}extends: ./up.yaml\n")
    assert run(tmp_path, "check", ".").returncode == 1
