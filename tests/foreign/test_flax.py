"""Rule lists of Flax: which list is meant, who reads it, and that the spec says the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign import flax, nnx
from shardspec.foreign.formats import Imported, NoAnswer, Options, spec_text
from shardspec.foreign.proof import differences
from shardspec.ir.spec import Param, Params
from shardspec.language.formatting import formatted

NAMES = ("batch", "embed", "mlp", "heads", "vocab", "data")
MESH_AXES = ("data", "model", "expert")
MESH = (("data", "4"), ("model", "2"), ("expert", "3"))

names = st.lists(st.one_of(st.sampled_from(NAMES), st.none()), max_size=4).map(tuple)
values = st.one_of(
    st.sampled_from((*MESH_AXES, "stage")),
    st.none(),
    st.lists(st.sampled_from(MESH_AXES), max_size=3, unique=True).map(tuple),
)
rule_lists = st.lists(st.tuples(st.sampled_from(NAMES), values), min_size=1, max_size=8)
arrays = st.lists(names, max_size=6).map(
    lambda all_names: tuple(
        Param(f"a_{index}", tuple(range(7, 7 + len(each))), "f32", each)
        for index, each in enumerate(all_names)
    )
)


def source(text: str, name: str = "rules.py") -> SourceFile:
    return SourceFile(name, text)


def read(
    text: str, file: str = "rules.py", **options: Any
) -> tuple[Imported | None, tuple[Diagnostic, ...]]:
    return flax.read([source(text, file)], Options(**options))


def rules_of(imported: Imported | None) -> Any:
    assert imported is not None
    return imported.data["rules"]


def proof(module: Any, text: str, params: Params, options: Options) -> tuple[Any, ...]:
    """Return the arrays that differ, of those for which Flax has an answer at all."""
    imported, faults = module.read([source(text)], options)
    assert imported is not None, faults
    written, wrong = spec_text(imported, options, [source(text)], "spec.yaml")
    assert wrong == ()
    assert written is not None
    assert formatted(SourceFile("spec.yaml", written)) == (written, ())
    spec, loading = pipeline.load_text(written, "spec.yaml")
    assert spec is not None
    assert loading == ()
    plan = pipeline.compile_plans(spec, params)[0]
    answers = module.answer(imported.reading, params, plan.target.mesh)
    return tuple(
        each for each in differences(plan, answers) if not isinstance(each.theirs, NoAnswer)
    )


@given(rule_lists, arrays)
def test_the_spec_says_what_linen_does(pairs: Any, params: Params) -> None:
    options = Options(semantics="linen", mesh=MESH, params=params)
    assert proof(flax, f"RULES = {pairs!r}", params, options) == ()


@given(rule_lists, arrays)
def test_the_spec_says_what_nnx_does(pairs: Any, params: Params) -> None:
    options = Options(mesh=MESH, params=params)
    assert proof(nnx, f"RULES = {pairs!r}", params, options) == ()


def test_each_line_says_where_it_came_from() -> None:
    text = "RULES = (\n  ('embed', 'data'),\n  ('mlp', ('data', 'model')),\n  ('kv', None),\n)\n"
    imported, faults = read(text)
    assert faults == ()
    assert imported is not None
    written, _ = spec_text(imported, Options(), [source(text)], "spec.yaml")
    assert written is not None
    assert written.splitlines() == [
        "# imported from rules.py",
        "shardspec: 1",
        "doc: Rules as Flax Linen reads them",
        "",
        "rules:",
        "  - embed -> data  # from rules.py:2",
        "  - mlp -> (data, model)  # from rules.py:3",
        "  - kv -> none  # from rules.py:4",
        "",
        "policy: {indivisible: keep}  # as Flax does; JAX refuses what does not divide",
        "lints: {axis-without-array: allow}  # a list may serve activations and other models too",
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RULES = tuple([('embed', 'data')])", "rules.py"),
        ("import x\nOTHER = 5\nRULES = [('embed', 'data')]", "rules.py"),
        ("[[embed, data]]", "rules.yaml"),
        ("- [embed, data]", "rules.yaml"),
        ('[["embed", ["data"]]]', "rules.json"),
        ('{"rules": [["embed", "data"]], "size": 3}', "rules.json"),
        ("off: [no, 12:30]\nrules:\n- [embed, data]", "rules.yml"),
    ],
)
def test_the_one_list_of_a_file_is_found(text: str, name: str) -> None:
    imported, faults = read(text, name)
    assert faults == ()
    assert rules_of(imported) == ["embed -> data"]


def test_of_several_lists_one_has_to_be_named() -> None:
    text = "A = [('embed', 'data')]\nB = A + [('mlp', 'model')]\n"
    imported, (fault,) = read(text)
    assert imported is None
    assert fault.code.id == "SHD604"
    assert fault.help == "say which: --name A"
    assert rules_of(read(text, name="B")[0]) == ["embed -> data", "mlp -> model"]


def test_a_name_that_is_not_there_lists_those_that_are() -> None:
    _, (fault,) = read("A = [('embed', 'data')]", name="RULES")
    assert (fault.code.id, fault.help) == ("SHD603", "lists of rules here: `A`")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("X = 1", "rules.py"),
        ("RULES = make()", "rules.py"),
        ("RULES = [('embed', 'data'), ('a', 'b', 'c')]", "rules.py"),
        ("RULES = [('embed', AXIS)]", "rules.py"),
        ("RULES = [", "rules.py"),
        ("5", "rules.json"),
        ("", "rules.yaml"),
        ("a: [", "rules.yaml"),
        ('{"a": 1, "a": 2}', "rules.json"),
        ("&a [*a]", "rules.yaml"),
        ("[" * 100 + "]" * 100, "rules.json"),
    ],
)
def test_a_file_that_is_no_list_is_refused(text: str, name: str) -> None:
    imported, faults = read(text, name)
    assert imported is None
    assert {fault.code.id for fault in faults} == {"SHD603"}
    assert all(fault.is_error for fault in faults)


def test_several_rules_of_a_name_need_a_reader() -> None:
    text = "RULES = [('embed', 'model'), ('embed', 'data')]"
    imported, (fault,) = read(text)
    assert imported is None
    assert fault.code.id == "SHD604"
    assert fault.primary is not None
    assert fault.primary.span.text == "('embed', 'data')"
    assert rules_of(read(text, semantics="linen")[0]) == ["embed -> model", "embed -> data"]
    assert rules_of(read(text, semantics="nnx")[0]) == ["embed -> data"]


def test_arrays_may_tell_the_readings_apart() -> None:
    text = "RULES = [('heads', 'model'), ('mlp', 'model')]"
    apart = Param("a", (4, 4), "f32", ("heads", "mlp"))
    assert read(text, params=(Param("a", (4,), "f32", ("heads",)),))[1] == ()
    imported, (fault,) = read(text, params=(apart,))
    assert imported is None
    assert fault.message == (
        "`a` (heads mlp): Linen gives P('model', None), NNX P('model', 'model')"
    )
    assert fault.primary is not None
    assert fault.primary.span.text == "('mlp', 'model')"


def test_equal_rules_twice_need_no_reader() -> None:
    assert read("RULES = [('embed', 'data'), ('embed', 'data')]")[1] == ()


def test_nnx_names_without_rules_are_mesh_axes() -> None:
    params = (Param("a", (8, 8), "f32", ("embed", "model")),)
    options = Options(mesh=MESH, params=params)
    imported, _ = nnx.read([source("RULES = [('embed', 'data')]")], options)
    assert rules_of(imported) == ["embed -> data", "model -> model"]


def test_what_is_left_to_the_compiler_is_lost() -> None:
    imported, (fault,) = read("RULES = [('embed', P.UNCONSTRAINED), ('mlp', 'model')]")
    assert fault.code.id == "SHD601"
    assert rules_of(imported) == ["embed -> none", "mlp -> model"]


def test_odd_file_names_stay_in_their_comment() -> None:
    odd = SourceFile("a\nb: c\u2028.py", "RULES = [('embed', 'data')]")
    imported, _ = flax.read([odd], Options())
    assert imported is not None
    written, wrong = spec_text(imported, Options(), [odd], "spec.yaml")
    assert wrong == ()
    assert written is not None
    assert "b: c" in written.splitlines()[0]


def test_one_file_holds_the_list() -> None:
    imported, (fault,) = flax.read([source("A = 1"), source("B = 2")], Options())
    assert imported is None
    assert fault.code.id == "SHD603"


LM1B = """
import ml_collections

def get_config():
  config = ml_collections.ConfigDict()
  config.mesh_axes = ['data', 'fsdp', 'tensor']
  config.steps = [('a', 1), ('b', 2)]
  config.logical_axis_rules = [
      ['mlp', 'tensor'],
      ['embed', 'fsdp'],
  ]
  config.data_sharding = ['data']
  return config
"""


def test_a_list_in_a_configuration_is_found() -> None:
    imported, faults = read(LM1B)
    assert faults == ()
    assert rules_of(imported) == ["mlp -> tensor", "embed -> fsdp"]
    for name in ("logical_axis_rules", "config.logical_axis_rules"):
        assert rules_of(read(LM1B, name=name)[0]) == ["mlp -> tensor", "embed -> fsdp"]


@pytest.mark.parametrize(
    "text",
    [
        "c = ConfigDict({'rules': [('a', 'x')], 'steps': [1, 2]})",
        "c = ConfigDict(dict(rules=[('a', 'x')], steps=[1, 2]))",
        "def get_config():\n  return dict(sharding=dict(rules=[('a', 'x')]))",
        "class Config:\n  rules = (('a', 'x'),)",
        "def f(a):\n  c = parse(a)\n  c.strategy = [('.*', 'fsdp()')]\n  c.rules = [('a', ('x',))]",
    ],
)
def test_lists_in_other_configurations(text: str) -> None:
    assert rules_of(read(text)[0]) == ["a -> x"]


def test_a_list_at_the_top_comes_first() -> None:
    text = "RULES = [('a', 'x')]\ndef f():\n  other = [('b', 'y')]\n  return other\n"
    assert rules_of(read(text)[0]) == ["a -> x"]


def test_a_list_that_a_condition_decides_on_is_said() -> None:
    text = "def f(arg):\n  c = D()\n  if arg.fsdp:\n    c.rules = [('a', 'x')]\n  return c\n"
    imported, (fault,) = read(text)
    assert rules_of(imported) == ["a -> x"]
    assert fault.code.id == "SHD601"
    assert fault.primary is not None
    assert fault.primary.span.text == "arg.fsdp"


def test_several_attributes_of_one_name_need_more_of_it() -> None:
    text = "def f():\n  a.rules = [('a', 'x')]\ndef g():\n  a.rules = [('b', 'x')]\n"
    assert [fault.code.id for fault in read(text)[1]] == ["SHD604"]
    _, (fault,) = read(text, name="rules")
    assert "`f.a.rules`" in (fault.help or "")
    assert rules_of(read(text, name="g.a.rules")[0]) == ["b -> x"]
