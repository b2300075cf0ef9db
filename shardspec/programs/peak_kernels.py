"""Which values of a partitioned program are in memory: a model of XLA's fusion.

A chain of elementwise operations is one kernel, and what is inside a kernel takes no memory. Going
backwards over a body, each value has the kernels that would compute it: those of its readers. A
value is in memory where a reader cannot compute it itself, where two products read it, or where it
is expensive and more than one kernel would compute it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from shardspec.diagnostics.words import reached
from shardspec.programs.hlo import number
from shardspec.programs.operations import base
from shardspec.programs.peak_again import Rates, kept_of
from shardspec.programs.peak_gates import Gates, is_gate, is_one_chain
from shardspec.programs.peak_graph import (
    BARRIER,
    LOOP,
    UPDATE,
    Body,
    Node,
    Value,
    every_node,
)
from shardspec.programs.peak_scores import (
    PLAIN,
    Softmax,
    are_written,
    is_among,
    is_free,
    is_grouped,
    is_last,
    is_made_again,
    is_repeated,
    is_scores,
    is_tall,
    is_widened,
    joins,
    mask_of,
)

Platform = Literal["tpu", "gpu"]

_CHEAP_WORDS = """
    abs add and broadcast ceil clamp compare complex concatenate constant convert
    dynamic-slice floor imag iota is-finite maximum minimum multiply negate not or pad
    partition-id popcnt real reduce-precision replica-id reverse round-nearest-afz
    round-nearest-even select shift-left shift-right-arithmetic shift-right-logical sign slice
    subtract xor
"""
_COSTLY_WORDS = """
    atan2 cbrt cosine divide erf exponential exponential-minus-one log log-plus-one logistic
    power remainder rsqrt sine sqrt tan tanh
"""
_CHEAP, _COSTLY = frozenset(_CHEAP_WORDS.split()), frozenset(_COSTLY_WORDS.split())
_CONSTANT = frozenset(("constant", "iota", "partition-id", "replica-id"))
#: The longest row that libtpu 0.0.52 keeps between two products: 2,048 elements on v4, v5e and v6e;
#: rows of 4,096 it writes.
_ROW = 2048
#: Rather than so many arrays, products read the one that a kernel makes of them.
_MANY = 3
_WIDENS = frozenset(("broadcast", "convert"))
_PRODUCTS = frozenset(("dot", "convolution", "ragged-dot"))
_REDUCES = frozenset(("reduce",))


def is_elementwise(node: Node) -> bool:
    """Say whether a kernel that reads the result can compute the operation itself."""
    return node.operation in _CHEAP or node.operation in _COSTLY


def is_product(node: Node) -> bool:
    """Say whether an operation is a product of matrices or a convolution."""
    return node.operation in _PRODUCTS


@dataclass(slots=True)
class Kernels:
    """What is decided of each value.

    Attributes:
      stored: why a value is in memory; a value that is not in it has no entry.
      of: the kernels that compute a value: those of its readers where it is not in memory.
      again: of a value that is in memory for readers that cannot compute it, the kernels that
        compute it again all the same, since what it is made of is smaller.
      absorbed: kernels that a product is part of: there is one in each.
      redone: of such a value, what is in memory for those kernels.
      summed: of values that a sum over a dimension reads, in the kernel that makes the sum, over
        how many elements it goes.
      apart: values that are made of a product and read by a kernel with another product.
      ends: values of several readers, each made in the kernel of a product that leads to it alone.
      made_with: of values that products read, the products they are made of, one of whose kernels
        makes both.
      written_with: of probabilities of attention, the gradients of their scores: the kernel that
        makes these writes both.
      kept: values of several readers that a GPU rather reads than computes in each.
      softmax: what the kernels of a softmax do on a TPU.
      gates: which gates of an MLP a TPU writes with a product.
      turned: products that a TPU computes in turns, in loops of their own, by `peak_rings`.
      is_short: that the device has no room for all values that are computed once.
      spread: such constants: a mask, what it fills in, a scale, each written to its whole size.
      gathered: by a GPU, element by element, for a sum: in the kernel of what else is made of rows
        of the same array.
      counted: numbers of columns that a GPU writes out for a product that makes one-hot rows.
      widened: values in bf16 that are kept in f32: of a GPU without arithmetic in bf16, and scores
        of attention.
      roots: what is in memory so that a reader of a value can run: the value, or what a kernel
        computes it from.
    """

    platform: Platform
    rates: Rates | None = None
    softmax: Softmax = PLAIN
    gates: Gates = "none"
    is_short: bool = False
    stored: dict[Value, str] = field(default_factory=dict)
    of: dict[Value, frozenset[Node]] = field(default_factory=dict)
    roots: dict[Value, frozenset[Value]] = field(default_factory=dict)
    constant: set[Value] = field(default_factory=set)
    again: dict[Value, frozenset[Node]] = field(default_factory=dict)
    absorbed: set[Node | None] = field(default_factory=set)
    redone: dict[Value, frozenset[Value]] = field(default_factory=dict)
    summed: dict[Value, int] = field(default_factory=dict)
    apart: set[Value] = field(default_factory=set)
    ends: set[Value] = field(default_factory=set)
    made_with: dict[Value, tuple[Value, ...]] = field(default_factory=dict)
    written_with: dict[Value, Value] = field(default_factory=dict)
    kept: frozenset[Value] = frozenset()
    gathered: set[Value] = field(default_factory=set)
    counted: set[Value] = field(default_factory=set)
    widened: set[Value] = field(default_factory=set)
    spread: set[Value] = field(default_factory=set)
    turned: Mapping[Node, str] = field(default_factory=dict)

    def decide(self, main: Body) -> None:
        """Decide on all values of a program."""
        self._find_constants(main)
        if self.platform == "tpu":
            self._find_apart(main)
            self._find_ends(main)
        else:
            self.counted.update(_counted(main))
        if self.rates is not None:
            self.kept = kept_of(main, self.rates, _CHEAP | _COSTLY, self.constant)
        self._judge(main)
        if self.platform == "tpu":
            self._find_written(main)
        self._find_roots(main)

    def _find_constants(self, body: Body) -> None:
        for node in body.nodes:
            if node.operation in _CONSTANT or (
                node.operands
                and is_elementwise(node)
                and all(v in self.constant for v in node.operands)
            ):
                self.constant.update(node.results)
            for inner in node.bodies:
                self._find_constants(inner)

    def _find_apart(self, body: Body) -> None:
        """Find the values that a TPU makes in the kernel of a product, for that of another one.

        libtpu gives a product the elementwise operations after it, as far as each is the only
        reader and does not widen. Where two such chains meet, the kernel goes on with the later
        one, and the other is in memory: a sum of many products is one buffer that grows.
        """
        chains: dict[Value, int] = {}
        for node in body.nodes:
            for inner in node.bodies:
                self._find_apart(inner)
            if is_product(node):
                self.apart.update(v for v in node.operands if chains.get(v, 0) > 1)
            if not self.fuses(node):
                continue
            value = node.results[0]
            found = [v for v in node.operands if _is_only_read(v, value)]
            found = [v for v in found if v in chains or (v.maker and is_product(v.maker))]
            latest = max(found, key=lambda each: each.serial, default=None)
            if latest is not None:
                chains[value] = sum(chains.get(each, 1) for each in found)
                self.apart.update(v for v in found if v in chains and v is not latest)

    def _find_ends(self, body: Body) -> None:
        """Find where the kernel of a product ends on a TPU: at the first value of several readers.

        It goes on as long as all that reads a value leads to one other, element by element.
        """
        ends: dict[Value, Value] = {}
        for node in body.nodes:
            for inner in node.bodies:
                self._find_ends(inner)
            if not is_product(node):
                continue
            value = self._end(node.results[0], ends)
            is_row = any(_sums_rows(user, value) for user in value.users)
            if value is not node.results[0] and len(value.users) > 1 and not is_row:
                self.ends.add(value)

    def _end(self, value: Value, ends: dict[Value, Value]) -> Value:
        """Return the last value that all readers of one lead to, one after another.

        Args:
          ends: those that are known.
        """
        path = [value]
        while path[-1] not in ends:
            following = self._after(path[-1])
            if following is None:
                ends[path[-1]] = path[-1]
            else:
                path.append(following)
        ends.update(dict.fromkeys(path, ends[path[-1]]))
        return ends[value]

    def _after(self, value: Value) -> Value | None:
        """Return the next value that all readers of this one lead to; None where there is none."""
        seen, left = {value}, [(value.serial, value)]
        while left:
            _, first = heapq.heappop(left)
            if first is not value and not left:
                return first
            for user in first.users:
                is_inside = user.body is value.body and self.fuses(user)
                made = user.results[0] if is_inside else first
                if first.is_yielded or not is_inside or not _is_as_wide(made, value):
                    return None
                if made not in seen:
                    seen.add(made)
                    heapq.heappush(left, (made.serial, made))
        return None

    def _judge(self, body: Body) -> None:
        for node in reversed(body.nodes):
            for inner in node.bodies:
                self._judge(inner)
            for value in node.results:
                self.of[value], why = self._why(node, value)
                if why:
                    self.stored[value] = why

    def _why(self, node: Node, value: Value) -> tuple[frozenset[Node], str]:
        """Return the kernels that compute a value, and why it is in memory."""
        found: set[Node] = set()
        refusing: set[Node] = set()
        reductions: list[Node] = []
        forced = "is compared in a product" if value in self.counted else ""
        forced = "is a result" if value.is_yielded else forced
        for user in value.users:
            refusal = self._refusal(user, value)
            if refusal:
                refusing.add(user)
                forced = forced or refusal
            elif user.operation in _REDUCES:
                reductions.append(user)
            elif self.fuses(user):
                result = user.results[0]
                is_stored = result in self.stored
                if result in self.summed and not is_stored:
                    self._sum(value, self.summed[result])
                found |= {user, *self.again.get(result, ())} if is_stored else self.of[result]
            else:
                found.add(user)
        for user in reductions:
            self._sum(value, _elements(value) // max(1, _elements(user.results[0])))
            found |= self._summing(node, value, user, found)
        if forced and found and self._is_again(node, value):
            self.again[value] = frozenset(found)
        every = frozenset(found | refusing)
        return every, self._reason(node, value, every, forced)

    def _is_again(self, node: Node, value: Value) -> bool:
        """Say whether kernels compute a value in memory again, since it is made of less."""
        is_cheap = self.fuses(node) and node.operation not in _COSTLY and value not in self.counted
        is_made = is_cheap and bool(node.operands)
        return is_made and self._source_bytes(node, value) < value.bytes

    def _summing(self, node: Node, value: Value, sum: Node, found: set[Node]) -> Set[Node]:
        """Return the kernels that make a sum: on a TPU that of its reader, if it reads both."""
        readers = frozenset().union(*(self.of[each] for each in sum.results))
        is_inside = (
            self.platform == "tpu"
            and len(readers) == 1
            and readers <= found
            and not any(each.is_yielded for each in sum.results)
            and not self._is_of_batched(node, value)
        )
        return readers if is_inside else {sum}

    def _find_written(self, body: Body) -> None:
        """Find the probabilities that one kernel writes with the gradients of their scores.

        Where a product has read them before, another kernel has written them for it.
        """
        gradients: dict[Node, Value] = {}
        found: list[tuple[Node, Value]] = []
        for node in body.nodes:
            for inner in node.bodies:
                self._find_written(inner)
            value = node.results[0] if self.fuses(node) else None
            if value is None or not all(map(is_product, value.users)):
                continue
            makers = [each.maker for each in self._sources(node, value)]
            products = [each for each in makers if each is not None and is_scores(each)]
            if len(products) > 1:
                made = value if value in self.made_with else products[-1].results[0]
                gradients.update((product, made) for product in products if made in self.stored)
            elif value not in self.stored and value.dtype == "bf16":
                found += [(product, value) for product in products if self._writes(product)]
        pairs = [(value, gradients[product]) for product, value in found if product in gradients]
        needs = _needs(body, [user.results[0] for value, _ in pairs for user in value.users])
        for value, gradient in pairs:
            first = needs.get(gradient, frozenset())
            later = [user for user in value.users if user.results[0] not in first]
            is_all = 0 < len(later) == len(value.users)
            if is_all:
                self.written_with[value] = gradient
                self.stored[value] = "is written with its gradient"
            elif later and self.softmax.writes_wide:
                self.stored[value] = f"is read by {len(value.users)} products"

    def _writes(self, product: Node) -> bool:
        """Say whether the kernel of the gradients of scores writes their probabilities too."""
        if not is_free(product, self.constant):
            return False
        if product.results[0].dtype != "bf16":
            return self.softmax.writes_wide
        is_masked = mask_of(product, self.fuses) is not None
        return not is_grouped(product) and (self.softmax.writes_unmasked or is_masked)

    def _sum(self, value: Value, length: int) -> None:
        self.summed[value] = max(length, self.summed.get(value, 0))

    def _is_row(self, value: Value) -> bool:
        """Say whether a TPU holds whole rows of what is summed up, and so computes no more of it.

        A softmax between two products is one kernel with them.
        """
        return 0 < self.summed.get(value, 0) <= _ROW

    def _refusal(self, user: Node, value: Value) -> str:
        """Return why a reader cannot compute a value itself; nothing where it can."""
        if user.body is not value.body:
            return "is read inside a loop"
        if self.platform == "tpu" and _reads_memory(user, value):
            return f"is read by a {user.operation}"
        if user.operation in _REDUCES and self._is_gathered(value):
            self.gathered.add(value)
            return "is gathered for a sum"
        if user.operation == UPDATE or user.operation in _REDUCES or self.fuses(user):
            return ""
        if user.operation == "transpose" and value.maker is not None and self.fuses(value.maker):
            return ""
        if is_product(user):
            is_read = self.platform == "gpu" and not self._is_widened(value)
            is_read = is_read or (self.platform == "tpu" and are_written(value))
            is_turned = user in self.turned and value.dtype == "bf16"  # as it was measured
            is_read = is_read or (is_turned and value not in self.constant)
            return "is read by a product" if is_read else ""
        if user.operation == "gather" and self.platform == "gpu":
            return ""
        if user.operation in ("gather", "scatter") and value is not user.operands[0]:
            is_update = user.operation == "scatter" and value is user.operands[-1]
            return "is read by scatter" if is_update and self.platform == "tpu" else ""
        return f"is read by {_named(user)}"

    def _is_gathered(self, value: Value) -> bool:
        """Say whether a GPU makes a value of single elements that it gathers, as a loss does."""
        if self.platform != "gpu":
            return False

        def inside(each: Value) -> Node | None:
            maker = None if each.body is not value.body or each in self.constant else each.maker
            return maker if maker is not None and self.fuses(maker) else None

        def onward(each: Value) -> Sequence[Value]:
            maker = inside(each)
            return () if maker is None or maker.operation == "gather" else maker.operands

        makers = filter(None, map(inside, reached([value], onward)))
        gathers = (maker.instruction for maker in makers if maker.operation == "gather")
        return any({*each.numbers("slice_sizes")} == {1} for each in gathers)

    def _is_widened(self, value: Value) -> bool:
        """Say whether a value repeats or converts a smaller one: a GPU's product reads that."""
        source = value
        while source.maker is not None and source.maker.operation in _WIDENS:
            if source.maker.body is not value.body or len(source.maker.operands) != 1:
                return False
            source = source.maker.operands[0]
            if source.bytes < value.bytes:
                return True
        return False

    def _reason(self, node: Node, value: Value, found: frozenset[Node], forced: str) -> str:
        if value in self.constant:
            return self._reason_of_constant(node, value, forced)
        if node.operation in (BARRIER, UPDATE):
            return ""
        if is_product(node):
            return self._reason_of_product(node, value, found, forced)
        if not self.fuses(node):
            return _named(node)
        if forced:
            return forced
        if value in self.apart:
            return "is read beside a product"
        if value in self.ends and len(found) > 1:
            return f"{node.operation} after a product, read by {len(found)} kernels"
        if value in self.kept and len(found) > 1:
            if value.dtype == "bf16" and self.rates is not None and not self.rates.is_narrow:
                self.widened.add(value)
            return f"{node.operation}, read by {len(found)} kernels"
        if self.platform == "gpu" and node.operation == "concatenate" and len(found) > 1:
            return f"concatenate, read by {len(found)} kernels"
        products = sum(map(is_product, found))
        if products > 1 and self._is_read(node, value, found):
            if self.platform == "tpu":
                sources = (v for v in self._sources(node, value) if v.maker and is_product(v.maker))
                self.made_with[value] = tuple(sorted(sources, key=lambda each: each.serial))
            return f"is read by {products} products"
        if self._is_kept(node, value) and len(found) > 1:
            product = self._product(node, value)
            if product is not None and self._is_spread(product, value):
                self.spread.update(v for v in self._sources(node, value) if v in self.constant)
            return f"{node.operation}, read by {len(found)} kernels"
        return ""

    def _reason_of_product(
        self, node: Node, value: Value, found: frozenset[Node], forced: str
    ) -> str:
        only = next(iter(found)) if len(found) == 1 else None
        is_one = (
            self.platform == "tpu"
            and node not in self.turned
            and only is not None
            and not forced
            and (is_elementwise(only) or only.operation == UPDATE or self._is_row(value))
            and not (value in self.summed and self._is_apart(node, value))
            and not self._is_spread(node, value)
        )
        if is_one and only not in self.absorbed:
            self.absorbed.add(only)
            return ""
        is_wide = self.platform == "tpu" and not self.softmax.spread_rows
        is_copied = is_repeated(node) and not self._is_row(value)
        is_wide = is_wide and (is_copied or not self._is_made_again(node))
        if is_wide and self._is_masked(node) and is_widened(node, self.summed.get(value, 0)):
            self.widened.add(value)
        return "product"

    def _reason_of_constant(self, node: Node, value: Value, forced: str) -> str:
        if value in self.spread:
            return "a constant, written out for a softmax"
        is_kept = value.is_yielded or (forced and self.platform == "gpu")
        return forced if is_kept and node.operation != "constant" else ""

    def _is_read(self, node: Node, value: Value, found: frozenset[Node]) -> bool:
        """Say whether products read a value, and not what it is made of.

        Where nothing but products reads it, they compute it again each, except where it is narrower
        than what it is made of: gradients of scores in attention are read.

        Args:
          found: the kernels that read it.
        """
        if not all(map(is_product, found)):
            return self._source_bytes(node, value) > value.bytes
        is_narrower = node.operation == "convert" and value.bytes < node.operands[0].bytes
        product = self._product(node, value) if is_narrower else None
        if product is not None and is_grouped(product) and self._is_made_again(product):
            return not is_among(product, self.softmax.gradients_again)
        if is_narrower and sum(v not in self.constant for v in self._sources(node, value)) > 1:
            return True
        is_tpu = self.platform == "tpu"
        return is_tpu and (self._is_many(node, value) or self._is_gate(node, value, found))

    def _is_many(self, node: Node, value: Value) -> bool:
        """Say whether products would read many arrays instead of one, and compute a costly value.

        That is the gradient of a gate: `silu` and `gelu` with libtpu 0.0.52, and not `relu`.
        """
        read, inside = self._kernel(node, value)
        is_many = sum(each not in self.constant for each in read) >= _MANY
        return is_many and any(each.operation in _COSTLY for each in inside)

    def _is_gate(self, node: Node, value: Value, found: frozenset[Node]) -> bool:
        """Say whether a value is made of two products, and the kernel of one of them writes it."""
        if self.gates == "none":
            return False
        read, inside = self._kernel(node, value)
        makers = [v.maker for v in read if v not in self.constant and v.body is value.body]
        products = [each for each in makers if each is not None and is_product(each)]
        if len(products) != len(makers) or any(map(is_scores, products)):
            return False
        if not is_gate(products, inside, self.gates):
            return False
        first, *others = sorted(found, key=lambda each: each.results[0].serial)
        result = first.results[0]
        if self.gates == "bare":
            return not any(map(self.fuses, result.users))
        kernel = None if result in self.stored else next(iter(self.of[result]), None)
        return not is_one_chain(kernel, others)

    def _is_kept(self, node: Node, value: Value) -> bool:
        """Say whether a TPU keeps a costly value that it sums up: one in bf16 it makes again."""
        is_costly = value in self.summed and self._is_costly(node)
        if self.platform != "tpu" or not is_costly or value.dtype == "bf16":
            return False
        product = self._product(node, value)
        if product is not None and is_scores(product):
            return not self._is_made_again(product)
        return self._source_bytes(node, value, masks=True) >= value.bytes

    def fuses(self, node: Node) -> bool:
        """Say whether a kernel that reads the result can compute the operation itself.

        On a TPU the scatter of single elements into zeros, the backward of `take_along_axis`, is
        a comparison with the index. On a GPU the one reader of a gather gathers itself.
        """
        if len(node.results) != 1:
            return False
        if node.operation == "gather" and self.platform == "gpu":
            return len(node.results[0].users) == 1
        if node.operation == "scatter" and self.platform == "tpu" and node.operands:
            is_single = "update_window_dims={}" in node.instruction.bare
            return is_single and node.operands[0] in self.constant
        return is_elementwise(node) and not (self.platform == "tpu" and _is_strided(node))

    def _is_costly(self, node: Node) -> bool:
        is_scaled = node.operation == "divide" and node.operands[1] in self.constant
        return node.operation in _COSTLY and not is_scaled

    def _is_of_batched(self, node: Node, value: Value) -> bool:
        """Say whether a costly value is made, element by element, of a product of batches."""
        product = self._product(node, value) if self._is_costly(node) else None
        return product is not None and is_scores(product) and not self._is_made_again(product)

    def _product(self, node: Node, value: Value) -> Node | None:
        """Return the product that a value is made of, element by element."""
        makers = (each.maker for each in self._sources(node, value) if each.body is value.body)
        return next((maker for maker in makers if maker is not None and is_product(maker)), None)

    def _is_made_again(self, product: Node) -> bool:
        """Say whether a TPU computes exponentials of scores anew for each kernel that reads them.

        Others are in memory, as their rows are not along lanes. Where there is no room, v4 and v5
        make all of them anew for several heads over the same keys.
        """
        is_again = self.is_short and not self.softmax.spread_rows
        is_again = is_again and (is_grouped(product) or is_repeated(product))
        return is_scores(product) and (
            is_again or is_made_again(product, self.fuses) or self._is_bare(product)
        )

    def _is_apart(self, product: Node, value: Value) -> bool:
        """Say whether scores are in memory, and not inside the kernel of a softmax."""
        if not is_scores(product):
            return False
        row = self.summed.get(value, 0)
        if is_free(product, self.constant):
            is_joined = not self._is_bare(product)
            if is_joined and self._is_masked(product):
                is_joined = joins(product, row, self.softmax, self.fuses)
        else:
            is_joined = is_among(product, self.softmax.joined) and is_last(product, self.fuses)
            is_joined = is_joined and (self.softmax.joins_unmasked or self._is_masked(product))
        return not (is_joined and self._is_row(value))

    def _is_masked(self, product: Node) -> bool:
        return mask_of(product, self.fuses) in self.constant

    def _is_bare(self, product: Node) -> bool:
        """Say whether scores are narrow, without a mask, and laid out as libtpu likes."""
        is_narrow = product.results[0].dtype == "bf16" and mask_of(product, self.fuses) is None
        return is_narrow and is_free(product, self.constant)

    def _is_spread(self, product: Node, value: Value) -> bool:
        """Say whether a softmax over scores reads its constants from memory."""
        row = self.summed.get(value, 0)
        is_one = row in self.softmax.spread_rows and is_tall(product, row)
        return is_one and self._is_masked(product) and not self._is_made_again(product)

    def _source_bytes(self, node: Node, value: Value, *, masks: bool = False) -> int:
        """Return the bytes of all that a value is made of, element by element.

        Args:
          masks: whether constants count that are as large: a mask, what it fills in, a scale.
        """
        found = self._sources(node, value)
        return sum(each.bytes for each in found if masks or each not in self.constant)

    def _sources(self, node: Node, value: Value) -> list[Value]:
        """Return what a kernel that makes a value reads of its size or more, constants included."""
        return self._kernel(node, value)[0]

    def _kernel(self, node: Node, value: Value) -> tuple[list[Value], list[Node]]:
        """Return what a kernel that makes a value reads of its size or more, and its operations."""
        read: list[Value] = []
        inside = [node]
        seen: set[Value] = set()
        waiting = list(node.operands)
        while waiting:
            each = waiting.pop()
            if each in seen or _elements(each) < _elements(value):
                continue
            seen.add(each)
            is_outside = each.body is not value.body or each in self.constant or each in self.ends
            maker = None if is_outside else each.maker
            if maker is not None and self.fuses(maker):
                inside.append(maker)
                waiting += maker.operands
            else:
                read.append(each)
        return read, inside

    def _find_roots(self, body: Body) -> None:
        for value in body.arguments:
            self.roots[value] = frozenset((value,))
        for node in body.nodes:
            for inner in node.bodies:
                self._find_roots(inner)
            if node.operation == BARRIER:
                token = node.results[-1]
                self.roots[token] = frozenset((token,))
                for operand, value in zip(node.operands, node.results, strict=False):
                    held = self.roots.get(operand, frozenset())
                    self.roots[value] = held | {token}
                continue
            reads: frozenset[Value] | None = None
            for value in node.results:
                if value in self.constant and value not in self.stored:
                    self.roots[value] = frozenset()
                elif node.operation == UPDATE and node.operands:
                    into = self.roots[node.operands[0]]
                    is_one = alone(into) is not None
                    self.roots[value] = into if is_one else frozenset((value,))
                elif value in self.stored:
                    self.roots[value] = frozenset((value,))
                    if value in self.again:
                        self.redone[value] = self.reads(node)
                else:
                    reads = reads if reads is not None else self.reads(node)
                    self.roots[value] = reads

    def beside(self, node: Node) -> list[Value]:
        """Return what the kernel that an operation ends reads element by element.

        What a product in the kernel reads too is not among it.
        """
        found: dict[Value, None] = {}
        seen: set[Value] = set()
        multiplied: set[Value] = set()
        waiting = [*node.operands]
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            maker = None if value in self.stored or value.body is not node.body else value.maker
            if maker is None:
                found[value] = None
            elif is_product(maker):
                multiplied |= self.reads(maker)
            else:
                waiting += maker.operands
        return [value for value in found if value not in multiplied]

    def reads(self, node: Node) -> frozenset[Value]:
        """Return what has to be in memory for an operation to run."""
        given = [self.roots.get(v, frozenset()) for v in node.captures]
        for value in node.operands:
            is_redone = value in self.redone and not self._refusal(node, value)
            given.append((self.redone if is_redone else self.roots).get(value, frozenset()))
        return frozenset().union(*given)


def _counted(main: Body) -> Iterator[Value]:
    """Yield what a GPU writes so that products make one-hot rows, those of a lookup.

    Triton converts inside of a product. It compares there too where the program is given the
    indices, and then it reads the numbers of the columns, which it does not count.
    Source: `gemm_fusion` and `wrapped_iota` in what XLA of jaxlib 0.10 makes of 9 steps.
    """
    for node in every_node(main):
        if node.operation == "compare" and _makes_rows(node):
            columns = [value for value in node.operands if _counts(value)]
            indices = {_unrepeated(value) for value in node.operands if value not in columns}
            is_inside = len(columns) == 1 and indices <= {*main.arguments}
            yield from columns if is_inside else node.results


def _makes_rows(node: Node) -> bool:
    """Say whether what is compared is converted, and that read by products alone."""
    users = node.results[0].users
    readers = [user for each in users for value in each.results for user in value.users]
    is_converted = all(each.operation == "convert" for each in users)
    return is_converted and bool(readers) and all(map(is_product, readers))


def _unrepeated(value: Value) -> Value:
    while value.maker is not None and value.maker.operation in _WIDENS:
        value = value.maker.operands[0]
    return value


def _counts(value: Value) -> bool:
    """Say whether a value is made of an iota and of what is the same for all elements."""
    waiting, seen = [value], set[Value]()
    while waiting:
        maker = waiting.pop().maker
        if maker is not None and maker.operation == "iota":
            return True
        if maker is not None and is_elementwise(maker):
            waiting += [each for each in maker.operands if each not in seen]
            seen.update(maker.operands)
    return False


def _needs(body: Body, values: Sequence[Value]) -> dict[Value, frozenset[Value]]:
    """Return which of some values each value of a body is made of; nothing of one made of none."""
    found: dict[Value, frozenset[Value]] = {value: frozenset((value,)) for value in values}
    for node in body.nodes if values else ():
        given = [found[each] for each in (*node.operands, *node.captures) if each in found]
        together = given[0] if len(given) == 1 else frozenset[Value]().union(*given)
        for value in node.results if together else ():
            found[value] = together | found.get(value, frozenset())
    return found


def _is_as_wide(value: Value, source: Value) -> bool:
    return value.shape == source.shape and value.bytes <= source.bytes


def _is_only_read(value: Value, by: Value) -> bool:
    """Say whether a value is read by one operation, which makes as many elements, no wider."""
    is_alone = len(value.users) == 1 and not value.is_yielded and value.body is by.body
    return is_alone and value.shape == by.shape and value.bytes >= by.bytes


def alone(roots: frozenset[Value]) -> Value | None:
    """Return the one value of some that takes memory; None where there are more or none."""
    found = [each for each in roots if each.bytes]
    return found[0] if len(found) == 1 else None


def _reads_memory(user: Node, value: Value) -> bool:
    """Say whether an operation of a TPU reads from memory what it places elsewhere.

    A pad and a concatenation do, and a slice where steps leave elements out or others read the
    value too. Found with libtpu 0.0.52, by single operations between elementwise ones.
    """
    if user.operation == "slice":
        return len(value.users) > 1 or any(step > 1 for step in _steps(user))
    return user.operation in ("pad", "concatenate")


def _sums_rows(user: Node, value: Value) -> bool:
    """Say whether an operation sums up the last dimension, as a softmax does and no batch norm."""
    is_sum = user.operation in _REDUCES
    return is_sum and len(value.shape) - 1 in user.instruction.numbers("dimensions")


def _is_strided(node: Node) -> bool:
    """Say whether an operation of a TPU is a kernel of its own.

    That is a slice that leaves out elements within a tile, and a pad between elements.
    """
    if node.operation == "slice":
        return any(step > 1 for step in _steps(node)[-2:])
    if node.operation == "pad":
        _, _, padding = node.instruction.bare.partition("padding=")
        ends = padding.split(",")[0].split()
        dims = [each.split("_") for each in (ends[0] if ends else "").split("x")]
        return any(len(dim) == 3 and dim[2] != "0" for dim in dims)
    return False


def _steps(node: Node) -> list[int]:
    """Return by how much a slice goes on along each dimension."""
    _, _, found = node.instruction.bare.partition("slice={")
    dims = [each.strip(" []").split(":") for each in found.partition("}")[0].split(",")]
    return [number(dim[2]) if len(dim) == 3 else 1 for dim in dims]


def _elements(value: Value) -> int:
    return math.prod(value.shape)


def _named(node: Node) -> str:
    return {LOOP: "a loop", BARRIER: "a barrier"}.get(node.operation, base(node.operation))
