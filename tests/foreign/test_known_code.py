"""Files of tools whose layouts are code: the reason and the way are named."""

from __future__ import annotations

from typing import Any

import pytest

from shardspec.diagnostics import SourceFile
from shardspec.foreign import flax, haliax, keras, regex
from shardspec.foreign.formats import Options

FILES = {
    "axlearn": "from axlearn.common.config import config_class\nx = f(data=-1)\n",
    "tunix": "class ShardingConfig:\n  emb_vd: tuple\n",
    "EasyDeL": "def f():\n  import easydel as ed\n",
    "SGLang-JAX": "from sgl_jax.srt.utils.weight_utils import WeightMapping\n",
    "torchtitan": "import torchtitan\nfrom torch.distributed.tensor import Shard\n",
    "vLLM": "from vllm.model_executor.layers.linear import ColumnParallelLinear\n",
    "parallelize_module": "import torch.distributed.tensor.parallel as tp\n",
}


@pytest.mark.parametrize("tool", FILES)
@pytest.mark.parametrize("module", [flax, regex, haliax, keras])
def test_a_file_of_code_names_the_reason_and_the_way(tool: str, module: Any) -> None:
    imported, (fault,) = module.read([SourceFile("model.py", FILES[tool])], Options())
    assert imported is None
    assert tool in fault.message
    assert "docs/migrating.md" in (fault.help or "")


def test_a_class_of_rules_is_read_by_another_format() -> None:
    text = "class ShardingRules:\n  batch: A = 'x'\n"
    _, (fault,) = flax.read([SourceFile("model.py", text)], Options())
    assert "import haliax" in (fault.help or "")
    imported, _ = haliax.read([SourceFile("model.py", text)], Options())
    assert imported is not None


def test_other_files_name_the_form() -> None:
    text = "import axlearning\nimport numpy\n"
    _, (fault,) = flax.read([SourceFile("model.py", text)], Options())
    assert "RULES = [" in (fault.help or "")


def test_a_list_in_a_file_of_such_a_tool_is_read() -> None:
    text = FILES["EasyDeL"] + "RULES = [('embed', 'data')]\n"
    imported, _ = flax.read([SourceFile("model.py", text)], Options())
    assert imported is not None
    assert imported.data["rules"] == ["embed -> data"]


GUESSES = {
    flax: "def f():\n  pairs = [('a', 'b')]\n  return pairs\n",
    haliax: "class C:\n  attribute_map = {'hidden_size': 'n_embd'}\n",
    regex: "class C:\n  keys = {'token_ids': ['x', 'y']}\n",
}


@pytest.mark.parametrize("module", GUESSES)
def test_a_value_that_says_nothing_of_the_mesh_is_not_guessed_at(module: Any) -> None:
    source = SourceFile("model.py", GUESSES[module])
    options = Options(mesh=(("data", "2"), ("model", "4")), match="search")
    imported, (fault,) = module.read([source], options)
    assert imported is None
    assert fault.code.id == "SHD604"
    name = (fault.help or "").rpartition("--name ")[2]
    assert module.read([source], options._replace(name=name))[0] is not None
    assert module.read([source], Options(match="search"))[0] is not None
