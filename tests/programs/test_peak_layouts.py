"""The order in memory that a product asks of an operand, by what XLA makes of each side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.hlo import Instruction
from shardspec.programs.peak_graph import Body, Node, Value
from shardspec.programs.peak_layouts import either_order, order_asked
from tests.programs.contractions import Contraction, contractions


@given(contractions(), st.sampled_from(["bf16", "s8"]))
def test_an_order_is_batch_then_rows_and_columns_of_the_sizes_above_one(
    made: Contraction, dtype: str
) -> None:
    product = Instruction("p", "f32[]", "dot", (), made.attributes, made.attributes)
    body = Body("main", None, 0)
    node = Node("dot", product, body, [Value(dtype, shape, 1, body) for shape in made.shapes])
    node.shapes = [*made.shapes]
    for side, parts in enumerate(made.dims):
        shape, inner = made.shapes[side], [parts["free"], parts["summed"]]
        asked, either = order_asked(node, side), either_order(node, side)
        wanted = [[*parts["batch"], *a, *b] for a, b in (inner, inner[::-1])]
        assert list(either) == [tuple(at for at in each if shape[at] > 1) for each in wanted]
        is_matrix = len(parts["summed"]) == 1 and len(parts["free"]) <= 1
        is_read_as_it_is = is_matrix and parts["batch"] == [*range(len(parts["batch"]))]
        if dtype == "s8":
            assert asked == either[0]
        elif parts["batch"] and not is_read_as_it_is:
            assert asked == either[side]
        else:
            assert asked == ()
