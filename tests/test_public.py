"""What `import shardspec` offers, to a program and to its type checker."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardspec

TEXT = """
shardspec: 1
mesh: {data: 2, model: 4}
rules: [mlp -> model]
params: {"*": mlp}
arrays: {wi: "f32[16]"}
"""

LIGHT = """
import sys, shardspec
for name in ("LockWarning", "Drawing", "Diagnostic", "Plan", "load"):
    assert getattr(shardspec, name).__name__ == name
assert not {"jax", "numpy"} & set(sys.modules)
"""


def test_every_public_name_is_there() -> None:
    assert all(hasattr(shardspec, name) for name in shardspec.__all__)
    assert dir(shardspec) == shardspec.__all__
    with pytest.raises(AttributeError, match="no attribute 'Resovler'"):
        _ = shardspec.Resovler  # type: ignore[attr-defined]


def test_every_public_name_is_said_once() -> None:
    """In the stub: a line for each, as itself, and nothing beside them."""
    stub = Path(shardspec.__file__).with_suffix(".pyi").read_text("utf-8")
    names = re.findall(r"^from shardspec\.[\w.]+ import (\w+) as \1$", stub, re.MULTILINE)
    assert sorted(names) == shardspec.__all__
    assert len(names) == len(set(names)) == stub.count(" import ") > 50


def test_the_names_that_warnings_and_annotations_need_load_no_jax() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


def test_a_type_checker_knows_the_public_names_and_no_others(tmp_path: Path) -> None:
    from mypy import api

    program = tmp_path / "program.py"
    names = [f"shardspec.{name}\n" for name in (*shardspec.__all__, "Resovler")]
    program.write_text("".join(["import shardspec\n", *names]))
    quick = ["--config-file=", "--no-incremental", "--follow-imports=skip"]
    stub = Path(shardspec.__file__).with_suffix(".pyi")
    said, _, _ = api.run([*quick, str(program), str(stub)])
    line = len(names) + 1
    assert f'program.py:{line}: error: Module has no attribute "Resovler"' in said
    assert "Found 1 error" in said


def test_a_plan_prints_as_a_table() -> None:
    text = str(shardspec.loads(TEXT).compile())
    assert "target default: 8 devices" in text
    assert "P(" not in text
    assert " ".join(text.split()).count("wi f32[16] model [4] 16 B") == 1


def test_a_spec_says_what_it_is() -> None:
    spec = shardspec.loads(TEXT, "small.yaml")
    assert repr(spec) == "Spec(small.yaml: 1 rule, 1 array, targets default)"
    assert repr(shardspec.loads("shardspec: 1")) == "Spec(<string>: 0 rules, 0 arrays, no target)"


def test_a_plan_says_what_it_is() -> None:
    plan = shardspec.loads(TEXT).compile()
    assert repr(plan) == "Plan(1 array, target default: data=2 model=4)"
    assert isinstance(plan, shardspec.Plan)
    assert (list(plan), len(plan)) == (["wi"], 1)
    assert plan.arrays == (plan["wi"],)
    assert plan.mesh is plan.target.mesh
    assert [found.code.id for found in plan.diagnostics] == []


def test_a_target_is_equal_to_its_name() -> None:
    spec = shardspec.loads(TEXT.replace("mesh:", "hardware: tpu v5e 2x4\nmesh:"))
    target = spec.compile().target
    assert (str(target), f"{target}") == ("default", "default")
    assert target == "default"
    assert target != "other"
    assert {"default": 1}[target] == 1  # type: ignore[index]
    assert target == spec.ir.targets[0] != shardspec.loads(TEXT).ir.targets[0]
    assert target.hardware is not None
    assert target.hardware.chip_count == 8


def test_an_array_prints_as_its_explanation_begins() -> None:
    spec = shardspec.loads(TEXT + 'overrides: [{match: wo, spec: "(model)", because: it is small}]')
    plan = spec.compile([shardspec.Param(path, (16,), "f32") for path in ("wi", "wo")])
    for path in plan:
        assert plan.explain(path).startswith(str(plan[path]))
    assert str(plan["wi"]).splitlines() == [
        "wi   f32[16]   ->   P('model')   shard [4], 16 B per device",
        "",
        'names   mlp     <string>:5  params "*"',
    ]
    assert "because it is small" in str(plan["wo"])


def test_the_memory_of_a_plan_is_exact_by_kind() -> None:
    plan = shardspec.loads(TEXT).compile()
    assert plan.memory().by_kind == {"parameters": 16}
    assert str(plan.memory()) == "parameters 16 B: 16 B per device"
    trained = shardspec.loads(TEXT + "state: {optimizer: zero1}").compile().memory()
    assert trained.by_kind == {"parameters": 16, "gradients": 16, "optimizer state": 32}
    assert trained.bytes == sum(trained.by_kind.values()) == 64
    chip = TEXT.replace("mesh:", "hardware: tpu v5e 2x4\nmesh:")
    assert str(shardspec.loads(chip).compile().memory()).endswith("512 B of 15.8 GiB per device")


def returned(of: Any) -> Iterator[tuple[str, str]]:
    """Yield the public functions of a class, or a function, with the annotation of the result."""
    members = inspect.getmembers_static(of) if inspect.isclass(of) else [(of.__name__, of)]
    for name, member in members:
        function = getattr(member, "fget", None) or getattr(member, "func", None) or member
        if inspect.isfunction(function) and not name.startswith("_"):
            yield name, str(function.__annotations__.get("return", ""))


def test_every_type_that_is_returned_is_exported() -> None:
    assert all(hasattr(shardspec, name) for name in shardspec.__all__), "loads their modules"
    ours = {
        name: value
        for module in [m for m in sys.modules.values() if m.__name__.startswith("shardspec.")]
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__.startswith("shardspec.")
    }
    todo: list[Any] = [shardspec.load, shardspec.loads, shardspec.Spec, shardspec.Resolver]
    seen: set[Any] = set()
    while todo:
        of = todo.pop()
        seen.add(of)
        for name, annotation in returned(of):
            for word in set(re.findall(r"(?<![\w.])[A-Z]\w+", annotation)) & ours.keys():
                assert word in shardspec.__all__, f"{of.__name__}.{name} returns {word}"
                todo += {getattr(shardspec, word)} - seen
    assert {shardspec.Plan, shardspec.Memory, shardspec.ParamSharding, shardspec.Batch} <= seen
    assert ("diagnostics", "tuple[Diagnostic, ...]") in set(returned(shardspec.Plan))


def test_words_of_the_version_before_say_the_new_ones() -> None:
    spec = shardspec.loads(TEXT)
    plan = spec.compile()
    uses = {
        "`spec.check(arrays)` is called `spec.findings(arrays)` now": lambda: spec.check(),
        "`plan.params` is called `plan.arrays` now": lambda: plan.params,
        "`plan.ir` is called `plan` now": lambda: plan.ir,
    }
    expected = (spec.findings(), plan.arrays, plan)
    for (said, use), same in zip(uses.items(), expected, strict=True):
        with pytest.warns(DeprecationWarning, match=re.escape(said)) as caught:
            assert use() == same
        assert caught[0].filename == __file__, "it is told at the caller's line"
