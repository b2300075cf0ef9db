"""What is wrong on several counts of slices is one finding, of the first, which names the rest."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.lints.follow_on import families_as_one
from tests.lints.findings_of import findings_of

TEXT = """\
axes: {embed: 1024, mlp: 16384}
targets:
  pod: {hardware: "{1..8} * tpu v5e 4x4", mesh: {data: rest, tensor: 8}}
rules: [embed -> tensor, mlp -> data]
arrays: {w/kernel: "bf16[embed mlp]"}
"""


def found(text: str, code: str) -> list[Diagnostic]:
    return [each for each in findings_of(text) if each.code.id == code]


def test_the_first_count_is_told_with_its_numbers_and_names_the_others() -> None:
    (uneven,) = found(TEXT, "SHD301")
    assert uneven.message == "`mlp` = 16384 does not divide over `data` = 6 on target `pod[3]`"
    assert uneven.notes[-1] == "also on `pod[5]` to `pod[7]`, with their own numbers"
    assert "`data` is 6 on `pod[3]`" in [label.text for label in uneven.labels]
    assert uneven.target is None


def test_the_help_fits_every_count() -> None:
    (crosses,) = found(TEXT, "SHD108")
    assert crosses.message.startswith("`data` = 4 crosses slices on target `pod[2]`")
    assert crosses.notes[-1] == "also on `pod[3]` to `pod[8]`, with their own numbers"
    assert crosses.help is not None
    assert crosses.help.startswith("split it: `replica: rest @ dcn` and `data: 2`")
    followed = TEXT.replace("data: rest", "replica: rest @ dcn, data: 2")
    assert not found(followed, "SHD108")


@pytest.mark.parametrize("name", ["6", "mlp-4.5", "a_16"])
def test_names_of_the_user_are_not_numbers(name: str) -> None:
    """What the findings have in common is place and arrays, whatever the names are."""
    (uneven,) = found(TEXT.replace("kernel", name).replace("pod:", f"{name}-pod:"), "SHD301")
    assert uneven.message.endswith(f"on target `{name}-pod[3]`")
    assert uneven.notes[0].startswith(f"1 array, w/{name};")
    assert uneven.notes[-1].startswith(f"also on `{name}-pod[5]` to")


def test_one_count_keeps_its_finding_as_it_is() -> None:
    (uneven,) = found(TEXT.replace("{1..8}", "{2..4}"), "SHD301")
    assert "on target `pod[3]`" in uneven.message
    assert uneven.target == "pod[3]"
    assert "also on" not in "".join(uneven.notes)


def test_what_differs_in_more_than_numbers_stays_apart() -> None:
    """Two rules at two places, and two targets with names of their own."""
    text = TEXT.replace("mlp -> data", "mlp -> data, rows -> data").replace(
        "arrays: {", 'arrays: {b: "bf16[rows=100]", '
    )
    assert len(found(text, "SHD301")) == 2
    two = TEXT.replace('"{1..8} * tpu v5e 4x4"', "3 * tpu v5e 4x4").replace(
        "\nrules", "\n  other: {hardware: 5 * tpu v5e 4x4, mesh: {data: rest, tensor: 8}}\nrules"
    )
    assert len(found(two, "SHD301")) == 2


def test_every_error_of_one_count_is_told_of_the_family() -> None:
    """`--target pod[N]` finds what the findings of all say of N, and nothing else."""
    spec, faults = pipeline.load_text(TEXT, "spec.yaml")
    assert spec is not None
    of_each = {
        target.name: {
            d.code.id
            for d in pipeline.check(spec, faults, spec.params, target.name, is_whole=False).shown
        }
        for target in spec.targets
    }
    whole = pipeline.check(spec, faults, spec.params).shown
    assert {d.code.id for d in whole} == set().union(*of_each.values())
    assert len(whole) < sum(map(len, of_each.values()))
    assert tuple(families_as_one(whole)) == whole
