"""The house rules: floors, sizes, names, docstrings, and what a command may load."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.sources import MODULES, PACKAGE, ROOT, nodes_of, text_of, tree_of

MODULE_CEILING = 600
FUNCTION_CEILING = 40

#: Functions or modules over their ceiling, each with the reason: `path` or `path:function`.
OVERSIZED: dict[str, str] = {}

#: Imports in code lines, at most; never raised. Who needs more names of a module than one line
#: holds imports the module: `imported.rule_line`.
IMPORT_CEILING = 0.085

#: Modules that one other of their folder uses and nothing else does, each with the reason.
FOR_ONE_SIBLING = {
    "programs.added": "what a compiler adds, apart from what a step costs",
    "compat.flax": "a drop-in for a library, which another one is written with",
    "jax_backend.stated_lines": "what one line computes; `stated` runs them in loops and trains",
    "jax_backend.step.blame": "why something is sent, apart from what is sent",
    "jax_backend.numbers.runs": "a run of a step, apart from which are compared",
    "jax_backend.numbers.where": "where values differ, apart from how runs are made and compared",
    "jax_backend.numbers.schedules": "pipelines, apart from values of one iteration",
    "jax_backend.numbers.rerun": "a program as it is run again, apart from which runs there are",
    "jax_backend.xla.padded": "what libtpu pads by how it is sharded, apart from simplification",
    "jax_backend.xla.simplified": "what XLA simplifies before it partitions, apart from processes",
    "programs.gathers": "one pass of libtpu's, with an idea and a source of its own",
    "programs.peak_kernels": "which values are in memory, apart from when",
    "programs.peak_heap": "where values are in memory, apart from when",
    "programs.peak_orders": "orders of dimensions in memory, apart from lives and buffers",
    "programs.peak_layouts": "which arrays XLA:GPU writes out in another order",
    "programs.peak_results": "which memory results take, apart from when they are made",
    "programs.peak_units": "orders of kernels, apart from what is alive in them",
    "programs.rewrites": "rules of compilers, apart from their order",
    "jax_backend.step.sums": "sums of a whole program, apart from what one operation does",
    "lsp.answers": "what answers questions, loaded behind the messages",
    "jax_backend.code_places": "values of other code, apart from what a resolver is asked for",
    "lints.checks.unnamed_array": "a finding, whose small arrays are another one",
    "arrays.orbax": "a format",
    "cli.diff": "a verb, whose sides `report --diff` shows",
    "arrays.safetensors": "a format",
    "cli.shells": "the words of each shell, apart from what is offered",
    "cli.curing": "what `search` does with code, which `init` does, too",
    "cure.idioms": "what a file calls constraints and where its names hold, apart from edits",
    "drafting.machines": "which machines and rules, apart from the text",
    "foreign.gin": "a language, as YAML is",
    "foreign.hf": "a format, which another one shares styles with",
    "foreign.maxtext_config": "MaxText's files, apart from what their rules mean",
    "foreign.maxtext_step": "what MaxText's models compute, apart from its rules",
    "jax_backend.cure.inserting": "lines put into a module, apart from what prices them",
    "jax_backend.cure.layouts": "which layouts values could have, apart from what is tried",
    "jax_backend.cure.rows": "what a program does along dimensions, apart from their names",
    "jax_backend.cure.worker": "processes, and what they price",
    "jax_backend.live": "what is asked of arrays that are there, apart from plans",
    "jax_backend.xla.child": "a process of its own, apart from those that start it",
    "language.document_to_layer": "one document, apart from the phases in it",
    "language.settings": "what-ifs, apart from the files",
    "language.yaml_text.faults": "what to say of a faulty text, apart from reading sound ones",
    "lints.checks.whole_batch": "a check",
    "lsp.completion": "what editors ask for",
    "lsp.hover": "what editors ask for",
    "lsp.server": "which texts are open, apart from what is asked about them",
    "programs.peak": "orders and lives, apart from what values are to a step",
    "report.state_text": "plans of state, apart from those of parameters",
    "report.step_pictures": "drawings of a step, apart from the page around them",
}

#: Folders of tests that have no folder of the package, each with the reason.
TESTS_OF_THE_WHOLE = {
    "cases": "whole specs with what the command line says of them",
    "data": "facts and files from elsewhere",
    "differential": "against other libraries",
    "fuzz": "random input to every entrance",
    "golden": "whole plans",
    "models": "models that tests train",
    "generated": "random steps, predicted and compiled",
    "mutations": "mistakes put into sound specs",
    "probe": "mistakes put into the code",
    "properties": "laws of several stages",
    "specs": "the files of specs/, which is no package",
}

#: Names that say nothing about what is in a file.
BANNED = {"utils", "util", "helpers", "helper", "common", "base", "manager", "handler", "misc"}

#: Verbs that touch no device, and what a run of each looks like.
LIGHT_RUNS = {
    "help": ["--help"],
    "compile": ["compile", "{spec}"],
    "cost": ["cost", "{spec}"],
    "explain": ["explain", "a/wi/kernel", "--spec", "{spec}"],
    "explain a finding": ["explain", "SHD301"],
    "check": ["check", "{spec}"],
    "fmt": ["fmt", "{spec}", "--to", "dsl"],
    "report": ["report", "{spec}"],
    "init": ["init", "--arrays", str(ROOT / "specs" / "arrays" / "gpt2.yaml"), "-o", "-"],
    "schema": ["schema"],
    "search": ["search", "{spec}"],
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def code_lines_of(path: Path) -> set[int]:
    return code_lines(text_of(path), nodes_of(path))


def code_lines(source: str, nodes: Iterable[ast.AST]) -> set[int]:
    """Return the numbers of the lines that hold code: no comments, docstrings or empty lines."""
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    idle = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    idle |= {tokenize.ENDMARKER, tokenize.ENCODING}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in idle:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


def oversized(path: Path) -> Iterator[str]:
    """Yield what is over its ceiling in one module."""
    lines = code_lines_of(path)
    name = path.relative_to(ROOT).as_posix()
    if len(lines) > MODULE_CEILING:
        yield name
    for function in nodes_of(path):
        if not isinstance(function, Function):
            continue
        end = function.end_lineno or function.lineno
        if len(lines & set(range(function.lineno, end + 1))) > FUNCTION_CEILING:
            yield f"{name}:{function.name}"


# floors


def test_contracts_hold() -> None:
    """Every contract of pyproject.toml, which also rules out cycles between the floors."""
    lint_imports = Path(sys.executable).with_name("lint-imports")
    command = [str(lint_imports), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@cache
def graph_of_imports() -> Any:
    import grimp

    return grimp.build_graph("shardspec", cache_dir=None)


def test_there_are_no_cycles() -> None:
    graph = graph_of_imports()
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert find_cycle(imports) is None


def test_a_cycle_would_be_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def find_cycle(imports: dict[str, set[str]]) -> list[str] | None:
    """Return modules that import each other in a circle, or None."""
    done: set[str] = set()

    def visit(module: str, above: list[str]) -> list[str] | None:
        if module in above:
            return [*above[above.index(module) :], module]
        if module in done:
            return None
        for inner in sorted(imports.get(module, ())):
            found = visit(inner, [*above, module])
            if found:
                return found
        done.add(module)
        return None

    return next((found for module in sorted(imports) if (found := visit(module, []))), None)


# sizes and names


def test_modules_and_functions_are_small() -> None:
    assert {name for path in MODULES for name in oversized(path)} <= set(OVERSIZED)


def test_exceptions_are_needed() -> None:
    needed = {name for path in MODULES for name in oversized(path)}
    assert set(OVERSIZED) == needed & set(OVERSIZED)
    assert all(OVERSIZED.values()), "each exception has its reason"


def test_the_ceiling_can_be_hit() -> None:
    body = "\n".join("    x = 1  # comment\n\n    # more" for _ in range(FUNCTION_CEILING))
    source = f'def f():\n    """Return nothing.\n\n    At all.\n    """\n{body}\n'
    assert len(code_lines(source, ast.walk(ast.parse(source)))) == FUNCTION_CEILING + 1


def test_no_file_has_an_empty_name() -> None:
    names = {path.stem for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]}
    folders = {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
    assert not (names | folders) & BANNED


def test_imports_are_a_small_share_of_the_code() -> None:
    imports = code = 0
    for path in MODULES:
        lines = code_lines_of(path)
        code += len(lines)
        for node in nodes_of(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
    assert 0 < imports / code <= IMPORT_CEILING


def test_no_module_is_for_one_sibling() -> None:
    """What only one neighbour uses stands in it, unless it is an idea of its own."""
    graph = graph_of_imports()
    alone = set()
    for module in graph.modules:
        users = [*graph.find_modules_that_directly_import(module)]
        folders = {each.rpartition(".")[0] for each in (module, *users)}
        if len(users) == len(folders) == 1 and not graph.find_children(module):
            alone.add(module.removeprefix("shardspec."))
    assert alone <= set(FOR_ONE_SIBLING)


def test_folders_of_tests_mirror_the_package() -> None:
    """Every floor has its folder; `tests/lints` holds checks and evidence, `tests/compat` T5X.

    Files are called after what they are about: a law, a format, a part of a module or several.
    """
    tests = ROOT / "tests"
    floors = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in floors if not list((tests / name).rglob("test_*.py"))} == set()
    tested = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    own = {folder for folder in tested if folder.parts and folder.parts[0] in floors}
    assert {folder for folder in own if not (PACKAGE / folder).is_dir()} == set()
    others = {folder.parts[0] for folder in tested - own if folder.parts}
    assert others <= set(TESTS_OF_THE_WHOLE)
    assert all((tests / name).is_dir() for name in TESTS_OF_THE_WHOLE)


# docstrings


def test_public_names_have_docstrings() -> None:
    """A module, too, says what it is for."""
    without, odd = [], []
    for path in MODULES:
        for node in (tree_of(path), *public_definitions(tree_of(path))):
            text = ast.get_docstring(node)
            name = f"{path.relative_to(PACKAGE)}: {getattr(node, 'name', 'the module')}"
            if not text:
                without.append(name)
            elif not text.splitlines()[0].endswith((".", ":")) and node is not tree_of(path):
                odd.append(f"{name}: {text.splitlines()[0]}")
    assert (without, odd) == ([], [])


def public_definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node)


def test_no_module_has_state() -> None:
    """A `global` statement, or a lower-case name that a module fills as it goes."""
    assert not [
        path for path in MODULES if any(isinstance(node, ast.Global) for node in nodes_of(path))
    ]


def test_no_module_names_an_absolute_path() -> None:
    assert not [path for path in MODULES if re.search(r"[\"'`]/[a-z]+/\w", text_of(path))]


#: Modules that write files which no user names, each with the reason.
WRITES_ITS_OWN = {
    "cli/lsp.py": "the protocol, to standard output",
    "cli/streams.py": "nothing, to the null device",
    "jax_backend/cure/again.py": "its answer, to standard output",
    "jax_backend/cure/worker.py": "its answers, to standard output",
    "jax_backend/xla/cache.py": "compiled programs, in the folder for caches",
    "jax_backend/xla/child.py": "what it makes, in a folder for one compile",
    "jax_backend/xla/compiling.py": "what the child is asked, in that folder",
    "jax_backend/measuring.py": "what the child is asked, in that folder",
}
WRITERS = {"write_text", "write_bytes", "mkstemp", "replace_file", "write_device"}


def writes_files(nodes: Iterable[ast.AST]) -> bool:
    """Say whether a module opens files for writing or calls what writes them."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        texts = [each.value for each in (*node.args[:2], *(k.value for k in node.keywords))
                 if isinstance(each, ast.Constant)]  # fmt: skip
        modes = {"w", "wb", "a", "ab", "x", "xb", "r+", "w+", "r+b", "w+b", "wt", "at"}
        if called in WRITERS or (called in ("open", "fdopen") and modes & set(map(str, texts))):
            return True
    return False


def test_one_module_writes_files() -> None:
    """It knows which files were read; `cli/streams.py` is the way to it."""
    found = {
        path.relative_to(PACKAGE).as_posix() for path in MODULES if writes_files(nodes_of(path))
    }
    assert found == {"language/writing.py", *WRITES_ITS_OWN}
    for text in (
        "from pathlib import Path\nPath('x').write_text('')",
        "with open('x', mode='w') as file: pass",
    ):
        assert writes_files(ast.walk(ast.parse(text)))


# what gets loaded

_PROBE = """
import sys
{body}
heavy = {{"jax", "jaxlib", "numpy", "flax", "optax", "orbax", "equinox"}}
loaded = sorted({{name.partition(".")[0] for name in sys.modules}} & heavy)
print("LOADED", *loaded, file=sys.stderr)
"""


def loaded_by(body: str) -> list[str]:
    """Return the heavy packages that are loaded after running `body` in a new process."""
    result = subprocess.run(
        [sys.executable, "-c", _PROBE.format(body=body)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=120,
    )
    last = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""
    assert last.startswith("LOADED"), result.stderr
    return last.split()[1:]


def test_the_probe_can_fail() -> None:
    assert "numpy" in loaded_by("import numpy")
    assert "jax" in loaded_by("import jax")


@pytest.mark.parametrize("module", ["shardspec", "shardspec.cli.main", "shardspec.public"])
def test_import_loads_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}") == []


@pytest.mark.parametrize("run", LIGHT_RUNS)
def test_light_verbs_load_nothing_heavy(run: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "mesh: {model: 4}\nhardware: tpu v5e 2x2\nrules: [mlp -> model]\n"
        "arrays: {a/wi/kernel: 'bf16[embed=64 mlp=128]'}\naxes: {batch: 8, embed: 64, mlp: 128}\n"
        "step: {program: ['x[batch embed], \"**/kernel\" -> y']}\n",
        encoding="utf-8",
    )
    arguments = [argument.format(spec=spec) for argument in LIGHT_RUNS[run]]
    body = f"""
from shardspec.cli.main import main
sys.argv = ["shardspec", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
"""
    assert loaded_by(body) == []


def modules_of(*arguments: str) -> set[str]:
    """Return the modules that a run of the command line loads."""
    body = f"""
import sys
from shardspec.cli.main import main
sys.argv = ["shardspec", *{arguments!r}]
try:
    main()
finally:
    print("", *sys.modules, file=sys.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", body],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    return set(result.stderr.splitlines()[-1].split())


def test_a_page_is_read_without_the_checks() -> None:
    loaded = modules_of("explain", "SHD301")
    assert {name for name in loaded if "lints." in name} == {"shardspec.lints.registry"}


def test_lark_makes_the_tables_and_no_verb_loads_it(tmp_path: Path) -> None:
    rare = tmp_path / "spec.yaml"
    rare.write_text("mesh: {model: 2}\nrules: [mlp->model]\narrays: {a: 'f32[mlp=4]'}\n", "utf-8")
    loaded = modules_of("explain", "a", "--spec", str(rare))
    assert "shardspec.language.grammar.parser" in loaded
    assert "lark" not in loaded


def test_schema_and_findings_pages_need_no_parser() -> None:
    body = "import shardspec.cli.main\nprint(*sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\n{body}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert not {"pydantic", "lark", "yaml", "re2", "rich"} & set(result.stdout.split())
