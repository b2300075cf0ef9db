"""Public traces of GPUs, where their files are: `SHARDSPEC_CAPTURES` names a folder with them.

They are of AMD-AGI/TraceLens and tensorflow/profiler, under the names of `FILES`. What is of
interest in their form is tested without them in `test_captures.py` and `test_reading.py`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from shardspec import loads, pipeline
from shardspec.analysis.cost import cost_of
from shardspec.jax_backend.xla.compiling import texts_of
from shardspec.programs.captures import CaptureError, capture_of
from shardspec.programs.measured import compared, module_of, program_in, programs_of

FOLDER = os.environ.get("SHARDSPEC_CAPTURES", "")


class File(NamedTuple):
    """A trace: its first digits of SHA-256, and what is in it."""

    digest: str
    module: str
    machine: int
    devices: int
    steps: int
    line: str


FILES = {
    "te_fused": File("c88b958d", "jit_loss_fn(17)", 1, 1, 5, "/workspace/12_te_fused_attn.py:77"),
    "conv08": File("54f02da6", "jit_forward_3d_conv(15)", 8, 8, 3, "generate_conv_trace.py:23"),
    "convlegacy": File("26369fcf", "jit_forward_3d_conv(15)", 8, 1, 5, "jax_conv_profiling.py:77"),
    "gemm": File("1adc9bf9", "jit_dot(49)", 1, 1, 3, "generate_gemm_trace.py:37"),
    "elementwise": File("bfa3f9dc", "jit_multiply(17)", 1, 1, 5, "elementwise_trace.py:24"),
    "attention": File("0213a25d", "jit_matmul(59)", 1, 1, 3, "generate_attention_trace.py:26"),
}
NO_JAX = {"multiworker": "no operation of an XLA program", "tpu_inference_2": "is damaged"}


def path_of(name: str) -> Path:
    path = Path(FOLDER, f"{name}.xplane.pb")
    if not FOLDER or not path.exists():
        pytest.skip("its file is not here")
    return path


@pytest.mark.parametrize("name", FILES)
def test_what_runs_has_its_line(name: str) -> None:
    file, path = FILES[name], path_of(name)
    assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(file.digest)
    spec = loads(f"shardspec: 1\nmesh: {{data: {file.machine}}}\nrules: [batch -> data]").ir
    (plan,) = pipeline.compile_plans(spec, None)
    capture = capture_of(str(path))
    module = module_of(capture)
    texts = texts_of(programs_of(capture, module)).values()
    found = compared(capture, module, program_in(capture, module, texts, plan.mesh), cost_of(plan))
    assert (found.module, found.devices, found.steps) == file[1:2] + file[3:5]
    assert sum(each.shown for each in found.measured) == pytest.approx(found.seconds)
    runs = [each for each in found.measured if each.kind != "idle"]
    named = [each for each in runs if each.place.is_known]
    assert sum(e.shown for e in named) >= 0.99 * sum(e.shown for e in runs)
    assert str(max(named, key=lambda each: each.shown).place).endswith(file.line)


@pytest.mark.parametrize("name", NO_JAX)
def test_what_is_no_run_of_jax_is_refused(name: str) -> None:
    with pytest.raises(CaptureError, match=NO_JAX[name]):
        capture_of(str(path_of(name)))
