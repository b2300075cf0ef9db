"""Scores of attention on a TPU, in which libtpu's kernels differ from those of other values.

Scores are a product of matrices for each element of batch dimensions: queries by keys. A softmax
goes along the keys: a row. Where there are no fewer queries than keys, libtpu lays scores out with
the queries along lanes. Then the kernel of the product masks them, or on v6e and v7x that of the
softmax reads its constants from memory.
Source: libtpu 0.0.52 on v4, v5e, v5p, v6e and v7x, scores of 512 to 8,192 queries by 512 to 8,192
keys, with and without a mask, a scale, groups of heads, and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod

from shardspec.programs.peak_graph import Node, Value

#: The lengths of rows for which a softmax in f32 reads its mask, and what it scales and fills in
#: with, from memory, each written to the size of the scores.
SPREAD_ROWS = {"v6e": range(2817, 6400), "v7x": range(2817, 6144)}
#: Rows that the kernel of the product masks are longer than this.
_SHORT_ROW = 1024


def batches(node: Node) -> tuple[int, ...]:
    """Return the batch dimensions of a product."""
    return node.instruction.numbers("lhs_batch_dims")


def free_sizes(node: Node) -> list[int]:
    """Return the sizes of the other dimensions of its result, of those that are longer than 1."""
    return [size for size in node.results[0].shape[len(batches(node)) :] if size > 1]


def is_tall(product: Node, row: int) -> bool:
    """Say whether scores have no fewer rows than a row has elements."""
    return bool(batches(product)) and 0 < row <= prod(free_sizes(product)) // row


def is_masked(
    product: Node, row: int, fuses: Callable[[Node], bool], constant: Collection[Value]
) -> bool:
    """Say whether the kernel of a product converts scores to f32 and masks them.

    Args:
      fuses: says whether a kernel can compute an operation for its reader.
      constant: the values that a mask is among.
    """
    value = product.results[0]
    if value.dtype != "bf16" or row <= _SHORT_ROW or not is_tall(product, row):
        return False
    while len(value.users) == 1 and fuses(value.users[0]):
        if value.users[0].operation == "select":
            return value.users[0].operands[0] in constant
        value = value.users[0].results[0]
    return False
