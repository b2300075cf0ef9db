"""`shardspec search`: what it prints, refuses and writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from shardspec import assets, pipeline
from shardspec.analysis.spec_step import stated_step
from shardspec.cli.main import cli
from shardspec.cli.request import Request
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.step import Step
from tests.search.specs import TEXT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(TEXT)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["search", "spec.yaml", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def found(*arguments: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run(*arguments, "--format", "json").stdout)
    jsonschema.Draft7Validator.check_schema(schema())
    jsonschema.Draft7Validator(schema()).validate(data)
    return data


def cost_seconds(*arguments: str) -> float:
    result = CliRunner().invoke(cli, ["cost", "spec.yaml", "--format", "json", *arguments])
    seconds: float = json.loads(result.stdout)["time"]["step_s"]
    return seconds


def test_the_table_names_the_best_and_today() -> None:
    text = run("--top", "3", "--keep", "fsdp=4").stdout
    assert re.search(r"^ +1 +data=\d+ fsdp=\d+ tensor=\d+", text, re.MULTILINE)
    assert re.search(r"^ +now +data=2 fsdp=2 tensor=4 ", text, re.MULTILINE)
    assert "memory of 15.7 GiB" in text or "memory of" in text
    assert "today -> best" in text
    assert "sends less" in text


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(assets.schema_path("search").read_text("utf-8"))
    return found


def test_json_says_what_the_schema_describes_and_cost_agrees() -> None:
    data = found("--over", "mesh,remat,microbatches=1|2", "--keep", "tensor=2|4")
    assert data["is_complete"]
    assert len(data["rows"]) > 20
    assert data["today"]["step_s"] == pytest.approx(cost_seconds(), rel=1e-9)
    assert [row["rank"] for row in data["rows"]] == list(range(1, len(data["rows"]) + 1))


def test_the_same_search_prints_the_same() -> None:
    few = ("--keep", "tensor=2", "--format", "json")
    assert run(*few).stdout == run(*few).stdout


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("yaml", ["--keep", "fsdp=4"]),
        ("yaml", ["--target", "two", "--over", "mesh", "--keep", "fsdp=4"]),
        ("yaml", ["--over", "mesh,remat=dots,microbatches=2,state=zero1", "--keep", "fsdp=4"]),
        ("yaml", ["--hardware", "tpu v5e 4x8", "--over", "mesh", "--keep", "data"]),
        ("dsl", ["--keep", "fsdp=4"]),
        ("dsl", ["--target", "two", "--over", "order,state=zero1"]),
        ("dsl", ["--over", "microbatches=2,remat=none"]),
    ],
    ids=str,
)
def test_what_is_written_is_the_best(form: str, arguments: list[str], folder: Path) -> None:
    """Read again, the spec is the candidate: `cost` says its figures; nothing else has changed."""
    if form == "dsl":
        made = CliRunner().invoke(cli, ["fmt", "spec.yaml", "--to", "dsl"])
        (folder / "spec.yaml").unlink()
        (folder / "spec.shard").write_text(made.stdout)
    name = next(str(each.name) for each in folder.iterdir())
    windows = (folder / name).read_bytes().replace(b"\n", b"\r\n")
    (folder / name).write_bytes(b"\xef\xbb\xbf" + windows)
    before = (folder / name).read_text()
    target = arguments[1:2] if arguments[:1] == ["--target"] else ["slice"]
    result = CliRunner().invoke(
        cli, ["search", name, *arguments, "--write", "-o", "found.json"], catch_exceptions=False
    )
    best = json.loads((folder / "found.json").read_text())["rows"][0]
    if result.exit_code == 2:
        assert form == "dsl"
        assert best["changes"].keys() & {"remat", "microbatches"}
        assert "by hand" in result.stderr
        assert (folder / name).read_text() == before
        return
    assert result.exit_code == 0, result.output
    after = (folder / name).read_text()
    raw = (folder / name).read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    assert raw.count(b"\n") == raw.count(b"\r\n")
    spec, _ = pipeline.load_path(name)
    assert spec is not None
    (chosen,) = (each for each in spec.targets if each.name == target[0])
    assert chosen.mesh.sizes == best["mesh"]
    assert spec.policy.order == best["order"]
    cost = CliRunner().invoke(cli, ["cost", name, "--format", "json", "--target", target[0]])
    seconds = json.loads(cost.stdout)["time"]["step_s"]
    assert seconds == pytest.approx(best["step_s"], rel=1e-9)
    comments = re.findall(r"#.*", before)
    assert re.findall(r"#.*", after) == comments
    assert "rest" not in before or "rest" in after or "submesh" in after


def test_a_spec_that_has_the_best_is_left(folder: Path) -> None:
    run("--write", "--keep", "tensor=2")
    once = (folder / "spec.yaml").read_text()
    result = run("--write", "--keep", "tensor=2")
    assert (folder / "spec.yaml").read_text() == once
    assert "has this mesh already" in result.stderr


def test_sizes_from_elsewhere_are_not_written(folder: Path) -> None:
    before = (folder / "spec.yaml").read_text()
    result = run("--set", "targets.slice.mesh.fsdp=4", "--write", code=2)
    assert "--write leaves alone" in result.stderr or "does not reach" in result.stderr
    assert (folder / "spec.yaml").read_text() == before


def test_machines_are_ranked_by_time_and_money() -> None:
    machines = ["--hardware", "tpu v5e 4x4", "--hardware", "tpu v5p 2x2x4"]
    prices = ["--price", "v5e=1.2", "--price", "v5p=4.2"]
    by_time = run(*machines, *prices, "--keep", "tensor=2").stdout
    assert re.search(r"0\.0*[1-9]\d* /M tokens", by_time)
    first = by_time.index("tpu v5p 2x2x4")
    assert first < by_time.index("tpu v5e 4x4", first)
    data = found(*machines, *prices, "--by", "cost", "--keep", "tensor=2")
    costs = [row["dollars_per_step"] for row in data["rows"] if row["fits"] is not False]
    assert costs == sorted(costs)
    assert {row["hardware"] for row in data["rows"]} == {"tpu v5e 4x4", "tpu v5p 2x2x4"}


def test_the_front_has_nothing_that_is_beaten() -> None:
    row = re.compile(r"^ +\d+=? +data=", re.MULTILINE)
    few = row.findall(run("--pareto", "--keep", "tensor=2").stdout)
    assert 1 <= len(few) <= len(row.findall(run("--keep", "tensor=2").stdout))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--over", "shape"], "`shape` cannot be chosen"),
        (["--keep", "model=2"], "--keep model: no mesh axis"),
        (["--keep", "tensor=3"], "no sizes of the mesh"),
        (["--keep", "tensor=x"], "is no size of an axis"),
        (["--price", "v5p"], "is no price"),
        (["--hardware", "tpu v9 4x4"], "machine `tpu v9 4x4`"),
        (["--hardware", "16 cpu", "--over", "mesh"], "has no speeds"),
        (["--confirm", "1"], "needs code to trace"),
        (["--per-device-batch", "1000000", "--over", "order"], "--per-device-batch needs"),
        (["--max-chips", "2"], "--max-chips"),
        (["--latency", "1us"], "longer than --latency"),
        (["--latency", "soon"], "is no time"),
        (["--over", "microbatches=0"], "is no number of them"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_way_out(arguments: list[str], said: str) -> None:
    result = run(*arguments, code=2)
    assert said in result.stderr
    assert "= help: " in result.stderr


def test_a_spec_without_a_step_says_how_to_get_one(folder: Path) -> None:
    (folder / "spec.yaml").write_text(TEXT[: TEXT.index("step:")])
    result = run(code=2)
    assert "does not say what a step computes" in result.stderr
    assert "step: {extends: decoder}" in result.stderr


def test_nothing_that_fits_is_shown_by_memory(folder: Path) -> None:
    text = TEXT.replace("512", "65536").replace("2048", "262144")
    (folder / "spec.yaml").write_text(text)
    assert "DOES NOT FIT" in run("--keep", "tensor=4", code=1).stdout
    result = run("--fits", "--keep", "tensor=4", code=2)
    assert "fits in the memory of a device" in result.stderr
    assert "--over mesh,order,remat" in result.stderr


def test_a_cut_is_said() -> None:
    assert "there are more: --most N looks further" in run("--most", "5").stdout


def test_errors_of_another_line_than_today_rule_a_row_out(folder: Path) -> None:
    """`mlp` does not divide by 3, 6 or 12, nor `batch` by today's `data`."""
    text = TEXT.replace("tpu v5e 4x4  #", "6 * 4 h100  #").replace(
        "fsdp: 2, tensor: 4", "fsdp: 1, tensor: 8"
    )
    (folder / "spec.yaml").write_text(text)
    data = found("--over", "mesh")
    assert data["with_errors"]["SHD301"] > 0
    best = next(row for row in data["rows"] if row["findings"] is not None)
    assert best["mesh"]["tensor"] in (1, 2, 4, 8)


# one measured step


@pytest.mark.parametrize("said", ["9ms", "slice=9ms"])
def test_all_times_are_scaled_by_a_measured_step(said: str) -> None:
    few = ("--keep", "fsdp=4", "--price", "v5e=1.2")
    before, after = found(*few), found(*few, "--measured", said)
    scale = 0.009 / before["today"]["step_s"]
    assert (before["scale"], after["scale"]) == (1, pytest.approx(scale))
    assert after["today"]["step_s"] == pytest.approx(0.009)
    assert len(after["rows"]) == len(before["rows"]) > 1
    for old, new in zip(before["rows"], after["rows"], strict=True):
        assert new["mesh"] == old["mesh"], "the order stays"
        assert new["is_tie"] == old["is_tie"]
        for name in ("step_s", "dollars_per_step"):
            assert new[name] == pytest.approx(scale * old[name])
        for name in ("mfu", "tokens_per_s"):
            assert new[name] == pytest.approx(old[name] / scale)
        assert sum(new["parts"].values()) == pytest.approx(new["step_s"])
    assert after["rows"][0]["step_s"] == pytest.approx(
        cost_seconds("--measured", said) * before["rows"][0]["step_s"] / before["today"]["step_s"]
    )


def test_the_measured_step_is_of_the_spec_as_it_is() -> None:
    what_if = ("--set", "mesh.tensor=2", "--keep", "fsdp=4")
    data = found(*what_if, "--measured", "two=1ms")
    assert data["scale"] == pytest.approx(1e-3 / cost_seconds("--target", "two"))
    assert data["today"]["mesh"]["tensor"] == 2


def test_the_table_says_what_it_was_scaled_by() -> None:
    result = run("--keep", "fsdp=4", "--top", "1", "--measured", "1.2ms")
    text = " ".join(result.stdout.split())
    assert "all times are x 1.20: the step of the spec as it is took 1.20 ms on `slice`" in text
    assert "now data=2 fsdp=2 tensor=4 ~ 1.20 ms" in text
    assert "is it this step?" not in result.stderr
    assert "is it this step?" in run("--keep", "fsdp=4", "--measured", "2s").stderr
    assert "is no time of a step" in run("--measured", "2x", code=2).stderr
    assert "no target is called" in run("--measured", "nope=2s", code=2).stderr


@pytest.mark.parametrize("arguments", [(), ("--top", "2"), ("--pareto",), ("--keep", "fsdp=4")])
def test_the_head_counts_the_rows_below(arguments: tuple[str, ...]) -> None:
    text = run(*arguments).stdout
    head = re.search(r"^ +\d+ candidates?;.* (\d+) of (\d+) rows? shown", text, re.MULTILINE)
    assert head
    shown = re.findall(r"^ +\d+=? +data=\d+", text, re.MULTILINE)
    assert int(head[1]) == len(shown) <= int(head[2])


def test_a_tie_is_called_nothing_else() -> None:
    """Where the model cannot tell two meshes apart, neither is said to be the faster one."""
    ties = 0
    for data, fsdp, tensor in ((1, 16, 1), (1, 4, 4), (1, 8, 2), (2, 8, 1), (8, 1, 2)):
        sizes = (f"mesh.data={data}", f"mesh.fsdp={fsdp}", f"mesh.tensor={tensor}")
        asked = [word for each in ("policy.order=ring", *sizes) for word in ("--set", each)]
        text = run(*asked, "--over", "mesh").stdout
        for line in re.findall(r"^today -> best.*", text, re.MULTILINE):
            old, new = (_seconds(each) for each in re.findall(r"~ ([\d.]+ \w+)", line))
            is_tie = old <= new * 1.06
            ties += is_tie
            assert ("times as fast" in line) != is_tie, line
            assert ("cannot tell" in line) == is_tie, line
    assert ties


def _seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


def test_a_trace_that_takes_another_time_than_stated_is_said_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def traced(plan: ShardingPlan, request: Request) -> Step:
        stated = stated_step(plan)
        assert stated is not None
        ops = stated.step.ops if request.step_name == "same:step" else stated.step.ops[:1]
        return replace(stated.step, ops=ops)

    monkeypatch.setattr("shardspec.cli.steps.traced_step", traced)
    asked = ("--keep", "fsdp=4", "--confirm", "1")
    assert "NOT CONFIRMED" not in run(*asked, "--step", "same:step").stdout
    told = run(*asked, "--step", "other:step", code=1).stdout
    assert re.search(r"^1   NOT CONFIRMED, off by more than 15 %: ", told, re.MULTILINE)
    apart = run(*asked, "--step", "other:step", "--format", "json", code=1)
    assert json.loads(apart.stdout)["rows"]
    assert "NOT CONFIRMED" in apart.stderr
    before = Path("spec.yaml").read_text(encoding="utf-8")
    refused = run(*asked, "--step", "other:step", "--write", code=1)
    assert "the best is not confirmed, and is not written" in refused.stderr
    assert Path("spec.yaml").read_text(encoding="utf-8") == before
