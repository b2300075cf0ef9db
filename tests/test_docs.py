"""Codes in the table = pages = literate cases; every example is true; the README runs."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
import yaml

from shardspec import assets, pipeline
from shardspec.cli.main import VERBS, cli
from shardspec.diagnostics import Code, Diagnostic, SourceFile, codes
from shardspec.diagnostics.codes import ALL, LintLevel
from shardspec.ir.spec import Spec
from shardspec.lints.registry import checks as plan_checks
from shardspec.lints.registry import page, step_checks, step_codes
from tests.sources import MODULES, nodes_of

ROOT = Path(__file__).parent.parent
LINTS = ROOT / "shardspec" / "lints"
CASES = ROOT / "tests" / "cases"

#: Findings that no single YAML text can show; each has a test of its own below.
NOT_ONE_TEXT = {
    "unreadable": "is about bytes, not text",
    "preset-cycle": "takes two files",
    "bad-manifest": "stands in a manifest, not in a spec",
    "bad-checkpoint": "is about another file",
    "unknown-phase": "takes a flag",
    "unknown-target": "takes a flag",
    "unknown-activation": "takes a call in Python",
    "unplaced-activation": "takes a call in Python",
    "nothing-checked": "only `check` says so",
    "ambiguous-state": "takes the state of an optimizer",
    "unrelated-state": "takes the state of an optimizer",
    "bad-lock": "stands in a lock",
    "stale-lock": "takes a lock beside the spec",
    "not-carried-over": "is about another tool's file",
    "import-differs": "is about another tool's file",
    "bad-foreign-file": "is about another tool's file",
    "ambiguous-reading": "is about another tool's file",
    "moved-by-merge": "is about another tool's file",
    "export-differs": "is about another tool's file",
    "cannot-hold": "is about another tool's file",
    "not-compared": "is about a proof of `import --against`",
    "sharding-differs": "takes live arrays",
    "processes-differ": "takes two processes",
    "checkpoint-differs": "takes a checkpoint",
    "lock-differs": "takes a lock beside the spec",
    "no-propagation": "takes another jaxlib",
    "bad-program": "is about the text of a compiler",
    "not-compiled": "is about the compiler of a machine",
    **{code.name: "takes a step" for code in step_codes()},
    "bad-step": "is about code",
    "asks-this-machine": "is about code",
    "idle-constraint": "is about code",
    "no-resolver": "is about code",
    "bad-cost": "stands in a saved cost",
    "bad-calibration": "stands in a file of its own",
    "foreign-calibration": "takes a file of its own",
    "stale-calibration": "takes a file of its own",
    "stale-cost": "takes a saved cost",
    "too-much-work": "takes a file of many MiB",
}

#: Findings whose examples are lines of other files; the tests of their formats have them.
NOT_A_SPEC = {
    "bad-lock",
    "stale-lock",
    "not-carried-over",
    "import-differs",
    "bad-foreign-file",
    "ambiguous-reading",
    "moved-by-merge",
    "export-differs",
    "cannot-hold",
    "not-compared",
    "lock-differs",
    "no-propagation",
    "bad-program",
    "bad-step",
    "asks-this-machine",
    "idle-constraint",
    "no-resolver",
    "bad-cost",
    "bad-calibration",
    "foreign-calibration",
    "stale-calibration",
    "not-compiled",
    "stale-cost",
    "too-much-work",
}

#: Findings that no verb and no short script shows.
NO_CASE = {
    "processes-differ": "only `Resolver` runs in several processes",
    "checkpoint-differs": "only `Resolver.restore` reads a checkpoint into a tree",
    "no-propagation": "only a traced step is propagated through",
    "bad-program": "only `read_program` reads what a compiler made",
    "not-compiled": "only `verify` asks a compiler",
    "stale-calibration": "what is said depends on the versions that are installed",
    "too-much-work": "takes a file of many MiB",
}

by_name = pytest.mark.parametrize("code", ALL, ids=lambda code: code.name)
shown_as_text = pytest.mark.parametrize(
    "code", [c for c in ALL if c.name not in NOT_ONE_TEXT], ids=lambda code: code.name
)


def example(code: Code, heading: str) -> str:
    """Return the text under `Bad:` or `Good:` of a page."""
    _, found, rest = page(code).partition(f"\n{heading}:\n")
    assert found, f"{code.name} has no `{heading}:`"
    block = re.match(r"(?:[ ]{4}.*\n?|\n)+", rest)
    assert block, f"{code.name}: `{heading}:` is empty"
    return textwrap.dedent(block[0]).strip() + "\n"


def check(text: str, code: Code | None = None) -> tuple[Diagnostic, ...]:
    """Return every finding that `shardspec check` has on all targets.

    Args:
      code: a finding that is asked for where it is pedantic.
    """
    spec, diagnostics = pipeline.load_text(text, "spec.yaml")
    if spec is None:
        return diagnostics
    if code is not None and code.is_pedantic:
        asked = LintLevel(code.id, code.severity)
        spec = replace(spec, lint_levels=(*spec.lint_levels, asked))
    return pipeline.checked(spec, diagnostics, pipeline.plans_of_phases(spec)).shown


def loaded(text: str) -> Spec:
    spec, diagnostics = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    assert diagnostics == ()
    return spec


def test_ids_and_names_are_unique_and_in_order_of_family() -> None:
    ids = [code.id for code in ALL]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch(r"SHD[0-9]{3}", id) for id in ids)
    assert len({code.name for code in ALL}) == len(ALL)
    source = Path(ROOT / "shardspec/diagnostics/codes.py").read_text(encoding="utf-8")
    assert re.findall(r'^[A-Z_]+ = \w+\(\s*"(SHD\d+)"', source, re.MULTILINE) == ids, (
        "the table stands in order of number"
    )


@by_name
def test_code_is_well_named(code: Code) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code.name)
    assert "\n" not in code.summary
    assert not code.summary.endswith(".")
    assert len(code.summary) <= 72


def test_codes_are_pages() -> None:
    """Each has one: the docstring of what finds it on this floor, or a text of its own."""
    modules = [path.stem.replace("_", "-") for path in (LINTS / "checks").glob("[a-z]*.py")]
    texts = [path.stem for path in (LINTS / "pages").iterdir()]
    assert sorted(modules + texts) == sorted(code.name for code in ALL)


def test_every_page_with_a_check_runs() -> None:
    from importlib import import_module

    with_check = {
        path.stem
        for path in (LINTS / "checks").glob("*.py")
        if hasattr(import_module(f"shardspec.lints.checks.{path.stem}"), "check")
    }
    asked = [module.__name__.rpartition(".")[2] for module in (*plan_checks(), *step_checks())]
    assert sorted(with_check) == sorted(asked)


def test_codes_have_cases() -> None:
    having = {path.name.partition("-")[0] for path in CASES.glob("SHD*.md")}
    assert having == {code.id for code in ALL if code.name not in NO_CASE}


def test_exceptions_are_codes() -> None:
    names = {code.name for code in ALL}
    assert set(NOT_ONE_TEXT) <= names
    assert set(NO_CASE) <= names


@by_name
def test_page_is_whole(code: Code) -> None:
    written = LINTS / "pages" / f"{code.name}.md"
    if written.exists():
        heading = written.read_text(encoding="utf-8").splitlines()[0]
        assert heading == f"# {code.id} {code.name}"
    first, empty, *_ = page(code).splitlines()
    assert first.endswith("."), "the first line states the fact"
    assert empty == ""
    assert example(code, "Bad") != example(code, "Good")
    assert all(len(line) <= 100 for line in page(code).splitlines())


@shown_as_text
def test_bad_example_has_this_finding_alone(code: Code) -> None:
    found = check(example(code, "Bad"), code)
    assert [diagnostic.code.id for diagnostic in found] == [code.id]
    assert found[0].severity is code.severity


@pytest.mark.parametrize(
    "code", [c for c in ALL if c.name not in NOT_A_SPEC], ids=lambda code: code.name
)
def test_good_example_has_no_finding(code: Code) -> None:
    if code.name == "bad-manifest":
        params, found = pipeline.read_manifest(SourceFile("m.yaml", example(code, "Good")))
        assert len(params) == 2
    else:
        found = check(example(code, "Good"), code)
    assert found == ()


@shown_as_text
def test_labels_lie_in_their_source(code: Code) -> None:
    for diagnostic in check(example(code, "Bad"), code):
        assert sum(label.primary for label in diagnostic.labels) == 1
        for label in diagnostic.labels:
            span = label.span
            assert 0 <= span.start < span.end <= len(span.source.text)
            assert "\n" not in span.text or not label.primary


@shown_as_text
def test_message_is_one_line_and_offers_a_way_out(code: Code) -> None:
    for diagnostic in check(example(code, "Bad"), code):
        assert "\n" not in diagnostic.message
        assert not diagnostic.message.endswith(".")
        assert diagnostic.help, "every finding says what would work"


def test_unreadable(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_bytes(example(_code("unreadable"), "Bad").encode("latin-1"))
    spec, found = pipeline.load_path(str(file))
    assert spec is None
    assert [d.code.name for d in found] == ["unreadable"]
    assert "0xe9" in found[0].message
    assert "line 1" in found[0].message


def test_preset_cycle(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: ./spec.yaml\n", encoding="utf-8")
    file = tmp_path / "spec.yaml"
    file.write_text(example(_code("preset-cycle"), "Bad"), encoding="utf-8")
    _, found = pipeline.load_path(str(file))
    assert [d.code.name for d in found] == ["preset-cycle"]


def test_bad_manifest() -> None:
    source = SourceFile("arrays.yaml", example(_code("bad-manifest"), "Bad"))
    params, found = pipeline.read_manifest(source)
    assert [param.path for param in params] == ["mlp/wi/kernel"]
    assert [d.code.name for d in found] == ["bad-manifest"]


def test_bad_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(example(_code("bad-checkpoint"), "Bad"), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"\x40" + bytes(7) + b"{")
    _, found = pipeline.load_path(str(file))
    assert [d.code.name for d in found] == ["bad-checkpoint"]


def test_unknown_target() -> None:
    spec = loaded(example(_code("unknown-target"), "Bad"))
    found = pipeline.find_target(spec, "labtop")
    assert isinstance(found, Diagnostic)
    assert found.code.name == "unknown-target"
    assert "laptop" in (found.help or "")


def test_unknown_activation() -> None:
    from shardspec.diagnostics import ShardspecError
    from shardspec.jax_backend.constrain import ActivationResolver
    from shardspec.resolve.resolver import array_resolver

    spec = loaded(example(_code("unknown-activation"), "Bad"))
    resolver = ActivationResolver(array_resolver(spec, spec.targets[0]))
    assert resolver.named("residual") == ("batch", None, None)
    with pytest.raises(ShardspecError) as caught:
        resolver.named("residaul")
    assert [d.code.name for d in caught.value.diagnostics] == ["unknown-activation"]


@pytest.mark.parametrize(
    ("name", "field", "shape"),
    [("ambiguous-state", "row", (512,)), ("unrelated-state", "statistics", (16384, 16384))],
)
def test_findings_about_state(name: str, field: str, shape: tuple[int, ...]) -> None:
    from shardspec.ir.plan import ShardingPlan
    from shardspec.ir.spec import Param
    from shardspec.jax_backend.state import state_findings
    from shardspec.resolve.resolver import array_resolver
    from shardspec.resolve.state import state_resolver

    for heading, named in (("Bad", [name]), ("Good", [])):
        spec = loaded(example(_code(name), heading))
        (plan,) = pipeline.compile_plans(spec)
        resolver = state_resolver(array_resolver(spec, spec.targets[0]), [plan["kernel"]])
        array = resolver.resolve(Param(f"{field}/kernel", shape), plan["kernel"], field)
        found = state_findings(ShardingPlan(spec, spec.targets[0], (array,)))
        assert [d.code.name for d in found] == named


def test_sharding_differs() -> None:
    import jax.numpy as jnp

    from shardspec.jax_backend.resolver import Resolver

    params = {"mlp": {"kernel": jnp.ones((512, 2048))}}
    bad = Resolver(loaded(example(_code("sharding-differs"), "Bad")))
    assert [d.code.name for d in bad.verify_placement(params)] == ["sharding-differs"]
    good = Resolver(loaded(example(_code("sharding-differs"), "Good")))
    assert good.verify_placement(good.put(params)) == ()


#: What only a compiled program shows.
OF_COMPILERS = (codes.ARGUMENT_COPIED, codes.CONSTANT_WRITTEN_OUT)


@pytest.mark.parametrize("code", step_codes(), ids=lambda code: code.name)
def test_examples_with_a_step(code: Code) -> None:
    from tests.lints.step_examples import findings

    is_compiled = code in OF_COMPILERS
    if is_compiled:
        pytest.importorskip("libtpu")
    (found,) = findings(example(code, "Bad"), is_compiled=is_compiled)
    assert (found.code, found.severity) == (code, code.severity)
    assert sum(label.primary for label in found.labels) == 1
    assert found.help
    assert "\n" not in found.message
    assert not found.message.endswith(".")
    assert findings(example(code, "Good"), is_compiled=is_compiled) == ()


def _code(name: str) -> Code:
    return next(code for code in ALL if code.name == name)


README = ROOT / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of the README in a language."""
    if not README.exists():
        pytest.skip("there is no README")
    return [body for found, body in FENCE.findall(README.read_text("utf-8")) if found == language]


def test_readme_specs_have_no_findings() -> None:
    specs = [text for text in blocks("yaml") if "rules:" in text]
    assert specs
    for text in specs:
        assert check(text) == ()


def test_readme_python_parses() -> None:
    for body in blocks("python"):
        compile(body, "README.md", "exec")


def test_readme_names_files_that_are_there() -> None:
    text = "\n".join(blocks("console")) + README.read_text(encoding="utf-8")
    for name in re.findall(r"\bspecs/[\w./-]+\.(?:yaml|shard)\b", text):
        assert (assets.data_folder() / name).is_file(), name


def test_contributing_names_what_is_there() -> None:
    """Files, tables in them and what `make` makes: recipes are followed by the word."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:shardspec|tests|specs|docs)/[\w./-]+)`", text))
    examples = {"specs/presets/NAME.yaml", "specs/hardware/NAME.yaml"}
    assert {path for path in paths - examples if not (ROOT / path).exists()} == {
        "tests/cases/SHD107-some-words.md"
    }
    named = re.findall(r"`([A-Z]+)` (?:or `([A-Z]+)` )?of `([^`]+)`", text)
    assert len(named) >= 2
    for *names, file in named:
        lines = (ROOT / file).read_text(encoding="utf-8")
        assert all(re.search(rf"^{name}\b.* = ", lines, re.M) for name in names if name), file
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= targets


def test_code_names_pages_that_are_there() -> None:
    """Pages of docs that code, grammars and specs name, and the headings that they name there."""
    folders = ("shardspec", "grammars", "specs", "tests", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    texts = [
        (file, file.read_text(encoding="utf-8"))
        for file in files
        if file.suffix in (".py", ".md", ".yaml", ".shard", ".lark")
    ]
    named = [
        (found[1], found[2], file)
        for file, text in texts
        for found in re.finditer(r"(?:`([^`\n]+)` in )?\b(docs/[\w/-]+\.md)\b", text)
    ]
    assert len(named) > 10
    for heading, name, file in named:
        assert (ROOT / name).is_file(), f"{file}: {name}"
        if heading:
            headings = re.findall(r"^#+ (.*)", (ROOT / name).read_text(encoding="utf-8"), re.M)
            assert heading in headings, f"{file}: {heading}"


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 160


def avoided_words() -> list[str]:
    """Return the phrases that the table of CONTRIBUTING says not to write."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("\n## Words\n")
    lines = rest.partition("\n## ")[0].splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| ")]
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row[2])]


def texts_of_users() -> Iterator[tuple[str, str]]:
    """Yield where a text for users is from, and the text: all pages, without their examples."""
    for code in ALL:
        yield f"{code.id} in codes.py", code.summary
        yield f"the page of {code.id}", re.sub(r"(?m)^ {4}.*$", "", page(code))
    for file in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        text = re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", file.read_text(encoding="utf-8"))
        yield str(file.relative_to(ROOT)), text
    for path in MODULES:
        inner = set()  # docstrings, which are for readers of the code
        for node in nodes_of(path):
            if isinstance(node, ast.Expr):
                inner.add(id(node.value))
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in inner:
                yield f"{path.name}:{node.lineno}", node.value
    for row in yaml.safe_load((ROOT / "grammars/faults.yaml").read_text(encoding="utf-8"))["rows"]:
        yield "grammars/faults.yaml", row["help"]
    context = click.Context(cli)
    for name in VERBS:
        yield f"the help of {name}", str(getattr(cli.get_command(context, name), "help", ""))


def test_texts_use_the_words_of_the_list() -> None:
    avoided = avoided_words()
    assert len(avoided) > 20
    words = "|".join(map(re.escape, avoided))
    pattern = re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    assert pattern.search("The array is whole on every device.")
    found = [
        f"{place}: {match[0]!r} in {' '.join(text.split())[:120]}"
        for place, text in texts_of_users()
        if (match := pattern.search(" ".join(text.split())))
    ]
    assert not found, "\n".join(found)
