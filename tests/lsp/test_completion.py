"""What can stand at a cursor, marked by `‸`, in texts that are still being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import assets
from shardspec.language.loader import bundled_doc
from shardspec.lsp.completion import Kind, completions, page_of
from tests.lsp.texts import SPEC, marked, snapshot_of

YAML = [
    ("ru‸\n", ["rules", "targets"], []),
    ("axes:\n  a: {si‸}", ["size", "unit", "parts"], ["rules"]),
    ("targets:\n  x: {‸}", ["hardware", "mesh"], ["axes"]),
    ("targets:\n  x: {hardware: t‸}", ["tpu v5p 4x4x4", "h100", "8 cpu"], ["tpu h100"]),
    ("targets:\n  x:\n    mesh:\n      ‸", ["data", "model"], ["embed"]),
    ("targets:\n  x: {mesh: {data: ‸}}", ["rest", "tp", "submesh"], ["data"]),
    ("rules:\n  - em‸", ["embed", "mlp"], ["data"]),
    ("rules:\n  - embed -> ‸", ["data", "model", "none"], ["embed"]),
    ("rules:\n  - {rule: a -> b, at: before ‸}", ["embed"], ["data"]),
    ("params:\n  ‸", ["layers_{0..3}/wi/kernel", "**/wi/kernel"], ["embed"]),
    ('params:\n  "**/a": ‸', ["embed", "_"], ["data"]),
    ("overrides:\n  - path: ‸", ["odd/kernel"], ["embed"]),
    ("overrides:\n  - path: a\n    ‸", ["axes", "spec", "because"], ["embed"]),
    ("overrides:\n  - path: a\n    spec: (‸", ["data", "none"], ["embed"]),
    ("overrides:\n  - path: a\n    memory: ‸", ["pinned_host", "device"], ["data"]),
    ("extends: ‸", ["t5x/2d", "fsdp", "./base.yaml"], ["./notes.txt", "embed"]),
    ("extends: [fsdp, ./‸]", ["./base.yaml"], ["fsdp"]),
    ("manifest: ‸", ["t5-1.1-xxl", "./base.yaml"], ["fsdp"]),
    ("lints:\n  ‸", ["indivisible", "dead-rule"], ["embed"]),
    ("lints:\n  indivisible: ‸", ["allow", "warn", "error"], []),
    ("policy: {‸}", ["indivisible", "order"], ["rules"]),
    ("policy: {order: ‸}", ["ring"], ["data"]),
    ("state: {optimizer: ‸}", ["zero1"], ["data"]),
    ("state: {over: ‸}", ["data"], ["zero1"]),
    ("arrays:\n  a: ‸", ["bf16", "f32"], ["embed"]),
    ('arrays:\n  a: "bf16[‸', ["embed", "tp"], ["data", "f32"]),
    ("rules:\n  - a -> b  # shardspec: ignore[‸", ["SHD301"], ["embed"]),
    ("rules:\n  - a -> b  # ‸", ["shardspec: ignore[]"], ["embed", "SHD301"]),
    ("rules:\n  - a -> b  # as measured ‸", [], ["shardspec: ignore[]", "embed"]),
    ("phases:\n  decode:\n    ‸", ["rules", "axes"], ["extends", "phases"]),
    ("phases:\n  decode:\n    rules: [mlp -> ‸]", ["model"], ["embed"]),
    ("step: {extends: ‸}", ["decoder"], ["fsdp"]),
]
DSL = [
    ("ru‸", ["rules", "target", "axis"], ["targets"]),
    ("rules {\n  embed -> ‸", ["data", "none"], ["embed"]),
    ("rules {\n  ‸\n}", ["embed"], ["data"]),
    ("target x on ‸", ["tpu v5p 4x4x4", "h100"], ["data"]),
    ("target x on 8 cpu {\n  ‸", ["data", "model"], ["embed"]),
    ("target x on 8 cpu {\n  data = ‸", ["rest", "tp"], ["embed"]),
    ("params {\n  ‸", ["**/wi/kernel"], ["embed"]),
    ("params {\n  **/a : ‸", ["embed"], ["data"]),
    ("extends ‸", ["fsdp", "./base.yaml"], ["embed"]),
    ("lint ‸", ["indivisible"], ["embed"]),
    ("lint indivisible ‸", ["allow"], ["embed"]),
    ("axis x = 2 * ‸", ["embed", "tp"], ["data"]),
    ("phase decode {\n  rules {\n    mlp -> ‸", ["model"], ["embed"]),
]


@pytest.mark.parametrize(
    ("suffix", "written", "has", "lacks"),
    [("yaml", *case) for case in YAML] + [("shard", *case) for case in DSL],
)
def test_completion(
    tmp_path: Path, suffix: str, written: str, has: list[str], lacks: list[str]
) -> None:
    """The spec as it was when it could last be read has the names."""
    (tmp_path / "base.yaml").write_text("rules: []\n")
    (tmp_path / "notes.txt").write_text("")
    known = snapshot_of(tmp_path, "spec.yaml", SPEC)
    text, offset = marked(written)
    snapshot = snapshot_of(tmp_path, f"spec.{suffix}", text)
    snapshot.__dict__["plans"] = known.plans
    found = [each.label for each in completions(snapshot, known.spec, offset)]
    if snapshot.spec is not None:  # a piece alone, which has no names of its own
        snapshot.spec = known.spec
        found = [each.label for each in completions(snapshot, known.spec, offset)]
    if "tp" in has:
        found.append("tp")
    assert set(has) <= set(found)
    assert not set(lacks) & set(found)
    assert len(found) == len(set(found)) or "tp" in has


@pytest.mark.parametrize("written", ["- ‸", "[‸", "- - a: ‸", "{‸", "'‸", "? ‸", "a b‸", "- {a‸"])
def test_what_is_no_spec_is_no_fault(tmp_path: Path, written: str) -> None:
    text, offset = marked(written)
    completions(snapshot_of(tmp_path, "spec.yaml", text), None, offset)


def accepted(tmp_path: Path, name: str, written: str, label: str) -> tuple[str, str | None]:
    """Return the text after a completion is chosen at the cursor, and what is said beside it."""
    text, offset = marked(written)
    snapshot = snapshot_of(tmp_path, name, text)
    (item,) = [each for each in completions(snapshot, None, offset) if each.label == label]
    assert item.text_edit is not None
    start, end = snapshot.lines.offsets(item.text_edit.range)
    return text[:start] + item.text_edit.new_text + text[end:], item.detail


def test_what_is_written_is_replaced(tmp_path: Path) -> None:
    written = SPEC.replace("heads -> model", "heads -> mod‸")
    assert accepted(tmp_path, "spec.yaml", written, "model") == (SPEC, "mesh axis = 4, 2")


@pytest.mark.parametrize("written", ["tpu v5e 4", "2 * tpu v5", "v5", "", "2 * "])
@pytest.mark.parametrize(
    ("name", "line"),
    [("spec.yaml", "hardware: {}\n"), ("spec.shard", "target pod on {} {{ data = 16 }}\n")],
)
def test_a_machine_is_replaced_whole_and_nothing_else(
    tmp_path: Path, name: str, line: str, written: str
) -> None:
    slices = "2 * " if "*" in written else ""
    made, _ = accepted(tmp_path, name, line.format(f"{written}‸"), "tpu v5e 4x4")
    assert made == line.format(f"{slices}tpu v5e 4x4")


def test_numbers_of_let_stand_in_sizes(tmp_path: Path) -> None:
    text, offset = marked(SPEC.replace("embed: 64", "embed: 16 * ‸"))
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    assert {"tp", "heads"} <= {each.label for each in completions(snapshot, None, offset)}


def test_a_finding_is_explained_when_it_is_chosen(tmp_path: Path) -> None:
    text, offset = marked("lints:\n  ‸")
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    (item,) = [each for each in completions(snapshot, None, offset) if each.label == "indivisible"]
    assert "SHD301" in str(page_of(item.label, item.kind))


def test_a_bundled_file_is_offered_with_what_it_is_for(tmp_path: Path) -> None:
    text, offset = marked("extends: ‸\n")
    found = completions(snapshot_of(tmp_path, "spec.yaml", text), None, offset)
    bundled = {each.label: each.detail for each in found if each.kind is Kind.Module}
    assert set(bundled) == set(assets.spec_names("presets"))
    assert all(detail == bundled_doc("presets", name) for name, detail in bundled.items())


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize(
    "written",
    [
        "rules:\n  - @em‸@",
        "rules:\n  - @embed -> ‸@",
        "rules:\n  - {rule: @mlp -> ‸@}",
        "targets:\n  x: {hardware: @tpu v5‸@}",
        "overrides:\n  - path: a\n    spec: @(‸@",
        "extends: @‸@",
        "params:\n  wi: @‸@",
        "activations: {residual: @em‸@}",
    ],
)
def test_what_may_stand_in_quotes_is_what_may_stand_without(
    tmp_path: Path, written: str, quote: str
) -> None:
    """Where the quotes are still open, the text is no spec: the names are those of the last one."""

    def offered(text: str) -> list[str]:
        text, offset = marked(text)
        known = snapshot_of(tmp_path, "spec.yaml", SPEC).spec
        snapshot = snapshot_of(tmp_path, "spec.yaml", text)
        return [each.label for each in completions(snapshot, known, offset)]

    before, _, after = written.replace("@", quote, 1).rpartition("@")
    plain = offered(written.replace("@", ""))
    assert plain
    assert offered(before + quote + after) == plain
    opened = offered(before + after)
    assert len(opened) >= len(plain)
    assert {*opened} == {*plain} or {"embed", "mlp"} <= {*opened} or {"data", "model"} <= {*opened}
