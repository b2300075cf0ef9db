"""How a file spells sharding constraints, and which spelling works at a place in it.

A name is only used where Python would find the same thing there: each scope has the names that it
binds, and a name is looked up as Python does, from the innermost scope outwards, past classes.
Nothing is run or imported.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

_LOGICAL = "with_logical_constraint"
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Scope = ast.Module | ast.ClassDef | _Function | _Comprehension
#: Parts of expressions that have no place of their own: Python shares one node for all of them.
_SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
#: Where a name is bound in several ways, the first of these counts.
_KINDS = ("self", "parameter", "assigned", "imported", "other")


class Idiom(NamedTuple):
    """A function that constrains a value by logical axes, as one file spells it.

    Attributes:
      callee: `resolver.constrain`, say.
      takes_tuple: whether axes are a tuple of names, as in Flax, and not one string.
      needs_import: whether `import shardspec` is missing.
    """

    callee: str
    takes_tuple: bool = False
    needs_import: bool = False

    def axes(self, names: str) -> str:
        """Return the Python literal for logical axes like `batch _ embed`."""
        if not self.takes_tuple:
            return json.dumps(names, ensure_ascii=False)
        each = [
            "None" if name == "_" else json.dumps(name, ensure_ascii=False)
            for name in names.split()
        ]
        return f"({', '.join(each)}{',' if len(each) == 1 else ''})"


class Binding(NamedTuple):
    """What a name means in a scope.

    Attributes:
      kind: one of `self` (the first parameter of a method), `parameter`, `assigned`, `imported`
        and `other`, as of a loop, a class or a constant.
      line: the first line that binds it so.
    """

    scope: ast.AST
    kind: str
    line: int


class Beside(NamedTuple):
    """A place for an import: behind the line of a statement, or before it.

    Attributes:
      has_gap: whether an empty line goes between.
    """

    statement: ast.stmt
    is_before: bool = False
    has_gap: bool = False


class Code:
    """A parsed file: what each node is part of, and the constraints that are there already.

    Attributes:
      nodes: all nodes in the order of the text. Those in f-strings are left out, since Python
        3.11 gives them places that are not theirs.
      parents: what each node is part of, and the field that holds it.
    """

    def __init__(self, tree: ast.Module) -> None:
        """Walk the tree once; it may be deeper than Python's stack."""
        self.tree = tree
        self.nodes: list[ast.AST] = []
        self.parents: dict[ast.AST, tuple[ast.AST, str]] = {}
        self._bound: dict[ast.AST, dict[str, Binding]] = {}
        stack: list[ast.AST] = [tree]
        while stack:
            node = stack.pop()
            self.nodes.append(node)
            if isinstance(node, ast.JoinedStr):
                continue
            inner = [(child, field) for field, child in _children(node)]
            self.parents.update((child, (node, field)) for child, field in inner)
            stack.extend(child for child, _ in reversed(inner))
        #: By dotted name, what it means at each call of its `constrain`; the same for Flax.
        self._said: dict[tuple[str, ...], set[Binding]] = {}
        self._logical: dict[tuple[str, ...], set[Binding]] = {}
        self._note_calls()

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains an expression, or is it."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node][0]
        return node

    def idiom_at(self, node: ast.AST, *, is_own: bool = False) -> Idiom | str:
        """Return the spelling to use at a place, or why there is none.

        Args:
          is_own: whether only shardspec's own functions will do.
        """
        for binding, dotted in self._resolvers_at(node):
            if self._is_bound_before(binding, node):
                return Idiom(".".join((*dotted, "constrain")))
        for dotted, said in self._logical.items() if not is_own else ():
            if self._meaning(dotted[0], node) in said:
                return Idiom(".".join(dotted), takes_tuple=True)
        return self._own_at(node)

    def beside_imports(self) -> Beside:
        """Return where `import shardspec` goes: to the other packages, below the standard ones."""
        body = self.tree.body
        blocks = list(_import_blocks(body))
        outside = [block for block in blocks if any(map(_is_third_party, block))]
        with_jax = [block for block in outside if any("jax" in _roots(each) for each in block)]
        if block := next(iter(with_jax or outside), None):
            plain = [each for each in block if isinstance(each, ast.Import)]
            if plain:
                return Beside(self._end_of_line(plain[-1]))
            first = next(each for each in block if "__future__" not in _roots(each))
            return Beside(first, is_before=True)
        if blocks:
            return Beside(self._end_of_line(blocks[-1][-1]), has_gap=True)
        if ast.get_docstring(self.tree, clean=False) is not None:
            return Beside(self._end_of_line(body[0]), has_gap=True)
        return Beside(body[0], is_before=True, has_gap=True)

    def _note_calls(self) -> None:
        aliases = {
            alias.asname or alias.name
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name == _LOGICAL
        }
        for node in self.nodes:
            if not isinstance(node, ast.Call) or not (dotted := _dotted(node.func)):
                continue
            binding = self._meaning(dotted[0], node)
            if binding is None:
                continue
            if dotted[-1] == "constrain" and len(dotted) > 1 and _takes_names(node):
                self._said.setdefault(dotted[:-1], set()).add(binding)
            elif binding.kind == "imported" and (
                dotted[-1] == _LOGICAL or (len(dotted) == 1 and dotted[0] in aliases)
            ):
                self._logical.setdefault(dotted, set()).add(binding)

    def _resolvers_at(self, node: ast.AST) -> Iterator[tuple[Binding, tuple[str, ...]]]:
        """Yield the resolvers in scope, first those that the file itself uses."""
        later = []
        for dotted, said in self._said.items():
            binding = self._meaning(dotted[0], node)
            if binding is None:
                continue
            if binding.kind == "self":
                if self._class_uses(binding, dotted[0], (*dotted, "constrain")[1]):
                    yield binding, dotted
            elif binding in said:
                yield binding, dotted
            elif binding.kind in {each.kind for each in said} & {"parameter", "assigned"} and (
                len(dotted) == 1 or _reads_attributes(binding.scope, dotted[0])
            ):
                later.append((binding, dotted))
        yield from later
        binding = self._meaning("resolver", node)
        if binding is not None and binding.kind in ("parameter", "assigned", "imported"):
            yield binding, ("resolver",)

    def _own_at(self, node: ast.AST) -> Idiom | str:
        binding = self._meaning("shardspec", node)
        for statement in self.tree.body:
            for alias in statement.names if isinstance(statement, ast.Import) else ():
                name = alias.asname or alias.name.partition(".")[0]
                is_whole = alias.name == "shardspec" or not alias.asname
                if alias.name.partition(".")[0] != "shardspec" or not is_whole:
                    continue
                meaning = self._meaning(name, node)
                if meaning is not None and meaning[:2] == (self.tree, "imported"):
                    return Idiom(f"{name}.constrain")
        if binding is None or binding[:2] == (self.tree, "imported"):
            return Idiom("shardspec.constrain", needs_import=True)
        if binding.kind == "imported" and self._is_bound_before(binding, node):
            return Idiom("shardspec.constrain")
        return "the name `shardspec` means something else there"

    def _is_bound_before(self, binding: Binding, node: ast.AST) -> bool:
        """Say whether a name has its value by then; one of a scope further out has."""
        if binding.kind in ("self", "parameter"):
            return True
        scopes = [each for each in self._scopes(node) if not isinstance(each, _Comprehension)]
        return binding.scope is not scopes[0] or binding.line < self.statement_of(node).lineno

    def _class_uses(self, binding: Binding, name: str, attribute: str) -> bool:
        """Say whether the class of a method has a field of that name, or reads or sets it."""
        owner = self.parents[binding.scope][0]
        assert isinstance(owner, ast.ClassDef)
        if any(attribute in _fields(statement) for statement in owner.body):
            return True
        return any(
            isinstance(each, ast.Attribute) and _dotted(each) == (name, attribute)
            for each in ast.walk(owner)
        )

    def _meaning(self, name: str, node: ast.AST) -> Binding | None:
        """Return what a name means at a node; None where only another module could say."""
        for depth, scope in enumerate(self._scopes(node)):
            if not (depth and isinstance(scope, ast.ClassDef)):
                found = self._names(scope).get(name)
                if found is not None:
                    return found
        return None

    def _scopes(self, node: ast.AST) -> Iterator[_Scope]:
        """Yield the scopes around a node, the innermost first.

        Decorators, defaults and annotations are in the scope around their function.
        """
        while node in self.parents:
            node, field = self.parents[node]
            if isinstance(node, _Comprehension | ast.Module) or (
                isinstance(node, _Function | ast.ClassDef) and field == "body"
            ):
                yield node

    def _names(self, scope: _Scope) -> dict[str, Binding]:
        if scope not in self._bound:
            self._bound[scope] = self._find_names(scope)
        return self._bound[scope]

    def _find_names(self, scope: _Scope) -> dict[str, Binding]:
        names: dict[str, Binding] = {}
        elsewhere: set[str] = set()
        for node in _of_scope(scope):
            if isinstance(node, ast.Global | ast.Nonlocal):
                elsewhere.update(node.names)
            for name, kind in _binds(node):
                line = getattr(node, "lineno", 0)
                old = names.get(name, Binding(scope, "other", sys.maxsize))
                best = min(kind, old.kind, key=_KINDS.index)
                lines = [line] * (kind == best) + [old.line] * (old.kind == best)
                names[name] = Binding(scope, best, min(lines))
        for name, kind in self._parameters(scope):
            names[name] = Binding(scope, kind, 0)
        return {name: each for name, each in names.items() if name not in elsewhere}

    def _parameters(self, scope: _Scope) -> Iterator[tuple[str, str]]:
        if not isinstance(scope, _Function):
            return
        given = scope.args
        for at, each in enumerate([*given.posonlyargs, *given.args, *given.kwonlyargs]):
            yield each.arg, "self" if at == 0 and self._is_method(scope) else "parameter"
        for extra in (given.vararg, given.kwarg):
            if extra is not None:
                yield extra.arg, "other"

    def _is_method(self, scope: _Function) -> bool:
        if isinstance(scope, ast.Lambda) or not isinstance(self.parents[scope][0], ast.ClassDef):
            return False
        return not any(_dotted(each) == ("staticmethod",) for each in scope.decorator_list)

    def _end_of_line(self, statement: ast.stmt) -> ast.stmt:
        """Return the last statement of the line on which one ends."""
        for after in self.tree.body[self.tree.body.index(statement) + 1 :]:
            if after.lineno != statement.end_lineno:
                break
            statement = after
        return statement


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST) and not isinstance(child, _SHARED):
                yield field, child


def _of_scope(scope: _Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of the scopes inside it."""
    if isinstance(scope, _Comprehension):
        stack: list[ast.AST] = [each.target for each in scope.generators]
    else:
        stack = [*scope.body] if isinstance(scope.body, list) else [scope.body]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.comprehension):  # only its walruses bind names here
            stack += [node.iter, *node.ifs]
        elif not isinstance(node, _Function | ast.ClassDef):
            stack += [child for _, child in _children(node)]


def _binds(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that one node binds, with their kinds."""
    match node:
        case ast.Assign(targets=targets, value=value):
            kind = "other" if isinstance(value, ast.Constant) else "assigned"
            yield from ((each.id, kind) for each in targets if isinstance(each, ast.Name))
        case (
            ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            | ast.NamedExpr(target=ast.Name(id=name), value=value)
        ):
            yield name, "other" if isinstance(value, ast.Constant) else "assigned"
        case ast.Import() | ast.ImportFrom():
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], "imported"
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name, "other"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name, "other"
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name, "other"
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name, "other"


def _dotted(node: ast.expr) -> tuple[str, ...]:
    """Return `a.b.c` as a tuple, or an empty one for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _takes_names(call: ast.Call) -> bool:
    """Say whether a call of `constrain` passes names, as `Resolver.constrain` takes them."""
    if len(call.args) == 2:
        return not isinstance(call.args[1], ast.Call | ast.Starred)
    return len(call.args) == 1 and any(
        each.arg in ("names", "activation") for each in call.keywords
    )


def _reads_attributes(scope: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Attribute) and _dotted(each)[:1] == (name,) for each in ast.walk(scope)
    )


def _fields(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.AnnAssign):
        return [target.id for target in (statement.target,) if isinstance(target, ast.Name)]
    return [name for name, _ in _binds(statement)] if isinstance(statement, ast.Assign) else []


def _import_blocks(body: list[ast.stmt]) -> Iterator[list[ast.Import | ast.ImportFrom]]:
    """Yield runs of imports with no line between them."""
    block: list[ast.Import | ast.ImportFrom] = []
    for statement in body:
        if block and statement.lineno > (block[-1].end_lineno or 0) + 1:
            yield block
            block = []
        if isinstance(statement, ast.Import | ast.ImportFrom):
            block.append(statement)
    if block:
        yield block


def _roots(statement: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(statement, ast.ImportFrom):
        return {(statement.module or "").partition(".")[0]} if not statement.level else {""}
    return {alias.name.partition(".")[0] for alias in statement.names}


def _is_third_party(statement: ast.Import | ast.ImportFrom) -> bool:
    return bool(_roots(statement) - sys.stdlib_module_names - {"", "__future__"})
