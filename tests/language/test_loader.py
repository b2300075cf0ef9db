from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.ir.spec import Spec
from shardspec.language.reading import looks_like_dsl
from shardspec.pipeline import load_path


@pytest.mark.parametrize(
    ("text", "is_dsl"),
    [
        ("shardspec 1\n", True),
        ("# a comment\n\nrules {\n  a -> b\n}", True),
        ("mesh { a = 2 }", True),
        ("shardspec: 1", False),
        ("{rules: []}", False),
        ("- a", False),
        ("%YAML 1.2", False),
        ("---\nrules: []", False),
        ("", False),
        ("# only", False),
    ],
)
def test_the_spelling_is_seen(text: str, is_dsl: bool) -> None:
    assert looks_like_dsl(text) == is_dsl


def test_relative_names_start_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "in/side").mkdir(parents=True)
    (tmp_path / "in/base.shard").write_text(
        "rules { a -> x }\nmanifest ./m.json\n", encoding="utf-8"
    )
    (tmp_path / "in/m.json").write_text('{"k": "f32[4]"}', encoding="utf-8")
    (tmp_path / "in/side/spec.yaml").write_text("extends: ../base.shard\n", encoding="utf-8")
    spec, diagnostics = pipeline.load_path(str(tmp_path / "in/side/spec.yaml"))
    assert diagnostics == ()
    assert spec is not None
    assert [str(rule) for rule in spec.axis_rules] == ["a -> x"]
    assert [param.path for param in spec.params] == ["k"]


def test_a_diamond_is_no_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("rules: [a -> x]", encoding="utf-8")
    Path("left.yaml").write_text("extends: ./base.yaml\nrules: [b -> x]", encoding="utf-8")
    Path("right.yaml").write_text("extends: ./base.yaml\nrules: [c -> x]", encoding="utf-8")
    spec, diagnostics = pipeline.load_text("extends: [./left.yaml, ./right.yaml]", "s.yaml")
    assert diagnostics == ()
    assert spec is not None
    assert [rule.logical_axis for rule in spec.axis_rules] == ["a", "b", "c"]


def test_circles_are_found_through_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("extends: ./sub/../b.yaml", encoding="utf-8")
    Path("sub").mkdir()
    Path("b.yaml").write_text(f"extends: {tmp_path}/a.yaml", encoding="utf-8")
    _, diagnostics = pipeline.load_path("a.yaml")
    assert [d.code.name for d in diagnostics] == ["preset-cycle"]
    Path("self.yaml").write_text("extends: ./self.yaml", encoding="utf-8")
    _, diagnostics = pipeline.load_path("self.yaml")
    assert [d.code.name for d in diagnostics] == ["preset-cycle"]


def test_a_long_chain_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(200):
        Path(f"{number}.yaml").write_text(f"extends: ./{number + 1}.yaml", encoding="utf-8")
    _, diagnostics = pipeline.load_path("0.yaml")
    assert len(diagnostics) == 1


@pytest.mark.parametrize("name", ["t5x", "T5X/1d", "t5x//1d", "", " ", "t5x/1d.yaml"])
def test_names_that_are_no_preset(name: str) -> None:
    spec, diagnostics = pipeline.load_text(f"extends: ['{name}']", "s.yaml")
    assert spec is not None
    assert [d.code.name for d in diagnostics] == ["unknown-preset"]


def setting(settings: dict[str, str], text: str = "") -> Spec:
    spec, diagnostics = pipeline.load_text(
        text
        or "targets: {a: {mesh: {x: 2}}, b: {mesh: {x: 4}}}\nrules: [e -> x]\n"
        "overrides: [{path: k, spec: (x)}]\npolicy: {indivisible: next}",
        "s.yaml",
        settings,
    )
    assert diagnostics == ()
    assert spec is not None
    return spec


def test_settings() -> None:
    sizes = [target.mesh.sizes for target in setting({"mesh.x": "8"}).targets]
    assert sizes == [{"x": 8}, {"x": 8}]
    sizes = [target.mesh.sizes for target in setting({"targets.a.mesh.x": "8"}).targets]
    assert sizes == [{"x": 8}, {"x": 4}]
    assert setting({"policy.indivisible": "keep"}).policy.indivisible == "keep"
    assert setting({"mesh.x": "8"}, "mesh: {x: 2}").targets[0].mesh.sizes == {"x": 8}


def test_a_faulty_setting_points_at_the_flag() -> None:
    text = "mesh: {x: 2}\nrules: [e -> x]"
    _, (diagnostic,) = pipeline.load_text(text, "s.yaml", {"mesh.x": "eight"})
    assert diagnostic.primary is not None
    assert diagnostic.primary.span.source.name == "--set"
    assert diagnostic.primary.span.text == "eight"


@pytest.mark.parametrize(
    "name",
    [
        "rules.7",
        "rules.x",
        "rules.0.rule",
        "shardspec.x",
        "policy.indivisible.x",
        f"rules.{'9' * 5000}",
    ],
)
def test_a_setting_that_leads_nowhere_is_reported(name: str) -> None:
    text = "shardspec: 1\nmesh: {x: 2}\nrules: [e -> x]\npolicy: {indivisible: next}"
    _, (diagnostic,) = pipeline.load_text(text, "s.yaml", {name: "1"})
    assert diagnostic.code.name == "unknown-key"
    assert diagnostic.primary is not None
    assert diagnostic.primary.span.text == name


def test_settings_reach_lists_and_keys_with_dots() -> None:
    text = "targets: {v5.8: {mesh: {x.y: 2}}}\nrules: [e -> x.y]"
    spec = setting({"targets.v5.8.mesh.x.y": "4", "rules.0": "f -> x.y"}, text)
    assert spec.targets[0].mesh.sizes == {"x.y": 4}
    assert str(spec.axis_rules[0]) == "f -> x.y"


def test_a_setting_of_many_digits_is_a_fault_and_no_crash() -> None:
    _, diagnostics = pipeline.load_text("mesh: {x: 2}", "s.yaml", {"mesh.x": "9" * 5000})
    assert [d.code.name for d in diagnostics] == ["syntax"]


def test_manifests_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("mesh: {x: 2}\nmanifest: ./gone.json", encoding="utf-8")
    _, faults = pipeline.load_path(str(path))
    assert [fault.code.name for fault in faults] == ["unknown-preset"]
    assert pipeline.load_path(str(path), with_manifests=False)[1] == ()


@pytest.mark.parametrize(
    ("entry", "help"),
    [
        ("./arays.json", "did you mean `arrays.json`?"),
        ("arrays.jsn", "did you mean the file `./arrays.json`?"),
        ("arrays", "did you mean the file `./arrays.json`?"),
        ("subb/arrays.json", "did you mean `{folder}/sub/arrays.json`?"),
        ("other/arrays.json", "there is no folder `{folder}/other` either"),
        ("gtp2", "did you mean `gpt2`?\na file needs its suffix: `./arrays.json`"),
    ],
)
def test_a_missing_manifest_names_the_nearest(tmp_path: Path, entry: str, help: str) -> None:
    (tmp_path / "arrays.json").write_text("{}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "arrays.json").write_text("{}")
    (tmp_path / "s.yaml").write_text(f"mesh: {{data: 2}}\nmanifest: {entry}\n")
    _, (fault,) = pipeline.load_path(str(tmp_path / "s.yaml"))
    assert fault.code.name == "unknown-preset"
    assert fault.help == help.format(folder=tmp_path)


# chains, diamonds, and what is read twice


def chained(folder: Path, count: int) -> None:
    for index in range(count):
        extends = f"extends: ./{index + 1}.yaml\n" if index + 1 < count else ""
        (folder / f"{index}.yaml").write_text(f"{extends}rules: [a{index} -> data]\n")


def test_a_long_chain_is_no_circle(tmp_path: Path) -> None:
    chained(tmp_path, 300)
    spec, found = load_path(str(tmp_path / "0.yaml"))
    assert spec is not None
    assert [each.code.id for each in found] == ["SHD007"]
    assert "would be spec 34 in a chain of `extends`; 33 is the most" in found[0].message
    chained(tmp_path, 33)
    assert load_path(str(tmp_path / "0.yaml"))[1] == ()


@pytest.mark.parametrize("bottom", ["rules: [a -> data]", "rules: [", "\0"])
def test_a_diamond_of_diamonds_is_read_once(
    tmp_path: Path, bottom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^30 ways lead down."""
    from shardspec.language import files

    reads: list[str] = []
    read = files.read_source

    def counted(path: Path, **rest: str) -> SourceFile | Diagnostic:
        reads.append(path.name)
        return read(path, **rest)

    monkeypatch.setattr(files, "read_source", counted)
    for level in range(30):
        for side in "ab":
            below = f"[./{level + 1}a.yaml, ./{level + 1}b.yaml]"
            text = f"extends: {below}\n" if level < 29 else f"{bottom}\n"
            (tmp_path / f"{level}{side}.yaml").write_text(text)
    load_path(str(tmp_path / "0a.yaml"))
    assert len(reads) <= 4 * 30
    assert bottom == "\0" or len(reads) == len(set(reads))
