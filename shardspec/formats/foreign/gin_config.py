"""Gin files as one configuration: includes followed, macros resolved, the last binding counts."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.gin_text import GinBinding, GinInclude, read_gin
from shardspec.formats.foreign.imported import bad, lost
from shardspec.formats.foreign.node import DEEPEST, MOST_VALUES, Node, unreadable
from shardspec.frontend.boundary import leads_out
from shardspec.frontend.files import read_source

MOST_INCLUDES = 200
_OUT = "give the file itself as another FILE, before this one"


@dataclass(slots=True)
class GinConfig:
    """All bindings, in the order gin applies them.

    Attributes:
      folders: where included files are looked for, after the folders of the files that lead there:
        T5X's files name one another from the root of its repository.
      faults: errors of the files, and includes that were not read.
    """

    folders: tuple[str, ...] = ()
    bindings: list[GinBinding] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)
    included: int = 0

    def add(self, source: SourceFile, above: tuple[str, ...] = ()) -> None:
        """Add what a file binds, and what the files that it includes do."""
        statements = read_gin(source)
        if isinstance(statements, Diagnostic):
            self.faults.append(statements)
            return
        for statement in statements:
            if isinstance(statement, GinBinding):
                self.bindings.append(statement)
            else:
                self._include(statement, (*above, source.name))

    def _include(self, include: GinInclude, above: tuple[str, ...]) -> None:
        """Add the file that a line includes.

        Args:
          above: the files that lead there, the one with the line last.
        """
        path = os.path.normpath(include.path)
        if os.path.isabs(path) or path.split(os.sep)[0] in ("..", ""):
            message = f"`{include.path}` is not included: it leads out of the folder"
            self.faults.append(lost(message, include.span, help=_OUT))
            return
        folders = (*map(os.path.dirname, reversed(above)), *self.folders)
        places = [os.path.join(folder, path) for folder in folders]
        found = next((each for each in places if os.path.isfile(each)), None)
        self.included += 1
        if found is None:
            message = f"`{include.path}` is not there, so what it binds is not seen"
            help = "say where included files are: --include FOLDER"
            self.faults.append(lost(message, include.span, help=help))
        elif self.included > MOST_INCLUDES or os.path.realpath(found) in map(
            os.path.realpath, above
        ):
            self.faults.append(bad(f"`{include.path}` includes itself", include.span))
        else:
            read = read_source(Path(found), name=found)
            if leads_out(found):
                message = f"`{include.path}` is not included: a link leads out of the project"
                self.faults.append(lost(message, include.span, help=_OUT))
            elif isinstance(read, Diagnostic):
                self.faults.append(bad(read.message, include.span, help=read.help))
            else:
                self.add(replace(read, included_from=include.span), above)

    def of(
        self, function: str, argument: str, scope: str = "", word: str = ""
    ) -> GinBinding | None:
        """Return the binding that counts, its macros resolved; the scope's beats that of none.

        Args:
          word: what the module of the function is called by, where several have one.
        """
        found = [
            each
            for each in self.bindings
            if each.argument == argument
            and each.function == function
            and each.scope == ""
            and word in each.selector
        ]
        scoped = [
            each
            for each in self.bindings
            if scope
            and each.argument == argument
            and each.function == function
            and each.scope == scope
            and word in each.selector
        ]
        last = (found + scoped)[-1:]
        return self.resolved(last[0]) if last else None

    def resolved(self, binding: GinBinding) -> GinBinding:
        """Return a binding with values in place of macros."""
        macros = {each.selector: each.value for each in self.bindings if not each.argument}
        return binding._replace(value=_Resolver(macros).value(binding.value, 0))


@dataclass(slots=True)
class _Resolver:
    """Puts values in place of macros; what stands for itself, or for too much, is unreadable."""

    macros: dict[str, Node]
    spent: int = 0

    def value(self, node: Node, depth: int) -> Node:
        self.spent += 1
        if depth > DEEPEST or self.spent > MOST_VALUES:
            return unreadable(node.span, "a macro stands for too much, or for itself")
        if node.kind == "name" and node.text.startswith("%"):
            name = node.text[1:]
            if name not in self.macros:
                return unreadable(node.span, f"nothing binds the macro `{name}`")
            return self.value(self.macros[name], depth + 1)
        if not node.items:
            return node
        items = tuple(self.value(item, depth + 1) for item in node.items)
        keys = tuple(self.value(key, depth + 1) for key in node.keys)
        return replace(node, items=items, keys=keys)


def read_config(sources: Sequence[SourceFile], folders: tuple[str, ...]) -> GinConfig:
    """Return the configuration that gin files make together, later ones winning."""
    config = GinConfig(folders)
    for source in sources:
        config.add(source)
    return config


def other_scopes(config: GinConfig, functions: Sequence[str], scope: str) -> Iterator[GinBinding]:
    """Yield bindings of functions under a scope that is not the one asked for."""
    for each in config.bindings:
        if each.argument and each.function in functions and each.scope not in ("", scope):
            yield each
