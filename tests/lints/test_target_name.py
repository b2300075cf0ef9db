"""SHD224: names that say hardware, and names that only look so."""

from __future__ import annotations

import pytest

from shardspec.lints.checks import target_name
from tests.lints.findings_of import found_by, marked

SPEC = "rules: [a -> x]\ntargets: {%s: {hardware: %s, mesh: {x: rest}}}\n"


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("v5p-8", "tpu v5p 2x2x1"),
        ("v5p-4", "tpu v5p 2x2x1"),
        ("v5litepod-16", "tpu v5e 4x4"),
        ("tpu-v3-8", "tpu v3 2x2"),
        ("V5E-16", "tpu v5e 4x4"),
        ("v6e-8x8", "tpu v6e 8x8"),
        ("two-v6e-64", "2 * tpu v6e 8x8"),
        ("v6e-128", "2 * tpu v6e 8x8"),
        ("ironwood", "tpu v7x 2x2x1"),
        ("h100-8", "h100"),
        ("h100_64", "8 * h100"),
        ("h100-4", "4 * h100"),
        ("8xh100", "4 * h100"),
        ("a100-80gb-16", "2 * a100"),
        ("a100-40gb", "a100-40gb"),
        ("gb200-nvl72", "gb200"),
        ("cpu-8", "8 cpu"),
        ("pod-7", "8 cpu"),
        ("h100-or-a100", "a100"),
        ("dev4", "tpu v5e 4x4"),
        ("subv4-16", "tpu v5e 4x4"),
    ],
)
def test_a_true_name_is_left_in_peace(name: str, hardware: str) -> None:
    assert found_by(target_name, SPEC % (name, hardware)) == []


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("v5p-8", "tpu v5p 2x2x4"),
        ("v5e-16", "tpu v6e 4x4"),
        ("v6e-8x8", "tpu v6e 8x16"),
        ("two-v6e-64", "2 * tpu v6e 8x16"),
        ("h100", "a100"),
        ("h100-64", "2 * h100"),
        ("cpu-8", "4 cpu"),
    ],
)
def test_a_false_name_is_told(name: str, hardware: str) -> None:
    (found,) = found_by(target_name, SPEC % (name, hardware))
    assert marked(found) == [hardware, name]


def test_a_target_without_hardware_may_have_any_name() -> None:
    assert found_by(target_name, "rules: [a -> x]\ntargets: {v4-8: {mesh: {x: 2}}}\n") == []
