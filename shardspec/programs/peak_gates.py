"""Gates of an MLP on a TPU: `silu(x @ gate) * (x @ up)`, which two products read.

The product after it reads a gate, and so does the gradient of that product's weights. Either both
kernels compute it again from what it is made of, or the kernel of one of the first two products
writes it, and it is in memory until the gradient is made.
Source: libtpu 0.0.52, layers of 4,096 by 6,144 and of 1,024 by 4,096, with and without a residual
and a norm, on v4, v5e, v5p, v6e and v7x.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from shardspec.programs.peak_graph import Node

#: Which gates a product writes: none, all, or those whose reader is a product and nothing else.
Gates = Literal["none", "bare", "all"]
#: By chip, where it writes some.
GATES: dict[str, Gates] = {"v4": "all", "v5p": "bare", "v7x": "all"}
#: Kernels compute these again on all chips, and the second ones where only bare gates are written.
_CHEAP = frozenset(("maximum",))
_CHEAP_BESIDE_BARE = frozenset(("tanh",))


def is_gate(made_by: Collection[Node], inside: Collection[Node], gates: Gates) -> bool:
    """Say whether a product writes a value that is made of two products, element by element.

    Args:
      made_by: the products that it is made of.
      inside: the operations that make it of them.
    """
    names = {each.operation for each in inside}
    again = _CHEAP | (_CHEAP_BESIDE_BARE if gates == "bare" else frozenset())
    return len(made_by) == 2 and names.isdisjoint(again)


def is_one_chain(kernel: Node | None, readers: Collection[Node]) -> bool:
    """Say whether the second product that reads a gate reads what the kernel of the first makes.

    Then both compute the gate again.

    Args:
      kernel: the last operation in the kernel of the first reader, where that goes on.
      readers: the other products that read the gate.
    """
    made = () if kernel is None else kernel.results
    return any(value in each.operands for each in readers for value in made)
