"""Tools whose layouts are code, for the message that a file of theirs holds no list.

Their files can be read and still say nothing: modules choose the layout as they run. What to do
instead is the same for all that run on JAX, and stands in docs/migrating.md: let the tool make its
arrays or their shapes, and write the layout down.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.imported import bad

_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)
_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)", re.MULTILINE)
_WRITE_DOWN = "let it run and write the layout down, see `What is code` in docs/migrating.md"
_BY_HAND = "state it in `overrides:`, or as regexes: see `What is code` in docs/migrating.md"


class _Tool(NamedTuple):
    """A tool, and why its files are no data.

    Attributes:
      packages: it is imported by, in its own files and others.
      classes: that its files define.
    """

    name: str
    packages: tuple[str, ...]
    reason: str
    help: str = _WRITE_DOWN
    classes: tuple[str, ...] = ()


_TOOLS = (
    _Tool("a class of rules", (), "a class is a mapping", "import haliax FILE reads it",
          ("ShardingRules", "MeshRules")),
    _Tool("axlearn", ("axlearn",), "axlearn's layers set their partition specs as they are built"),
    _Tool("tunix", ("tunix",), "tunix's modules pick fields of a `ShardingConfig` made in code",
          classes=("ShardingConfig",)),
    _Tool("EasyDeL", ("easydel", "eformer"), "EasyDeL's modules make their layout in code"),
    _Tool("SGLang-JAX", ("sgl_jax",), "SGLang-JAX builds its weight mappings layer by layer"),
    _Tool("torchtitan", ("torchtitan", "spmd_types"), "torchtitan's functions place modules",
          _BY_HAND),
    _Tool("vLLM", ("vllm",), "vLLM's layers split themselves", _BY_HAND),
    _Tool("PyTorch", ("torch.distributed",), "`parallelize_module` and DTensor place modules",
          _BY_HAND),
)  # fmt: skip


def no_list(source: SourceFile, what: str, form: str) -> Diagnostic:
    """Return the finding for a file without what an import looks for.

    Args:
      what: is looked for: "list of rules".
      form: how it looks, for the help.
    """
    message = f"`{source.name}` has no {what}"
    tool = _tool_of(source)
    if tool is None:
        return bad(message, source.whole, help=form)
    return bad(f"{message}: {tool.reason}", source.whole, help=tool.help)


def _tool_of(source: SourceFile) -> _Tool | None:
    imported = set(_IMPORT.findall(source.text))
    defined = set(_CLASS.findall(source.text))
    for tool in _TOOLS:
        inside = any(
            f"{each}.".startswith(f"{name}.") for each in imported for name in tool.packages
        )
        if inside or not defined.isdisjoint(tool.classes):
            return tool
    return None
