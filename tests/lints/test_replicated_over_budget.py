from __future__ import annotations

import re

import pytest

from tests.lints.findings_of import findings_of, marked

TEXT = """\
targets: {a: {mesh: {data: 8}}, b: {mesh: {data: 2}}, one: {mesh: {data: 1}}}
coverage: {max_replicated_bytes: LIMIT}
rules: [embed -> data, norm -> none]
arrays:
  'l_{0..3}/kernel': f32[embed=1024 _=64]
  'l_{0..3}/scale': f32[norm=4096]
  'l_{0..3}/bias': f32[norm=1024]
"""
#: 4 x (256 + 16 + 4) KiB = 1104 KiB, of which 80 KiB are whole: 7.2 %


def findings_at(limit: str, more: str = "") -> list[str]:
    return [d.message for d in findings_of(TEXT.replace("LIMIT", limit) + more)]


@pytest.mark.parametrize(
    ("limit", "count"), [("7%", 1), ("7.3%", 0), ("80 KiB", 0), ("81919 B", 1), ("0%", 1)]
)
def test_the_limit_counts_what_rules_make_whole(limit: str, count: int) -> None:
    assert len(findings_at(limit)) == count


def test_targets_with_the_same_arrays_share_a_finding() -> None:
    (found,) = findings_of(TEXT.replace("LIMIT", "2%"))
    assert found.message == (
        "80.0 KiB of arrays, 7.2 % of the model, are replicated on targets `a`, `b`"
    )
    assert marked(found) == ["2%"]
    assert found.notes == (
        "8 arrays: 57.9 KiB per device too much",
        "64.0 KiB  l_{0..3}/scale x4",
        "16.0 KiB  l_{0..3}/bias x4",
    )


@pytest.mark.parametrize(("limit", "form"), [("2%", r"(\S+%)"), ("1 KiB", r"(\S+ KiB)")])
def test_the_limit_in_the_help_works(limit: str, form: str) -> None:
    (found,) = findings_of(TEXT.replace("LIMIT", limit))
    enough = re.search(rf"max_replicated_bytes: {form}", found.help or "")
    assert enough
    assert findings_at(enough[1]) == []


def test_a_limit_in_mebibytes_works() -> None:
    text = TEXT.replace("LIMIT", "1 MiB").replace("norm=4096", "norm=1048577")
    (found,) = findings_of(text, only="replicated-over-budget")
    enough = re.search(r"max_replicated_bytes: (\S+ MiB)", found.help or "")
    assert enough
    assert enough[1] == "17 MiB"
    assert findings_of(text.replace("1 MiB", enough[1]), only="replicated-over-budget") == ()


REPLICATE = "replicate: [{path: '**/scale', because: small}]\n"


def test_the_allow_list_works() -> None:
    assert findings_at("2%", REPLICATE) == []
    (message,) = findings_at("1%", REPLICATE)
    assert message.startswith("16.0 KiB of arrays, 1.4 %")


def test_it_silences_replicated_large_too() -> None:
    text = "targets: {pod: {mesh: {data: 4, model: 2}}, laptop: {mesh: {data: 8}}}\n"
    text += "rules: [embed -> data, vocab -> model]\n"
    text += "arrays: {table: 'f32[vocab=4096 _=4096]', k: 'f32[embed=64]'}\n"
    (found,) = findings_of(text)
    assert found.code.name == "replicated-large"
    assert found.target == "laptop"
    assert findings_of(text + "replicate: [{path: table, because: one laptop}]") == ()


def test_no_gate_no_finding() -> None:
    assert findings_of(TEXT.replace("coverage: {max_replicated_bytes: LIMIT}\n", "")) == ()
