from __future__ import annotations

import pytest

from shardspec.lints.checks import regex_like_glob
from shardspec.lints.evidence.entries import as_glob, as_regex
from tests.lints.findings_of import found_by

HEAD = """
mesh: {x: 2}
rules: [a -> x, b -> none]
arrays: {'dec/{l,l_,l_0,l_1}/wi': 'f32[8, 8]', 'dec/wi': 'f32[8, 8]', 'm.l.0.w': 'f32[8, 8]'}
"""


@pytest.mark.parametrize(
    ("params", "offer"),
    [
        ("{'re:dec/l_*/wi': a b, '**': b a}", "as a glob it matches these: drop `re:`"),
        ("{'re:dec/l_*/wi': a b, '**': a b}", None),  # the same answer
        ("{'re:dec/*/wi': a b, '**': b a}", "as a glob it"),  # `dec/wi`
        ("{'re:dec/l_{0,1}/wi': a b, '**': b a}", "as a glob it"),
        ("{'re:dec/l_{0,1}/wi': a b, 'dec/l_{0,1}/wi': b a, 're:.*': b a}", None),
        ("{'{dec/l_[01],dec}/wi': a b, '**': b a}", "the glob `{dec/l_{0,1},dec}/wi`"),
        ("{'m.l.*.w': a b, '**': b a}", None),
        ("{'re:dec/l_?/wi': a b, '**': b a}", None),
        ("{'re:dec/l.*/wi': a b, '**': b a}", None),
        ("{'dec/l_[01]/wi': a b, '**': b a}", None),  # matches nothing: SHD204
    ],
)
def test_which(params: str, offer: str | None) -> None:
    found = found_by(regex_like_glob, f"{HEAD}params: {params}")
    assert len(found) == (offer is not None)
    assert all((each.help or "").startswith(offer or "") for each in found)


def test_the_fix_matches_what_was_missed() -> None:
    (found,) = found_by(regex_like_glob, f"{HEAD}params: {{'re:dec/l_{{0,1}}/wi': a b, '**': b a}}")
    assert found.fix is not None
    (edit,) = found.fix.edits
    text = edit.span.source.text
    fixed = text[: edit.span.start] + edit.text + text[edit.span.end :]
    assert "{'dec/l_{0,1}/wi': a b" in fixed
    assert found_by(regex_like_glob, fixed) == []


@pytest.mark.parametrize(
    ("text", "globs"),
    [
        (r"a/layers_\d+/k", ["a/layers_*/k"]),
        (r"a_\d/k", ["a_{0..9}/k"]),
        ("a_[0-3]/(wi|wo)$", ["a_{0,1,2,3}/{wi,wo}"]),
        ("^.*/k", ["**/k"]),
        ("a/.*", ["a/**"]),
        (r"m\.l\..*", ["m.l..*", "m.l.*"]),
        ("(?:a|b)/[^/]+/k", ["{a,b}/*/k"]),
        ("[a-zA-Z]/k", []),
        ("a/*/k", []),
    ],
)
def test_as_glob(text: str, globs: list[str]) -> None:
    assert list(as_glob(text)) == globs


@pytest.mark.parametrize(
    ("text", "regex"),
    [
        ("**/k", ["(?:.*/)?k"]),
        ("a/**", ["a/.*"]),
        ("a/*/k", ["a/[^/]*/k"]),
        ("l_{0..23}/k", [r"l_\d+/k"]),
        ("{wi,wo}/k", ["(?:wi|wo)/k"]),
        (r"a/.*/k", []),
        (r"l_\d*/k", []),
    ],
)
def test_as_regex(text: str, regex: list[str]) -> None:
    assert list(as_regex(text)) == regex
