from __future__ import annotations

import pytest

from shardspec.lints.checks import replicated_here
from tests.lints.findings_of import found_by


def text(rule: str, b: str = "{data: 2, tensor: 16}", size: int = 4096) -> str:
    return (
        f"targets: {{a: {{mesh: {{data: 2, tensor: 8}}}}, b: {{mesh: {b}}}}}\n"
        f"rules: ['{rule}']\narrays: {{'k_{{0..3}}': 'f32[_={size} a=8]'}}"
    )


@pytest.mark.parametrize(
    ("rule", "b", "size"),
    [
        ("a -> tensor | none", "{data: 2, tensor: 16}", 4096),  # 512 KiB
        ("a -> tensor | none", "{data: 8}", 1 << 20),
        ("a -> tensor", "{data: 2, tensor: 16}", 1 << 20),
        ("a -> tensor | data", "{data: 2, tensor: 16}", 1 << 20),
    ],
)
def test_silence(rule: str, b: str, size: int) -> None:
    assert found_by(replicated_here, text(rule, b, size)) == []


def test_large_arrays_that_none_hides() -> None:
    (found,) = found_by(replicated_here, text("a -> tensor | none", size=1 << 20))
    assert found.message.startswith(
        "`k_0` f32[1048576, 8] is replicated on target `b` and sharded 8"
    )
    assert "128 MiB per device, 100 % of the model, and 16.0 MiB on `a`" in found.notes[0]
    assert found.help == "`a -> tensor | data | none` splits it here as well"


def test_the_help_works() -> None:
    assert found_by(replicated_here, text("a -> tensor | data | none", size=1 << 20)) == []
