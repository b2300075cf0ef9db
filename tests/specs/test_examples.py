"""Every example compiles on every target of every phase, in both spellings, to the golden table."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.analysis.spec_step import stated_cost
from shardspec.diagnostics import SourceFile
from shardspec.foreign.json_plan import plan_text
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.language.formatting import formatted
from shardspec.report.table import table

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
NAMES = sorted(path.stem for path in (ROOT / "specs" / "examples").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def loaded(name: str, suffix: str) -> tuple[Spec, tuple[ShardingPlan, ...]]:
    spec, diagnostics = pipeline.load_path(f"specs/examples/{name}{suffix}")
    assert spec is not None
    plans = pipeline.plans_of_phases(spec)
    assert pipeline.checked(spec, diagnostics, plans).shown == ()
    return spec, plans


def test_there_is_one_for_each_strategy() -> None:
    assert len(NAMES) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_table_is_golden(name: str, request: pytest.FixtureRequest) -> None:
    _, plans = loaded(name, ".yaml")
    text = "\n\n".join("\n".join(table(plan)) for plan in plans) + "\n"
    golden = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-cases"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_its_step_fits_on_each_target(name: str) -> None:
    """In every phase, as far as `cost` can tell; what a CPU has for it is not known."""
    _, plans = loaded(name, ".yaml")
    for plan in plans:
        cost = stated_cost(plan)
        assert cost.step is not None
        assert plan.target.hardware is not None
        is_cpu = plan.target.hardware.chip.platform == "cpu"
        assert cost.memory.fits is (None if is_cpu else True), plan.target.name


@pytest.mark.parametrize("name", NAMES)
def test_the_dsl_says_the_same(name: str) -> None:
    _, from_yaml = loaded(name, ".yaml")
    _, from_dsl = loaded(name, ".shard")
    for one, two in zip(from_yaml, from_dsl, strict=True):
        assert plan_text(one).replace(f"{name}.yaml", "") == plan_text(two).replace(
            f"{name}.shard", ""
        )


@pytest.mark.parametrize("folder", ["examples", "presets", "steps"])
def test_every_file_is_as_the_formatter_writes_it(folder: str) -> None:
    spellings = {".yaml": "yaml", ".shard": "dsl"}
    files = [p for p in (ROOT / "specs" / folder).rglob("*") if p.suffix in spellings]
    assert files
    ugly = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        spelt, faults = formatted(SourceFile(path.name, text), spellings[path.suffix])
        assert faults == (), path
        ugly += [path.name] if spelt != text else []
    assert ugly == []
