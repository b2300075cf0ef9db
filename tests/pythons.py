"""The tests on every Python that is supported, with the oldest and the newest dependencies.

    python -m tests.pythons                      # 3.11, 3.12 and 3.13, oldest and newest
    python -m tests.pythons 3.12-newest          # one corner
    python -m tests.pythons --paths tests/compat # a part of the tests in each

A corner has an environment of its own in `.venv/pythons`, made once and kept. In an oldest one
each requirement of `pyproject.toml` is at the lowest version that it allows, in a newest one at the
latest that pip finds for that Python; libtpu is the one that its jax names. An interpreter is
looked for on PATH, below PYENV_ROOT, and in `~/.pyenv`; one that is not there is skipped, and said.

Property tests draw ten examples here: what a corner may break is no matter of depth.

Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
AGES = ("oldest", "newest")
CORNERS = tuple(f"{python}-{age}" for python in PYTHONS for age in AGES)

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?>=([0-9.]+)(\s*;.*)?")


def requirements(project: dict[str, Any]) -> list[str]:
    """Return what the package and its extras require.

    The compiler for GPUs makes every JAX beside it complain where there is no GPU: without it.
    """
    optional = project["optional-dependencies"]
    extras = [needed for name, needed in optional.items() if name != "gpu-aot"]
    return [*project["dependencies"], *(each for extra in extras for each in extra)]


def pinned(requirement: str, age: str) -> str:
    """Return a requirement at its lowest version, or as it is for the newest.

    >>> pinned("flax>=0.12.1", "oldest"), pinned("flax>=0.12.1", "newest")
    ('flax==0.12.1', 'flax>=0.12.1')
    >>> pinned("jax>=0.10.0", "newest")
    'jax[tpu]>=0.10.0'
    """
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} does not say its lowest version by `>=`")
    name, _, version, marker = found.groups()
    if name == "libtpu":
        version = f"{version}, <1"  # which one is jax's to say
        return f"{name}>={version}{marker or ''}"
    name = "jax[tpu]" if name == "jax" and sys.platform == "linux" else name
    return f"{name}{'==' if age == 'oldest' else '>='}{version}{marker or ''}"


def wanted(age: str) -> list[str]:
    """Return what pip is asked for: the package's requirements at an age, and the tests' own.

    What builds the site of the documentation is no matter of versions, and is left out.
    """
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    own = [each for each in table["dependency-groups"]["test"] if isinstance(each, str)]
    return [pinned(each, age) for each in requirements(table["project"])] + own


def interpreters(python: str) -> Iterator[str]:
    """Yield where an interpreter of this version may be, the likeliest first."""
    on_path = shutil.which(f"python{python}")
    if on_path:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or os.environ.get("PYENV") or "~/.pyenv")
    for folder in sorted((pyenv.expanduser() / "versions").glob(f"{python}.*"), reverse=True):
        yield str(folder / "bin" / "python")


def interpreter(python: str) -> str | None:
    """Return an interpreter that runs and is of this version, None where there is none."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in interpreters(python):
        said = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.strip() == python:
            return candidate
    return None


def made(corner: str, python: str) -> Path:
    """Return the interpreter of a corner's environment, made if it is not there or out of date."""
    folder = ROOT / ".venv" / "pythons" / corner
    inside, stamp = folder / "bin" / "python", folder / "asked-for.txt"
    asked = "\n".join(wanted(corner.partition("-")[2]))
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != asked:
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(inside), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
        subprocess.run([*pip, *asked.split("\n")], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
        stamp.write_text(asked, encoding="utf-8")
    return inside


def run(corner: str, paths: Sequence[str]) -> str:
    """Return what one corner came to: the last line of pytest, and how long it took."""
    version = corner.partition("-")[0]
    python = interpreter(version)
    if python is None:
        return f"SKIPPED: no Python {version} on PATH, in PYENV_ROOT or in ~/.pyenv"
    started = time.monotonic()
    try:
        inside = made(corner, python)
    except subprocess.CalledProcessError as error:
        return f"FAILED: {' '.join(error.cmd[1:5])} ended with {error.returncode}"
    command = [str(inside), "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *paths]
    environment = {"HYPOTHESIS_PROFILE": "pythons", **os.environ}
    tests = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    last = ""
    for line in tests.stdout or ():
        print(line, end="", flush=True)
        last = line.strip() or last
    verdict = "passed" if tests.wait() == 0 else "FAILED"
    return f"{verdict}: {_jax(inside)}: {last} ({(time.monotonic() - started) / 60:.0f} min)"


def _jax(inside: Path) -> str:
    ask = (
        "import importlib.metadata as m; print('jax', m.version('jax'), 'flax', m.version('flax'))"
    )
    said = subprocess.run([str(inside), "-c", ask], capture_output=True, text=True, check=False)
    return said.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the corners, print a line for each at the end, and return 1 where one has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corners", nargs="*", metavar="CORNER", help=f"of {', '.join(CORNERS)}")
    parser.add_argument("--paths", nargs="+", default=[], help="the tests to run; all by default")
    options = parser.parse_args(arguments)
    unknown = [each for each in options.corners if each not in CORNERS]
    if unknown:
        parser.error(f"no corner {', '.join(unknown)}; there are {', '.join(CORNERS)}")
    verdicts = {}
    for corner in options.corners or CORNERS:
        print(f"== {corner}", flush=True)
        verdicts[corner] = run(corner, options.paths)
        print(f"== {corner}: {verdicts[corner]}", flush=True)
    print("\n".join(["", *(f"{corner:<12} {said}" for corner, said in verdicts.items())]))
    if all(said.startswith("SKIPPED") for said in verdicts.values()):
        print("no interpreter was found: nothing was tested")
        return 1
    return int(any(said.startswith("FAILED") for said in verdicts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
