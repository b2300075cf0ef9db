"""In findings of a `.shard` file, names of the user are never respelt, whatever they look like."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.ir.spec import Param
from shardspec.language.formatting import formatted
from shardspec.language.yaml_text.printer import print_yaml

_WORDS = (
    *("policy", "state", "coverage", "lints", "axes", "activations", "targets", "overrides"),
    *("phases", "mode", "tokens", "over", "at", "unit", "weight", "kv", "kernel", "dead-rule"),
    *("mlp", "indivisible", "optimizer", "hardware", "let", "SHD301"),
)
_KEYS = frozenset(_WORDS[:9])
words = st.sampled_from(_WORDS)
#: Paths as checkpoints, NNX and people have them: they may look like settings.
paths = st.one_of(
    st.tuples(words, st.sampled_from((".", "/", ": ", "-", "_")), words).map("".join), words
)
names = words.filter(lambda word: word != "let")


def _said(found: Diagnostic) -> str:
    labels = (label.text for label in found.labels)
    return "\n".join((found.message, *labels, *found.notes, found.help or ""))


def _both(text: str, params: tuple[Param, ...]) -> list[tuple[str, ...]]:
    """Return what is said of a spec in either spelling, findings of one kind together."""
    told = []
    for spelling, name in (("yaml", "spec.yaml"), ("dsl", "spec.shard")):
        written, _ = formatted(SourceFile("spec.yaml", text), spelling)
        assert written is not None
        spec, faults = pipeline.load_text(written, name)
        assert spec is not None
        found = pipeline.checked(spec, faults, pipeline.compile_plans(spec, params)).shown
        found = pipeline.report(spec, found).shown
        told.append(tuple(sorted(f"{each.code.id} {_said(each)}" for each in found)))
    return told


@settings(max_examples=60)
@given(
    st.lists(paths, min_size=1, max_size=3, unique=True),
    st.lists(names, min_size=3, max_size=3, unique=True),
    st.lists(names, min_size=2, max_size=2, unique=True),
)
def test_names_stand_in_both_spellings_alike(
    arrays: list[str], axes: list[str], mesh: list[str]
) -> None:
    document = {
        "shardspec": 1,
        "mesh": {mesh[0]: 2, mesh[1]: 3},
        "axes": {axes[0]: 64, axes[1]: 65},
        "rules": [f"{axes[0]} -> {mesh[1]}", f"{axes[1]} -> {mesh[0]}", f"{axes[0]} -> {mesh[0]}"],
        "activations": {axes[2]: f"{axes[0]} {axes[1]}"},
    }
    params = tuple(Param(path, (64, 65), "f32", (axes[0], axes[2])) for path in arrays)
    of_yaml, of_dsl = _both(print_yaml(document), params)
    assert len(of_yaml) == len(of_dsl)
    for first, second in zip(of_yaml, of_dsl, strict=True):
        assert first[:6] == second[:6]
        for name in {*arrays, *axes, *mesh}:
            counts = first.count(f"`{name}`"), second.count(f"`{name}`")
            # a message may name the key of YAML as well, which the DSL has not
            assert counts[0] == counts[1] or (name in _KEYS and counts[0] > counts[1]), first


STEP = """\
shardspec 1
mesh on v5e-16 { data = 4; m = 4 }
axis batch = 64
axis embed = 4096
rules {
  batch -> data # not the targets
  embed -> none
}
arrays {
  w : bf16[embed 4096]
}
activations {
  x : batch embed
}
step {
  x, w -> axes[batch targets]
  x, w -> lints[overrides=4, batch]
  phases -> out[batch embed]
}
"""


def test_names_of_a_step_stay_as_well() -> None:
    spec, faults = pipeline.load_text(STEP, "spec.shard")
    assert spec is not None
    found = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    text = "\n".join(map(_said, pipeline.report(spec, found).shown))
    assert "the size of `targets` is not known" in text
    assert "state it, `axis targets = 128`" in text
    assert "`lints` has `overrides`, and nothing that is read has it" in text
    assert "nothing is called `phases`" in text
