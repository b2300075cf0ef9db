"""Estimates of matmuls by the compiler of chips that are not here, and every way to get none."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shardspec import ShardspecError
from shardspec.foreign.formats import machine_named
from shardspec.ir.calibration import Calibration
from shardspec.ir.spec import Hardware
from shardspec.jax_backend import measuring
from shardspec.jax_backend.measuring import COARSE, FINE, Grid, dtypes_of, estimated
from shardspec.jax_backend.xla import compiling
from shardspec.language.catalogue import catalogue_entry

pytestmark = pytest.mark.fresh

SMALL = {"bf16": Grid((8, 512), (64,), (64, 512))}
#: What a script in the compiler's place begins with: `say(cycles)` for one matmul after the other.
BEGIN = """\
import json, os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
def say(*cycles):
    with (folder / "cycles.txt").open("a") as file:
        file.writelines(f"{each}\\n" for each in cycles)
"""


def machine(text: str = "tpu v5e 1x1") -> Hardware:
    found = machine_named(text)
    assert isinstance(found, Hardware)
    return found


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a script in the compiler's place says; nothing may be left of it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compiling, "installed", lambda package: "1")
    monkeypatch.setattr(measuring, "_POLL_S", 0.02)

    def of(script: str) -> Calibration:
        monkeypatch.setattr(compiling, "_CHILD", ("-c", BEGIN + script))
        try:
            return estimated(machine(), SMALL)
        finally:
            assert list(tmp_path.iterdir()) == []

    return of


def refused(made: Any, script: str) -> tuple[str, str]:
    with pytest.raises(ShardspecError) as caught:
        made(script)
    (found,) = caught.value.diagnostics
    assert found.code.id == "SHD906"
    return found.message, found.help or ""


def test_cycles_become_shares_of_the_roofline(made: Any) -> None:
    found = made("assert len(job['matmuls']) == 4; say(1000, 1000, 150, 100_000)")
    (table,) = found.matmuls
    moved = 2 * (8 * 64 + 64 * 64 + 8 * 64)
    assert table.shares[0] == pytest.approx(moved / 819e9 / (1000 / 1.5e9), rel=0.01)
    assert table.shares[2] == 1.0, "below the roofline: it waits for no memory"
    assert (found.chip, found.device_kind) == ("v5e", "TPU v5 lite")
    assert found.how.startswith("libtpu 1, the cycles that it estimates")


def test_a_refusal_names_the_matmul(made: Any) -> None:
    script = "say(7); (folder / 'error.json').write_text(json.dumps({'text': 'no room\\n'}))"
    message = "the compiler refuses a matmul of 8 x 64 x 512 for tpu v5e 1x1: no room"
    assert refused(made, script)[0] == message


def test_a_crash_is_told(made: Any) -> None:
    message, help = refused(made, "say(7); os.kill(os.getpid(), signal.SIGABRT)")
    assert message == "libtpu 1 crashed, by SIGABRT"
    assert "fault of the compiler" in help


def test_silence_is_told(made: Any) -> None:
    message, help = refused(made, "say(7, 7, '-', 7)")
    assert message == "libtpu 1 does not say how long operations take on TPU v5e"
    assert "stay in use" in help


def test_a_matmul_without_end_is_told(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_MOST_S", 0.5)
    assert "after 0.5 s" in refused(made, "import time; time.sleep(60)")[0]


@pytest.mark.parametrize("text", ["8 cpu", "2 * h100"])
def test_other_compilers_say_nothing(text: str) -> None:
    with pytest.raises(ShardspecError, match="does not say how long") as caught:
        estimated(machine(text), SMALL)
    assert "shardspec calibrate" in (caught.value.diagnostics[0].help or "")


def test_dtypes_of_chips() -> None:
    named = {name: dtypes_of(catalogue_entry(f"tpu_{name}").chip) for name in ("v3", "v5e", "v7x")}
    assert named == {
        "v3": ("bf16", "f32"),
        "v5e": ("bf16", "f32", "s8"),
        "v7x": ("bf16", "f32", "f8_e4m3fn"),
    }


def test_sizes_of_the_grids() -> None:
    assert (len(FINE.points), len(COARSE.points)) == (567, 175)
    assert set(COARSE.points) < set(FINE.points)


@pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("libtpu") is None,
    reason="needs the extra tpu-aot: libtpu, on Linux",
)
def test_libtpu_says_what_the_catalogue_holds() -> None:
    """Eight matmuls: the estimates of another version of libtpu may be others, but not by much."""
    made = estimated(machine(), {"bf16": Grid((8, 2048), (128, 2048), (512, 2048))})
    known = catalogue_entry("tpu_v5e").chip.calibration
    assert known is not None
    is_same = dict(made.versions)["libtpu"] == dict(known.versions)["libtpu"]
    (table,) = made.matmuls
    wanted = [known.matmuls[0].share(m, k, n) for m in table.m for k in table.k for n in table.n]
    assert list(table.shares) == pytest.approx(wanted, rel=1e-9 if is_same else 0.5)
