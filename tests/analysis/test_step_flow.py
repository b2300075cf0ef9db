"""Lines of `step:` that cannot be, and how lines that can are read."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_values import Flow
from tests.analysis.test_spec_step import TEXT

HEAD, _, _ = TEXT.partition("step:")


def flow(*lines: str, rest: str = "") -> Flow:
    program = "".join(f"    - '{line}'\n" for line in lines)
    spec, faults = pipeline.load_text(f"{HEAD}step:\n{rest}  program:\n{program}")
    assert spec is not None
    assert faults == ()
    return flow_of(spec, pipeline.compile_plans(spec)[0].arrays)


@pytest.mark.parametrize(
    ("line", "message", "marked", "help"),
    [
        ('residual, "**/upp" -> h', "no array matches `**/upp`", '"**/upp"', "compile"),
        ("residul -> h[batch]", "nothing is called `residul`", "residul", "`residual`"),
        ('residual, "**/up", "**/down" -> h', "one pattern", '"**/down"', "a line for each"),
        ('residual, "**/up" -> h[batch length slot]', "size of `slot`", "slot", "`slot: 128`"),
        ('residual, "**/up" -> h[batch length vocab]', "nothing that is read", "h[", "mlp"),
        ('residual, "**/up" -> h[batch length]', "only `**/up` has `mlp`", '"**/up"', "result"),
        ('residual, "**/up" -> residual[batch length]', "2 names for 3", "residual[", "activ"),
        ("residual[batch length] -> h", "no line of `step:` reads an array", "step", "lines"),
        ("residual, residual -> h", "names of `h` are not known", "h", "write them"),
        ('residual[embed as mlp], "**/up" -> h', "`mlp` is 32 in", '"**/up"', "another name"),
        ("split(residual) -> a[batch], b[batch]", "16 elements", "split", "sizes"),
        ("op(residual) -> h[batch], flops 2 * slot", "size of `slot`", "op(", "`slot: 128`"),
        ('flash(residual, "**/up", residual) -> h', "reads values", "residual", ""),
    ],
)
def test_faults_say_where_and_what_works(line: str, message: str, marked: str, help: str) -> None:
    found = flow(line).faults
    assert found, line
    fault = found[0]
    assert message in fault.message
    assert fault.code.id == "SHD240"
    label = fault.primary
    assert label is not None
    assert marked in label.span.text or label.span.text in marked
    assert help in (fault.help or "")


def test_a_product_sums_over_a_name_that_both_have() -> None:
    before = "op(residual) -> h[batch length], flops 2"
    (fault,) = flow(before, 'h, "**/up" -> i').faults
    assert fault.message == "`h` and layers/up have no name in common"
    assert not flow(before.replace("length", "embed"), 'h, "**/up" -> i').faults


@pytest.mark.parametrize("names", ["batch length mlp", "batch length _"])
def test_an_activation_names_all_dimensions_of_a_result_or_the_line_does(names: str) -> None:
    head = HEAD.replace("batch length embed}", f"batch length embed, hidden: {names}}}")
    for written in ("hidden", "hidden[batch length mlp]"):
        program = f"step:\n  program:\n    - 'residual, \"**/up\" -> {written}'\n"
        spec, _ = pipeline.load_text(head + program)
        assert spec is not None
        found = flow_of(spec, pipeline.compile_plans(spec)[0].arrays).faults
        assert bool(found) == ("_" in names and written == "hidden")


def test_a_size_that_all_arrays_agree_on_is_known() -> None:
    text = """
shardspec: 1
mesh: {data: 2}
axes: {batch: 8, length: 16}
rules: [batch -> data]
params: {up: embed mlp, down: mlp embed}
arrays: {up: "f32[64, 256]", down: "f32[DOWN, 64]"}
activations: {residual: batch length embed}
step: {program: ['residual, "up" -> hidden[batch length mlp]', 'hidden, "down" -> residual']}
"""
    for size, faults in (("256", 0), ("128", 1)):
        spec, _ = pipeline.load_text(text.replace("DOWN", size))
        assert spec is not None
        found = flow_of(spec, pipeline.compile_plans(spec)[0].arrays)
        assert len(found.faults) == faults
        assert found.sizes["embed"] == 64


def test_a_fault_in_one_line_hides_no_other() -> None:
    assert len(flow('residual, "**/x" -> h', 'residual, "**/y" -> h').faults) == 2


def test_names_of_a_product_are_what_both_have_not() -> None:
    found = flow('residual, "**/up" -> hidden', 'hidden, "**/down" -> out')
    assert [op.result.names for op in found.ops] == [
        ("batch", "length", "mlp"),
        ("batch", "length", "embed"),
    ]


def test_a_value_goes_on_where_it_was_made_from_the_one_before() -> None:
    found = flow('residual, "**/up" -> hidden', 'hidden, "**/down" -> residual')
    last = found.ops[-1].result
    assert last.base is found.inputs[0]
    other = flow(
        'residual, "**/up" -> hidden', "residual -> copy", "copy -> hidden[batch length embed]"
    )
    assert other.ops[-1].result.base is None


def test_stacked_arrays_run_once_a_slice() -> None:
    found = flow('residual, "**/up" -> hidden', 'residual, "table" -> logits')
    assert [op.count for op in found.ops] == [2, 1]


def test_lines_without_arrays_are_in_the_loop_of_what_they_read() -> None:
    found = flow('residual, "**/up" -> hidden', "hidden -> copy", "residual -> other")
    assert [op.count for op in found.ops] == [2, 2, 1]


@pytest.mark.parametrize("repeat", ["x 2", 'per "**/up"'])
def test_lines_say_how_often_they_run(repeat: str) -> None:
    line = f"op(residual) -> h[batch], flops 2 * batch * (embed + 1) {repeat}"
    (op,) = flow(line).ops
    assert (op.count, op.flops) == (2, 2 * 8 * 33)


def test_routing_has_no_gradient() -> None:
    found = flow('residual, "**/up" -> h', "route(h) -> d[batch, length, _ as slot=4]")
    assert [op.result.is_trained for op in found.ops] == [True, False]
    assert found.ops[-1].result.names == ("batch", "length", None)


def test_lines_of_a_bundled_step_that_match_nothing_are_left_out() -> None:
    head = HEAD.replace("table", "ledger")
    spec, faults = pipeline.load_text(f"{head}step: {{extends: decoder}}\n")
    assert spec is not None
    assert faults == ()
    found = flow_of(spec, pipeline.compile_plans(spec)[0].arrays)
    assert found.faults == ()
    assert {op.weight.first.path for op in found.ops if op.weight} == {"layers/up", "layers/down"}


def test_a_bundled_step_of_which_nothing_is_left_is_a_fault() -> None:
    text = f"{HEAD}step: {{extends: vit}}\n".replace("/up", "/x").replace("/down", "/y")
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    (fault,) = flow_of(spec, pipeline.compile_plans(spec)[0].arrays).faults
    assert "no line of `step:` reads an array" in fault.message


def test_a_bundled_step_whose_lines_read_what_no_line_makes_is_a_fault() -> None:
    text = f"{HEAD}step: {{extends: decoder}}\n".replace("/up", "/x")  # nothing makes `hidden`
    text = text.replace("hidden:", "other:").replace("table", "ledger")
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    (fault,) = flow_of(spec, pipeline.compile_plans(spec)[0].arrays).faults
    assert "no line of `step:` reads an array" in fault.message
