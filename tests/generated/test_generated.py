"""Laws of the generator; and, nightly, 300 random steps none of which may crash anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from shardspec.analysis.accuracy import SURE, fits_probability, interval
from shardspec.jax_backend.step.reading import step_of
from shardspec.jax_backend.xla.compiling import GPU_COMPILER
from tests.generated.arrays import spec_of
from tests.generated.recipe import OPTIONS, Recipe, complexity, drawn, parsed, settled, simpler
from tests.generated.rows import FIGURES, Row, broken, row_of
from tests.generated.running import ROOT, Rows, run
from tests.generated.shrinking import shrunk
from tests.generated.steps import resolver_of, step_of_recipe
from tests.generated.table import quantile, table

#: Seeds after which every option has occurred.
ALL_SEEN = 400
#: The kept rows of one long run.
KEPT = ROOT / "benchmarks" / "data" / "generated_steps.json"
PAGE = ROOT / "docs" / "verify.md"
#: Of the nightly sample.
COUNT, TIMEOUT_S = 300, 120.0

seen = {seed: drawn(seed) for seed in range(ALL_SEEN)}


def test_a_seed_is_a_case() -> None:
    for seed, recipe in seen.items():
        assert drawn(seed) == recipe
        assert parsed(recipe.text) == recipe
        assert settled(recipe) == recipe
    assert len({recipe.text for recipe in seen.values()}) > 0.95 * ALL_SEEN
    assert spec_of(seen[0]) == spec_of(drawn(0))
    assert {drawn(seed, "gpu").platform for seed in range(50)} == {"gpu"}
    assert {drawn(seed, "tpu").platform for seed in range(50)} == {"tpu"}


def test_every_option_occurs() -> None:
    for name, options in OPTIONS.items():
        if name in ("depth", "width"):
            continue
        assert {getattr(recipe, name) for recipe in seen.values()} == set(options), name
    tags = {tag for recipe in seen.values() for tag in recipe.tags}
    assert {"target:tpu", "target:gpu", "layers:scan", "experts:ragged", "cache:paged"} <= tags


@pytest.mark.parametrize("text", ["nothing=1", "layers=often", "depth=three"])
def test_a_recipe_that_there_is_not(text: str) -> None:
    with pytest.raises(ValueError, match="the options of"):
        parsed(text)


def _one_of_each() -> list[Recipe]:
    """Return recipes that have every option, with as little else as goes with it."""
    found: dict[str, Recipe] = {}
    for name, options in OPTIONS.items():
        for option in options:
            with_it = (each for each in seen.values() if getattr(each, name) == option)
            least = min(with_it, key=complexity, default=None)
            if least is not None:
                found[least.text] = least
    return list(found.values())


@pytest.mark.parametrize("recipe", _one_of_each()[::4], ids=lambda recipe: recipe.text)
def test_every_option_builds(recipe: Recipe) -> None:
    """A fourth of them here, all of them in the nightly sample."""
    resolver = resolver_of(recipe)
    function, args = step_of_recipe(recipe, resolver)
    step = step_of(resolver, function, *args)
    assert step.mesh.sizes == recipe.mesh
    assert broken(step) == []
    assert step.collectives or recipe.mode == "serve" or len(recipe.batch_axes) == 0


def test_a_case_is_written_for_the_command_line(tmp_path: Path) -> None:
    ours = [sys.executable, "-m", "tests.generated", "--recipe"]
    run_ = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
    recipe = "mode=train,layers=scan,depth=2,placed=fsdp"
    assert "shardspec verify spec.yaml" in run_([*ours, recipe, "--write", str(tmp_path)]).stdout
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    cost = [sys.executable, "-m", "shardspec", "cost", "spec.yaml", "--step", "step:step"]
    assert "fsdp" in run_(cost, cwd=tmp_path, env=env).stdout
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run_([*ours, "layers=what"])
    assert raised.value.stderr.endswith("the options of `layers` are unrolled, scan, pipeline\n")


def test_simpler_recipes_are_simpler() -> None:
    for recipe in list(seen.values())[:50]:
        for new in simpler(recipe):
            assert complexity(new) < complexity(recipe)
            assert settled(new) == new
    assert list(simpler(Recipe())) == []


def test_shrinking_ends_at_what_shows_it() -> None:
    start = next(r for r in seen.values() if r.remat == "dots" and complexity(r) > 20)
    found = shrunk(start, lambda recipe: recipe.remat != "none", most=10_000)
    assert found == parsed("mode=train,remat=full")
    asked: list[Recipe] = []
    assert shrunk(start, lambda recipe: bool(asked.append(recipe)), most=10_000) == start
    assert len({recipe.text for recipe in asked}) == len(asked)
    assert shrunk(start, lambda recipe: True, most=10_000) == Recipe()


def _row(error: str | None = None, **figures: object) -> Row:
    given = {"tags": ["layers:scan"], "platform": "tpu", "error": error, "fault": "refused"}
    return {**dict.fromkeys(FIGURES), **given, **figures}


def test_the_table() -> None:
    rows = [
        _row(
            compiled_bytes=2**30,
            difference=at / 100,
            predicted_memory=100 - at,
            compiled_memory=100,
        )
        for at in range(20)
    ]
    text = "\n".join(table([*rows, _row("no program")]))
    assert "21 cases, 20 with figures (20 for TPUs); without figures: 1 refused." in text
    assert "| bytes sent | 20 | 9.0 % | 4.0 % to 14 % | 17 % | 19 % | 30 % | 55 % |" in text
    assert "| `layers:scan` | 20 | 9.0 % | 17 % | 55 % | 9.0 % | 17 % | 55 % |" in text
    assert quantile([1.0], 0.0) == 1.0


def test_rows_are_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows = Rows(path)
    kept = {**_row("kept"), "recipe": "", "seed": 7}
    rows.add(kept)
    assert run([(7, Recipe())], Rows(path), timeout_s=0.0) == [kept]


def test_a_case_that_does_not_end_is_a_row() -> None:
    from tests.generated import running

    worker = running.Worker(-running._BESIDE_S)  # no time at all
    row = worker.row(Recipe(), 3)
    assert (row["fault"], row["seed"]) == ("late", 3)
    assert worker.process is None


def test_whatever_is_raised_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.generated import rows

    def broken(recipe: Recipe) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rows, "resolver_of", broken)
    row = row_of("", None, 1.0)
    assert (row["fault"], row["error"].partition(" at ")[0]) == ("crash", "RuntimeError: a bug")


def _has(platform: str) -> bool:
    if platform == "gpu":
        return bool(os.environ.get(GPU_COMPILER))
    try:
        import libtpu  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_a_case_is_compiled(platform: str) -> None:
    if not _has(platform):
        pytest.skip("no compiler: docs/verify.md")
    machine = "a100" if platform == "gpu" else "tpu v5e 2x4"
    text = f"machine={machine},mode=train,layers=scan,depth=2,placed=fsdp,optimizer=sgd"
    (row,) = run([(None, parsed(text.replace("machine=tpu v5e 2x4,", "")))], Rows())
    assert row["error"] is None
    assert row["compiled_bytes"] == sum(theirs for _, theirs in row["by_axis"].values())
    assert row["compiled_fits"] is True
    assert row["compiled_memory"] <= row["limit"]
    assert_no_fault([row])


def assert_no_fault(rows: Sequence[Row]) -> None:
    """Hold rows to what may never be, however far off a prediction is."""
    for row in rows:
        assert row["fault"] not in ("crash", "died", "generator"), row
        if row["error"] is None:
            assert set(row["by_axis"]) or row["compiled_bytes"] == 0, row
            assert row["compiled_memory"], row
            assert not row["broken"], row


def test_the_kept_rows_are_sound() -> None:
    kept = json.loads(KEPT.read_text("utf-8"))["rows"]
    assert_no_fault(kept)
    assert sum(row["error"] is None for row in kept) >= 60
    for row in kept:
        assert parsed(row["recipe"]).text == row["recipe"], row
        assert row["platform"] == parsed(row["recipe"]).platform


def test_the_page_has_the_table_of_the_kept_rows() -> None:
    """`python -m tests.generated --out benchmarks/data/generated_steps.json --table` prints it."""
    kept = json.loads(KEPT.read_text("utf-8"))["rows"]
    assert "\n".join(table(kept)) in PAGE.read_text("utf-8")


@pytest.mark.nightly
def test_many_random_steps() -> None:
    """Run the sample; what the model is sure of holds on steps that it was not learned from."""
    platforms = [each for each in ("tpu", "gpu") if _has(each)]
    cases = [(seed, drawn(seed)) for seed in range(1000, 1000 + COUNT)]
    cases = [each for each in cases if each[1].platform in platforms]
    rows = run(cases, Rows(), jobs=2, timeout_s=TIMEOUT_S)
    print("\n".join(table(rows)))
    assert_no_fault(rows)
    good = [row for row in rows if row["error"] is None]
    assert len(good) >= 0.8 * len(rows)
    for row in good:
        asked = row["predicted_memory"], row["limit"], row["platform"], row["mode"]
        if row["compiled_fits"] is False:
            assert (fits_probability(*asked) or 0) < SURE, row
    inside = [
        known.low <= row[f"compiled_{name}"] <= known.high
        for row in good
        for off, name in (("memory", "memory"), ("sends", "bytes"))
        if (predicted := row[f"predicted_{name}"])
        and (known := interval(predicted, row["platform"], row["mode"], off))  # type: ignore[arg-type]
    ]
    assert sum(inside) >= 0.85 * len(inside)
