"""Captures of TPUs: the form of their profiler around a program that libtpu compiled.

No TPU is here. The times are made up; names, lanes and nesting are those of such a capture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jaxlib import _jax, xla_client

import shardspec
from shardspec import pipeline
from shardspec.analysis.comparison import Comparison
from shardspec.analysis.cost import cost_of
from shardspec.jax_backend.step.trace import Call
from shardspec.jax_backend.xla.compiling import Compile, Compiling, texts_of
from shardspec.jax_backend.xla.verifying import lowered
from shardspec.programs.calls import Calls, Site, calls_of, rounds_of
from shardspec.programs.calls import Ref as At
from shardspec.programs.captures import capture_of
from shardspec.programs.hlo import program_of
from shardspec.programs.measured import compared, module_of, program_in, programs_of
from tests.models.captured_steps import SPEC, STEPS
from tests.programs.xspace import Slice, plane, programs

pytest.importorskip("libtpu", reason="needs the extra tpu-aot")

US = 10**6
#: What runs nothing.
SILENT = frozenset(("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"))
DEVICES = 8
#: As xprof has it of v6e: a name in the words of JAX, in other letters.
ABOUT = {"device_type_string": "TPU v5 Lite"}


class Timeline:
    """The lines of one device, as it runs a program."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.now = calls, 0
        self.ops: list[Slice] = []
        self.beside: list[Slice] = []
        self.begun: dict[str, int] = {}

    def run(self, body: str) -> None:
        for each in self.calls.program.computations[body].instructions.values():
            start = self.now
            if each.operation == "while":
                at = len(self.ops)
                rounds = rounds_of(self.calls.program, Site(At(body, each.name), each))
                for _ in range(rounds or 1):
                    self.run(each.attribute("body"))
                self.ops.insert(at, Slice(each.name, start, self.now - start))
            elif each.operation.endswith("-start"):
                self.begun[each.name] = start
                self._took(each.name, 1)
            elif each.operation.endswith("-done"):
                self._took(each.name, 2)
                begun = self.begun.get(each.operands[0], start)
                self.beside.append(Slice(each.operands[0], begun, self.now - begun))
            elif each.operation not in SILENT:
                self._took(f"%{each.name} = {each.type} {each.operation}(..)", 5)

    def _took(self, name: str, times: int) -> None:
        self.ops.append(Slice(name, self.now, times * US))
        self.now += times * US


def captured(text: str, folder: Path) -> None:
    """Write the capture of a program, with the program in it."""
    calls = calls_of(program_of(text))
    assert calls is not None and calls.program.entry is not None  # noqa: PT018
    line = Timeline(calls)
    line.run(calls.program.entry.name)
    lines = {
        "XLA Modules": [Slice("jit_step(5)", 0, line.now)],
        "XLA Ops": line.ops,
        "Async XLA Ops": line.beside,
        "Steps": [Slice("0", 0, line.now)],
    }
    hlo: Any = vars(xla_client).get("hlo", _jax)
    proto = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    for host in range(2):
        devices = (plane(f"/device:TPU:{each}", lines, ABOUT) for each in range(DEVICES // 2))
        data = b"".join((*devices, programs({"jit_step(5)": proto})))
        (folder / f"host{host}.xplane.pb").write_bytes(data)


def beside(name: str, folder: Path) -> Comparison:
    spec = shardspec.loads(SPEC.replace("8 cpu", "tpu v5e 2x4"), "spec.yaml")
    resolver = shardspec.Resolver(spec, "here", devices="abstract", agree_within_s=None)
    with Compile(resolver.target, Compiling()) as compile:
        step, module = lowered(resolver, Call(*STEPS[name](resolver)))
        compile.give(module)
        captured(compile.result().text, folder)
    (plan,) = pipeline.compile_plans(resolver._arrays.spec, None, [resolver.target])
    capture = capture_of(str(folder))
    texts = texts_of(programs_of(capture, module_of(capture)))
    mesh = resolver.target.mesh
    program = program_in(capture, module_of(capture), texts.values(), mesh, step)
    return compared(capture, module_of(capture), program, cost_of(plan, step))


@pytest.mark.parametrize("name", ["linen", "mapped", "scanned"])
def test_operations_of_a_tpu_have_their_line_and_rule(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # lines are shown from here, and JAX keeps what it traced
    found = beside(name, tmp_path)
    assert (found.devices, found.steps) == (DEVICES, 1)
    assert sum(each.shown for each in found.measured) == pytest.approx(found.seconds)
    collectives, products = found.explained("collective"), found.explained("matmul")
    assert collectives is not None
    assert products is not None
    assert collectives >= 0.95
    assert products >= 0.8
    assert found.predicted_seconds == pytest.approx(sum(e.shown for e in found.predicted))
    assert not any("it ran on" in note for note in found.notes)
    assert not any("does not have" in note or "not in the capture" in note for note in found.notes)
