"""`step:`: what it says in both spellings, by `extends`, and may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.assets import spec_names
from shardspec.ir.program import Line, Product, StepSpec, Term, TermDim
from shardspec.ir.spec import Spec

YAML = """
step:
  mode: serve
  tokens: 4K
  microbatches: 2
  remat: [query, key]
  dtype: float32
  attention: einsum
  program:
    - residual, "**/q" -> query
    - query, key[length as klength] -> scores[batch heads length klength] x 3
    - op(scores) -> out[_ as batch], flops 2 * batch * (heads - 1)
"""
DSL = """
step {
  mode serve; tokens 4K; microbatches 2
  remat query, key
  dtype float32
  attention einsum
  residual, "**/q" -> query
  query, key[length as klength] -> scores[batch heads length klength] x 3
  op(scores) -> out[_ as batch], flops 2 * batch * (heads - 1)
}
"""


def sound(text: str, name: str = "s.yaml") -> Spec:
    spec, faults = pipeline.load_text(text, name)
    assert spec is not None
    assert faults == ()
    return spec


@pytest.mark.parametrize(("text", "name"), [(YAML, "s.yaml"), (DSL, "s.shard")])
def test_both_spellings_say_the_same(text: str, name: str) -> None:
    flops = (Product((2, "batch", (Product(("heads",)), Product((1,), -1)))),)
    scores = ("batch", "heads", "length", "klength")
    assert sound(text, name).step == StepSpec(
        mode="serve",
        tokens=4000,
        microbatches=2,
        remat=("query", "key"),
        dtype="f32",
        attention="einsum",
        program=(
            Line("", (Term("residual"), Term("**/q", "glob")), (Term("query"),)),
            Line(
                "",
                (Term("query"), Term("key", dims=(TermDim("length", "klength"),))),
                (Term("scores", dims=tuple(map(TermDim, scores))),),
                times=3,
            ),
            Line(
                "op",
                (Term("scores"),),
                (Term("out", dims=(TermDim(None, "batch"),)),),
                flops,
            ),
        ),
    )


@pytest.mark.parametrize("text", ["rules: [a -> b]", "step: {}", "step:"])
def test_nothing_stated(text: str) -> None:
    assert sound(text).step is None


def test_a_child_changes_keys_and_replaces_the_program(tmp_path: Path) -> None:
    parent = "step: {tokens: 4M, remat: full, program: ['a, \"x/y\" -> b']}\n"
    (tmp_path / "parent.yaml").write_text(parent)
    child = tmp_path / "child.yaml"
    child.write_text("step: {extends: ./parent.yaml, remat: dots}\n")
    spec, faults = pipeline.load_path(str(child))
    assert spec is not None
    assert faults == ()
    assert spec.step is not None
    assert (spec.step.tokens, spec.step.remat) == (4_000_000, ("dots",))
    assert [line.results[0].text for line in spec.step.program] == ["b"]
    child.write_text("step:\n  extends: ./parent.yaml\n  program:\n    - c, d/e -> f\n")
    spec, _ = pipeline.load_path(str(child))
    assert spec is not None
    assert spec.step is not None
    assert [line.results[0].text for line in spec.step.program] == ["f"]
    assert spec.step.tokens == 4_000_000


def test_a_phase_has_a_step_of_its_own() -> None:
    """`step` of a phase is merged over the spec's, and may extend another."""
    text = """
step: {extends: decoder, tokens: 4M}
phases:
  decode: {step: {extends: decode, tokens: 256}}
  eval: {step: {mode: serve}}
  same: {drop: []}
"""
    spec = sound(text)
    decode, of_eval, same = (phase.step for phase in spec.phases)
    assert spec.step is not None
    assert decode is not None
    assert of_eval is not None
    assert (decode.mode, decode.tokens) == ("serve", 256)
    assert any("cache" in str(term.text) for line in decode.program for term in line.operands)
    assert of_eval.mode == "serve"
    assert of_eval.program == spec.step.program
    assert same == spec.step
    _, faults = pipeline.load_text("phases: {decode: {step: {extends: decod}}}")
    assert [fault.code.id for fault in faults] == ["SHD008"]


@pytest.mark.parametrize("name", spec_names("steps"))
def test_bundled_steps_are_sound(name: str) -> None:
    spec = sound(f"step: {{extends: {name}}}\n")
    assert spec.step is not None
    assert spec.step.program
    assert spec.activations == ()


@pytest.mark.parametrize(
    ("text", "marked", "help"),
    [
        ("step: {extends: decode_r}", "decode_r", "`decoder`"),
        ("step: {mode: training}", "training", "`train`"),
        ("step: {tokens: 4 Mio}", "4 Mio", "`4M`"),
        ("step: {microbatches: 0}", "0", "microbatches"),
        ("step: {dtype: bf17}", "bf17", "`bf16`"),
        ("step: {remats: full}", "remats", "`remat`"),
        ("step: {program: [a b -> c]}", "b", "by `,`"),
        ("step: {program: ['a, b']}", "", "`a, b -> c`"),
        ("step: {program: ['a -> ']}", "", "what the line makes"),
        ("step: {program: ['a[b as] -> c']}", "]", ""),
        ("step: {program: ['a, b -> c, d']}", "d", "`split"),
        ("step: {program: ['op(a) -> c']}", "op(", "flops"),
        ("step: {program: ['flash(a) -> c']}", "a", "flash(query, key, value)"),
        ("step: {program: ['a, **x/k -> c']}", "**", ""),
        ("step: {program: ['a -> c x 0']}", "a", "remove it"),
    ],
)
def test_faults(text: str, marked: str, help: str) -> None:
    _, faults = pipeline.load_text(text, "s.yaml")
    assert len(faults) == 1, [str(fault) for fault in faults]
    label = faults[0].primary
    assert label is not None
    assert marked in label.span.text
    assert help in (faults[0].help or ""), faults[0].help
