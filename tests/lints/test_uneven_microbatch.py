"""What SHD314 says of microbatches, and where it says nothing."""

from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of

SPEC = """
axes: {batch: 64, length: 8, embed: 256, mlp: 512}
mesh: {data: 2, fsdp: 8}
rules: [BATCH, embed -> fsdp, mlp -> none, length -> none]
params: {"**/up": embed mlp, "**/down": mlp embed}
arrays: {"l_{0,1}/up": "bf16[256, 512]", "l_{0,1}/down": "bf16[512, 256]"}
activations: {residual: batch length embed, hidden: batch length mlp}
step: {SETTINGS, program: ['residual, "**/up" -> hidden', 'hidden, "**/down" -> residual']}
"""
RULE = "batch -> (data, fsdp)"


def told(settings: str, rule: str = f'"{RULE}"', more: str = "") -> list[str]:
    text = SPEC.replace("BATCH", rule).replace("SETTINGS", settings) + more
    return [each.message for each in findings_of(text) if each.code.id == "SHD314"]


@pytest.mark.parametrize("settings", ["microbatches: 1", "microbatches: 4", "tokens: 512"])
def test_what_divides_is_no_finding(settings: str) -> None:
    assert told(settings) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("microbatches: 8", "a microbatch of 8 does not divide over `(data, fsdp)` = 2 x 8 = 16"),
        ("microbatches: 5", "64 sequences do not make 5 microbatches of one size"),
        ("microbatches: 128", "64 sequences do not make 128 microbatches of one size"),
        ("tokens: 80", "a batch of 10 does not divide over `(data, fsdp)` = 2 x 8 = 16"),
        ("tokens: 256, microbatches: 4", "a microbatch of 8 does not divide"),
    ],
)
def test_what_does_not_is(settings: str, said: str) -> None:
    (message,) = told(settings)
    assert message.startswith(said)


@pytest.mark.parametrize("other", ["| none", "| data"])
def test_another_alternative_is_meant(other: str) -> None:
    assert told("microbatches: 8", f'"{RULE} {other}"') == []


def test_a_rule_that_fires_all_the_same_is_told() -> None:
    assert len(told("microbatches: 8", more="policy: {indivisible: keep}\n")) == 1


def test_a_batch_that_does_not_divide_is_a_matter_of_its_own() -> None:
    found = findings_of(
        SPEC.replace("batch: 64", "batch: 40")
        .replace("BATCH", f'"{RULE}"')
        .replace("SETTINGS", "microbatches: 4")
    )
    assert [each.code.id for each in found if each.is_error] == ["SHD301"]
