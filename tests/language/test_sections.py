"""The rows of sections: complete, and true of both spellings."""

from __future__ import annotations

import json

import pytest

from shardspec.ir import spec as ir
from shardspec.language.document import ENTRIES, Document
from shardspec.language.grammar import print_expressions
from shardspec.language.loader import load_text
from shardspec.language.sections import BY_WORD, RULES, SECTIONS, expression_at, section_of
from shardspec.lsp.types import Kind


def test_each_section_of_the_document_has_a_row() -> None:
    assert SECTIONS.keys() == Document.model_fields.keys()


@pytest.mark.parametrize("name", SECTIONS)
def test_what_a_row_says_is_there(name: str) -> None:
    section = SECTIONS[name]
    kinds = {section.value, *section.fields.values()} - {""}
    assert kinds <= print_expressions._KINDS.keys() | {*Kind} | {"axes"}
    assert section.keys in {"", *Kind}
    if section.fields:
        assert section.fields.keys() <= ENTRIES[name].model_fields.keys()


@pytest.mark.parametrize(("field", "rule"), RULES.values())
def test_rules_of_patterns_are_fields_of_a_spec(field: str, rule: str) -> None:
    assert field in ir.Spec.__dataclass_fields__
    assert "pattern" in getattr(ir, rule).__dataclass_fields__


def test_a_word_of_the_dsl_leads_to_its_section() -> None:
    assert [section_of(word) for word in ("axis", "lint", "rules", "rulse")] == [
        *("axes", "lints", "rules", "rulse")
    ]
    assert {section.name for section in BY_WORD.values()} == SECTIONS.keys()


@pytest.mark.parametrize(
    ("route", "kind"),
    [
        (("rules", 0), "axis_rule"),
        (("rules", 0, "at"), "place"),
        (("axes", "size"), "size"),
        (("axes", "a", "doc"), ""),
        (("mesh", "a"), "mesh_size"),
        (("targets", "pod", "mesh", "a"), "mesh_size"),
        (("targets", "pod", "hardware"), "hardware"),
        (("activations", "spec"), "names"),
        (("activations", "a", "spec"), "partition"),
        (("state", "over"), "mesh_axes"),
        (("state", "dtype"), ""),
        (("step", "program", 0), "step_line"),
        (("extends", 0), "base"),
        (("nothing",), ""),
    ],
)
def test_what_stands_at_a_route(route: tuple[str | int, ...], kind: str) -> None:
    assert expression_at(route) == kind


@pytest.mark.parametrize(
    ("section", "texts"),
    [
        ("params", ("embed [mlp]", "a b )", "'a'", "None", "")),
        ("scan", ("0", "layers", "a@0 b@0", "")),
        ("derive", ("from", "from a dims 0 0", "from a dims 0 ... ->")),
        ("arrays", ("f32(3)", "bf16[", "bf16[a None]", "f99[2]", "")),
        ("mesh", ("-1", "0", "all", "8 dcn", "4 explicit manual", "(a = 2)", "")),
        ("rules", ("a => b", "a -> (b", "a -> b c", "a -> [b]", "a ->")),
    ],
)
def test_a_faulty_expression_is_told_alike_in_both_spellings(
    section: str, texts: tuple[str, ...]
) -> None:
    for text in texts:
        yaml = f"- {json.dumps(text)}" if section == "rules" else f"a: {json.dumps(text)}"
        dsl = {"rules": text, "mesh": f"a = {text}"}.get(section, f"a : {text}")
        spellings = (
            load_text(f"{section}:\n  {yaml}\n", "spec.yaml"),
            load_text(f"{section} {{\n  {dsl}\n}}\n", "spec.shard"),
        )
        told = [
            [(each.code, each.message, each.help) for each in faults] for _, faults in spellings
        ]
        assert told[0] == told[1], text
        assert told[0], text


@pytest.mark.parametrize("name", ENTRIES)
def test_the_fields_of_an_entry_stand_where_its_row_says(name: str) -> None:
    at = (name, *("x",) * (SECTIONS[name].depth - 1))
    fields = SECTIONS[name].fields
    assert [expression_at((*at, field)) for field in fields] == [*fields.values()]
