"""What checking a stranger's spec may not do: docs/security.md, sentence by sentence.

Git has its tests in language/test_revisions.py, quoting in language/test_boundary.py, streams
in cli/test_streams.py.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import MODULES, PACKAGE, ROOT, nodes_of

#: Modules that make code out of data.
UNPICKLERS = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "joblib", "dill", "cloudpickle"}
#: Names of functions that do, wherever they come from.
RUNNERS = {"eval", "exec", "compile", "__import__", "execfile", "loads_pickle", "unsafe_load"}
#: The modules that may start a process or import by a name that is not their own.
STARTERS = {
    *("language/files.py", "language/regex.py"),
    "jax_backend/xla/compiling.py",  # `verify --step`, which a person asks for
    *("jax_backend/cure/again.py", "jax_backend/cure/worker.py"),  # `search --step`, likewise
}
#: What processes of ours send each other over pipes that nobody else has, where a person names
#: code to run; the command line reaches them by `--step` alone.
BETWEEN_OURS = {f"jax_backend/cure/{name}.py" for name in ("again", "worker")}
IMPORTERS = {"jax_backend/entry_point.py"}
#: What else is imported by name: our own public names, parts of `re`, extras.
KNOWN_IMPORTS = {"_HOMES[name]", "'re._parser'", "'re._constants'", "package", "module"}
OWN = r"f?'(shardspec\b|\{__package__\}\.)"

VERBS = (
    "check spec.yaml",
    "check .",
    "check --fix --unsafe-fixes spec.yaml",
    "compile spec.yaml",
    "cost spec.yaml",
    "explain a/kernel --spec spec.yaml",
    "explain rules",
    "fmt --to dsl spec.yaml",
    "fmt --diff spec.shard",
    "lock spec.yaml",
    "lock --check spec.yaml",
    "diff spec.lock spec.yaml",
    "manifest arrays.npz",
    "init --arrays arrays.npz -o -",
    "export flax spec.yaml --lossy",
    "mesh spec.yaml",
    "schema",
)
SPEC = """\
shardspec: 1
extends: ./base.yaml
mesh: {data: 2, model: 2}
manifest: [./arrays.npz, ./pickled.npz, ./model.pt, "models:init"]
params:
  "**/kernel": embed mlp
"""


Nodes = tuple[ast.AST, ...]


def modules() -> list[tuple[str, Nodes]]:
    return [(path.relative_to(PACKAGE).as_posix(), nodes_of(path)) for path in MODULES]


def imported(nodes: Nodes) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0], *(a.name for a in node.names)}
    return found


def called(nodes: Nodes) -> set[str]:
    return {
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    }


def test_nothing_is_unpickled() -> None:
    for name, nodes in modules():
        assert not imported(nodes) & UNPICKLERS or name in BETWEEN_OURS, name
        for node in nodes:
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), name
                assert node.value.value is False, name


def test_the_search_would_find_it() -> None:
    text = "import pickle as p\nfrom lark.utils import pickle\np.loads(eval('x'))"
    nodes = (*ast.walk(ast.parse(text)),)
    assert imported(nodes) >= {"pickle"}
    assert called(nodes) >= {"eval", "loads"}


def test_nothing_of_a_file_is_evaluated() -> None:
    for name, nodes in modules():
        own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        builtin = {
            node.func.id
            for node in nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not (builtin & RUNNERS) - own, name
        assert "unsafe_load" not in called(nodes), name


def test_who_may_start_a_process() -> None:
    starters = {name for name, nodes in modules() if "subprocess" in imported(nodes)}
    assert starters == STARTERS
    for name, nodes in modules():
        if name not in STARTERS:
            assert not called(nodes) & {"system", "popen", "Popen", "spawnv", "execv"}, name


def test_the_child_for_regexes_imports_nothing_of_this_folder() -> None:
    """It is our own Python with a program of ours, isolated; patterns and paths are its input."""
    source = (PACKAGE / "language/regex.py").read_text(encoding="utf-8")
    assert '[sys.executable, "-I", "-S", "-c", _CHILD]' in source


def test_who_may_import_what_a_person_names() -> None:
    """Elsewhere what is imported is a constant, or a module of ours from a table of ours."""
    for name, nodes in modules():
        if name in IMPORTERS:
            continue
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
                asked = ast.unparse(node.args[0])
                assert asked in KNOWN_IMPORTS or re.match(OWN, asked), f"{name}: {asked}"


#: Runs the verbs and says what was opened, started, unpickled or connected to.
WATCHED = """
import os, sys
seen = []
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        mode = arguments[1] or ""
        flags = arguments[2] or 0
        writes = any(c in mode for c in "wax+") or flags & (os.O_WRONLY | os.O_RDWR)
        seen.append(("write" if writes else "read", os.path.abspath(arguments[0])))
    elif event in ("pickle.find_class", "socket.connect", "subprocess.Popen", "os.system"):
        seen.append((event, str(arguments)))
    elif event in ("os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "ctypes.dlopen"):
        seen.append((event, str(arguments)))
from shardspec.cli.main import cli
sys.addaudithook(watch)
try:
    cli.main(sys.argv[1:], standalone_mode=False)
except SystemExit:
    pass
except BaseException as error:
    seen.append(("raised", repr(error)))
with os.fdopen(os.dup(2), "w") as out:
    for each in seen:
        out.write("SEEN %s %s\\n" % each)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pickle
    import zipfile

    import numpy

    folder = tmp_path_factory.mktemp("strange")
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "base.yaml").write_text("rules:\n  - embed -> data\n  - mlp -> model\n")
    (folder / "spec.shard").write_text("shardspec 1\nrules{embed->data}\n")
    (folder / "models.py").write_text("open('ran', 'w')\n\ndef init():\n    open('ran', 'w')\n")
    (folder / "shardspec_plugin.py").write_text("open('ran', 'w')\n")
    (folder / "conftest.py").write_text("open('ran', 'w')\n")
    numpy.savez(folder / "arrays.npz", **{"a/kernel": numpy.zeros((4, 8), "float32")})
    payload = pickle.dumps(Payload())
    (folder / "model.pt").write_bytes(payload)
    numpy.savez(folder / "objects.npz", x=numpy.array([{}], dtype=object))
    with zipfile.ZipFile(folder / "pickled.npz", "w") as archive:
        archive.writestr("data.pkl", payload)
    for cache in (".cache", "cache", "~/.cache"):
        (folder / cache / "shardspec").mkdir(parents=True)
        (folder / cache / "shardspec" / "names.lalr").write_bytes(payload)
    return folder


class Payload:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (open, ("ran", "w"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("home", ["", ".", "strange"])
def test_verbs_read_what_they_are_told_and_run_nothing(
    folder: Path, verb: str, home: str, tmp_path: Path
) -> None:
    if home and verb not in ("check spec.yaml", "fmt --diff spec.shard"):
        pytest.skip("the home folder is looked at by none or by all")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if home:
        environment["HOME"] = home
    before = {path for path in folder.rglob("*") if path.is_file()}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", WATCHED, *verb.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seen = [line.split(" ", 2)[1:] for line in ran.stderr.splitlines() if line.startswith("SEEN ")]
    assert seen, ran.stderr
    assert not [each for each in seen if each[0] not in ("read", "write")]
    assert not [what for how, what in seen if "cache" in Path(what).parts[:-1] and how == "read"]
    written = {Path(what) for how, what in seen if how == "write"} - {Path(os.devnull)}
    assert {path.parent for path in written} <= {folder}
    if not verb.startswith(("lock spec", "check --fix")):
        assert not written
    after = {path for path in folder.rglob("*") if path.is_file()}
    assert after - before <= {folder / "spec.lock"}
    assert not (folder / "ran").exists()


def test_only_python_itself_runs_a_module_of_this_folder(tmp_path: Path) -> None:
    """`python -m` does, which docs/security.md leaves to the user; the script and `-P` do not."""
    (tmp_path / "re.py").write_text("open('ran', 'w')\nraise SystemExit\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = Path(sys.executable).with_name("shardspec")
    for command in ([sys.executable, "-P", "-m", "shardspec"], [str(script)]):
        asked = [*command, "schema", "--versions"]
        done = subprocess.run(asked, cwd=tmp_path, env=environment, check=False)
        assert done.returncode == 0
        assert not (tmp_path / "ran").exists()
    subprocess.run([sys.executable, "-m", "shardspec"], cwd=tmp_path, env=environment, check=False)
    assert (tmp_path / "ran").exists()
