from __future__ import annotations

import pytest

from shardspec.ir.spec import Pattern
from shardspec.language.regex import compile_regex
from shardspec.lints.evidence.entries import looks, readings, spellings, working
from tests.lints.findings_of import findings_of

PATHS = ("dec/l_10/wi/k", "dec/l_11/wi/k", "enc/wi/b", "a[0]/k")


@pytest.mark.parametrize(
    ("pattern", "help"),
    [
        (Pattern("wi/b"), "`**/wi/b` matches 1 array, enc/wi/b"),
        (Pattern("l_{10,11}/wi/k"), "`**/l_{10,11}/wi/k` matches 2 arrays, first dec/l_10/wi/k"),
        (Pattern("dec/.*/k"), "as a regex it matches 2 arrays, first dec/l_10/wi/k: put `re:`"),
        (Pattern(r"dec/l_[0-9]+/wi/k"), "as a regex it matches 2 arrays"),
        (Pattern("^dec/l_(10|11)/wi/k$"), "as a regex it matches 2 arrays"),
        (Pattern("dec/*/*/k", "regex"), "as a glob it matches 2 arrays, first dec/l_10/wi/k: drop"),
        (Pattern("dec/l_{0..11}/wi/k", "regex"), "as a glob it matches 2 arrays"),
        (Pattern("wi/b", "regex"), "the regex `.*/wi/b` matches 1 array"),
        (Pattern("wi/b|l_10/wi/k", "regex"), "the regex `.*/(?:wi/b|l_10/wi/k)` matches 2 arrays"),
        (Pattern(r"dec/l_\d/wi/k", "regex"), r"the regex `dec/l_\d+/wi/k` matches 2 arrays"),
        (Pattern(r"(?=d)dec/l_\d/wi/k", "regex"), None),
        (Pattern("dec/*"), "`dec/**` matches 2 arrays, first dec/l_10/wi/k"),
        (Pattern("wi/*"), "`**/wi/*` matches 3 arrays"),
        (Pattern("nothing/*"), None),
        (Pattern("nothing"), None),
        (Pattern("nothing", "regex"), None),
    ],
)
def test_working(pattern: Pattern, help: str | None) -> None:
    (found,) = working([pattern], PATHS)
    assert (found.text if found else "").startswith(help or "")
    assert (found is None) == (help is None)


@pytest.mark.parametrize(
    ("pattern", "help"),
    [
        (Pattern("none/*/k", "regex"), "it looks like a glob: drop `re:`"),
        (Pattern("none/.*/k"), "it looks like a regex: put `re:` before it"),
        (Pattern("none/.*/k", "regex"), None),
        (Pattern("none/*/k"), None),
        (Pattern("none"), None),
    ],
)
def test_looks(pattern: Pattern, help: str | None) -> None:
    assert looks(pattern) == help


@pytest.mark.parametrize("text", [r"(?=a)l_\d", r"(a|b)\1/l_\d", "(unclosed", r"(?!x)/*"])
def test_no_offer_can_run_without_end(text: str) -> None:
    for pattern in (Pattern(text), Pattern(text, "regex")):
        for offer in (*spellings(pattern), *readings(pattern)):
            compiled = compile_regex(offer.pattern.text)
            assert offer.pattern.dialect == "glob" or getattr(compiled, "engine", "") == "re2"


def test_what_is_safe_is_offered_both_ways() -> None:
    text = r"(wi|wo)/l_\d"
    assert Pattern(text, "regex") in {offer.pattern for offer in spellings(Pattern(text))}
    assert Pattern(text, "regex") in {offer.pattern for offer in readings(Pattern(text))}


HEAD = "mesh: {x: 2}\nrules: [a -> x]\n"
ARRAYS = "\narrays: {'dec/l_{0..2}/k': 'f32[a=8]'}"


@pytest.mark.parametrize(
    ("text", "advice", "fixed"),
    [
        ("params: {'re:dec/*/k': a}", "drop `re:`", "params: {'dec/*/k': a}"),
        ("params: {'dec/.*/k': a}", "put `re:` before it", "params: {'re:dec/.*/k': a}"),
        (
            "overrides: [{match: 'dec/*/k', axes: a}]",
            "write `path:` for `match:`",
            "overrides: [{path: 'dec/*/k', axes: a}]",
        ),
        (
            "overrides: [{path: 'dec/.*/k', axes: a}]",
            "write `match:` for `path:`",
            "overrides: [{match: 'dec/.*/k', axes: a}]",
        ),
        ("scan: {'re:dec/*/k': a@0}", "drop `re:`", "scan: {'dec/*/k': a@0}"),
    ],
)
def test_the_help_works(text: str, advice: str, fixed: str) -> None:
    (found,) = findings_of(HEAD + text + ARRAYS, only="unmatched-pattern")
    assert (found.help or "").endswith(advice)
    assert findings_of(HEAD + fixed + ARRAYS, only="unmatched-pattern") == ()


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ('override re"dec/*/k" : a', 'drop the `re` before `"`'),
        ("override dec/.*/k : a", 'write `re"dec/.*/k"`'),
    ],
)
def test_the_help_in_the_dsl(line: str, advice: str) -> None:
    text = f"shardspec 1\nmesh {{ x = 2 }}\nrules {{ a -> x }}\n{line}\n"
    text += "arrays { dec/l_{0..2}/k : f32[a=8] }\n"
    (found,) = findings_of(text, only="unmatched-pattern")
    assert (found.help or "").endswith(advice)
