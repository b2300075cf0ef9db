"""FLOPs and einsums of products, as they are printed for GPUs and for TPUs."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.programs.hlo import Instruction
from shardspec.programs.operations import einsum_of, flops_of, kind_of
from tests.programs.contractions import Contraction, contractions

Shape = tuple[int, ...]


def product(operation: str, attributes: str) -> Instruction:
    return Instruction("x", "f32[]", operation, ("a", "b"), "%a, %b", f", {attributes}")


@pytest.mark.parametrize(
    ("attributes", "left", "right", "result", "einsum"),
    [
        ("lhs_contracting_dims={1}, rhs_contracting_dims={0}", (8, 4), (4, 6), (8, 6), "ab,bc->ac"),
        (
            "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
            "rhs_contracting_dims={1}",
            *((3, 8, 4), (3, 4, 6), (3, 8, 6), "abc,acd->abd"),
        ),
        ("lhs_contracting_dims={}, rhs_contracting_dims={}", (2,), (3,), (2, 3), "a,b->ab"),
    ],
)
def test_dots(attributes: str, left: Shape, right: Shape, result: Shape, einsum: str) -> None:
    dot = product("dot", attributes)
    sizes = dict(
        zip(einsum.replace("->", ",").replace(",", ""), (*left, *right, *result), strict=True)
    )
    flops = 2
    for size in sizes.values():
        flops *= size
    assert flops_of(dot, [left, right], result) == flops
    assert einsum_of(dot, [len(left), len(right)]) == einsum


@given(contractions())
def test_an_einsum_computes_what_the_product_does(made: Contraction) -> None:
    """Of ones each element is the number of products in its sum, which FLOPs count twice."""
    dot = product("dot", made.attributes)
    left, right = (np.ones(shape, np.int64) for shape in made.shapes)
    dims = tuple((made.dims[0][kind], made.dims[1][kind]) for kind in ("summed", "batch"))
    expected = jax.eval_shape(lambda a, b: jax.lax.dot_general(a, b, dims), left, right)
    found = np.einsum(einsum_of(dot, [left.ndim, right.ndim]), left, right)
    assert found.shape == expected.shape
    assert flops_of(dot, made.shapes, found.shape) == 2 * found.sum()
    assert flops_of(dot, made.shapes[:1], found.shape) == 0
    assert flops_of(replace(dot, operation="add"), made.shapes, found.shape) == 0
    assert einsum_of(replace(dot, operation="add"), [left.ndim, right.ndim]) == ""


#: As XLA:GPU prints it.
GEMM = (
    'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"beta":0,'
    '"dot_dimension_numbers":{"lhs_contracting_dimensions":["0","2"],'
    '"rhs_contracting_dimensions":["0","1"],"lhs_batch_dimensions":[]}}}'
)


def test_calls_of_cublas() -> None:
    gemm = product("custom-call", GEMM)
    assert flops_of(gemm, [(3, 8, 4), (3, 4, 6)], (8, 6)) == 2 * 8 * 6 * 12


@pytest.mark.parametrize(
    ("attributes", "left", "right", "result", "flops"),
    [
        # a plain product: x[0=128, b=2, f=1024] w[i=1024, o=512]
        (
            "window={size=1}, dim_labels=0bf_io0->0bf",
            *((128, 2, 1024), (1024, 512, 1), (128, 2, 512), 2 * 256 * 1024 * 512),
        ),
        # a batch of 4 products [8, 16] x [16, 32]: a dimension of space that the window steps over
        (
            "window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf",
            *((4, 8, 16), (4, 16, 32), (4, 8, 32), 2 * 4 * 8 * 16 * 32),
        ),
        # a contraction over a dimension of space: the window is all of it
        (
            "window={size=4x2}, dim_labels=0b1f_1io0->0bf1",
            *((4, 8, 2, 16), (2, 16, 32, 4), (1, 8, 32, 1), 2 * 8 * 4 * 2 * 16 * 32),
        ),
        # an outer product over space: of a padded window each place has one tap
        (
            "window={size=8 pad=7_7 rhs_reversal=1}, dim_labels=b0f_0io->b0f",
            *((2, 1, 16), (8, 16, 32), (2, 8, 32), 2 * 2 * 8 * 16 * 32),
        ),
    ],
)
def test_convolutions(
    attributes: str, left: Shape, right: Shape, result: Shape, flops: int
) -> None:
    assert flops_of(product("convolution", attributes), [left, right], result) == flops


small = st.integers(1, 4)


@given(
    st.lists(
        st.tuples(*[st.integers(1, 7)] * 2, *[small] * 4, st.integers(-3, 6)),
        min_size=1,
        max_size=2,
    ),
    small,
    small,
    st.sampled_from(["", "feature_group_count", "batch_group_count"]),
)
def test_a_convolution_counts_what_it_multiplies(
    dims: list[tuple[int, ...]], batch: int, features: int, groups: str
) -> None:
    """The FLOPs are two for every product of two elements that are there."""
    parts: list[dict[str, int]] = []
    products = features
    for size, places, window, stride, spread, apart, low in dims:
        ticks = (p * stride + t * apart - low for p in range(places) for t in range(window))
        products *= sum(tick % spread == 0 and 0 <= tick // spread < size for tick in ticks)
        parts.append({"size": window, "stride": stride, "lhs_dilate": spread, "rhs_dilate": apart})
    ways = 2 if groups else 1
    window = " ".join(f"{name}={'x'.join(str(p[name]) for p in parts)}" for name in parts[0])
    pads = "x".join(f"{each[-1]}_0" for each in dims)
    space = "".join(map(str, range(len(dims))))
    labels = f"{space}bf_{space}io->{space}bf"
    attributes = f"window={{{window} pad={pads}}}, dim_labels={labels}, {groups}={ways}"
    outer = batch if groups != "batch_group_count" else batch * ways
    inner = features if groups != "feature_group_count" else features * ways
    result = (*(each[1] for each in dims), batch, 6)
    left = (*(each[0] for each in dims), outer, inner)
    right = (*(each[2] for each in dims), features, 6)
    found = flops_of(product("convolution", attributes), [left, right], result)
    assert found == 2 * batch * 6 * products


@given(st.sampled_from([4096, 65537, 1 << 21]), st.integers(1, 512), st.booleans())
def test_a_large_batch_in_space_counts_once(batch: int, inner: int, is_padded: bool) -> None:
    """However a compiler writes a batch as a dimension of space, each product of it is one tap."""
    padded = f"size={batch} pad={batch - 1}_{batch - 1} rhs_reversal=1"
    window = padded if is_padded else f"size={batch} stride={batch - 1} lhs_dilate={batch}"
    attributes = f"window={{{window}}}, dim_labels=0bf_0io->0bf"
    left = (1 if is_padded else batch, 8, inner)
    places = 2 * batch - 1 - batch + 1 if is_padded else batch
    shapes = [left, (batch, inner, 16)]
    found = flops_of(product("convolution", attributes), shapes, (places, 8, 16))
    assert found == 2 * batch * 8 * inner * 16


@pytest.mark.parametrize(
    ("operation", "attributes", "kind"),
    [
        ("dot", "", "einsum"),
        ("scatter", "", "scatter"),
        ("add", "", None),
        ("custom-call", 'custom_call_target="tpu_custom_call"', "kernel"),
        ("custom-call", 'custom_call_target="__cublas$gemm"', "kernel"),
        ("custom-call", GEMM, "einsum"),
        ("custom-call", 'custom_call_target="__cudnn$fmhaSoftmax"', "kernel"),
        ("custom-call", 'custom_call_target="AllocateBuffer"', None),
    ],
)
def test_kinds(operation: str, attributes: str, kind: str | None) -> None:
    assert kind_of(product(operation, attributes)) == kind
