from __future__ import annotations

import re

import pytest

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.diagnostic import excerpt_of
from shardspec.ir.spec import Hardware
from shardspec.language.catalogue import (
    chips_of_kind,
    find_hardware,
    hardware_meant,
    machine_fault,
)
from shardspec.language.grammar.expressions import parse_hardware
from shardspec.language.grammar.syntax import HardwareExpr, SyntaxFault


def find(text: str) -> Hardware | Diagnostic:
    expr = parse_hardware(text)
    assert isinstance(expr, HardwareExpr), expr
    return find_hardware(expr, excerpt_of(text))


@pytest.mark.parametrize(
    ("text", "chip", "slices", "topology", "chips", "devices"),
    [
        ("tpu v4 4x8x8", "v4", 1, (4, 8, 8), 256, 256),
        ("tpu v3 4x4", "v3", 1, (4, 4), 16, 32),
        ("2 * tpu v5p 4x4x8", "v5p", 2, (4, 4, 8), 256, 256),
        ("2 * tpu v6e 8x8", "v6e", 2, (8, 8), 128, 128),
        ("v4-512", "v4", 1, (4, 8, 8), 256, 256),
        ("v4-8", "v4", 1, (2, 2, 1), 4, 4),
        ("v3-32", "v3", 1, (4, 4), 16, 32),
        ("v2-8", "v2", 1, (2, 2), 4, 8),
        ("v5litepod-64", "v5e", 1, (8, 8), 64, 64),
        ("v5p-256", "v5p", 1, (4, 4, 8), 128, 128),
        ("v6e-64", "v6e", 1, (8, 8), 64, 64),
        ("tpu7x-16", "v7x", 1, (2, 2, 2), 8, 16),
        ("2 * v5p-256", "v5p", 2, (4, 4, 8), 256, 256),
        ("4 * h100", "h100", 4, (8,), 32, 32),
        ("h100", "h100", 1, (8,), 8, 8),
        ("16 h100", "h100", 2, (8,), 16, 16),
        ("4 h100", "h100", 1, (4,), 4, 4),
        ("a3-highgpu-8g", "h100", 1, (8,), 8, 8),
        ("2 * a3-highgpu-8g", "h100", 2, (8,), 16, 16),
        ("2 * a3-highgpu-4g", "h100", 2, (4,), 8, 8),
        ("4 * gb200", "gb200", 4, (72,), 288, 288),
        ("18 * a4x-highgpu-4g", "gb200", 1, (72,), 72, 72),
        ("a2-highgpu-8g", "a100-40gb", 1, (8,), 8, 8),
        ("tpu v4-nomegacore 2x2x1", "v4-nomegacore", 1, (2, 2, 1), 4, 8),
        ("8 cpu", "cpu", 1, (8,), 8, 8),
        ("cpu", "cpu", 1, (1,), 1, 1),
    ],
)
def test_forms(
    text: str, chip: str, slices: int, topology: tuple[int, ...], chips: int, devices: int
) -> None:
    found = find(text)
    assert isinstance(found, Hardware), found
    assert (found.chip.name, found.slice_count, found.topology) == (chip, slices, topology)
    assert (found.chip_count, found.device_count) == (chips, devices)


def test_accelerator_types_keep_their_name() -> None:
    found = find("v4-512")
    assert isinstance(found, Hardware)
    assert found.accelerator_type == "v4-512"
    plain = find("tpu v4 4x8x8")
    assert isinstance(plain, Hardware)
    assert plain.accelerator_type is None


def test_a_single_host_of_eight_is_one_host() -> None:
    found = find("v5litepod-8")
    assert isinstance(found, Hardware)
    assert found.host_shape == (2, 4)


@pytest.mark.parametrize(
    ("text", "said", "help", "under"),
    [
        ("tpu v9 2x2", "no hardware `v9`", "`tpu v4 4x8x8`", "v9"),
        ("h10", "no hardware `h10`", "did you mean `h100`?", "h10"),
        ("v5lightpod-8", "no hardware `v5lightpod-8`", "`v5litepod`", "v5lightpod-8"),
        (
            "tpu v4 8x4x4",
            "no TPU v4 slice of 8x4x4 chips",
            "the same chips are written `4x4x8`",
            "8x4x4",
        ),
        ("tpu v4 3x3x3", "no TPU v4 slice of 3x3x3 chips", "slices near it", "3x3x3"),
        ("tpu v4 4x4", "have 3 dimensions, but `4x4` has 2", "slices near it", "4x4"),
        ("tpu v5e", "needs the topology", "`16x16`", "v5e"),
        ("v4-100", "100 cores, 50 chips", "`v4-128`", "v4-100"),
        ("v4-7", "7 cores, 3.5 chips", "`v4-8`", "v4-7"),
        ("v5litepod-7", "7 chips", "`v5litepod-8`", "v5litepod-7"),
        ("gpu v4 2x2x1", "is a TPU, not a gpu", "tpu v4", "v4"),
        ("12 h100", "do not fill whole NVLink domains of 8", "multiple of 8", "h100"),
        ("h100-8", "takes no `-8`", "4 * h100", "h100-8"),
    ],
)
def test_faults_say_what_would_work(text: str, said: str, help: str, under: str) -> None:
    fault = find(text)
    assert isinstance(fault, Diagnostic), fault
    assert fault.code.id == "SHD101"
    assert said in fault.message
    assert help in (fault.help or "")
    assert fault.primary is not None
    assert fault.primary.span.text == under


def test_jax_names_lead_back_to_chips() -> None:
    assert [chip.name for chip in chips_of_kind("TPU v5 lite")] == ["v5e"]
    assert [chip.name for chip in chips_of_kind("TPU7x")] == ["v7x"]
    assert [chip.devices_per_chip for chip in chips_of_kind("TPU v4")] == [1, 2]
    assert chips_of_kind("TPU v99") == ()


@pytest.mark.parametrize("text", ["8 gpu", "gpus", "16 tpu", "2 GPUs"])
def test_a_kind_of_chips_is_asked_which(text: str) -> None:
    found = find(text)
    assert isinstance(found, Diagnostic)
    offered = re.findall(r"`([^`]+)`", (found.help or "").partition("?")[0])
    assert len(offered) == 3
    assert not {"cpu"} & {each.split()[-1] for each in offered}
    for each in offered:
        assert each.split()[-1] in ("h100", "a100", "b200", "v5e", "v5p", "v6e")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("8 * h100", "8 nodes of 8 NVIDIA H100 SXM, 64 GPUs"),
        ("8 h100", "NVIDIA H100 SXM, 8 GPUs"),
        ("1 h100", "NVIDIA H100 SXM, 1 GPU"),
        ("2 * a3-highgpu-8g", "2 nodes of 8 NVIDIA H100 SXM (a3-highgpu-8g), 16 GPUs"),
        ("2 * gb200", "2 NVLink domains of 72 NVIDIA GB200 NVL72, 144 GPUs"),
        ("2 * tpu v5p 4x4x8", "2 x TPU v5p 4x4x8, 256 chips"),
        ("8 cpu", "8 CPU devices"),
    ],
)
def test_a_machine_is_shown_with_its_counts(text: str, title: str) -> None:
    found = find(text)
    assert isinstance(found, Hardware)
    assert found.title == title


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8 h100 pcie", ()),
        ("h100-pcie", ()),
        ("8 H100 NVL", ()),
        ("8 h100 40gb", ()),
        ("8 a100 40gb", ("8 a100-40gb",)),
        ("8 A100-SXM4-40GB", ("8 a100-40gb",)),
        ("8 H100-SXM5-80GB", ("8 h100",)),
        ("dgx h100 8", ("8 h100",)),
        ("DGX H100", ("8 h100",)),
        ("hgx-h100", ("8 h100",)),
        ("h100 node", ("8 h100",)),
        ("4 x dgx h100", ("4 * h100",)),
        ("2 nodes of h100", ("2 * h100",)),
        ("4x4 tpu v5e spot", ("tpu v5e 4x4",)),
    ],
)
def test_another_chip_is_never_proposed(text: str, meant: tuple[str, ...]) -> None:
    assert hardware_meant(text) == meant
    parsed = parse_hardware(text)
    if isinstance(parsed, SyntaxFault):
        help = machine_fault(parsed, text).help
    else:
        found = find(text)
        assert isinstance(found, Diagnostic)
        help = found.help
    assert help is not None
    if not meant:
        assert "`h100` is NVIDIA H100 SXM" in help
        assert "write" not in help
