"""What a search found is named again while spec, code and program are the same, and never else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.step import Added, Cure
from shardspec.jax_backend.cure.remembered import remember, remembered
from shardspec.jax_backend.step.passes import bytecode_of
from tests.jax_backend.cure.small import SPEC, STEPS, resolver, traced_of, without

CODE = "def f(x):\n    y = x * 2\n    return y\n"
GAIN = "2 times as fast, compiled"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "shardspec" / "found"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(CODE)
    return tmp_path / "model.py"


def plan_of(text: str = SPEC) -> ShardingPlan:
    own = resolver(text)
    (plan,) = pipeline.compile_plans(own._arrays.spec, None, [own.target])
    return plan


def module_of(name: str) -> bytes:
    function, args = STEPS[name](without)
    return bytecode_of(traced_of(function, *args).module)


def kept(code: Path) -> tuple[bytes, Cure]:
    module = module_of("forward")
    cure = Cure((Added(str(code), 2, 'y = shardspec.constrain(y, "batch _")'),), GAIN)
    remember(module, plan_of(), cure, [str(code)])
    return module, cure


def test_what_was_found_is_named_from_the_working_folder(code: Path) -> None:
    assert remembered(module_of("forward"), plan_of()) is None
    module, cure = kept(code)
    found = remembered(module, plan_of())
    assert found == replace(cure, lines=(replace(cure.lines[0], file="model.py"),))


def test_it_is_that_of_the_program_the_spec_and_the_target(code: Path) -> None:
    module, _ = kept(code)
    assert remembered(module_of("gradient"), plan_of()) is None
    assert remembered(module, plan_of(SPEC.replace("length -> none", "length -> tensor"))) is None
    own = plan_of()
    other = replace(own, target=replace(own.target, name="other"))
    assert remembered(module, other) is None
    assert remembered(module, own) is not None


def test_the_lines_of_operations_are_not_of_the_program(code: Path) -> None:
    """`check` traces a step from other frames than `search` does."""
    module, _ = kept(code)

    def deeper() -> bytes:
        jax.clear_caches()
        return module_of("forward")

    other = deeper()
    assert other != module
    assert remembered(other, plan_of()) is not None


@pytest.mark.parametrize("text", [f"{CODE}# a remark\n", CODE.replace("2", "3"), None])
def test_where_the_code_has_changed_nothing_is_named(code: Path, text: str | None) -> None:
    module, _ = kept(code)
    code.unlink()
    if text is not None:
        code.write_text(text)
    assert remembered(module, plan_of()) is None
    code.write_text(CODE)
    assert remembered(module, plan_of()) is not None


def test_that_nothing_was_found_is_kept_too() -> None:
    module = module_of("forward")
    remember(module, plan_of(), Cure((), ""), [])
    assert remembered(module, plan_of()) == Cure((), "")


def test_a_folder_of_others_is_not_believed(folder: Path, code: Path) -> None:
    module, _ = kept(code)
    folder.chmod(0o777)
    assert remembered(module, plan_of()) is None


@pytest.mark.parametrize("change", ["lines", "files", "line of another file"])
def test_an_entry_is_bounded(folder: Path, code: Path, change: str) -> None:
    module, _ = kept(code)
    (path,) = folder.glob("*.json")
    data = json.loads(path.read_text())
    match change:
        case "lines":
            data["cure"]["lines"] *= 100
        case "files":
            data["files"] |= {f"/{number}": "" for number in range(100)}
        case _:
            data["cure"]["lines"][0]["file"] = "/etc/passwd"
    path.write_text(json.dumps(data))
    assert remembered(module, plan_of()) is None


ANY: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)
ENTRY = st.fixed_dictionaries({"cure": ANY, "files": ANY}).map(json.dumps)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.text() | ENTRY)
def test_any_entry_is_read_or_not_there(folder: Path, code: Path, text: str) -> None:
    module, _ = kept(code)
    (path,) = folder.glob("*.json")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert remembered(module, plan_of()) is None
