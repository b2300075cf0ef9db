"""Help about a step is followed literally: the finding goes, and the step is predicted cheaper."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.analysis.cost import Cost
from shardspec.analysis.step_memory import Amount
from shardspec.cli.main import cli
from shardspec.diagnostics import Diagnostic
from shardspec.ir.step import OF_RANDOM_BITS, Unknown
from shardspec.lints.checks import step_exceeds_memory, unknown_operation
from tests.lints.step_examples import cost, findings

CASE = Path(__file__).parent.parent / "cases" / "SHD507-gate.md"
HEAD = """\
shardspec: 1
hardware: tpu v5e 4x4
mesh: {data: 4, tensor: 4}
axes: {batch: 65536, features: 4096}
rules: [batch -> data, mlp -> tensor, "features, wide -> none"]
params: {gate: features wide}
arrays: {gate: "bf16[4096, 1024]"}
activations: {x: batch features}
lints: {SHD2: allow, SHD4: allow}
"""
WHERE = r"at model\.py:(\d+) \(.*?\): shard its dimension of"
GATE = "def step(params, x):\n    return x @ params['gate']"


def _example(code: str, spec: str = HEAD) -> str:
    return "".join(f"# {line}\n" for line in code.splitlines()) + spec


def _one(text: str, code: str) -> Diagnostic:
    return next(each for each in findings(text) if each.code.id == code)


def _constrained(code: str, line: int, axis: str) -> str:
    """Return the code with the product on a line constrained so that `axis` splits its end."""
    lines = code.splitlines()
    names = {"tensor": "batch mlp"}[axis]
    product = r"(\w+ @ params\['\w+'\])"
    lines[line - 1] = re.sub(product, rf"resolver.constrain(\1, '{names}')", lines[line - 1])
    return "\n".join(lines)


def _seconds(found: Cost) -> float:
    assert found.time is not None
    return found.time.step_seconds


def test_a_size_that_divides_as_help_says_is_sharded_and_faster() -> None:
    odd = HEAD.replace("features: 4096}", "features: 4096, wide: 1022}").replace("1024", "1022")
    odd = odd.replace('"features, wide -> none"', "wide -> tensor | none, features -> none")
    before = _example(GATE, odd)
    help = _one(before, "SHD507").help or ""
    said = re.search(r"`wide` = 1022 does not divide over `tensor` = 4: \d+ or (\d+) would", help)
    assert said, help
    after = before.replace("1022", said[1])
    assert "SHD507" not in [each.code.id for each in findings(after)]
    assert _seconds(cost(after)) < _seconds(cost(before))


def test_work_that_is_split_as_help_says_is_done_once_and_faster() -> None:
    before = _example(GATE)
    help = _one(before, "SHD507").help or ""
    said = re.search(rf"{WHERE} .*1024.* over `(\w+)`", help)
    assert said, help
    after = _example(_constrained(GATE, int(said[1]), said[2]))
    assert "SHD507" not in [each.code.id for each in findings(after)]
    assert _seconds(cost(after)) < _seconds(cost(before))


def test_a_result_that_is_summed_over_next_is_split_with_what_reads_it() -> None:
    """Two products in a row: the second sums over what splits the first, nothing is gathered."""
    spec = HEAD.replace("{gate: features wide}", "{up: features wide, down: wide features}")
    spec = spec.replace(
        'gate: "bf16[4096, 1024]"', 'up: "bf16[4096, 12288]", down: "bf16[12288, 4096]"'
    )
    code = (
        "def step(params, x):\n    hidden = x @ params['up']\n"
        "    return jnp.max(jnp.tanh(hidden) @ params['down'], axis=1)"
    )
    before = _example(code, spec)
    help = _one(before, "SHD507").help or ""
    said = re.search(rf"{WHERE} .*12288.* over `(\w+)`", help)
    assert said, help
    assert "the product at model.py:3 (ab,bc->ac) sums over it; `shardspec search SPEC" in help
    after = _example(_constrained(code, int(said[1]), said[2]), spec)
    assert "SHD507" not in [each.code.id for each in findings(after)]
    assert _seconds(cost(after)) < _seconds(cost(before))


def test_what_would_cost_more_than_it_saves_is_not_proposed() -> None:
    """A thin product with a wide result: to gather that takes longer than to compute it again."""
    spec = HEAD.replace("features: 4096", "features: 512").replace("[4096, 1024]", "[512, 16384]")
    code = "def step(params, x):\n    wide = x @ params['gate']\n    return jnp.max(wide, axis=1)"
    help = _one(_example(code, spec), "SHD507").help or ""
    assert help.startswith("shard the result of")
    assert "sends more than it saves" in help
    assert "`lints: {repeated-work: allow}`" in help


def test_a_result_that_nothing_divides_is_not_padded() -> None:
    spec = HEAD.replace("[4096, 1024]", "[4096, 1023]")
    help = _one(_example(GATE, spec), "SHD507").help or ""
    assert "has no dimension that divides over `tensor`" in help
    assert "pad" not in help


def test_labels_count_the_devices_of_each_axis() -> None:
    spec = HEAD.replace("{data: 4, tensor: 4}", "{data: 4, tensor: 2, expert: 2}")
    found = _one(_example(GATE, spec), "SHD507")
    assert "computed 4 times" in found.message
    assert [label.text for label in found.labels] == ["all 2 compute the same"] * 2


def test_room_is_made_where_devices_hold_the_same() -> None:
    spec = HEAD.replace("batch: 65536", "batch: 131072").replace("[4096, 1024]", "[4096, 524288]")
    code = (
        "def step(params, x):\n    wide = x @ params['gate']\n"
        "    return jnp.sum(wide, axis=1) + jnp.max(wide @ wide.T[:, :8], axis=1)"
    )
    before = _example(code, spec)
    help = _one(before, "SHD510").help or ""
    said = re.search(r"shard bf16\[131072, 524288\], model\.py:(\d+), over `(\w+)`: ", help)
    assert said, help
    assert "batch fits" not in help
    after = _example(_constrained(code, int(said[1]), said[2]), spec)
    assert "SHD510" not in [each.code.id for each in findings(after)]
    assert cost(after).memory.total.bytes < cost(before).memory.total.bytes


@pytest.mark.nightly
def test_the_compiled_step_is_cheaper_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libtpu agrees: both programs are as predicted, and the mended one holds less."""
    pytest.importorskip("libtpu", reason="needs the extra tpu-aot")
    spec, code = re.findall(r"```(?:yaml|python)\n(.*?)```", CASE.read_text("utf-8"), re.DOTALL)
    product = 'x @ params["gate"]'
    mended = code.replace(product, f'resolver.constrain({product}, "batch mlp")')
    assert mended != code
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    (tmp_path / "help_before.py").write_text(code, encoding="utf-8")
    (tmp_path / "help_after.py").write_text(mended, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    held = []
    for module in ("help_before", "help_after"):
        arguments = ["verify", "spec.yaml", "--step", f"{module}:train", "--format", "json"]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        (target,) = json.loads(result.stdout)["targets"]
        assert target["proved"]
        held.append(target["memory"]["compiled_bytes"])
    assert held[1] < held[0]


def test_a_step_that_only_answers_needs_a_smaller_batch() -> None:
    spec = HEAD.replace("65536", "1048576").replace("[4096, 1024]", "[4096, 262144]")
    spec = spec.replace("features, wide -> none", "features -> none").replace("mlp ->", "wide ->")
    code = "def step(params, x):\n    return jnp.max(jnp.sin(x @ params['gate']), axis=1)"
    help = _one(_example(code, spec), "SHD510").help or ""
    assert "use a smaller batch: at most " in help
    assert "microbatches" not in help


def test_arguments_that_do_not_fit_are_named() -> None:
    """It said to shard the arguments, and not which."""
    spec = HEAD.replace("features: 4096}", "features: 4096, long: 4194304}")
    spec = spec.replace("wide ->", "wide, long ->").replace(
        "features}", "features, z: features long}"
    )
    code = "def step(params, x, z):\n    return x @ z[:, :8]"
    help = _one(_example(code, spec), "SHD510").help or ""
    assert ", first `z` (32.0 GiB per device, P(None, None))" in help
    after = _example(
        code, spec.replace('"features, wide, long -> none"', "long -> tensor, features -> none")
    )
    assert "SHD510" not in [each.code.id for each in findings(after)]


def test_what_a_compiler_computes_again_is_not_kept_with_checkpoint() -> None:
    spec = HEAD.replace("{data: 4, tensor: 4}", "{data: 16}").replace("65536", "1048576")
    spec = spec.replace("[4096, 1024]", "[4096, 262144]")
    loss = "lambda p: jnp.sum(jnp.sin(x @ p['gate']))"
    code = f"def step(params, x):\n    return jax.grad({loss})(params)"
    before = cost(_example(code, spec))
    peak = tuple(replace(each, why="computed again") for each in before.memory.peak)
    memory = replace(before.memory, activations=None, peak=peak)
    assert before.step is not None
    found = next(step_exceeds_memory.check(replace(before, memory=memory), before.step))
    assert "`jax.checkpoint`" in (found.help or "")


def test_random_bits_that_take_the_memory_come_first() -> None:
    spec = HEAD.replace("{data: 4, tensor: 4}", "{data: 16}").replace("65536", "1048576")
    spec = spec.replace("[4096, 1024]", "[4096, 262144]")
    loss = "lambda p: jnp.sum(jnp.sin(x @ p['gate']))"
    before = cost(_example(f"def step(params, x):\n    return jax.grad({loss})(params)", spec))
    assert before.step is not None
    first, *_ = before.memory.peak
    peak = (replace(first, why=OF_RANDOM_BITS), *before.memory.peak[1:])
    held = replace(before, memory=replace(before.memory, peak=peak))
    found = next(step_exceeds_memory.check(held, before.step))
    assert (found.help or "").startswith("draw fewer random bits, as SHD523 says: ")
    unknown = Unknown("random bits", "libtpu may write them out", ("memory",))
    step = replace(before.step, unknown=(unknown,))
    assert [*unknown_operation.check(before, step)]
    made = Amount(before.memory.total.bytes, "compiled")
    compiled = replace(before.memory, gradients=None, activations=None, temporaries=made)
    known = replace(before, memory=compiled)
    assert not [*unknown_operation.check(known, step)], "the compiler has said what it holds"
