from __future__ import annotations

import re

import pytest

from tests.lints.findings_of import findings_of

HEAD = "mesh: {{data: 2, tensor: {tensor}}}\naxes: {{a: {{size: {size}, unit: {unit}}}}}\n"


def codes(
    size: int, tensor: int, unit: int = 1, rule: str = "a -> tensor", more: str = ""
) -> list[str]:
    head = HEAD.format(size=size, tensor=tensor, unit=unit)
    found = findings_of(f"{head}rules: ['{rule}']\narrays: {{k: 'f32[a _=3]'}}\n{more}")
    return [d.code.name for d in found if d.code.id.startswith("SHD3")]


@pytest.mark.parametrize(
    ("size", "tensor", "unit", "expected"),
    [
        (8, 4, 1, []),
        (8, 16, 1, ["indivisible"]),
        (12, 8, 1, ["indivisible"]),
        (512, 16, 64, ["cut-unit"]),
        (512, 8, 64, []),
        (0, 16, 1, []),
        (7, 7, 1, []),
    ],
)
def test_which(size: int, tensor: int, unit: int, expected: list[str]) -> None:
    assert codes(size, tensor, unit) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("a -> tensor | none", []),
        ("a -> tensor | data", []),
        ("a -> (data, tensor)", ["indivisible"]),
    ],
)
def test_a_later_alternative_or_a_final_none_is_meant(rule: str, expected: list[str]) -> None:
    assert codes(8, 16, rule=rule) == expected


def test_keep_fires_all_the_same_and_says_so() -> None:
    assert codes(8, 16, more="policy: {indivisible: keep}") == ["indivisible"]


def test_the_sizes_in_the_help_would_work() -> None:
    head = HEAD.format(size=30, tensor=8, unit=1)
    (found,) = findings_of(f"{head}rules: [a -> tensor]\narrays: {{k: 'f32[a]'}}")
    assert found.help is not None
    sizes = re.match(r"a = (\d+) or (\d+) would divide", found.help)
    assert sizes
    for size in sizes.groups():
        assert codes(int(size), 8) == []
    for tensor in re.findall(r"\d+", found.help.partition("{")[2].partition("}")[0]):
        assert "indivisible" not in codes(30, int(tensor))


def test_targets_that_fail_alike_are_one_finding() -> None:
    targets = "targets: {s: {mesh: {x: 3}}, t: {mesh: {x: 3}}, u: {mesh: {x: 2}}}\n"
    (found,) = findings_of(targets + "rules: [a -> x]\narrays: {'l_{0..3}/k': 'f32[a=8]'}")
    assert "targets `s`, `t`" in found.message
    assert "4 arrays" in found.notes[0]
