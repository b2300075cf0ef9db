"""The values in a foreign file, with the names they have there: of Python, JSON or YAML.

A file is Python by its name. Standard input has none: it is Python where it parses as such and has
a statement that JSON and YAML have not. `[["embed", "data"]]` and `embed: data` parse as well.

Some tools have layouts that are code. Their files can be read and still say nothing: modules choose
the layout as they run. What to do instead is the same for all that run on JAX: `import layout`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.foreign.formats import ambiguous, bad
from shardspec.foreign.python_text import Binding, parse_python, read_scopes
from shardspec.foreign.values import Node, mapping_of, read_data, unreadable

Item = TypeVar("Item")

#: What classes of rules are called: `ShardingRules`, `ShardingAxisName2D`.
#: Names of values that a message lists.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class NamedValues:
    """What a file holds.

    Attributes:
      bindings: what it binds, or the entries of its mapping whose key is a text.
      root: the whole of JSON or YAML; None for Python.
    """

    bindings: tuple[Binding, ...]
    root: Node | None = None

    @property
    def named(self) -> tuple[tuple[str, Node], ...]:
        """Return the names with their values."""
        return tuple((each.name, _certain(each)) for each in self.bindings)

    @property
    def rules(self) -> tuple[tuple[str, Node], ...]:
        """Return classes of Python called rules, or names of axes, their fields as a mapping."""
        return () if self.root is not None else tuple(_classes(self.bindings))


def read_named_values(source: SourceFile) -> NamedValues | tuple[Diagnostic, ...]:
    """Return the values of a file, or why it cannot be read."""
    if is_python(source):
        bindings = read_scopes(source)
        return (bindings,) if isinstance(bindings, Diagnostic) else NamedValues(bindings)
    root = read_data(source)
    if not isinstance(root, Node):
        return root
    pairs = (pair for pair in root.pairs if pair[0].kind == "text")
    return NamedValues(tuple(Binding(key.text, value, key.span) for key, value in pairs), root)


def _classes(bindings: Sequence[Binding]) -> Iterator[tuple[str, Node]]:
    """Yield the fields of classes of rules: `class ShardingRules` with `batch: Axis = "data"`.

    So are classes of constants for PartitionSpecs: `ShardingAxisName` with `ATTN_HEAD = "model"`.
    """
    fields: dict[str, list[Binding]] = {}
    for each in bindings:
        prefix, _, field = each.name.rpartition(".")
        name = prefix.rpartition(".")[2]
        is_returned = each.span == each.value.span
        if _is_of_rules(name) and field and not is_returned:
            fields.setdefault(prefix, []).append(each)
    for prefix, found in fields.items():
        names = (Node("text", each.span, each.name.rpartition(".")[2]) for each in found)
        yield prefix, mapping_of(found[0].span, zip(names, map(_certain, found), strict=True))


def _certain(binding: Binding) -> Node:
    """Return what a name is bound to, where no condition decides that."""
    if binding.under is None:
        return binding.value
    return unreadable(binding.value.span, f"line {binding.under.line} decides whether it is set")


def likely(
    found: Sequence[tuple[str, Node]], axes: Sequence[str]
) -> tuple[tuple[str, Node], ...] | Diagnostic:
    """Return the values that name one of these mesh axes, or the finding that none does.

    Much in a file of code looks like rules: a value that nobody asked for by name, and that says
    nothing of the mesh, is not guessed at.
    """
    kept = tuple(each for each in found if not axes or _mentions(each[1], axes))
    if kept or not found:
        return kept
    name, node = found[0]
    message = f"`{name}` may be meant, and names no mesh axis of {', '.join(axes)}"
    return ambiguous(message, node.span, f"if it is, say so: --name {name}")


def by_name(
    known: Iterable[tuple[str, Item]], name: str, source: SourceFile, help: str | None
) -> Item | Diagnostic:
    """Return what a name is bound to last; the end of a dotted name will do where one has it.

    Args:
      help: what to say where nothing has the name.
    """
    found = dict(known)
    ending = [name] if name in found else [key for key in found if key.endswith(f".{name}")]
    if len(ending) == 1:
        return found[ending[0]]
    if not ending:
        return bad(f"`{source.name}` binds no `{name}`", source.whole, help=help)
    message = f"`{source.name}` binds {len(ending)} `{name}`"
    return ambiguous(message, None, f"say more of its name: {ticked(ending)}")


def several(source: SourceFile, names: Sequence[str], what: str, second: Span) -> Diagnostic:
    """Return the finding for a file with several values that may be meant.

    Args:
      what: they are: "lists of rules".
      second: where the second of them stands.
    """
    message = f"`{source.name}` has {len(names)} {what}: {ticked(names)}"
    return ambiguous(message, second, f"say which: --name {names[0]}")


def ticked(names: Sequence[str]) -> str:
    """Return the first names in backticks."""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN])


def _mentions(node: Node, axes: Sequence[str]) -> bool:
    if node.kind == "text":
        return any(re.search(rf"\b{re.escape(axis)}\b", node.text) for axis in axes)
    return any(_mentions(each, axes) for each in (*node.items, *(v for _, v in node.keywords)))


def is_python(source: SourceFile) -> bool:
    """Say whether a file is to be read as Python."""
    if source.name != "-":
        return source.name.endswith(".py")
    data = (ast.Expr, ast.AnnAssign)
    return parse_python(source, lambda t: any(not isinstance(s, data) for s in t.body)) is True


_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)
_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)", re.MULTILINE)
_WRITE_DOWN = "`import layout MODULE:FUNCTION` runs it, see `A running tree` in docs/migrating.md"
_BY_HAND = "state it in `overrides:`, or as regexes: see `What is code` in docs/migrating.md"

_PLANS = "`import dtensor FILE` reads plans of `parallelize_module`, see docs/migrating.md"


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
          _PLANS),
    _Tool("vLLM", ("vllm",), "vLLM's layers split themselves", _BY_HAND),
    _Tool("PyTorch", ("torch.distributed",), "`parallelize_module` and DTensor place modules",
          _PLANS),
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
        packages = tuple(f"{name}." for name in tool.packages)
        inside = any(f"{each}.".startswith(packages) for each in imported)
        if inside or not defined.isdisjoint(tool.classes):
            return tool
    return None


def _is_of_rules(name: str) -> bool:
    """Say whether a class is called after rules or names of axes: `MeshRules`, `ShardingAxisName`.

    >>> _is_of_rules("MeshRules"), _is_of_rules("ShardingAxisName2D"), _is_of_rules("Rules")
    (True, True, False)
    """
    rest = name[1:]
    is_called = rest.endswith("Rules") or "AxisName" in rest or name in ("AxisName", "AxisNames")
    return name[:1].isupper() and is_called
