"""A lock: the same text for the same layout, read back whole, and hostile text refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis import layout_diff
from shardspec.analysis.layout_diff import Input, Layout, ProvedBytes, layout_of, text_digest
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.words import collapsed, expanded, natural
from shardspec.ir.spec import MeshAxis, PartitionSpec, Sums
from shardspec.lock.lock_file import lock_text, read_lock
from shardspec.resolve.resolver import resolve

SPEC = """
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {data: rest, model: 4}}
  desk: {mesh: {data: 2, model: 2 explicit}}
rules:
  - batch -> data
  - mlp -> model
  - embed -> (data)
activations:
  residual: batch _ embed
axes: {embed: 8}
arrays:
  "layers_{0..11}/wi": bf16[embed mlp=16]
  "layers_{0..11}/wo": bf16[mlp=16 embed]
  bias: f32[]
"""

HEAD = "lock 1, language 1"
DIGEST = text_digest("x")
DEVICES = f"devices ring = {DIGEST}"

names = st.one_of(
    st.from_regex(r"[a-z][a-z0-9_.-]{0,6}", fullmatch=True),
    st.sampled_from(["none", "_", "a b", 'a"b', "", "a=1", "é", "x\ny"]),
)
paths = st.one_of(
    st.from_regex(r"(?:[a-z]{1,3}_?(?:0|[1-9][0-9]?)?/){0,2}[a-z]{1,3}", fullmatch=True),
    st.sampled_from(["a b", 'a"b', "a{0,1}", "a*", "a = b", "#a", "a\\b", "07", "a_007/w", "a=b"]),
)
axes = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def array_layouts(draw: st.DrawFn, mesh_axes: tuple[str, ...]) -> layout_diff.ArrayLayout:
    shape = tuple(draw(st.lists(st.integers(0, 1 << 20), max_size=3)))
    logical = tuple(draw(st.none() | names) for _ in shape)
    free = list(mesh_axes)
    dims = tuple(
        tuple(free.pop() for _ in range(draw(st.integers(0, min(2, len(free)))))) for _ in shape
    )
    dtype = draw(st.sampled_from(["bf16", "f32", "key<fry>", "s8"]))
    kinds = [tuple(free.pop() for _ in range(draw(st.integers(0, len(free))))) for _ in range(2)]
    memory = draw(st.sampled_from((None, None, "pinned_host", "unpinned_host")))
    partition = PartitionSpec(dims, Sums(*kinds))
    return layout_diff.ArrayLayout(draw(paths), shape, dtype, logical, partition, memory)


sizes = st.integers(0, 10**15)
versions = st.sampled_from([("jax", "0.10.2"), ("libtpu", "0.0.52"), ("jax-cuda12-plugin", "1")])
proofs = st.builds(
    layout_diff.ProofLayout,
    st.sampled_from(["train:step", "a.b_1:c.d"]),
    st.just(text_digest("p")),
    st.lists(versions, min_size=1, max_size=2).map(tuple),
    st.lists(st.builds(Input, paths, st.just(text_digest("c"))), max_size=2).map(tuple),
    st.lists(st.builds(ProvedBytes, axes, sizes, sizes), max_size=2).map(tuple),
    st.builds(ProvedBytes, st.just(()), sizes, st.none() | sizes),
    st.none() | sizes,
)


@st.composite
def target_layouts(draw: st.DrawFn) -> layout_diff.TargetLayout:
    mesh_axes = draw(axes)
    placed = tuple(
        layout_diff.AxisLayout(
            MeshAxis(
                name,
                draw(st.integers(1, 64)),
                draw(st.sampled_from(["ici", "dcn"])),
                axis_type=draw(st.sampled_from(["auto", "explicit", "manual"])),
            ),
            draw(st.sampled_from(["", "x 4, ring; y 2 of 8, line"])),
        )
        for name in mesh_axes
    )
    arrays = draw(st.lists(array_layouts(mesh_axes), max_size=6, unique_by=lambda a: a.path))
    activation = layout_diff.ActivationLayout(
        "residual", ("batch", None), (8, None), PartitionSpec(((), ()))
    )
    has_hardware = draw(st.booleans())
    return layout_diff.TargetLayout(
        draw(names),
        "tpu v4 2x2x2" if has_hardware else "",
        placed,
        draw(st.sampled_from(("t5x", "ring", "listed"))) if has_hardware else "",
        text_digest("devices") if has_hardware else "",
        tuple(sorted(arrays, key=lambda a: (natural(a.path), a.path))),
        draw(st.sampled_from([(), (activation,)])),
        draw(st.none() | proofs),
    )


_SOME = {"min_size": 1, "max_size": 2}

layouts = st.builds(
    Layout,
    st.just(1),
    st.lists(
        st.builds(Input, paths, st.just(text_digest("x"))), **_SOME, unique_by=lambda i: i.name
    ).map(tuple),
    st.just(text_digest("y")),
    st.lists(target_layouts(), **_SOME, unique_by=lambda t: t.name).map(tuple),
)


def in_order(layout: Layout) -> Layout:
    targets = (
        replace(t, arrays=tuple(sorted(t.arrays, key=lambda a: (natural(a.path), a.path))))
        for t in layout.targets
    )
    return replace(layout, targets=tuple(targets))


def layout() -> Layout:
    spec, diagnostics = pipeline.load_text(SPEC)
    assert spec is not None
    assert not diagnostics
    return layout_of(spec, pipeline.compile_plans(spec))


@given(layouts)
def test_round_trip(given_layout: Layout) -> None:
    found = read_lock(SourceFile("spec.lock", lock_text(given_layout)))
    assert not isinstance(found, Diagnostic), found
    assert in_order(found) == in_order(given_layout)


@given(layouts, st.randoms())
def test_order_of_arrays_does_not_show(given_layout: Layout, random: object) -> None:
    shuffled = [
        replace(target, arrays=tuple(reversed(target.arrays))) for target in given_layout.targets
    ]
    assert lock_text(replace(given_layout, targets=tuple(shuffled))) == lock_text(given_layout)


@given(st.lists(st.integers(0, 120), min_size=1, max_size=6, unique=True), st.booleans())
def test_expanded_undoes_collapsed(numbers: list[int], padded: bool) -> None:
    names = [f"a_{n:03d}/b" if padded else f"a_{n}/b" for n in numbers]
    found = collapsed(sorted(names, key=natural))
    assert found is not None
    assert sorted(expanded(found) or ()) == sorted(names)


def test_reads_as_it_was_written() -> None:
    text = lock_text(layout())
    assert "layers_{0..11}/wi : bf16[embed=8 mlp=16] = (data, model)\n" in text
    assert "bias : f32[] = ()\n" in text
    assert "mesh model = 2 explicit\n" in text
    assert "activation residual : [batch _ embed=8] = (data, none, none)\n" in text
    assert text.count("devices t5x = sha256:") == 1


def test_line_endings_do_not_count() -> None:
    assert text_digest("a\r\nb\r\n") == text_digest("a\nb\n")
    assert text_digest("a\nb") != text_digest("a\n")


def test_digest_of_arrays_sees_every_part() -> None:
    array = next(iter(pipeline.compile_plans(_spec())[0].arrays)).param
    others = [
        replace(array, path="other"),
        replace(array, shape=(8, 17)),
        replace(array, dtype="f32"),
        replace(array, logical_axes=("embed", None)),
    ]
    assert len({layout_diff.arrays_digest([each]) for each in (array, *others)}) == 5


def _spec():  # type: ignore[no-untyped-def]
    spec, _ = pipeline.load_text(SPEC)
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("<<<<<<< ours", "merge conflict"),
        ("a : bf16[x=8] = (data, none)", "has to place 1 dimensions"),
        ("a : bf16[x] = (data)", "all its sizes"),
        ("a : bf16[x=8] = data", "no line of a lock"),
        ("a{0..99999999999} : bf16[x=8] = (data)", "more than 1,000,000 paths"),
        ('"a\\q" : bf16[x=8] = (data)', "quoted"),
        ("mesh data = -1", "should be `mesh NAME = SIZE`"),
        ("mesh data = 2", "the mesh axis `data` stands here for the second time"),
        ("mesh none = 2", "`none` is no name"),
        ("proof by jax 1", "a proof begins with its step"),
        (f"proof $(id):x = {DIGEST}", "a proof begins with its step"),
        (f"proof a:b = {DIGEST}\nproof a:b = {DIGEST}", "stands here for the second time"),
        (f"proof a:b = {DIGEST}\nproof sends none = 1, predicted 1", "`none` is no name"),
        (f"proof a:b = {DIGEST}\nproof holds = -1, predicted 1", "no line of a lock"),
        ("a : bf16[x=8] = (model)", "the mesh has no axis `model`; it has `data`"),
        ("a : bf16[x=8 y=8] = (data, data)", "the mesh axis `data` more than once"),
        ("a : bf16[x=8] = (data, )", "has to place 1 dimensions"),
        ("a : bf16[x=8] = ((data))", "has to place 1 dimensions"),
        ("a : bf16[x=8 y=8] = ((data, none), none)", "`none` is no name"),
        ("a : bf16[x=007] = (data)", "no line of a lock"),
        ("a : bf16[x=-8] = (data)", "no line of a lock"),
        ("a_{3..1} : bf16[] = ()", "no path and no range"),
        ("a_{b,c} : bf16[] = ()", "no path and no range"),
        ("a : s8[] = ()\na : s8[] = ()", "the array `a` stands here for the second time"),
        ("a_3 : s8[] = ()\na_{1..3} : s8[] = ()", "the array `a_3` stands"),
        ("a : s8[] = ()\nmesh late = 2", "above its arrays"),
        ("activation r : [b] = (none)\nactivation r : [b] = (none)", "the activation `r` stands"),
        ("activation r : [b] = (model)", "the mesh has no axis `model`"),
        ("target t", "the target `t` stands here for the second time"),
        ("devices t5x = sha256:12", "should be `devices t5x = sha256:`"),
        (f"{DEVICES}\n{DEVICES}", "the line `devices` stands here for the second time"),
        (f"arrays = {DIGEST}", "above the first target"),
        (f"input b = {DIGEST}", "above the first target"),
        ("section = 2", "no line of a lock"),
        ("mesh model = 0", "at least one device"),
        ("mesh model = 9999999999999999999", "beyond 2^63"),
        (f"a : bf16[x={10**10} y={10**10}] = (none, none)", "beyond 2^63"),
        (f"activation a : [x={10**10} y={10**10}] = (none, none)", "beyond 2^63"),
        (f"a{'{0..999999}' * 50} : bf16[x=8] = (data)", "more than 1,000,000 paths"),
        ("a{0..999999} : bf16[] = ()\nb{0..999999} : bf16[] = ()", "more than 1,000,000 paths"),
    ],
)
def test_damaged_lines_are_refused(line: str, said: str) -> None:
    text = f"lock 1, language 1\ntarget t\nmesh data = 8\n{line}\n"
    found = read_lock(SourceFile("spec.lock", text))
    assert isinstance(found, Diagnostic)
    assert said in found.message
    assert found.primary is not None
    assert found.primary.span.line == 4 + line.count("\n")


@pytest.mark.parametrize(
    ("lines", "said", "at"),
    [
        ([HEAD, f"arrays = {DIGEST}", "target t"], "every lock has a line `input NAME", 3),
        ([HEAD, f"input a = {DIGEST}", "target t"], "every lock has a line `arrays =", 3),
        ([HEAD, f"input a = {DIGEST}", f"arrays = {DIGEST}"], "every lock has a line `target", 3),
        ([HEAD, f"input a = {DIGEST}", f"input a = {DIGEST}"], "the input `a` stands", 3),
        ([HEAD, f"arrays = {DIGEST}", f"arrays = {DIGEST}"], "the line `arrays` stands", 3),
        ([HEAD, "input a = sha256:123"], "and 32 digits", 2),
        ([HEAD, f"arrays = {DIGEST}0"], "and 32 digits", 2),
        ([HEAD, HEAD], "no line of a lock", 2),
        (["lock 1, language 2"], "version 2 of the language; this shardspec knows 1", 1),
    ],
)
def test_what_a_lock_lacks_or_has_twice(lines: list[str], said: str, at: int) -> None:
    found = read_lock(SourceFile("spec.lock", "\n".join(lines) + "\n"))
    assert isinstance(found, Diagnostic)
    assert said in found.message
    assert found.help is not None
    assert found.help.startswith("run `shardspec lock` to write it anew")
    assert found.primary is not None
    assert found.primary.span.line == at


@pytest.mark.parametrize("text", ["", "shardspec: 1\n", "lock 2, language 1\n", "lock x"])
def test_what_is_no_lock_is_refused(text: str) -> None:
    assert isinstance(read_lock(SourceFile("spec.lock", text)), Diagnostic)


@given(st.data())
def test_any_damage_is_a_diagnostic_or_a_layout(data: st.DataObject) -> None:
    text = lock_text(layout())
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    damaged = text[:start] + data.draw(st.text(max_size=8)) + text[end:]
    assert isinstance(read_lock(SourceFile("spec.lock", damaged)), Diagnostic | Layout)


HELD = """
shardspec: 1
mesh: {data: 2 explicit, model: 2 explicit}
rules: [mlp -> model]
memory: {"wi": pinned_host}
arrays: {wi: "bf16[_=8 mlp=16]", sum: "f32[8, 8]"}
overrides: [{path: sum, spec: "(data, none) unreduced model"}]
activations:
  saved: {axes: _ mlp, memory: device}
  part: {spec: "(none) reduced (data, model)", memory: pinned_host}
"""


def test_memories_and_sums_are_locked() -> None:
    spec, faults = pipeline.load_text(HELD, "spec.yaml")
    assert spec is not None
    assert faults == ()
    layout = layout_of(spec, pipeline.compile_plans(spec))
    text = lock_text(layout)
    assert "wi : bf16[_=8 mlp=16] = (none, model) memory pinned_host\n" in text
    assert "sum : f32[_=8 _=8] = (data, none) unreduced model\n" in text
    assert "activation saved : [_ mlp] = (none, model) memory device\n" in text
    assert "part : [_] = (none) reduced (data, model) memory pinned_host\n" in text
    again = read_lock(SourceFile("spec.lock", text))
    assert isinstance(again, Layout)
    (before,), (after,) = layout.targets, again.targets
    assert sorted(before.arrays, key=lambda each: each.path) == list(after.arrays)
    assert before.activations == after.activations
    assert (after.per_device_bytes, after.host_bytes) == (4 * 8 * 8 // 2, 2 * 8 * 16 // 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory attic", "it should be|place 2 dimensions|no line"),
        ("memory device", "has no word for it"),
        ("unreduced data", "more than once"),
        ("unreduced pod", "no axis `pod`"),
    ],
)
def test_memories_and_sums_that_no_lock_has(text: str, said: str) -> None:
    spec, _ = pipeline.load_text(HELD, "spec.yaml")
    assert spec is not None
    whole = lock_text(layout_of(spec, pipeline.compile_plans(spec)))
    line = "sum : f32[_=8 _=8] = (data, none) "
    found = read_lock(
        SourceFile("spec.lock", whole.replace(f"{line}unreduced model", f"{line}{text}"))
    )
    assert isinstance(found, Diagnostic)
    assert re.search(said, found.message), found.message


@pytest.mark.parametrize("machine", ["hardware: 8 cpu", ""])
def test_another_order_by_hand_is_another_lock(machine: str) -> None:
    def locked(devices: str) -> str:
        text = f"{machine}\nmesh: {{a: 2, b: 4}}\ndevices: {devices}\nrules: [x -> a]\n"
        spec, found = pipeline.load_text(text + "arrays: {w: 'f32[x=8]'}\n", "s.yaml")
        assert spec is not None
        assert not any(each.is_error for each in found)
        layout = layout_of(spec, [resolve(spec, spec.targets[0], spec.params)])
        text = lock_text(layout)
        again = read_lock(SourceFile("s.lock", text))
        assert isinstance(again, Layout)
        assert again.targets[0].devices == layout.targets[0].devices
        return text

    assert "devices listed = sha256:" in locked("0..7")
    assert locked("0..7") != locked("7..0")


def test_a_lock_of_version_0_2_is_read_and_written_as_it_was() -> None:
    text = (Path(__file__).parent.parent / "data/saved/spec-0.2.lock").read_text("utf-8")
    found = read_lock(SourceFile("spec.lock", text))
    assert isinstance(found, Layout)
    assert lock_text(found) == text
