from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.ir.spec import Activation, Override, Param, PathRule, Pattern, ScanRule, Spec
from shardspec.resolve.match import path_matcher
from shardspec.resolve.resolver import activation_for, array_resolver
from tests.strategies import LOGICAL, families, specs

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
PARENT = """
activations: {"**/out": batch, residual: batch embed, "l_*/out": embed, "**": embed embed_out}
rules: [batch -> data]
mesh: {data: 2}
"""

names = st.sampled_from(("a", "a/out", "l_1/out", "b/l_1/out", "residual", "re:x", "*", ""))
entries = st.lists(
    st.sampled_from(
        (
            *(Activation(name, ()) for name in ("a", "residual", "a/out")),
            *(Activation(text, (), Pattern(text)) for text in ("*", "**/out", "l_{0..3}/out")),
            Activation("re:.*/out", (), Pattern(".*/out", "regex")),
        )
    ),
    unique_by=lambda entry: entry.name,
).map(tuple)


@given(entries, names)
def test_the_name_comes_first_then_the_first_pattern(
    found: tuple[Activation, ...], name: str
) -> None:
    own = [entry for entry in found if entry.name == name]
    general = [
        entry
        for entry in found
        if entry.pattern is not None and path_matcher((entry.pattern,)).all_matches(name)
    ]
    assert activation_for(found, name) == next(iter(own + general), None)


@pytest.mark.parametrize(
    ("own", "name", "expected"),
    [
        ("{}", "x/out", "batch"),
        ("{}", "residual", "batch embed"),
        ('{"x/*": embed}', "x/out", "embed"),
        ('{"**/out": embed}', "x/out", "embed"),
        ('{"**/out": embed}', "l_1/out", "embed"),
        ('{"x/*": batch, "x/out": embed}', "x/out", "embed"),
        ("{'re:.*out': embed}", "x/out", "embed"),
        (r"{'a\*': batch, 'a*': embed}", "a*", "batch"),
        (r"{'a\*': batch, 'a*': embed}", "ab", "embed"),
        ("{residual: embed}", "residual", "embed"),
    ],
)
def test_activations_of_a_document_come_before_inherited_ones(
    own: str, name: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "parent.yaml").write_text(PARENT)
    (tmp_path / "child.yaml").write_text(f"extends: ./parent.yaml\nactivations: {own}\n")
    spec, _ = pipeline.load_path(str(tmp_path / "child.yaml"))
    assert spec is not None
    found = activation_for(spec.activations, name)
    assert found is not None
    assert " ".join(map(str, found.logical_axes)) == expected


PATTERNS = st.sampled_from(("**", "a*", "a0", "d*", "re:a[01]", "b")).map(
    lambda text: Pattern(text.removeprefix("re:"), "regex" if text.startswith("re:") else "glob")
)
NAMES = st.lists(st.sampled_from((*LOGICAL, None)), max_size=3).map(tuple)


@settings(max_examples=500 if IS_NIGHTLY else 25)
@given(
    specs(),
    families(),
    st.lists(st.builds(PathRule, PATTERNS, NAMES), max_size=2).map(tuple),
    st.lists(st.builds(Override, PATTERNS, NAMES), max_size=1).map(tuple),
    st.lists(st.builds(ScanRule, PATTERNS, st.just((("layers", 0),))), max_size=1).map(tuple),
)
def test_arrays_that_share_an_answer_have_that_of_each_alone(
    spec: Spec,
    found: tuple[Param, ...],
    path_rules: tuple[PathRule, ...],
    overrides: tuple[Override, ...],
    scans: tuple[ScanRule, ...],
) -> None:
    """The law: what is resolved once for arrays that are alike is the answer of every one."""
    unnamed = (replace(param, path=f"b{at}", logical_axes=None) for at, param in enumerate(found))
    again = (replace(param, path=f"{param.path}x") for param in found)
    arrays = (*found, *unnamed, *again)
    spec = replace(spec, path_rules=path_rules, overrides=overrides, scans=scans)
    for target in spec.targets:
        alone = (array_resolver(spec, target).among(arrays).resolve(param) for param in arrays)
        assert array_resolver(spec, target).resolve_all(arrays) == tuple(alone)
