from __future__ import annotations

import re

import pytest

from shardspec import pipeline
from shardspec.analysis.memory import memory
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import binary_bytes
from tests.lints.findings_of import findings_of

TEXT = """\
targets:
  t: {{hardware: {hardware}, mesh: {{data: {data}, model: rest}}}}
lints: {{size-one-axis: allow, unused-mesh-axis: allow, unnamed-array: allow}}
rules: [batch -> data, mlp -> {mlp}, 'embed -> {embed}']
axes: {{batch: 4096}}
activations: {{tokens: batch}}
arrays:
  'l_{{0..{layers}}}/k': bf16[embed=4096 mlp=28672]
"""


def text(
    more: str = "",
    hardware: str = "tpu v5e 4x4",
    data: int = 8,
    mlp: str = "model",
    embed: str = "none",
    layers: int = 31,
) -> str:
    head = TEXT.format(hardware=hardware, data=data, mlp=mlp, embed=embed, layers=layers)
    return f"{head}{more}"


def found_in(text: str) -> Diagnostic | None:
    found = findings_of(text, only="exceeds-memory")
    assert len(found) <= 1
    return found[0] if found else None


def per_device(text: str) -> str:
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    return binary_bytes(memory(pipeline.compile_plans(spec)[0]).bytes)


ADAM = "state: {optimizer: same}"


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        (text(), False),
        (text(ADAM), True),
        (text(ADAM, hardware="tpu v5p 2x2x4"), False),
        (text(ADAM, hardware="16 cpu"), False),
        (text(hardware="tpu v5e 4x4", data=16, layers=72), True),
        (text(hardware="tpu v5e 4x4", data=16, layers=71), False),
    ],
)
def test_which(given: str, is_told: bool) -> None:
    assert (found_in(given) is not None) == is_told


def test_the_sum_is_shown_line_by_line() -> None:
    found = found_in(text(ADAM.replace("same", "zero1"), data=2, layers=299))
    assert found is not None
    assert found.notes[:4] == (
        "8.20 GiB  parameters: 300 arrays of bf16",
        "8.20 GiB  gradients: 300 arrays of bf16",
        "16.4 GiB  optimizer state: 300 arrays x2 of f32, zero1 over `data`",
        "a lower bound: activations and buffers come on top",
    )


def test_without_state_only_parameters_count() -> None:
    found = found_in(text(data=16, layers=99))
    assert found is not None
    assert found.message.startswith("parameters take 21.9 GiB per device of target `t`; a device")
    assert not any("gradients" in note for note in found.notes)


@pytest.mark.parametrize(
    ("option", "applied"),
    [
        ("`state: {optimizer: zero1}`", text("state: {optimizer: zero1}")),
        ("`state: {optimizer: zero2}`", text("state: {optimizer: zero2}")),
        ("`embed -> data | none`", text(ADAM, embed="data | none")),
    ],
)
def test_each_way_out_works_and_makes_it_what_it_says(option: str, applied: str) -> None:
    found = found_in(text(ADAM))
    assert found is not None
    assert f"{option} makes it {per_device(applied)}" in (found.help or "")
    assert found_in(applied) is None


def test_how_many_devices_it_takes_at_the_least() -> None:
    found = found_in(text(ADAM, hardware="tpu v5e 1x1", data=1, layers=7))
    assert found is None
    small = text(ADAM, hardware="tpu v5e 1x1", data=1, layers=31)
    found = found_in(small)
    assert found is not None
    least = re.search(r"needs at least (\d+) such devices", found.help or "")
    assert least
    assert least[1] == "3"
    larger = text(ADAM, hardware="tpu v5e 2x2", data=2, embed="data")
    assert found_in(larger) is None


def test_over_all_mesh_axes_where_one_is_not_enough() -> None:
    big = text(ADAM, hardware="tpu v5e 4x4", data=4, mlp="none", layers=127)
    found = found_in(big)
    assert found is not None
    both = "(data, model) | data | none"
    assert f"`embed -> {both}` makes it 10.5 GiB" in (found.help or "")
    followed = text(ADAM, data=4, mlp="none", embed=both, layers=127)
    assert found_in(followed) is None
    assert per_device(followed) == "10.5 GiB"


def test_a_rule_that_cannot_fire_is_no_way_out() -> None:
    """Eight heads over 16: pages are what divides, and the help says so."""
    spec = """\
hardware: tpu v5e 4x4
mesh: {data: 1, tensor: 16}
rules: [pages -> data, kv_heads -> PLACE, kv -> none]
lints: {size-one-axis: allow}
caches:
  'c/{0..31}/{k,v}': bf16[pages=16384 _=16 kv_heads=8 kv=128]
"""
    before = spec.replace("PLACE", "tensor")
    found = found_in(before)
    assert found is not None
    (rule,) = re.findall("`(pages -> .*?)` makes it", found.help or "")
    followed = before.replace("pages -> data", f"'{rule}'")
    assert found_in(followed) is None
    assert findings_of(followed.replace("-> tensor, kv", "-> tensor | none, kv")) == ()


def test_dimensions_that_do_not_divide_so() -> None:
    arrays = text(ADAM, layers=127).replace("embed=4096 mlp=28672", "embed=4097 mlp=28673")
    found = found_in(arrays)
    assert found is not None
    assert "do not divide so" in (found.help or "")
