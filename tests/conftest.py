"""Eight CPU devices, the depth of property tests, and `--update-cases`.

Depths: `ci`, the usual one; `nightly`, where each property is tried for 20 seconds; `pythons`,
where versions are tried and not strategies; `probe`, where mutants are.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings
from jaxlib import xla_client

from tests import warm
from tests.versions_of_jax import QUICK_FLAGS

_FLAG = "--xla_force_host_platform_device_count=8"
# The flag only counts before JAX starts.
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A program that a test compiles for the CPU runs a few times: making it fast takes longer than
# that. XLA reads its flags once, at the first question; processes that tests start get the variable
# as it was.
_stated = os.environ["XLA_FLAGS"]
os.environ["XLA_FLAGS"] = f"{_stated} {QUICK_FLAGS}"
xla_client.CompileOptions()
os.environ["XLA_FLAGS"] = _stated

# Tests are of the model, in seconds, unless they ask for a compiler.
os.environ.setdefault("SHARDSPEC_BASIS", "model")

# Where the environment forbids compiled modules to be kept, each worker and each process that a
# test starts would compile the package again: a third of the time of a short command.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A loaded machine must not add a line of progress to what a test compares.
os.environ.setdefault("SHARDSPEC_PROGRESS", "never")

# `make test` installs the compiler for GPUs beside the environment, and not into it.
_COMPILER = Path(__file__).parent.parent / ".venv" / "gpu-compiler"
if any(_COMPILER.glob("jax_cuda12_plugin*")):
    os.environ.setdefault("SHARDSPEC_GPU_COMPILER", str(_COMPILER))

#: Modules of a model in a folder of its own, which is where they are imported.
collect_ignore = ["models/helped"]

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile(
    "pythons",  # too few examples to judge a strategy by those that it filters out
    max_examples=10,
    deadline=None,
    suppress_health_check=(*_SLOW, HealthCheck.filter_too_much),
)
settings.register_profile("ci", max_examples=100, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("nightly", max_examples=200, deadline=None, suppress_health_check=_SLOW)
settings.register_profile(
    "probe",  # a mutant of the code: the same examples each time, and none made smaller
    derandomize=True,
    deadline=None,
    suppress_health_check=_SLOW,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-cases`, which rewrites the output blocks of the golden cases; `--seconds`."""
    parser.addoption("--update-cases", action="store_true", help="rewrite tests/cases outputs")
    seconds, told = 20.0 * IS_NIGHTLY, "try each property with new examples for this long"
    parser.addoption("--seconds", type=float, default=seconds, help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the deep runs out, unless the nightly profile asks for them."""
    if IS_NIGHTLY:
        return
    skip = pytest.mark.skip(reason="HYPOTHESIS_PROFILE=nightly runs it")
    for item in items:
        if "nightly" in item.keywords:
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a property again, with new examples, until its seconds are over.

    By examples alone, as many as find something take hours: some properties try 1,000 a second
    and some 10.
    """
    ends = time.monotonic() + item.config.getoption("--seconds")
    yield
    while time.monotonic() < ends and is_hypothesis_test(getattr(item, "obj", None)):
        item.runtest()


@pytest.fixture(autouse=True, scope="session")
def _processes_are_forked() -> Iterator[None]:
    """Start processes of the package by a fork, in fixtures of modules, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", warm.Popen)
        yield
    warm.end()


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each process anew where a test is of its start and its end."""
    if request.node.get_closest_marker("fresh"):
        monkeypatch.setattr(warm.Popen, "is_warm", False)


@pytest.fixture(autouse=True)
def _programs_of_a_test_are_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test imports from its folder: another has a `train.py` too."""
    before = set(sys.modules)
    yield
    folders = tmp_path_factory.getbasetemp()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(folders):
            del sys.modules[name]
