from __future__ import annotations

import pytest

from shardspec.lints.checks import tensor_over_dcn
from tests.lints.findings_of import found_by

RULES = """
rules: [batch -> fsdp, embed -> fsdp, layers -> stage, mlp -> tensor]
axes: {batch: 64}
arrays: {k: 'f32[layers=8 embed=64 mlp=128]', s: 'f32[embed=64]'}
"""


@pytest.mark.parametrize(
    ("target", "crossing"),
    [
        ("mesh: {fsdp: 8, tensor: 2 @ dcn}", ["tensor"]),
        ("mesh: {fsdp: 8 @ dcn, tensor: 2}", []),
        ("mesh: {fsdp: 8, stage: 2 @ dcn, tensor: 1 @ dcn}", []),
        ("{hardware: 2 * h100, mesh: {tensor: 2, fsdp: 8}}", ["tensor"]),
        ("{hardware: 2 * h100, mesh: {fsdp: 2, tensor: 8}}", []),
        ("{hardware: h100, mesh: {fsdp: 2, tensor: 4}}", []),
        ("{hardware: 2 * tpu v5e 4x4, mesh: {tensor: 2 @ dcn, fsdp: 16}}", ["tensor"]),
        ("{hardware: 2 * tpu v5e 4x4, mesh: {stage: 2 @ dcn, fsdp: 16}}", []),
        ("{hardware: 2 * tpu v5e 4x4, mesh: {tensor: 32}}", []),  # SHD108
    ],
)
def test_which(target: str, crossing: list[str]) -> None:
    text = target if target.startswith("{") else f"{{{target}}}"
    found = found_by(tensor_over_dcn, f"targets: {{t: {text}}}{RULES}")
    assert [each.message.split("`")[1] for each in found] == crossing


def test_without_a_rule_for_the_batch_nothing_is_known() -> None:
    text = f"mesh: {{fsdp: 8, tensor: 2 @ dcn}}{RULES}".replace("batch -> fsdp, ", "")
    assert found_by(tensor_over_dcn, text) == []


def test_a_scan_axis_is_stacked_whatever_its_name() -> None:
    text = "mesh: {data: 8, pipe: 2 @ dcn}\nrules: [batch -> data, repeats -> pipe]\n"
    text += "params: {k: _}\narrays: {k: 'f32[8, 64]'}\naxes: {batch: 64}\n"
    assert found_by(tensor_over_dcn, f"{text}scan: {{k: repeats@0}}") == []
    named = text.replace("params: {k: _}", "params: {k: repeats _}")
    assert len(found_by(tensor_over_dcn, named)) == 1


def test_speeds_are_shown_where_they_are_known() -> None:
    (found,) = found_by(
        tensor_over_dcn,
        f"targets: {{t: {{hardware: 2 * h100, mesh: {{tensor: 2, fsdp: 8}}}}}}{RULES}",
    )
    assert found.notes[1] == "`tensor` gathers 50.0 GB/s on each device, `fsdp` 450 GB/s"
    assert found.help == (
        "keep `tensor` within one of the nodes (up to 8 devices),"
        " and let `fsdp`, which the batch has, cross: `@ dcn`"
    )
