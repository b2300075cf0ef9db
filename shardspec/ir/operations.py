"""What programs do, in two tables: operations on arrays, and what devices send each other.

StableHLO, CHLO, Shardy and XLA's HLO call an operation by one name: `stablehlo.dynamic_slice` is
`dynamic-slice` in HLO. A kind of collective has its bytes and its names everywhere. A broadcast
passes an array on once, as a permute does.

Source: the specification of StableHLO, and XLA's hlo/ir/hlo_opcode.h; names of collectives are
those of XLA's HLO, of StableHLO, of Shardy's dialect and of libtpu's Megascale.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache, lru_cache
from typing import Literal, NamedTuple, assert_never

OpKind = Literal["einsum", "convolution", "gather", "scatter", "sort", "kernel"]
#: How much of what it reads an operation shows: all of it, a part, or it among other elements.
View = Literal["whole", "part", "more"]


class OpInfo(NamedTuple):
    """What is so of an operation wherever it is read.

    Attributes:
      kind: what it computes; None for what a compiler fuses away.
      view: that it shows a value in another form, and computes nothing that a reader would name.
      is_elementwise: whether an element of the result is made of those in its place.
      is_linear: in any of its operands; an index or a condition is a whole number.
      is_free: whether it works along no dimension, so that sharding one needs no exchange.
      is_known: False for an operation that is not in the table.
    """

    kind: OpKind | None = None
    view: View | None = None
    is_elementwise: bool = False
    is_linear: bool = False
    is_free: bool = False
    is_known: bool = True


_TABLE: dict[OpInfo, str] = {
    OpInfo(view="whole", is_linear=True, is_free=True): """
        async_done async_update bitcast bitcast_convert convert copy_done copy_start opt_barrier
        optimization_barrier propagation_barrier reduce_precision transpose""",
    OpInfo(view="whole", is_linear=True): "copy reshape reverse",
    OpInfo(view="part", is_linear=True): "all_slice dynamic_slice slice",
    OpInfo(view="more", is_linear=True, is_free=True): "broadcast broadcast_in_dim",
    OpInfo(view="more", is_linear=True): "pad",
    OpInfo(is_elementwise=True, is_linear=True, is_free=True): "add negate select subtract",
    OpInfo(is_elementwise=True, is_free=True): """
        abs acos acosh and asin asinh atan atan2 atanh cbrt ceil clamp compare complex cosh cosine
        count_leading_zeros divide erf exponential exponential_minus_one floor imag is_finite log
        log_plus_one logistic maximum minimum mulhi multiply not or popcnt power real remainder
        round_nearest_afz round_nearest_even rsqrt shift_left shift_right_arithmetic
        shift_right_logical sign sine sinh sqrt stochastic_convert tan tanh uniform_dequantize
        uniform_quantize xor""",
    OpInfo(is_linear=True): "concatenate dynamic_update_slice",
    OpInfo("einsum", is_free=True): "dot",
    OpInfo("einsum"): "dot_general",
    OpInfo("convolution"): "convolution",
    OpInfo("gather", is_free=True): "gather",
    OpInfo("gather"): "dynamic_gather",
    OpInfo("scatter"): "scatter select_and_scatter",
    OpInfo("sort"): "sort top_k topk",
    OpInfo("kernel"): "cholesky custom_call fft ragged_dot triangular_solve",
    OpInfo(is_free=True): """
        after_all call case conditional constant create_token get_tuple_element if iota
        manual_computation map named_computation partition_id reduce replica_id return rng
        rng_bit_generator tuple while""",
    OpInfo(): """
        add_dependency async batch_norm_grad batch_norm_inference batch_norm_training domain
        dynamic_reshape fusion get_dimension_size infeed outfeed parameter reduce_window
        rng_get_and_update_state scaled_dot set_dimension_size shuffle""",
}
_BY_NAME = {name: info for info, names in _TABLE.items() for name in names.split()}
_UNKNOWN = OpInfo(is_known=False)


@lru_cache(maxsize=1 << 10)
def op_info(name: str) -> OpInfo:
    """Return what an operation is, by its name in any dialect.

    >>> op_info("stablehlo.dynamic_slice") == op_info("dynamic-slice")
    True
    >>> op_info("stablehlo.convert").view, op_info("add").is_linear, op_info("a.b").is_known
    ('whole', True, False)
    """
    return _BY_NAME.get(name.rpartition(".")[2].replace("-", "_"), _UNKNOWN)


#: How the parts of an array travel.
Way = Literal["ring", "pairs", "shift"]


class CollectiveKind(StrEnum):
    """What is sent, spelt as XLA does."""

    ALL_GATHER = "all-gather"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    COLLECTIVE_PERMUTE = "collective-permute"

    @property
    @cache
    def traits(self) -> Traits:
        """Return what is so of the kind wherever it is used."""
        match self:
            case CollectiveKind.ALL_GATHER:
                return Traits(grows=True)
            case CollectiveKind.ALL_REDUCE:  # a reduce-scatter and a gather
                return Traits(sums=True, turns=2)
            case CollectiveKind.REDUCE_SCATTER:
                return Traits(sums=True)
            case CollectiveKind.ALL_TO_ALL:
                return Traits(way="pairs", takes_parts=True)
            case CollectiveKind.COLLECTIVE_PERMUTE:
                return Traits(way="shift")
            case _:
                assert_never(self)

    def payload(self, given: int, made: int) -> int:
        """Return which counts, as `ring_bytes` takes it: what it is given, or what it makes."""
        return made if self.traits.grows else given


class Traits(NamedTuple):
    """What is so of a kind of collective.

    Attributes:
      way: around a ring, from every device to every other, or to the next one alone.
      sums: whether it adds up, and not only moves, the elements that it is given.
      grows: whether it makes more than it is given.
      takes_parts: whether several operands are the parts of one array.
      turns: how often a ring goes around.
    """

    way: Way = "ring"
    sums: bool = False
    grows: bool = False
    takes_parts: bool = False
    turns: int = 1


#: Those that sum, and those that give the elements that they are given.
SUMS = tuple(kind for kind in CollectiveKind if kind.traits.sums)
MOVES = tuple(kind for kind in CollectiveKind if not kind.traits.sums)
#: Those that do not grow what they are given: XLA takes no other out of a loop.
SENT_AHEAD = tuple(kind for kind in CollectiveKind if not kind.traits.grows)

IN_HLO = {
    **{str(kind): kind for kind in CollectiveKind},
    "collective-broadcast": CollectiveKind.COLLECTIVE_PERMUTE,
}
IN_STABLEHLO = {f"stablehlo.{name.replace('-', '_')}": kind for name, kind in IN_HLO.items()}
IN_SHARDY = {
    **{f"sdy.{kind.name.lower()}": kind for kind in CollectiveKind},
    "sdy.reshard": CollectiveKind.ALL_TO_ALL,
}
#: By the word of a send to other slices.
IN_MEGASCALE = {
    **{kind.name: kind for kind in CollectiveKind},
    "ONE_TO_ONE": CollectiveKind.COLLECTIVE_PERMUTE,
}


def ring_bytes(kind: CollectiveKind, payload_bytes: int, ways: int) -> int:
    """Return the bytes one device sends in a collective over a ring of `ways` devices.

    Source: the ring algorithm. Each of `ways` - 1 turns passes on one part of `ways`; an all-reduce
    is a reduce-scatter and an all-gather.

    Args:
      payload_bytes: of the array on one device where it is largest: what an all-gather makes, what
        the others are given.
    """
    if ways <= 1:
        return 0
    traits = kind.traits
    if traits.way == "shift":
        return payload_bytes
    return traits.turns * (ways - 1) * payload_bytes // ways
