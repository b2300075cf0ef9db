"""What is wrong on several counts of slices is one finding, which names them."""

from __future__ import annotations

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.lints.slice_counts import as_families
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


def test_the_message_has_all_counts_and_the_notes_say_whose_numbers_they_have() -> None:
    (uneven,) = found(TEXT, "SHD301")
    assert uneven.message == (
        "`mlp` = 16384 does not divide over `data` = {6, 10, 12, 14} on targets `pod[3]`,"
        " `pod[5]` to `pod[7]`"
    )
    assert uneven.notes[-1] == "places, notes and help have the numbers of target `pod[3]`"
    assert "`data` is 6 on `pod[3]`" in [label.text for label in uneven.labels]
    assert uneven.target is None


def test_many_numbers_are_cut_and_the_help_fits_every_count() -> None:
    (crosses,) = found(TEXT, "SHD108")
    assert crosses.message.startswith("`data` = {4, 6, ..., 16} crosses slices on targets `pod[2]`")
    assert crosses.help is not None
    assert crosses.help.startswith("split it: `replica: rest @ dcn` and `data: 2`")
    followed = TEXT.replace("data: rest", "replica: rest @ dcn, data: 2")
    assert not found(followed, "SHD108")


def test_one_count_keeps_its_finding_as_it_is() -> None:
    (uneven,) = found(TEXT.replace("{1..8}", "{2..4}"), "SHD301")
    assert "on target `pod[3]`" in uneven.message
    assert uneven.target == "pod[3]"
    assert "numbers of" not in "".join(uneven.notes)


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
    assert tuple(as_families(whole)) == whole
