"""Modules as XLA simplifies them before it partitions them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardspec.jax_backend.step.passes import bytecode_of
from shardspec.jax_backend.xla.simplified import simplified

SCATTER = """\
%at = stablehlo.constant dense<3> : tensor<4x1xi32>
%zero = stablehlo.constant dense<{start}> : tensor<f32>
%start = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
%sum = "stablehlo.scatter"(%start, %at, %updates) <{{
  scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
  inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.{how} %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
}}) : (tensor<8x2xf32>, tensor<4x1xi32>, tensor<4x2xf32>) -> tensor<8x2xf32>
%out = stablehlo.add %sum, %other : tensor<8x2xf32>
"""
TYPES = "(%other: tensor<8x2xf32>, %updates: tensor<4x2xf32>) -> tensor<8x2xf32>"


def left(text: str, *, for_tpu: bool = False) -> list[str]:
    """Return the operations of `main` after the simplification; what makes the result is last."""
    with mlir.make_ir_context():
        module = bytecode_of(ir.Module.parse(text))
    with mlir.make_ir_context():
        found: Any = ir.Module.parse(simplified(module, for_tpu=for_tpu))
        main = list(found.body.operations)[-1]
        *made, last = main.regions[0].blocks[0].operations
        return [*(each.operation.name for each in made), last.operands[0].owner.name]


def scattered(start: str = "0.0", how: str = "add", result: str = "%out") -> list[str]:
    body = SCATTER.format(start=start, how=how)
    return left(f"func.func @main{TYPES} {{\n{body}\nreturn {result} : tensor<8x2xf32>\n}}")


def test_a_scattered_sum_starts_with_what_is_added_to_it() -> None:
    assert "stablehlo.add" not in scattered()


def test_a_sum_that_starts_with_something_stays() -> None:
    assert "stablehlo.add" in scattered(start="1.0")


def test_a_maximum_stays() -> None:
    assert "stablehlo.add" in scattered(how="maximum")


def test_a_sum_that_is_read_twice_stays() -> None:
    body = SCATTER.format(start="0.0", how="add")
    body += "%more = stablehlo.multiply %sum, %out : tensor<8x2xf32>\n"
    found = left(f"func.func @main{TYPES} {{\n{body}return %more : tensor<8x2xf32>\n}}")
    assert "stablehlo.add" in found


def test_of_two_scattered_sums_neither_starts_with_the_other() -> None:
    """Tables that are looked up twice: libtpu and XLA:GPU add both up, and sum once."""
    body = SCATTER.format(start="0.0", how="add").replace("%other", "%sum")
    twice = body.partition("%out")[0].replace("%sum", "%second")
    for name in ("at", "zero", "start"):
        twice = twice.replace(f"%{name}", f"%{name}2")
    body = twice + body.replace("add %sum, %sum", "add %sum, %second")
    found = left(f"func.func @main{TYPES} {{\n{body}return %out : tensor<8x2xf32>\n}}")
    assert found.count("stablehlo.scatter") == 2
    assert "stablehlo.add" in found
    third = (
        SCATTER.format(start="0.0", how="add").replace("%other", "%out").replace("%out =", "%end =")
    )
    for name in ("sum", "at", "zero", "start"):
        third = third.replace(f"%{name}", f"%{name}3")
    found = left(f"func.func @main{TYPES} {{\n{body}{third}return %end : tensor<8x2xf32>\n}}")
    assert found.count("stablehlo.add") == 1, "the third starts with the sum of both"


def shown(before: str, after: str) -> list[str]:
    """Return what is left of a slice that is converted, and stacked in a call."""
    return left(f"""
      func.func @main(%x: tensor<1x8x4x{before}>) -> tensor<1x8x4x{after}> {{
        %slice = stablehlo.reshape %x : (tensor<1x8x4x{before}>) -> tensor<8x4x{before}>
        %c = stablehlo.convert %slice : (tensor<8x4x{before}>) -> tensor<8x4x{after}>
        %r = func.call @stack(%c) : (tensor<8x4x{after}>) -> tensor<1x8x4x{after}>
        return %r : tensor<1x8x4x{after}>
      }}
      func.func private @stack(%x: tensor<8x4x{after}>) -> tensor<1x8x4x{after}> {{
        %0 = stablehlo.broadcast_in_dim %x, dims = [1, 2]
          : (tensor<8x4x{after}>) -> tensor<1x8x4x{after}>
        return %0 : tensor<1x8x4x{after}>
      }}""")


def test_a_narrower_slice_is_stacked_as_it_was() -> None:
    assert shown("f32", "bf16")[-1] == "stablehlo.convert"


def test_a_wider_slice_is_reshaped_first() -> None:
    assert shown("bf16", "f32")[-1] == "stablehlo.reshape"


def test_what_is_no_module_is_left_as_it_is() -> None:
    assert simplified(b"nothing") == b"nothing"


LOOKUP = """
%i = stablehlo.iota dim = 0 : tensor<8xi32>
%column = stablehlo.reshape %i : (tensor<8xi32>) -> tensor<8x1xi32>
%zero = stablehlo.constant dense<0> : tensor<8x1xi32>
%size = stablehlo.constant dense<8> : tensor<8x1xi32>
%below = stablehlo.compare {test}, %column, %zero
  : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x1xi1>
%wrapped = stablehlo.add %column, %size : tensor<8x1xi32>
%safe = stablehlo.select %below, %wrapped, %column
  : tensor<8x1xi1>, tensor<8x1xi32>
%spread = stablehlo.broadcast_in_dim %safe, dims = [0, 1] : (tensor<8x1xi32>) -> tensor<8x4xi32>
%rows = stablehlo.reshape %spread : (tensor<8x4xi32>) -> tensor<8x4x1xi32>
"""
JOINED = """
%at = stablehlo.concatenate {rows}, %columns, dim = 2
  : (tensor<8x4x1xi32>, tensor<8x4x1xi32>) -> tensor<8x4x2xi32>
"""
COLUMNS = "func.func @main(%columns: tensor<8x4x1xi32>) -> tensor<8x4x2xi32>"


def test_rows_that_look_up_in_themselves_are_counted_where_they_are_joined() -> None:
    text = LOOKUP.format(test="LT") + JOINED.format(rows="%rows")
    found = left(f"{COLUMNS} {{\n{text}\nreturn %at : tensor<8x4x2xi32>\n}}")
    assert found[-3:] == ["stablehlo.iota", "stablehlo.concatenate", "stablehlo.concatenate"]
    assert "stablehlo.select" not in found


def test_indices_that_are_chosen_otherwise_stay() -> None:
    text = LOOKUP.format(test="GT") + JOINED.format(rows="%rows")
    found = left(f"{COLUMNS} {{\n{text}\nreturn %at : tensor<8x4x2xi32>\n}}")
    assert "stablehlo.select" in found
    assert found.count("stablehlo.iota") == 1


def test_rows_that_a_loop_hands_on_are_counted_in_it() -> None:
    text = LOOKUP.format(test="LT")
    body = f"""
      {text}
      %start = stablehlo.constant dense<0> : tensor<8x4x2xi32>
      %n = stablehlo.constant dense<0> : tensor<i32>
      %out:3 = stablehlo.while(%k = %n, %own = %rows, %sum = %start)
        : tensor<i32>, tensor<8x4x1xi32>, tensor<8x4x2xi32>
        cond {{
          %most = stablehlo.constant dense<4> : tensor<i32>
          %on = stablehlo.compare LT, %k, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %on : tensor<i1>
        }} do {{
          %one = stablehlo.constant dense<1> : tensor<i32>
          %next = stablehlo.add %k, %one : tensor<i32>
          {JOINED.format(rows="%own")}
          %more = stablehlo.add %sum, %at : tensor<8x4x2xi32>
          stablehlo.return %next, %own, %more : tensor<i32>, tensor<8x4x1xi32>, tensor<8x4x2xi32>
        }}
      return %out#2 : tensor<8x4x2xi32>"""
    with mlir.make_ir_context():
        module = bytecode_of(ir.Module.parse(f"{COLUMNS} {{\n{body}\n}}"))
    with mlir.make_ir_context():
        assert str(ir.Module.parse(simplified(module))).count("stablehlo.iota") == 2


CUT = """
%zero = stablehlo.constant dense<0> : tensor<i32>
%cut = stablehlo.dynamic_slice %x, %zero, %zero, sizes = [{size}, 4]
  : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<{size}x4xf32>
%put = stablehlo.dynamic_update_slice %x, %cut, %zero, %zero
  : (tensor<8x4xf32>, tensor<{size}x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
%out = stablehlo.negate %put : tensor<8x4xf32>
"""


@pytest.mark.parametrize("size", [7, 8])
def test_all_of_an_array_is_no_slice_of_it(size: int) -> None:
    body = f"{CUT.format(size=size)}\nreturn %out : tensor<8x4xf32>"
    found = left(f"func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {{\n{body}\n}}")
    cuts = {"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"}
    assert cuts & {*found} == (cuts if size < 8 else set())


TWICE = """
%zero = stablehlo.constant dense<0.0> : tensor<f32>
%again = stablehlo.constant dense<0.0> : tensor<f32>
%a = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8xf32>
%b = stablehlo.broadcast_in_dim %again, dims = [] : (tensor<f32>) -> tensor<8xf32>
%c = sdy.sharding_constraint %a <@mesh, [{?}]> : tensor<8xf32>
%d = sdy.sharding_constraint %b <@mesh, [{%s}]> : tensor<8xf32>
%e = stablehlo.add %c, %d : tensor<8xf32>
"""


@pytest.mark.parametrize(
    ("for_tpu", "axes", "constants", "constraints"),
    [(True, "?", 1, 1), (True, '"x", ?', 1, 2), (False, "?", 2, 2)],
)
def test_a_tpu_computes_once_what_is_alike(
    for_tpu: bool, axes: str, constants: int, constraints: int
) -> None:
    body = f"{TWICE.replace('%s', axes)}return %e : tensor<8xf32>"
    text = f"func.func @main() -> tensor<8xf32> {{\n{body}\n}}"
    found = left(f'module {{ sdy.mesh @mesh = <["x"=2]>\n{text} }}', for_tpu=for_tpu)
    assert found.count("stablehlo.constant") == constants
    assert found.count("sdy.sharding_constraint") == constraints


def test_random_numbers_and_barriers_are_not_alike() -> None:
    body = """
      %b = stablehlo.optimization_barrier %x : tensor<8xf32>
      %c = stablehlo.optimization_barrier %x : tensor<8xf32>
      %out = stablehlo.add %b, %c : tensor<8xf32>
      return %out : tensor<8xf32>"""
    text = f"func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{\n{body}\n}}"
    assert left(text, for_tpu=True).count("stablehlo.optimization_barrier") == 2


#: How a batch of matrices is given: its dimensions are b(atch), k (summed) and its own, m or n.
ORDERS = ("bmk", "bkm", "kbm", "mkb", "mk", "km")


def product(value: Any, given: dict[str, Any]) -> Any:
    """Return what a product computes, by its dimension numbers alone."""
    if isinstance(value.owner, ir.Block):
        return given[value.get_name()]
    numbers = stablehlo.DotDimensionNumbers(value.owner.attributes["dot_dimension_numbers"])
    arrays = [product(each, given) for each in value.owner.operands]
    left, right = ["?"] * arrays[0].ndim, ["?"] * arrays[1].ndim
    for at, pairs in enumerate(
        (
            (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions),
            (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions),
        )
    ):
        for one, other in zip(*pairs, strict=True):
            left[one] = right[other] = "bk"[at]
    left[left.index("?")], right[right.index("?")] = "m", "n"
    out = ("b" if "b" in left else "") + "mn"
    return np.einsum(f"{''.join(left)},{''.join(right)}->{out}", *arrays)


@pytest.mark.parametrize("one", ORDERS)
@pytest.mark.parametrize("other", [each.replace("m", "n") for each in ORDERS])
def test_a_product_of_transposes_is_one_of_what_they_transpose(one: str, other: str) -> None:
    if len(one) != len(other):
        return
    sizes = {"b": 2, "k": 3, "m": 4, "n": 5}
    batch = "b" if "b" in one else ""
    plain = [f"{batch}mk", f"{batch}kn"]

    def kind(dims: str) -> str:
        return f"tensor<{'x'.join(str(sizes[each]) for each in dims)}xf32>"

    lines, arguments = [], []
    for name, dims, wanted in zip("xy", (one, other), plain, strict=True):
        order = [dims.index(each) for each in wanted]
        arguments.append(f"%{name}: {kind(dims)}")
        lines.append(
            f"%{name}t = stablehlo.transpose %{name}, dims = {order}"
            f" : ({kind(dims)}) -> {kind(wanted)}"
        )
    batched = "batching_dims = [0] x [0], " if batch else ""
    summed = f"contracting_dims = [{1 + len(batch)}] x [{len(batch)}]"
    result = kind(f"{batch}mn")
    pair = f"({kind(plain[0])}, {kind(plain[1])}) -> {result}"
    lines.append(f"%r = stablehlo.dot_general %xt, %yt, {batched}{summed} : {pair}")
    body = "\n".join(lines)
    text = (
        f"func.func @main({', '.join(arguments)}) -> {result} {{\n{body}\nreturn %r : {result}\n}}"
    )
    chance = np.random.default_rng(0)
    arrays = [chance.normal(size=[sizes[each] for each in dims]) for dims in (one, other)]
    with mlir.make_ir_context():
        module = bytecode_of(ir.Module.parse(text))
    with mlir.make_ir_context():
        found: Any = ir.Module.parse(simplified(module, for_tpu=True))
        block = list(found.body.operations)[-1].regions[0].blocks[0]
        last = list(block.operations)[-1].operands[0]
        given = {
            each.get_name(): array for each, array in zip(block.arguments, arrays, strict=True)
        }
        assert all(isinstance(each.owner, ir.Block) for each in last.owner.operands)
        wanted = np.einsum(f"{one},{other}->{batch}mn", *arrays)
        np.testing.assert_allclose(product(last, given), wanted)


def test_a_product_over_two_dimensions_reads_the_transpose() -> None:
    found = left(
        """
      func.func @main(%x: tensor<4x2x3xf32>, %y: tensor<2x3x5xf32>) -> tensor<4x5xf32> {
        %t = stablehlo.transpose %y, dims = [1, 0, 2] : (tensor<2x3x5xf32>) -> tensor<3x2x5xf32>
        %r = stablehlo.dot_general %x, %t, contracting_dims = [2, 1] x [0, 1]
          : (tensor<4x2x3xf32>, tensor<3x2x5xf32>) -> tensor<4x5xf32>
        return %r : tensor<4x5xf32>
      }""",
        for_tpu=True,
    )
    assert "stablehlo.transpose" in found


def test_a_tpu_makes_equal_complex_constants_once() -> None:
    kind = "tensor<2xcomplex<f32>>"
    made = [
        f"stablehlo.constant dense<[(1.0,2.0), (3.0,{each})]> : {kind}" for each in (4.0, 4.0, 5.0)
    ]
    body = "\n".join(f"%{name} = {each}" for name, each in zip("abc", made, strict=True))
    sums = f"%d = stablehlo.add %a, %b : {kind}\n%e = stablehlo.add %d, %c : {kind}"
    text = f"func.func @main() -> {kind} {{\n{body}\n{sums}\nreturn %e : {kind}\n}}"
    assert left(text, for_tpu=True).count("stablehlo.constant") == 2
