"""The DSL printer: one layout, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.language.document import Document
from shardspec.language.dsl_text.printer import print_dsl
from shardspec.language.dsl_text.reader import read_dsl
from shardspec.language.grammar.print_expressions import canonical
from shardspec.language.grammar.syntax import quoted, unquoted
from shardspec.language.reading import Comments, Reading, Route
from shardspec.language.sections import SPEC_ALONE

_allowed = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
plain = st.text(_allowed | st.sampled_from("\n\t\r"), max_size=8)  # what no spec holds is refused
keys = st.from_regex(r"[A-Za-z_]\w{0,5}", fullmatch=True) | plain.filter(bool)
axis_names = st.sampled_from(
    ("batch", "embed", "mlp", "kv", "on", "at", "unit", "because", "start")
)
targets = st.sampled_from(
    ("model", "data", "(replica, data)", "none", "( a,b )", "(a,b)?", "( a ) ?")
)
rules = st.tuples(
    st.lists(axis_names, min_size=1, max_size=3), st.lists(targets, min_size=1, max_size=3)
).map(lambda pair: f"{','.join(pair[0])}->{'|'.join(pair[1])}")
names = st.lists(axis_names | st.just("_"), min_size=1, max_size=3).map(" ".join)
sizes = st.sampled_from((512, "512", "heads * kv", "3*embed", "a+2*(b -1)"))
mesh = st.dictionaries(
    keys,
    st.sampled_from(
        (
            *(
                8,
                "8",
                "rest",
                "submesh 4x2x2x1",
                "over x y2/2",
                "2@dcn",
                "8 explicit",
                "2 manual@dcn",
            ),
            *("auto 4 auto", "tp", "2*tp @dcn", "auto tp explicit", "fit kv", "( a=2,b = fit kv)"),
            {"a": 2, "b": "rest"},
        )
    ),
    max_size=4,
)
hardware = st.sampled_from(
    (
        "tpu v4 4x4x8",
        "{1..8}*tpu v5e 16x16",
        "{1, 4} * h100",
        "2*tpu v5p 4x4x8",
        "4 * h100",
        "8 cpu",
        "v4-512",
    )
)
devices = st.sampled_from(("0 1,3  2", "0..3 7..4", [0, 1, 3, 2], ["0..3", 4], 0))
globs = st.sampled_from(
    ("**/mlp/wi_{0,1}/kernel", "a/*", "{a,b}", r"a\{b", "x:y", "a b#c", "re", "optional")
)
regexes = st.sampled_from((r".*/a\d", 'a"b', r"a\"b", "a\nb", "é+", "a\\\\"))
patterns = globs | plain.filter(bool).filter(lambda text: not text.startswith("re:"))
path_keys = patterns | (regexes | plain).map(lambda text: f"re:{text}")
pattern_keys = path_keys | path_keys.map(lambda key: f"optional:{key}")
optionals = st.sampled_from(({}, {"optional": True}))


step_lines = st.sampled_from(
    (
        'residual,"**/{a,b}/kernel"->query',
        "query, key[length as klength] -> scores[batch, heads length klength]",
        "flash(query, key, value) -> context x 24",
        'op( a,b ) -> c, flops 3*batch * (embed+1) per re".*/wi"',
        "gather(tokens[batch length], a/b) -> residual[batch length embed=4]",
        "split(qkv) -> a, b[_ as x, y], c",
        r"route(scores) -> d[_ as e=4] x 2",
        "mode, tokens -> remat",
        r'a, re"\d+\"" -> b',
    )
)
memories = st.sampled_from(("device", "pinned_host", "unpinned_host"))
#: Names that read like what may stand behind them.
odd_names = st.sampled_from(("batch memory device", "memory", "a memory, pinned_host", "reduced b"))
partitions = st.sampled_from(
    ("(none, model)", "()", "((a,b),c)", "(a) unreduced b", "() reduced (a,b) unreduced c")
)


def _optional(needed: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(needed, optional=optional)


def _override(pattern: tuple[str, str], answer: tuple[str, str], rest: dict[str, str]) -> Any:
    return dict([pattern, answer]) | rest


_files = st.fixed_dictionaries(
    {},
    optional={
        "shardspec": st.just(1),
        "doc": plain,
        "extends": plain.filter(bool)
        | st.lists(keys | st.sampled_from(("t5x/2d", "./a.yaml")), max_size=3),
        "let": st.dictionaries(keys, sizes, max_size=3),
        "axes": st.dictionaries(
            keys,
            st.none()
            | sizes
            | _optional(
                {}, size=sizes, unit=sizes, interleaved=st.booleans(), doc=plain
            ),
            max_size=3,
        ),
        "targets": st.dictionaries(
            keys, _optional({"mesh": mesh}, hardware=hardware, devices=devices), max_size=3
        ),
        "hardware": hardware,
        "devices": devices,
        "mesh": mesh,
        "rules": st.lists(
            rules | _optional({"rule": rules}, at=st.sampled_from(("start", "before  mlp"))),
            max_size=4,
        ),
        "drop": st.lists(keys, max_size=2),
        "params": st.dictionaries(pattern_keys, names, max_size=4),
        "overrides": st.lists(
            st.builds(
                _override,
                st.tuples(st.just("path"), patterns)
                | st.tuples(st.just("match"), regexes | plain.filter(bool)),
                st.tuples(st.just("axes"), names)
                | st.tuples(st.just("spec"), partitions),
                _optional({}, memory=memories, because=plain, optional=st.just(True)),
            ),
            max_size=3,
        ),
        "derive": st.dictionaries(
            patterns | patterns.map(lambda glob: f"optional:{glob}"),
            st.sampled_from(
                ("from **", "from  **/k  dims 0,_", "dims ... -2/any b|0*8", 'from "a b;#" dims 1')
            ),
            max_size=2,
        ),
        "scan": st.dictionaries(
            pattern_keys, st.sampled_from(("layers@0", "a@0, b@1")), max_size=2
        ),
        "memory": st.dictionaries(pattern_keys, memories, max_size=2),
        "training": st.dictionaries(
            pattern_keys, st.sampled_from(("trained", "frozen")), max_size=2
        ),
        "activations": st.dictionaries(
            keys | path_keys,
            names
            | _optional({"axes": names | odd_names}, memory=memories)
            | _optional({"spec": partitions}, memory=memories),
            max_size=2,
        ),
        "arrays": st.dictionaries(
            patterns, st.sampled_from(("f32[]", "bf16[a b]", "s8[3,4]")), max_size=2
        ),
        "caches": st.dictionaries(
            patterns, st.sampled_from(("bf16[batch kv]", "s8[3,4]")), max_size=2
        ),
        "manifest": plain | st.lists(plain, min_size=1, max_size=2),
        "policy": st.sampled_from(
            ({"indivisible": "next"}, {"order": "ring"}, {"whole_below": "01.50MiB"})
        ),
        "state": _optional(
            {},
            optimizer=st.sampled_from(("same", "zero1")),
            over=st.sampled_from(("data", "( a,b )", "(a)", "a-b.c")),
            moments=st.integers(0, 3),
            dtype=st.sampled_from(("f32", "float32")),
        ),
        "coverage": _optional(
            {}, max_replicated_bytes=st.sampled_from(("2%", "2.50 %", "64MiB", "0 B", "007 KiB"))
        ),
        "step": _optional(
            {},
            extends=st.sampled_from(("decoder", "./a.yaml", "a b.yaml")),
            mode=st.sampled_from(("train", "serve")),
            tokens=st.sampled_from((4096, "4M", "2.5 k")),
            microbatches=st.integers(1, 9),
            remat=st.sampled_from(("full", ["full"], ["query", "key"])),
            dtype=st.just("bf16"),
            attention=st.sampled_from(("flash", "einsum")),
            pipeline=st.sampled_from(("gpipe", "1f1b", "interleaved(2)")),
            experts=st.sampled_from(("top 2", "top 2 capacity 1.25")),
            program=st.lists(step_lines, max_size=3),
        ),
        "replicate": st.lists(
            st.builds(
                _override,
                st.tuples(st.just("path"), patterns)
                | st.tuples(st.just("match"), regexes | plain.filter(bool)),
                st.tuples(st.just("because"), plain),
                optionals,
            ),
            max_size=3,
        ),
        "lints": st.dictionaries(keys, st.sampled_from(("warn", "error")), max_size=2),
    },
).filter(bool)  # fmt: skip


def _with_phases(file: dict[str, Any], phases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a document whose phases are others, without what is a spec's alone."""
    own = {
        name: {key: value for key, value in phase.items() if key not in SPEC_ALONE}
        for name, phase in phases.items()
    }
    return {**file, "phases": own} if own else file


documents = st.builds(_with_phases, _files, st.just({}) | st.dictionaries(keys, _files, max_size=2))


def routes(data: Any, route: Route = ()) -> list[Route]:
    """Return every route of a document's data."""
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [route, *(found for key, value in items for found in routes(value, (*route, key)))]


def read(text: str) -> Reading:
    reading, diagnostics = read_dsl(SourceFile("spec.shard", text))
    assert diagnostics == (), text
    assert reading is not None
    return reading


def comment_texts(comments: Any) -> list[str]:
    lines = [
        line
        for found in comments.values()
        for line in (*found.before, found.trailing or "", *found.after)
    ]
    return sorted(line for line in lines if line)


words = st.sampled_from(("why", "a # b", '"quoted"', "{ }", "é", "rules {", " "))
comment_lines = st.lists(words | st.just(""), max_size=3).map(tuple)
comment_sets = st.builds(Comments, comment_lines, st.none() | words, comment_lines)


def test_the_documents_have_every_section() -> None:
    """What a strategy does not draw, no law below covers."""
    missing = set(Document.model_fields)

    @settings(database=None, phases=[Phase.generate], max_examples=2000)
    @given(documents)
    def draw(data: Any) -> None:
        missing.difference_update(data)
        assert missing  # ends the search

    with pytest.raises(AssertionError):
        draw()
    assert not missing


@given(documents)
def test_round_trip(data: Any) -> None:
    spelt = canonical(data)
    assume(spelt)
    assert canonical(spelt) == spelt
    text = print_dsl(spelt, {})
    assert canonical(read(text).data) == spelt, text
    assert print_dsl(canonical(read(text).data), {}) == text


@given(documents, st.data())
def test_comments(data: Any, draw: st.DataObject) -> None:
    spelt = canonical(data)
    assume(spelt)
    chosen = draw.draw(st.lists(st.sampled_from(routes(spelt)), max_size=5, unique=True))
    comments = {route: draw.draw(comment_sets) for route in chosen}
    text = print_dsl(spelt, comments)
    reading = read(text)
    assert canonical(reading.data) == spelt, text
    assert comment_texts(reading.comments) == comment_texts(comments), text
    assert print_dsl(canonical(reading.data), reading.comments) == text


@given(plain)
def test_quoting_and_unquoting_text(text: str) -> None:
    assert unquoted(quoted(text)) == text


def test_the_layout() -> None:
    text = """\
# What this is.
shardspec 1
extends t5x/2d  # the paper's

axis batch = 512
axis joined_kv = heads * kv unit 64 "one head is 64 wide"

target laptop on 8 cpu { data = rest; model = 2 }
target v4-512 on tpu v4 4x4x8 {
  data  = rest  # what is left over
  model = submesh 4x2x2x1
}

rules {
  batch      -> (replica, data)

  # the big ones
  mlp, heads -> model | none @ 5
  kv         -> none at before mlp
  # the last of them
}

params {
  "a b/**"        : embed mlp
  re".*/(a|b)\\d+" : _ kv
}

override decoder/logits/kernel = (none, model) because "see above"

scan {
  decoder/** : layers@0
}

policy indivisible next
lint replicated-large error

# the end
"""
    shown = text.replace("(replica, data)\n\n", "(replica, data)\n")
    reading = read(text)
    assert print_dsl(canonical(reading.data), reading.comments) == shown
