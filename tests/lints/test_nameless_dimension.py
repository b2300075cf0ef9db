"""SHD225 takes no dimension of a weight for an axis that activations alone have."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli

SPEC = """
shardspec: 1
mesh: {{data: 8}}
axes: {{batch: 256, embed: 262144}}
rules: ["{axis} -> data"]
params: {{"**/out": "_ embed", "**/in": "embed _", "**/last": "{last} _"}}
arrays: {{"a/out": "bf16[256, 262144]", "a/in": "bf16[262144, 256]", "a/last": "bf16[256, 8]"}}
lints: {{SHD2: allow, SHD3: allow, SHD4: allow, nameless-dimension: warn}}
"""


@pytest.mark.parametrize(
    ("axis", "last", "is_found"), [("batch", "_", False), ("batch", "batch", True)]
)
def test_a_name_is_one_that_an_array_has(
    axis: str, last: str, is_found: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = tmp_path_factory.mktemp("spec") / "spec.yaml"
    spec.write_text(SPEC.format(axis=axis, last=last), encoding="utf-8")
    result = CliRunner().invoke(cli, ["check", str(spec), "--select", "SHD225"])
    assert ("SHD225" in result.output) is is_found, result.output
