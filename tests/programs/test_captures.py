"""Captured runs: every form, several hosts, and files that are damaged or hostile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import loads, pipeline
from shardspec.analysis.cost import cost_of
from shardspec.programs import captures
from shardspec.programs.captures import CaptureError, Event, Told, WireError, capture_of, fields
from shardspec.programs.measured import calibration_of_run, compared, module_of
from shardspec.programs.reading import read_program
from tests.programs.xspace import MS, Slice, on_cpu, plane, programs, put, trace

ON_CPU = [on_cpu("dot.1", 0, 3 * MS), on_cpu("all-reduce", 3 * MS, MS)]


def written(path: Path, *parts: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    return path


def test_a_capture_of_cpus(tmp_path: Path) -> None:
    file = written(
        tmp_path / "vm.xplane.pb",
        plane("/host:CPU", {"thread": [*ON_CPU, Slice("$python.py:1", 0, MS)]}),
        programs({"jit_step(3)": b"proto"}),
    )
    found = capture_of(str(file))
    first, second = found.events
    assert first == Event("CPU:0", "thread", "dot.1", "jit_step", "1", 7000, 7000 + 3 * MS)
    assert second.op == "all-reduce"
    assert found.programs == {"jit_step(3)": b"proto"}
    assert found.hosts == ("vm",)


def test_the_trace_of_perfetto_has_the_same_operations(tmp_path: Path) -> None:
    rows = [("/host:CPU", "thread", each) for each in ON_CPU]
    found = capture_of(str(trace(tmp_path / "perfetto_trace.json.gz", rows)))
    assert [(e.device, e.op, e.end - e.start) for e in found.events] == [
        ("CPU:0", "dot.1", 3 * MS),
        ("CPU:0", "all-reduce", MS),
    ]


TPU = {
    "XLA Modules": [Slice("jit_step(77)", 0, 4 * MS), Slice("jit_eval(8)", 5 * MS, MS)],
    "XLA Ops": [
        Slice(
            "%fusion.1 = bf16[8]{0} fusion(%p)",
            0,
            3 * MS,
            {"source": "/a/train.py:7", "tf_op": "jit(f)/jit(main)/add:"},
        ),
        Slice("all-gather-done", 3 * MS, MS),
        Slice("fusion.1", 5 * MS, MS),
        Slice("stray", 9 * MS, MS),
    ],
    "Async XLA Ops": [Slice("all-gather-start", MS, 3 * MS)],
    "Steps": [Slice("1", 0, 4 * MS)],
    "Overlay": [Slice("100", 0, MS)],
    "XLA TraceMe": [Slice("barrier-cores", 0, MS)],
}


def test_a_capture_of_tpus_has_the_module_that_runs_meanwhile(tmp_path: Path) -> None:
    parts = (
        plane("/device:TPU:0", TPU),
        plane("/device:TPU:0 SparseCore 1", {"x": [Slice("y", 0, 1)]}),
    )
    found = capture_of(str(written(tmp_path / "h.xplane.pb", *parts)))
    assert {(e.op, e.module) for e in found.events} == {
        ("fusion.1", "jit_step(77)"),
        ("all-gather-done", "jit_step(77)"),
        ("all-gather-start", "jit_step(77)"),
        ("fusion.1", "jit_eval(8)"),
        ("stray", ""),
    }
    told = Told("/a/train.py:7", "jit(f)/jit(main)/add")
    assert found.told["jit_step(77)", "fusion.1"] == told
    assert found.notes == ("not read: `SparseCore 1`",)


def test_streams_of_gpus_count_and_the_lines_that_repeat_them_do_not(tmp_path: Path) -> None:
    stats = {"hlo_op": "all-reduce-start", "hlo_module": "jit_step", "name": "jit(step)/psum"}
    lines = {
        "Stream #13(Compute)": [Slice("gemm_kernel", 0, MS, {**stats, "hlo_op": "cublas-gemm.1"})],
        "Stream #20": [Slice("ncclKernel", 0, MS, stats), Slice("memset", MS, MS)],
        "XLA Ops": [Slice("all-reduce-start", 0, MS)],
    }
    found = capture_of(str(written(tmp_path / "h.xplane.pb", plane("/device:GPU:3", lines))))
    assert [(e.device, e.op, e.module) for e in found.events] == [
        ("GPU:3", "cublas-gemm.1", "jit_step"),
        ("GPU:3", "all-reduce-start", "jit_step"),
        ("GPU:3", "", ""),
    ]
    assert found.told["jit_step", "all-reduce-start"].op_name == "jit(step)/psum"


#: It computes nothing, on four devices.
PROGRAM = """\
HloModule m, num_partitions=4

ENTRY %e (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8] parameter(0)
}
"""


@pytest.mark.parametrize(
    ("about", "machine", "is_it"),
    [
        ({"device_type_string": "TPU v6 Lite"}, "tpu v6e 2x2", True),
        ({"device_type_string": "TPU v6 Lite"}, "tpu v5e 2x2", False),
        ({"device_type_string": "TPU v5"}, "tpu v5e 2x2", False),
        ({"device_type_string": "TPU v5"}, "tpu v5p 2x2x1", True),
        ({}, "tpu v5e 2x2", True),
    ],
)
def test_a_run_on_another_chip_calibrates_nothing(
    tmp_path: Path, about: dict[str, str], machine: str, is_it: bool
) -> None:
    capture = capture_of(str(written(tmp_path / "h.xplane.pb", plane("/device:TPU:0", TPU, about))))
    assert capture.kinds == tuple(about.values())
    spec = loads(f"shardspec: 1\nhardware: {machine}\nmesh: {{data: 4}}\nrules: [batch -> data]")
    (plan,) = pipeline.compile_plans(spec.ir, None)
    program = read_program(PROGRAM, plan.mesh)
    said = "no product and no collective" if is_it else "it ran on TPU v"
    with pytest.raises(ValueError, match=said):
        calibration_of_run(capture, module_of(capture), program, plan, "2026-01-01")  # type: ignore[arg-type]


@pytest.mark.parametrize(("machine", "is_it"), [("1 mi300x", True), ("1 h100", False)])
def test_a_vendor_is_known_of_gpus(tmp_path: Path, machine: str, is_it: bool) -> None:
    stats = {"hlo_op": "gemm", "hlo_module": "jit_step"}
    lines = {"Stream #1(Kernel)": [Slice("kernel", 0, MS, stats)]}
    data = plane("/device:GPU:0", lines, {"device_vendor": "AMD"})
    capture = capture_of(str(written(tmp_path / "h.xplane.pb", data)))
    spec = loads(f"shardspec: 1\nhardware: {machine}\nmesh: {{data: 1}}\nrules: [batch -> data]")
    (plan,) = pipeline.compile_plans(spec.ir, None)
    found = compared(capture, "jit_step", None, cost_of(plan))
    assert any("it ran on AMD" in note for note in found.notes) == (not is_it)


def test_a_run_of_no_xla_program_is_refused(tmp_path: Path) -> None:
    """TensorFlow's profiler writes the same form, without the program of an operation."""
    lines = {"Stream #134(Compute)": [Slice("volta_sgemm", 0, MS)], "TensorFlow Ops": []}
    file = written(tmp_path / "h.xplane.pb", plane("/device:GPU:4", lines))
    with pytest.raises(CaptureError, match="no operation of an XLA program"):
        capture_of(str(file))


def test_a_folder_is_its_newest_run_with_the_captures_of_all_hosts(tmp_path: Path) -> None:
    for day, hosts in (("2026_01_01", ("a",)), ("2026_01_02", ("a", "b"))):
        for host in hosts:
            path = tmp_path / "plugins" / "profile" / day / f"{host}.xplane.pb"
            written(path, plane("/host:CPU", {"thread": ON_CPU}))
            trace(path.with_name("perfetto_trace.json.gz"), [])
    found = capture_of(str(tmp_path))
    assert found.hosts == ("a", "b")
    assert {each.device for each in found.events} == {"a/CPU:0", "b/CPU:0"}
    assert found.notes == ("2026_01_02 is read, the newest of 2 runs",)


#: What was copied as text has lost its bytes above 127, as in one public trace of a TPU.
AS_TEXT = plane("/device:TPU:0", TPU).decode("utf-8", "replace").encode()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.xplane.pb", b"\x0a\xff\xff", "is damaged"),
        ("x.xplane.pb", b"", "no operation of a device"),
        ("x.xplane.pb", put(1, 5), "is damaged"),
        ("x.xplane.pb", AS_TEXT, "is damaged"),
        ("x.json", b"{}", "no `traceEvents`"),
        ("x.json", b'{"traceEvents": [{]}', "is no trace"),
        ("x.json", b'{"traceEvents": [' + b"[" * 100_000, "is no trace"),
        ("x.json", b"\xff\xfe", "is damaged"),
        ("x.json.gz", b"\x1f\x8b\x08broken", "is damaged"),
        ("x.nsys-rep", b"1", "Nsight, which is not read"),
    ],
)
def test_what_is_no_capture_is_refused(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        capture_of(str(written(tmp_path / name, data)))


def test_a_folder_without_a_capture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"no `\*\.trace\.json\.gz`; files of Nsight are not"):
        capture_of(str(tmp_path))


def test_bytes_and_operations_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "MOST_BYTES", 1 << 20)
    bomb = written(tmp_path / "bomb.json.gz", gzip.compress(b" " * (1 << 24)))
    with pytest.raises(CaptureError, match="more than 1 MiB, unpacked"):
        capture_of(str(bomb))
    monkeypatch.setattr(captures, "MOST_EVENTS", 1)
    file = written(tmp_path / "vm.xplane.pb", plane("/host:CPU", {"thread": ON_CPU}))
    found = capture_of(str(file))
    assert len(found.events) == 1
    assert found.notes == ("1 operations beyond 1 are left out",)


@given(st.binary(max_size=400))
def test_any_bytes_end_in_fields_or_in_an_error(data: bytes) -> None:
    try:
        found = list(fields(memoryview(data)))
    except WireError:
        return
    assert sum(1 if isinstance(value, int) else len(value) for _, value in found) <= len(data)


@given(st.dictionaries(st.integers(1, 2**20), st.integers(0, 2**63) | st.binary(max_size=40)))
def test_fields_are_read_as_they_were_written(held: dict[int, int | bytes]) -> None:
    data = b"".join(put(number, value) for number, value in held.items())
    found = {n: v if isinstance(v, int) else bytes(v) for n, v in fields(memoryview(data))}
    assert found == held


@given(st.binary(max_size=200), st.integers(0, 10**6))
def test_a_damaged_capture_ends_in_a_capture_or_an_error(noise: bytes, at: int) -> None:
    whole = plane("/host:CPU", {"thread": ON_CPU}) + programs({"jit_step(3)": b"proto"})
    cut = at % len(whole)
    made = captures._Made(False, [])
    try:
        made._add(made._rows_of_planes(memoryview(whole[:cut] + noise + whole[cut:])), "")
    except (WireError, ValueError, OverflowError):
        return
    assert len(made.events) <= len(whole)


def test_other_json_of_a_trace_is_passed_over(tmp_path: Path) -> None:
    events = [1, None, {"ph": "X", "ts": "soon", "dur": 1}, {"ph": "X", "ts": 1, "args": [1]}]
    rows = [{"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "name": "dot", "args": stats}
            for stats in ({"hlo_op": "dot", "hlo_module": "m", "device_ordinal": 0},)]  # fmt: skip
    file = written(tmp_path / "list.json", json.dumps([*events, *rows]).encode())
    assert [each.op for each in capture_of(str(file)).events] == ["dot"]
