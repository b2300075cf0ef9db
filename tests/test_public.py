"""What `import shardspec` offers, to a program and to its type checker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
for name in ("LockWarning", "Drawing", "Diagnostic", "Resolver", "load"):
    assert getattr(shardspec, name).__name__ == name
assert not {"jax", "numpy"} & set(sys.modules)
"""


def test_every_public_name_is_there() -> None:
    assert all(hasattr(shardspec, name) for name in shardspec.__all__)
    assert dir(shardspec) == shardspec.__all__
    with pytest.raises(AttributeError, match="no attribute 'Resovler'"):
        _ = shardspec.Resovler  # type: ignore[attr-defined]


def test_the_names_that_warnings_and_annotations_need_load_no_jax() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


def test_a_type_checker_knows_the_public_names_and_no_others(tmp_path: Path) -> None:
    from mypy import api

    program = tmp_path / "program.py"
    program.write_text("import shardspec\nshardspec.Resolver\nshardspec.Resovler\n")
    quick = ["--config-file=", "--no-incremental", "--follow-imports=skip"]
    said, _, _ = api.run([*quick, str(program), shardspec.__file__])
    assert 'program.py:3: error: Module has no attribute "Resovler"' in said
    assert "Found 1 error" in said


def test_a_plan_prints_as_a_table() -> None:
    text = str(shardspec.loads(TEXT).compile())
    assert "target default: 8 devices" in text
    assert "P(" not in text
    assert " ".join(text.split()).count("wi f32[16] model [4] 16 B") == 1
