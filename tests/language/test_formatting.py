"""From one spelling to the other and back: the text, and what it means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardspec import pipeline
from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import Spec
from shardspec.language.document import Document
from shardspec.language.formatting import formatted

YAML = """\
shardspec: 1
doc: every section
extends: [megatron]
let: {tp: 4}

axes:
  batch: 512
  mlp: {size: 14336, unit: 64, min_shard: 128, doc: "the hidden ones"}

hardware: 2 * tpu v4 2x2x2

mesh:
  replica: 2 @ dcn explicit
  data: rest
  model: submesh 2x1x1x1 manual
  # the last axis is the minor one

# slice by slice
devices: 0..7 15..8

targets:
  laptop:
    mesh: {data: 2, model: tp explicit, replica: 1}
    # a ring of two rows
    devices: 0..3 7..4
  board:
    hardware: tpu v5e 2x4
    mesh: {data: over x y2/2, model: over y2, replica: rest}

rules:
  - batch -> (replica, data)
  # what megatron does not say
  - rule: expert -> none
    at: start

drop: [vocab]

params:
  "**/wi": _ mlp

overrides:
  - match: .*/wo\\d
    axes: mlp _
    because: another module
  - path: a/norm
    spec: (none)
    memory: pinned_host

derive:
  "**/lora_a": from **/{wi,wo1} dims 0 rank
  "**/w_scale": dims .../128 _ | 0*any

scan:
  layers/**: layers@0

memory:
  opt_state/**: pinned_host
  re:a/n.*: device

training:
  "**/lora_{a,b}": trained
  re:.*kernel: frozen

activations:
  residual: batch _ _
  kept: {axes: batch _ _, memory: pinned_host}
  partial: {spec: "(none, (replica, model)) unreduced data"}

arrays:
  a/wi: bf16[8, 14336]
  a/wo1: bf16[14336, 8]
  a/norm: f32[8]

caches:
  cache/{0..3}/{key,value}: bf16[2, 8]

manifest: gpt2
policy: {indivisible: keep}
state: {optimizer: zero1, over: "(replica, data)", moments: 1, dtype: bf16}
coverage: {max_replicated_bytes: 2.5%}

replicate:
  - path: "**/norm"
    because: tiny
  - match: .*/wo\\d
    because: a test
  # no more reasons

lints: {SHD4: allow, indivisible: warn}

step:
  tokens: 1024
  program:
    - residual, "**/wi" -> hidden
    # the other half

phases:
  # one token at a time
  decode:
    axes:
      batch: 8
    mesh: {model: 8}
    rules:
      - batch -> none  # whole
    # no more
  eval: {}
"""


def spelt(text: str, name: str, spelling: str) -> str:
    found, diagnostics = formatted(SourceFile(name, text), spelling)
    assert diagnostics == ()
    assert found is not None
    return found


def meaning(text: str, name: str) -> Spec:
    spec, diagnostics = pipeline.load_text(text, name)
    assert spec is not None
    # One text has every section, `mesh` beside `targets` too, which is refused as a pair.
    assert {d.code.name for d in diagnostics} <= {"wrong-type"}
    return spec.everywhere(lambda each: replace(each, source=SourceFile("", ""), sources=()))


def test_the_sample_has_every_section() -> None:
    assert all(f"\n{section}:" in f"\n{YAML}" for section in Document.model_fields)


def test_there_and_back() -> None:
    assert spelt(YAML, "spec.yaml", "yaml") == YAML
    dsl = spelt(YAML, "spec.yaml", "dsl")
    assert spelt(dsl, "spec.shard", "dsl") == dsl
    assert meaning(dsl, "spec.shard") == meaning(YAML, "spec.yaml")
    again = spelt(dsl, "spec.shard", "yaml")
    assert meaning(again, "spec.yaml") == meaning(YAML, "spec.yaml")
    assert spelt(again, "spec.yaml", "dsl") == dsl


def test_a_comment_at_the_end_of_a_block_stays_there() -> None:
    dsl = spelt(YAML, "spec.yaml", "dsl")
    assert "  # the last axis is the minor one\n}\n" in dsl
    again = spelt(dsl, "spec.shard", "yaml")
    assert "manual\n  # the last axis is the minor one\n" in again


@pytest.mark.parametrize("entry", ["overrides: [{axes: x}]", "replicate: [{because: tiny}]"])
@pytest.mark.parametrize("spelling", ["yaml", "dsl"])
def test_an_entry_without_a_pattern_cannot_be_written(entry: str, spelling: str) -> None:
    text, faults = formatted(SourceFile("s.yaml", f"rules: [x -> a]\n{entry}\n"), spelling)
    assert text is None
    assert ["has no pattern" in fault.message for fault in faults] == [True]


@pytest.mark.parametrize("entry", ["{path: a}", "{path: a, because: tiny}", "{match: a}"])
def test_an_override_without_an_answer_is_written_in_yaml_alone(entry: str) -> None:
    source = SourceFile("s.yaml", f"rules: [x -> a]\noverrides: [{entry}]\n")
    text, faults = formatted(source, "dsl")
    assert text is None
    assert [fault.message for fault in faults] == ["this override has no answer"]
    assert formatted(source, "yaml")[1] == ()


@pytest.mark.parametrize("entry", ["", "{axes: , memory: device}", "{memory: device}"])
def test_an_activation_without_an_answer_is_refused_in_the_dsl(entry: str) -> None:
    text, faults = formatted(SourceFile("s.yaml", f"activations: {{r: {entry}}}\n"), "dsl")
    assert text is None
    assert [fault.code.id for fault in faults] == ["SHD004"]


@pytest.mark.parametrize("name", ["spec.yaml", "spec.shard"])
def test_lines_end_as_they_did(name: str) -> None:
    """CRLF before is CRLF behind, whatever is rewritten; comments and blank lines too."""
    text = YAML if name == "spec.yaml" else spelt(YAML, "spec.yaml", "dsl")
    crlf = text.replace("\n", "\r\n")
    for to in ("yaml", "dsl"):
        assert spelt(crlf, name, to) == spelt(text, name, to).replace("\n", "\r\n")
