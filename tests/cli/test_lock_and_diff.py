"""`lock` and `diff` as a user meets them: in a folder under git, from change to review."""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

SPEC = """\
shardspec: 1
extends: ./base.yaml
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {data: rest, model: 4}}
  desk: {hardware: 8 cpu, mesh: {data: rest, model: 2}}
manifest: ./arrays.yaml
"""
BASE = """\
rules:
  - mlp -> model
  - embed -> data
"""
ARRAYS = """\
"layers_{0..11}/mlp/wi/kernel": bf16[embed=64 mlp=128]
"layers_{0..11}/mlp/wo/kernel": bf16[mlp=128 embed=64]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("spec.yaml", SPEC), ("base.yaml", BASE), ("arrays.yaml", ARRAYS)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def repository(folder: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def change(folder: Path, old: str, new: str, name: str = "base.yaml") -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_lock_is_written_and_found_true(folder: Path) -> None:
    written = run("lock")
    assert written.exit_code == 0
    assert written.stdout.startswith("spec.lock: 24 arrays on 2 targets, ")
    assert (
        "layers_{0..11}/mlp/wi/kernel : bf16[embed=64 mlp=128] = (data, model)"
        in (folder / "spec.lock").read_text()
    )
    assert run("lock", "--check").exit_code == 0
    before = (folder / "spec.lock").read_bytes()
    assert run("lock").exit_code == 0
    assert (folder / "spec.lock").read_bytes() == before


def test_a_lock_from_another_folder_is_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("lock")
    here = (folder / "spec.lock").read_bytes()
    monkeypatch.chdir(folder.parent)
    assert run("lock", f"{folder.name}/spec.yaml").exit_code == 0
    assert (folder / "spec.lock").read_bytes() == here


def test_a_stale_lock_fails_with_what_moved(folder: Path) -> None:
    run("lock")
    change(folder, "embed -> data", "embed -> none")
    checked = run("lock", "--check")
    assert checked.exit_code == 1
    assert "- 24 arrays   embed: data -> none, by base.yaml:3 (embed -> none)" in checked.stdout
    assert "spec.lock is stale" in checked.stderr
    explained = run("explain", "layers_3/mlp/wi/kernel", "--spec", "spec.yaml")
    assert "`spec.lock` is stale: `base.yaml` changed" in explained.stderr


def test_explain_says_that_a_fresh_lock_agrees(folder: Path) -> None:
    run("lock")
    explained = run("explain", "layers_3/mlp/wi/kernel", "--spec", "spec.yaml")
    assert "lock: spec.lock agrees" in explained.stderr
    change(folder, "= (data, model)", "= (none, model)", "spec.lock")
    explained = run("explain", "layers_3/mlp/wi/kernel", "--spec", "spec.yaml")
    assert "spec.lock says (none, model)" in explained.stderr


def test_comments_and_line_breaks_need_no_new_lock(folder: Path) -> None:
    run("lock")
    change(folder, "rules:\n", "# a remark\nrules:\n\n")
    change(folder, "embed -> data", '"embed -> data"  # another')
    checked = run("lock", "--check")
    assert checked.exit_code == 0, checked.output
    assert "up to date" in checked.stdout


def test_a_change_that_moves_nothing_still_needs_a_new_lock(folder: Path) -> None:
    run("lock")
    change(folder, "  - embed -> data", "  - embed -> data\n  - embed -> model")
    checked = run("lock", "--check")
    assert checked.exit_code == 1
    assert "no array moved" in checked.stdout


def test_a_lock_that_is_spelt_otherwise_says_so(folder: Path) -> None:
    run("lock")
    change(folder, "\n\ntarget desk", "\n\n\ntarget desk", "spec.lock")
    checked = run("lock", "--check")
    assert checked.exit_code == 1
    assert "no array moved, but its text changed" in checked.stdout


def test_lines_that_an_import_wrote_name_those_they_are_from(folder: Path) -> None:
    change(folder, "embed -> data", "embed -> data  # from base.yml:601")
    run("lock")
    change(folder, "embed -> data", "embed -> none")
    change(folder, "base.yml:601", "base.yml:605")
    checked = run("lock", "--check")
    said = "embed: data -> none, by base.yaml:3, from base.yml:605 (embed -> none)"
    assert said in checked.stdout


def test_the_line_that_was_edited_comes_before_what_it_moved_beside(folder: Path) -> None:
    rules = "rules:\n  - mlp -> model\n  - embed -> (data, model) | data\n"
    text = SPEC.replace("extends: ./base.yaml\n", rules)
    (folder / "old.yaml").write_text(text)
    (folder / "new.yaml").write_text(text.replace("mlp -> model", "mlp -> none"))
    lines = run("diff", "old.yaml", "new.yaml", "--target", "pod").stdout.splitlines()
    moved = [line.split(":")[0].split()[-1] for line in lines if ", by new.yaml:" in line]
    assert moved == ["mlp", "embed"]


def test_the_gate_names_what_is_another_about_the_machine(folder: Path) -> None:
    text = "shardspec: 1\nhardware: tpu v5e 4x4\nmesh: {data: 4, model: 4}\nrules: [mlp -> model]\n"
    (folder / "old.yaml").write_text(text)
    (folder / "new.yaml").write_text(f"{text}policy: {{order: ring}}\n")
    gate = run("diff", "old.yaml", "new.yaml").stderr
    assert "exit 1 for change: default: devices are in another order" in gate


def test_a_conflict_in_the_lock_is_said(folder: Path) -> None:
    run("lock")
    change(folder, "target desk", "<<<<<<< ours\ntarget desk", "spec.lock")
    checked = run("lock", "--check")
    assert checked.exit_code == 1
    assert "holds a merge conflict" in checked.stderr


def test_no_lock_is_written_for_a_plan_with_errors(folder: Path) -> None:
    change(folder, "mlp -> model", "mlp -> modle")
    result = run("lock")
    assert result.exit_code == 1
    assert "spec.lock is not written: the plan has errors" in result.stderr
    assert not (folder / "spec.lock").exists()


def test_check_without_a_lock_fails(folder: Path) -> None:
    result = run("lock", "--check")
    assert result.exit_code == 1
    assert "there is no spec.lock\n  = help: `shardspec lock spec.yaml` writes it" in result.stderr
    elsewhere = run("lock", "--arrays", "spec.yaml", "-o", "x.lock", "--check")
    assert "`shardspec lock spec.yaml --arrays spec.yaml -o x.lock` writes it" in elsewhere.stderr


def test_output_goes_where_it_is_asked_for(folder: Path) -> None:
    assert run("lock", "-o", "-").stdout.startswith("# What every device holds.")
    assert run("lock", "spec.yaml", "base.yaml", "-o", "x.lock").exit_code == 2


def test_diff_against_a_revision_names_the_line(repository: Path) -> None:
    assert run("diff", "git:HEAD", "spec.yaml").exit_code == 0
    change(repository, "embed -> data", "embed -> none")
    result = run("diff", "git:HEAD", "spec.yaml", "--target", "pod")
    assert result.exit_code == 1
    assert "by base.yaml:3 (embed -> none); was git:HEAD:./base.yaml:3 (embed -> data)" in (
        result.stdout
    )
    assert "per device  24.0 KiB -> 96.0 KiB (+72.0 KiB, +300 %)" in result.stdout
    assert "24 arrays to reshard: 1.12 MiB move, 72.0 KiB to one device" in result.stdout


def test_diff_of_a_renamed_spec_says_how_to_name_the_old_one(repository: Path) -> None:
    (repository / "spec.yaml").rename(repository / "new.yaml")
    result = run("diff", "git:HEAD", "new.yaml")
    assert result.exit_code == 2
    assert "name one that moved: `git:REV:./old.yaml`" in result.stderr
    assert run("diff", "git:HEAD:./spec.yaml", "new.yaml").exit_code == 0


def test_one_change_is_one_cause_in_whatever_order_the_dimensions_stand(folder: Path) -> None:
    run("lock")
    change(folder, "model: 2", "model: 4", "spec.yaml")
    change(folder, "embed -> data", "embed -> none")
    asked = ("diff", "spec.lock", "spec.yaml", "--target", "desk")
    lines = run(*asked).stdout.splitlines()
    at = lines.index("  - 24 arrays   embed: data -> none, by base.yaml:3 (embed -> none)")
    assert lines[at + 1] == "                mlp: model=2 -> 4, by the mesh"
    assert lines[at + 2].split()[:2] == ["layers_{0..11}/mlp/wi/kernel", "x12"]
    assert lines[at + 3].split()[:2] == ["layers_{0..11}/mlp/wo/kernel", "x12"]
    lines = run(*asked, "--format", "md").stdout.splitlines()
    at = lines.index("- `-` 24 arrays: embed: data -> none, by base.yaml:3 (embed -> none)")
    assert lines[at + 1] == "  and mlp: model=2 -> 4, by the mesh"


@pytest.mark.parametrize("name", ["git:nowhere", "git:HEAD:./none.yaml", "git:--help"])
def test_revisions_that_are_not_there(repository: Path, name: str) -> None:
    result = run("diff", name, "spec.yaml")
    assert result.exit_code == 2
    assert "SHD001" in result.stderr
    assert "Traceback" not in result.output


def test_two_specs_and_a_lock(folder: Path) -> None:
    run("lock")
    (folder / "other.yaml").write_text(SPEC.replace("model: 4", "model: 8"))
    assert run("diff", "spec.lock", "spec.yaml").exit_code == 0
    result = run("diff", "spec.lock", "other.yaml")
    assert result.exit_code == 1
    assert "machine     was tpu v5e 4x4, mesh data=4 model=4" in result.stdout
    assert "target desk" not in result.stdout


def test_mesh_axes_of_size_1_move_nothing(folder: Path) -> None:
    spec = """
        shardspec: 1
        mesh: {data: 1, fsdp: 4, tensor: 2}
        rules: ["batch -> (data, fsdp)", "embed -> (fsdp, data)", "mlp -> tensor"]
        arrays: {wi: "f32[embed=64 mlp=128]"}
        activations: {hidden: batch mlp}
        """
    (folder / "one.yaml").write_text(textwrap.dedent(spec))
    other = spec.replace("(data, fsdp)", "fsdp").replace("(fsdp, data)", "fsdp")
    (folder / "two.yaml").write_text(textwrap.dedent(other))
    found = run("diff", "one.yaml", "two.yaml", "--fail-on", "reshard")
    assert found.exit_code == 0
    assert "> 1 array   embed: (fsdp, data) -> fsdp" in found.stdout
    assert "activation" not in found.stdout


def test_targets_that_come_and_go(folder: Path) -> None:
    (folder / "other.yaml").write_text(SPEC.replace("  desk:", "  lap:"))
    result = run("diff", "spec.yaml", "other.yaml")
    assert "target lap is new: 8 cpu, mesh data=4 model=2" in result.stdout
    assert "target desk is gone" in result.stdout
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("limit", "exit_code"),
    [
        ("memory+299%", 1),
        ("memory+301%", 0),
        ("memory+71KiB", 1),
        ("memory+73KiB", 0),
        ("reshard", 1),
        ("change", 1),
        ("memory", 2),
        ("memory+5", 2),
    ],
)
def test_fail_on(folder: Path, limit: str, exit_code: int) -> None:
    run("lock")
    change(folder, "embed -> data", "embed -> none")
    asked = ["diff", "spec.lock", "spec.yaml", "--target", "pod", "--fail-on", limit]
    assert run(*asked).exit_code == exit_code


def test_markdown_is_a_table_and_folds(folder: Path) -> None:
    run("lock")
    change(folder, "embed -> data", "embed -> none")
    lines = run("diff", "spec.lock", "spec.yaml", "--format", "md").stdout.splitlines()
    assert lines[0] == "### Sharding: `spec.lock` → `spec.yaml`"
    assert "| `pod` | 24.0 KiB | 96.0 KiB | +300 % | 24 |" in lines
    assert lines.count("</details>") == sum(line.startswith("<details>") for line in lines) == 2


def test_json_holds_the_same(folder: Path) -> None:
    run("lock")
    change(folder, "embed -> data", "embed -> none")
    data = json.loads(run("diff", "spec.lock", "spec.yaml", "--format", "json").stdout)
    assert data["schema"] == "shardspec.diff/1"
    (pod, _) = data["targets"]
    assert len(pod["arrays"]) == 24
    assert pod["arrays"][0]["path"] == "layers_0/mlp/wi/kernel"
    assert pod["arrays"][0]["before"]["spec"] == ["data", "model"]
    assert pod["restore"]["most_bytes"] == 72 * 1024


def test_a_plan_with_errors_is_never_just_the_same(folder: Path) -> None:
    change(folder, "mlp -> model", "mlp -> modle")
    result = run("diff", "spec.yaml", "spec.yaml", "--fail-on", "memory+5%")
    assert result.exit_code == 1
    assert "SHD201" in result.stderr
    assert "spec.yaml has 1 error of its own" in result.stderr


def test_a_diff_names_its_sides_and_the_gate(folder: Path) -> None:
    (folder / "other.yaml").write_text(f"{SPEC}rules: [embed -> none]\n")
    result = run(
        "diff", "spec.yaml", "other.yaml", "--fail-on", "memory+5%", "--fail-on", "reshard"
    )
    assert result.stdout.splitlines()[0] == "spec.yaml -> other.yaml"
    assert "exit 1 for memory+5%: pod: 24.0 KiB -> 96.0 KiB per device, +300 %" in result.stderr
    assert "exit 1 for reshard: pod: 24 arrays to reshard; desk: " in result.stderr
    plain = run("diff", "spec.yaml", "other.yaml")
    assert "exit 1 for change: pod: 24 arrays moved; desk: " in plain.stderr
    (folder / "less.yaml").write_text("extends: ./spec.yaml\narrays: {extra: 'f32[8]'}\n")
    assert "exit 1 for change: pod: 1 array new; " in run("diff", "spec.yaml", "less.yaml").stderr
    assert "pod: 1 array gone; " in run("diff", "less.yaml", "spec.yaml").stderr
    data = json.loads(run("diff", "spec.yaml", "other.yaml", "--format", "json").stdout)
    assert (data["old"], data["new"]) == ("spec.yaml", "other.yaml")
    assert data["failed"] == [plain.stderr.strip().removeprefix("exit 1 for ")]


def test_a_diff_of_reasons_alone_says_so(folder: Path) -> None:
    change(folder, "embed -> data", "embed -> none")
    (folder / "more.yaml").write_text(SPEC.replace("./base.yaml", "./tried.yaml"))
    (folder / "tried.yaml").write_text(BASE.replace("embed -> data", "embed -> model"))
    plain = run("diff", "spec.yaml", "more.yaml")
    assert " placed the same by another rule" in plain.stderr
    assert "another machine" not in plain.stderr


def test_a_gate_that_holds_is_no_exit(folder: Path) -> None:
    (folder / "other.yaml").write_text(f"{SPEC}rules: [embed -> none]\n")
    result = run("diff", "spec.yaml", "other.yaml", "--fail-on", "memory+999%")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_target_that_comes_or_goes_trips_the_gate(folder: Path) -> None:
    (folder / "other.yaml").write_text(SPEC.replace("  desk:", "  lap:"))
    said = run("diff", "spec.yaml", "other.yaml").stderr
    assert "lap: new" in said
    assert "desk: gone" in said


def test_errors_of_the_new_side_are_a_gate(folder: Path) -> None:
    (folder / "other.yaml").write_text(f"{SPEC}rules: [mlp -> modle]\n")
    result = run("diff", "spec.yaml", "other.yaml", "--fail-on", "memory+99999%")
    assert result.exit_code == 1
    assert "exit 1 for errors: other.yaml has 1 error" in result.stderr


def test_one_name_says_what_it_is_compared_with(folder: Path) -> None:
    (folder / "mamba.yaml").write_text(f"{SPEC}rules: [embed -> none]\n")
    result = run("diff", "mamba.yaml")
    assert result.stdout.splitlines()[0] == "mamba.yaml -> spec.yaml"
    assert "compared with spec.yaml, the spec found here" in result.stderr
    assert "found here" not in run("diff", "mamba.yaml", "--spec", "spec.yaml").stderr
    assert "found here" not in run("diff", "mamba.yaml", "spec.yaml").stderr


def test_the_spec_of_the_project_is_not_compared_with_itself(folder: Path) -> None:
    result = run("diff", "spec.yaml")
    assert result.exit_code
    assert "both sides are one" in result.stderr
    assert "shardspec diff git:HEAD spec.yaml" in result.stderr


@pytest.mark.parametrize("names", [("spec.yaml", "bare.yaml"), ("bare.yaml", "spec.yaml")])
def test_a_side_without_arrays_says_what_becomes_of_the_other(
    folder: Path, names: tuple[str, str]
) -> None:
    """It does not say that nothing is compared, above a list of arrays that are gone."""
    text = "shardspec: 1\nmesh: {data: 4, model: 4}\nrules: [mlp -> model]\n"
    (folder / "bare.yaml").write_text(text)
    result = run("diff", *names)
    what = "gone" if names[1] == "bare.yaml" else "new"
    assert f"bare.yaml lists no arrays, so all are {what}; add `arrays:`" in result.stderr
    assert "no arrays are compared" not in result.stderr


def test_no_gate_on_arrays_passes_where_there_are_none(folder: Path) -> None:
    for name, size in (("old.yaml", 4), ("new.yaml", 2)):
        text = f"shardspec: 1\nmesh: {{data: {size}, model: {16 // size}}}\nrules: [mlp -> model]\n"
        (folder / name).write_text(text)
    plain = CliRunner().invoke(cli, ["diff", "old.yaml", "new.yaml"])
    assert plain.exit_code == 1
    assert "no arrays are compared: old.yaml and new.yaml list none" in plain.stderr
    assert "mesh data=4 model=4 -> data=2 model=8" in plain.stderr
    for limit in ("memory+5%", "reshard"):
        gate = CliRunner().invoke(cli, ["diff", "old.yaml", "new.yaml", "--fail-on", limit])
        assert gate.exit_code == 2
        assert "pass --arrays FILE" in gate.stderr


def test_a_spec_without_arrays_is_not_passed_over_silently(folder: Path) -> None:
    text = "shardspec: 1\nmesh: {data: 4}\nrules: [embed -> data]\n"
    (folder / "bare.yaml").write_text(text)
    for flags in ((), ("--check",), ("-q",)):
        result = run("lock", ".", *flags)
        assert "bare.yaml is skipped: it lists no arrays: add `arrays:`" in result.stderr
