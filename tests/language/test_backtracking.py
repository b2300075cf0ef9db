"""What runs under `re` answers as `re` does, within a budget, and is said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.cli.main import cli
from shardspec.ir.spec import Pattern
from shardspec.language import regex as backtracking
from shardspec.language.regex import backtracking_matches, compile_regex, ran_out
from shardspec.resolve.match import PathMatcher

CATASTROPHES = (r"(?!x)(a|a)*b", r"(a+)+\1b", r"(?=a)(a?){40}a{40}c", r"((?:a|a)*)*(?<!a)c")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch):
    """Give each test a process of its own, with its own memory and a short budget."""
    asker = backtracking._Asker()
    asker.seconds = 0.05
    monkeypatch.setattr(backtracking, "_asker", lambda: asker)
    backtracking._asked.cache_clear()
    yield asker
    asker.close()
    backtracking._asked.cache_clear()


@given(
    st.sampled_from([r"(.)/\1", r"(?!a).*", r"a(?=/)/.*", r"(?>a|é)+", "(?<!\n)x", r"(?i)(é)\1"]),
    st.text("aéÉ/x\n\ud800\udc00", max_size=6),
)
def test_answers_are_those_of_re(text: str, path: str) -> None:
    assert backtracking_matches(text, path) == (re.fullmatch(text, path) is not None)


@pytest.mark.parametrize("text", CATASTROPHES)
def test_a_catastrophe_ends(text: str) -> None:
    path = "a" * 60
    began = time.process_time()
    assert not compile_regex(text).matches(path)
    assert time.process_time() - began < 5, "this process does not do the work"
    assert ran_out() == {text: path}
    assert not backtracking_matches(text, "b"), "it is not asked again"
    assert backtracking_matches(r"(a)\1", "aa"), "others are"


def test_each_that_runs_out_halves_the_budget(fresh) -> None:
    for number in range(20):
        backtracking_matches(f"(?!{number})(a|a)*b", "a" * 60)
    assert len(ran_out()) == 20
    assert fresh.seconds == backtracking._LEAST_SECONDS


def test_what_has_ended_is_started_again(fresh) -> None:
    assert backtracking_matches(r"(a)\1", "aa")
    fresh.process.kill()
    fresh.process.wait()
    backtracking_matches(r"(b)\1", "bb")
    assert backtracking_matches(r"(c)\1", "cc")


def test_no_python_to_start_is_a_pattern_out_of_time(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert not backtracking_matches(r"(a)\1", "aa")
    assert ran_out() == {r"(a)\1": "aa"}


def test_many_threads_ask_at_once() -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        for other in range(20):
            path = f"{number}/{other}"
            if backtracking_matches(rf"({number})/\1", path) != (number == other):
                wrong.append(path)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_process_that_was_forked_asks_one_of_its_own() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    code = (
        "import os\n"
        "from shardspec.language.regex import backtracking_matches as m\n"
        "assert m(r'(a)\\1', 'aa')\n"
        "child = os.fork()\n"
        "right = all(m(r'(.+)/\\1', f'{n}/{n}') for n in range(50))\n"
        "if child == 0: os._exit(0 if right else 1)\n"
        "assert right and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_regex_that_runs_under_re_on_a_path_is_said() -> None:
    path, regex = "größe/w", r"\w+/.*"
    assert compile_regex(regex).engine == "re2"
    text = (
        "shardspec: 1\nmesh: {tensor: 4}\nrules:\n  - mlp -> tensor\n"
        f"params:\n  're:{regex}': _ mlp\narrays:\n  {path}: 'bf16[64, 128]'\n"
    )
    spec, faults = _loaded(text)
    plans = pipeline.compile_plans(spec)
    findings = pipeline.checked(spec, faults, plans).shown
    said = [d for d in findings if d.code.id == "SHD207"]
    assert r"RE2 does not read 'gr\xf6\xdfe/w' as Python does" in said[0].message
    assert plans[0][path].partition_spec.dims == ((), ("tensor",))


def test_such_a_regex_has_a_budget_too() -> None:
    text = r"(?:\w|\w)*!"
    assert not PathMatcher((Pattern(text, "regex"),)).all_matches("é" + "a" * 60)
    assert text in ran_out()


def _loaded(text: str):
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    return spec, faults


GIN = """from t5x import partitioning
partitioning.PjitPartitioner:
  num_partitions = 1
  params_axes_names_override = [("(?!x)(a|a)*b", ("embed",))]
  logical_axis_rules = @partitioning.standard_logical_axis_rules()
"""


def test_import_proves_nothing_with_a_regex_out_of_time(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o.gin").write_text(GIN)
    (tmp_path / "arrays.json").write_text('{"%s": "f32[embed=8]"}' % ("a" * 60))
    arguments = [
        "import",
        "t5x-gin",
        "o.gin",
        "--against",
        "arrays.json",
        "--mesh",
        "data=2 model=1",
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1, result.output
    assert "error[SHD231]: regex `(?!x)(a|a)*b` ran out of its time" in result.output
    assert "nothing is proved" in result.output
