"""One target for any number of slices: `{1..8} * tpu v5e 16x16`."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Spec

SPEC = """\
targets:
  pod: {hardware: "{1..8} * tpu v5e 4x4", mesh: {replica: rest @ dcn, fsdp: 16}}
  desk: {hardware: 8 cpu, mesh: {fsdp: 8}}
axes: {batch: 384, embed: 64}
rules:
  - batch -> (replica, fsdp)
  - embed -> fsdp
arrays: {wi: "bf16[embed _=8]"}
activations: {hidden: batch embed}
"""


def loaded(text: str, name: str = "spec.yaml") -> Spec:
    spec, faults = pipeline.load_text(text, name)
    assert spec is not None
    assert faults == ()
    return spec


def names(spec: Spec) -> list[str]:
    return [target.name for target in spec.targets]


def test_each_count_is_a_target() -> None:
    spec = loaded(SPEC)
    assert names(spec) == [*(f"pod[{count}]" for count in range(1, 9)), "desk"]
    for count, target in enumerate(spec.targets[:-1], 1):
        assert target.hardware is not None
        assert target.hardware.slice_count == count
        assert target.mesh.sizes == {"replica": count, "fsdp": 16}
    some = loaded(SPEC.replace("{1..8}", "{1,2,4}"))
    assert names(some) == ["pod[1]", "pod[2]", "pod[4]", "desk"]


def test_it_means_what_the_targets_one_by_one_do() -> None:
    spec = loaded(SPEC)
    for count in range(1, 9):
        one = loaded(SPEC.replace("{1..8} *", f"{count} *"))
        (alone,) = pipeline.compile_plans(one, None, one.targets[:1])
        plan = pipeline.compile_plans(spec, None, [spec.targets[count - 1]])[0]
        assert plan.target.mesh == alone.target.mesh
        assert [each.dims for each in plan.arrays] == [each.dims for each in alone.arrays]


def test_check_says_which_counts_do_not_work_and_which_do() -> None:
    spec = loaded(SPEC)
    found = pipeline.check(spec, (), spec.params).shown
    (error,) = (each for each in found if each.is_error)
    assert error.message.endswith("= 5 x 16 = 80 on target `pod[5]`")
    assert "also on `pod[7]`, with their own numbers" in error.notes
    legal = "`pod[1]` to `pod[4]`, `pod[6]`, `pod[8]`"
    assert any(legal in note for note in error.notes)


def test_a_mesh_that_is_stated_fits_one_count() -> None:
    text = SPEC.replace("{replica: rest @ dcn, fsdp: 16}", "{replica: 2 @ dcn, fsdp: 16}")
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert [each.target for each in faults] == [f"pod[{count}]" for count in (1, 3, 4, 5, 6, 7, 8)]
    assert {each.code.id for each in faults} == {"SHD102"}


def test_the_name_is_for_all_of_them() -> None:
    spec = loaded(SPEC)
    told = pipeline.check(spec, (), spec.params, "pod")
    assert told.targets == 8
    (error,) = (each for each in told.shown if each.is_error)
    assert error.message.endswith("on target `pod[5]`")
    assert "also on `pod[7]`, with their own numbers" in error.notes
    assert pipeline.check(spec, (), spec.params, "pod[4]").shown == ()
    found = pipeline.find_target(spec, "pod")
    assert isinstance(found, Diagnostic)
    assert "stands for 8 counts of slices" in found.message
    assert "`pod[1]` to `pod[8]`" in (found.help or "")
    assert pipeline.find_target(spec, "pod[3]") == "pod[3]"


@pytest.mark.parametrize("own", ['"{1,2} * tpu v5e 4x4"', "tpu v5e 4x4"])
def test_a_child_replaces_all_counts(own: str, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SPEC)
    file = tmp_path / "child.yaml"
    mesh = "{replica: rest @ dcn, fsdp: 16}" if "{" in own else "{fsdp: rest}"
    file.write_text(f"extends: ./base.yaml\ntargets: {{pod: {{hardware: {own}, mesh: {mesh}}}}}\n")
    spec, faults = pipeline.load_path(str(file))
    assert spec is not None
    assert faults == ()
    assert sorted(names(spec)) == sorted(
        ["desk", *(["pod[1]", "pod[2]"] if "{" in own else ["pod"])]
    )


def test_the_dsl_says_it_too() -> None:
    text = "target pod on {1..3} * tpu v5e 4x4 { replica = rest @ dcn; fsdp = 16 }\n"
    spec = loaded(f"{text}rules {{ embed -> fsdp }}\n", "spec.shard")
    assert names(spec) == ["pod[1]", "pod[2]", "pod[3]"]
    alone = "mesh on {1,2} * h100 {\n  replica = rest @ dcn\n  fsdp = 8\n}\nrules { a -> fsdp }\n"
    assert names(loaded(alone, "spec.shard")) == ["default[1]", "default[2]"]


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ('"{0..3} * tpu v5e 4x4"', "1 or more"),
        ('"{3..1} * tpu v5e 4x4"', "a range goes up"),
        ('"{1..9999999} * tpu v5e 4x4"', "more than 64 counts"),
        ('"{1..8} tpu v5e 4x4"', "expected `*`"),
        ('"{} * tpu v5e 4x4"', "expected a number"),
        ("{1..8} * tpu v5e 4x4", "braces without quotes"),
    ],
)
def test_what_is_no_count_of_slices(hardware: str, said: str) -> None:
    text = f"targets:\n  pod:\n    hardware: {hardware}\n    mesh: {{fsdp: rest}}\n"
    text += "rules: [a -> fsdp]\n"
    _, faults = pipeline.load_text(text, "spec.yaml")
    assert said in faults[0].message
    assert faults[0].primary is not None
    assert faults[0].primary.span.start > text.index("hardware")
