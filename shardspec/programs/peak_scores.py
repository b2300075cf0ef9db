"""Scores of attention on a TPU, in which libtpu's kernels differ from those of other values.

Scores are a product of matrices for each element of batch dimensions: queries by keys. A softmax
goes along the keys: a row. Where there are no fewer queries than keys, libtpu lays scores out with
the queries along lanes. Then the kernel of the product masks them, or on v6e and v7x that of the
softmax reads its constants from memory. Queries and keys that a layer projects itself it lays out
with the batches first, and one kernel makes scores and exponentials.
Source: libtpu 0.0.52 on v4, v5e, v5p, v6e and v7x, scores of 512 to 8,192 queries by 512 to 8,192
keys, with and without a mask, a scale, groups of heads, and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from shardspec.diagnostics.words import reached
from shardspec.programs.peak_graph import Body, Node, Value

_Which = Literal["none", "leading", "all"]


@dataclass(frozen=True, slots=True)
class Softmax:
    """What the kernels of a softmax over scores do on one chip.

    Attributes:
      spread_rows: the lengths of rows for which one in f32 reads its mask, and what it scales and
        fills in with, from memory, each written to the size of the scores.
      joined: of which scores one kernel makes their exponentials too: those whose batches come
        first in memory (leading), or all; where there is no gradient.
      joins_unmasked: that it does so without a mask.
      joins_long: of which scores one kernel does so only in long rows, where a layer makes their
        queries and keys (flat: those whose heads its products make as one dimension).
      gradients_again: of which grouped scores products compute the gradients anew.
      writes_wide: that the kernel of the gradients of scores in f32 writes the probabilities too,
        and that those of any scores are written that products read before and after.
      writes_unmasked: that the kernel of the gradients of scores in bf16 does so without a mask.
    """

    spread_rows: range = range(0)
    joined: _Which = "leading"
    joins_unmasked: bool = True
    joins_long: Literal["none", "flat", "all"] = "none"
    gradients_again: _Which = "none"
    writes_wide: bool = True
    writes_unmasked: bool = True


#: Of v4.
PLAIN = Softmax()
#: By chip, where it is another.
SOFTMAX = {
    "v5e": Softmax(
        joins_long="flat", gradients_again="all", writes_wide=False, writes_unmasked=False
    ),
    "v5p": Softmax(joins_long="flat"),
    "v6e": Softmax(
        range(2817, 6400),
        "all",
        joins_unmasked=False,
        joins_long="all",
        gradients_again="leading",
        writes_wide=False,
    ),
    "v7x": Softmax(range(2817, 6144), "all"),
}
_ROWS_AND_KEYS = 2
#: Rows that the kernel of the product masks are longer than this.
_SHORT_ROW = 1024


def batches(node: Node) -> tuple[int, ...]:
    """Return the batch dimensions of a product."""
    return node.instruction.numbers("lhs_batch_dims")


def free_sizes(node: Node) -> list[int]:
    """Return the sizes of the other dimensions of its result, of those that are longer than 1."""
    return [size for size in node.results[0].shape[len(batches(node)) :] if size > 1]


def is_scores(node: Node) -> bool:
    """Say whether a product is one of matrices for each element of batch dimensions."""
    return node.operation == "dot" and bool(batches(node)) and len(free_sizes(node)) >= 2


def is_grouped(product: Node) -> bool:
    """Say whether a product is one of scores in which several heads read the same keys."""
    return len(free_sizes(product)) > _ROWS_AND_KEYS


def is_made_again(product: Node, fuses: Callable[[Node], bool]) -> bool:
    """Say whether kernels compute the exponentials of grouped scores anew, and read the scores.

    They do where there are gradients, or where the batches come first in memory.
    """
    return is_grouped(product) and (_is_leading(product) or _products_of(product, fuses) > 1)


def is_last(product: Node, fuses: Callable[[Node], bool]) -> bool:
    """Say whether scores have no gradients, and kernels read their exponentials."""
    return _products_of(product, fuses) == 1 and not is_made_again(product, fuses)


def is_among(product: Node, which: _Which) -> bool:
    """Say whether scores are among some."""
    return which == "all" or (which == "leading" and _is_leading(product))


def _is_leading(product: Node) -> bool:
    """Say whether the batch dimensions come first in both operands, of those longer than 1."""
    for shape, key in zip(product.shapes, ("lhs_batch_dims", "rhs_batch_dims"), strict=False):
        long = [at for at, size in enumerate(shape) if size > 1]
        batch = sorted(at for at in product.instruction.numbers(key) if at in long)
        if batch != long[: len(batch)]:
            return False
    return True


def _products_of(product: Node, fuses: Callable[[Node], bool]) -> int:
    """Return how many products read what is made of scores, element by element."""
    made = _made_of(product, lambda user: user.operation != "dot" and fuses(user))
    return len({user for value in made for user in value.users if user.operation == "dot"})


def attended(body: Body, fuses: Callable[[Node], bool]) -> frozenset[tuple[int, ...]]:
    """Return the sizes, sorted, of the scores of attention in a body and in its loops.

    They are products of queries and keys whose exponentials another product reads. A kernel that
    goes through them in blocks (FlashAttention, arXiv 2205.14135) has none of this size in memory.
    """
    inner = (attended(each, fuses) for node in body.nodes for each in node.bodies)
    own = {sizes(node.results[0].shape) for node in body.nodes if _is_attention(node, fuses)}
    return frozenset(own).union(*inner)


def sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of an array in order of size, but those of 1."""
    return tuple(sorted(size for size in shape if size > 1))


def _is_attention(product: Node, fuses: Callable[[Node], bool]) -> bool:
    if not is_scores(product):
        return False
    own = sizes(product.results[0].shape)
    made = _made_of(product, lambda user: fuses(user) and sizes(user.results[0].shape) == own)
    makers = {value.maker.operation for value in made if value.maker is not None}
    return "exponential" in makers and _products_of(product, fuses) > 0


def _made_of(product: Node, passes: Callable[[Node], bool]) -> Iterator[Value]:
    """Yield what is made of the result of a product by operations that pass, that included."""
    return reached(
        [product.results[0]],
        lambda value: (user.results[0] for user in value.users if passes(user)),
    )


def is_tall(product: Node, row: int) -> bool:
    """Say whether scores have no fewer rows than a row has elements."""
    return bool(batches(product)) and 0 < row <= prod(free_sizes(product)) // row


def mask_of(product: Node, fuses: Callable[[Node], bool]) -> Value | None:
    """Return the mask that selects among scores, before anything else reads them.

    Args:
      fuses: says whether a kernel can compute an operation for its reader.
    """
    value = product.results[0]
    while len(value.users) == 1 and fuses(value.users[0]):
        if value.users[0].operation == "select":
            return value.users[0].operands[0]
        value = value.users[0].results[0]
    return None


def is_free(product: Node, constant: Collection[Value]) -> bool:
    """Say whether libtpu may lay out both operands with their batches first.

    It may where another product in the same body makes them, and element by element or in
    collectives something of its result: queries and keys of a layer. An argument of the program or
    of a loop has its layout.
    """
    return all(_is_of_product(value, constant) for value in product.operands[:2])


def _is_of_product(value: Value, constant: Collection[Value]) -> bool:
    """Say whether a value comes of a product, by the first of each operation's operands."""
    body = value.body
    while value.maker is not None and value.body is body:
        if value.maker.operation == "dot":
            return True
        found = (v for v in value.maker.operands if v not in constant and len(v.shape) > 1)
        first = next(found, None)
        if first is None:
            return False
        value = first
    return False


def joins(product: Node, row: int, chip: Softmax, fuses: Callable[[Node], bool]) -> bool:
    """Say whether one kernel makes the scores of a layer's own queries and keys and exponentials.

    These are masked scores in bf16. It makes those of one head of keys, and those that have
    gradients where no keys are repeated, but for groups in long rows. Others differ by chip.
    """
    is_copied, is_long = is_repeated(product), is_widened(product, row)
    if product.results[0].dtype != "bf16" or (not is_copied and _is_of_copies(product)):
        return True
    if not is_copied and not is_last(product, fuses):
        return not is_grouped(product) or not is_long
    if chip.joins_long == "none":
        return not is_copied
    if chip.joins_long == "all":
        return is_long or (is_grouped(product) and not _is_flat(product))
    return is_long if _is_flat(product) else not is_copied and (is_grouped(product) or not is_long)


def is_repeated(product: Node) -> bool:
    """Say whether scores are of heads of which several read copies of the same keys.

    The product reads the heads and their copies as one dimension. Copies of a single head are a
    dimension of their own.
    """
    read = zip(product.operands[:2], product.shapes, strict=False)
    return any(_is_copied(value) and _long(shape) < _long(value.shape) for value, shape in read)


def are_written(value: Value) -> bool:
    """Say whether copies of several heads are in memory: of values that probabilities weigh.

    Products of scores repeat their keys themselves.
    """
    first = value.users[0]
    if not _is_copied(value) or first.operation != "dot":
        return False
    sides = zip(first.operands, first.shapes, ("lhs", "rhs"), strict=False)
    return any(
        each is value
        and len(shape) - 1 not in first.instruction.numbers(f"{side}_contracting_dims")
        and _long(shape) < _long(value.shape)
        for each, shape, side in sides
    )


def _is_of_copies(product: Node) -> bool:
    return any(map(_is_copied, product.operands[:2]))


def _is_copied(value: Value) -> bool:
    return value.maker is not None and value.maker.operation == "broadcast"


def _is_flat(product: Node) -> bool:
    """Say whether other products make the heads of the queries as one dimension."""
    queries = zip(product.operands[:1], product.shapes, strict=False)
    return any(len(value.shape) < len(shape) for value, shape in queries)


def _long(shape: tuple[int, ...]) -> int:
    return sum(size > 1 for size in shape)


def is_widened(product: Node, row: int) -> bool:
    """Say whether the kernel of a product converts scores to f32, where it masks them."""
    return product.results[0].dtype == "bf16" and row > _SHORT_ROW and is_tall(product, row)
