"""Values that a GPU reads from memory rather than computes in each kernel that needs them.

XLA:GPU fuses an operation into all kernels that read it where that is estimated to be faster:
computing it several times against writing it once and reading it several times. For `tanh` it is
slower, for `exp` in f32 it is not. What is made of many arrays is written as well: a residual
stream of four layers is the sum of five arrays, and each kernel would read them all.
Source: xla/service/gpu/transforms/priority_fusion.cc and xla/service/gpu/model/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from shardspec.ir.spec import Chip
from shardspec.programs.peak_graph import Body, Node, Value, every_node

#: Costs of operations for one element in f32, as XLA estimates them; all others cost 3. XLA has
#: tables of some GPUs, and uses that of Ampere for the rest.
#: Source: xla/service/gpu/model/hlo_op_profiles_data.h, `sm_90` and `sm_86`.
_HOPPER: Mapping[str, int] = MappingProxyType(
    {
        "add": 7,
        "atan2": 431,
        "cbrt": 178,
        "cosine": 978,
        "divide": 19,
        "exponential": 79,
        "exponential-minus-one": 190,
        "log": 166,
        "log-plus-one": 229,
        "logistic": 108,
        "power": 510,
        "rsqrt": 75,
        "sine": 958,
        "sqrt": 75,
        "subtract": 7,
        "tanh": 467,
    }
)
_OTHERS: Mapping[str, int] = MappingProxyType({"log": 259, "power": 1221, "tanh": 504})
_LEAST = 3
#: Arithmetic for which GPUs since Hopper have instructions in bf16, which cost the least.
_NARROW = frozenset(("add", "multiply", "subtract"))
#: What places elements and computes none.
_FREE = frozenset(("broadcast", "concatenate", "dynamic-slice", "pad", "reverse", "slice"))
#: How much each kernel of a value moves where the value is in memory, in sizes of the value: it
#: writes or reads it, and moves its other arrays while it computes nothing.
#: Source: XLA of jaxlib 0.10, `tanh`, `power`, `log` and `sin` in two kernels of an H100.
_MOVED = 3.2
_PASSES = 2


@dataclass(frozen=True, slots=True)
class Rates:
    """What a GPU computes while it moves a byte, as XLA estimates it.

    Attributes:
      per_byte: operations on single elements.
      costs: what an operation costs, by its name.
      is_narrow: computes in bf16; others do in f32, and so keep values in f32.
    """

    per_byte: float
    costs: Mapping[str, int]
    is_narrow: bool

    def cost(self, operation: str, dtype: str) -> int:
        """Return what an operation costs for one element."""
        if operation in _FREE:
            return 0
        is_least = self.is_narrow and dtype == "bf16" and operation in _NARROW
        return _LEAST if is_least else self.costs.get(operation, _LEAST)


def rates_of(chip: Chip) -> Rates | None:
    """Return the rates of a GPU; None where the catalogue does not have them."""
    told = dict(chip.compiler)
    names = ("core_count", "fpus_per_core", "clock_rate_ghz", "memory_bandwidth")
    if not all(name in told for name in names):
        return None
    cores, lanes, clock, memory = (float(told[name]) for name in names)
    capability = float(told.get("cuda_compute_capability", "0"))
    costs = _HOPPER if int(capability) == 9 else _OTHERS
    return Rates(2e9 * cores * lanes * clock / memory, costs, capability >= 9)


def kept_of(
    main: Body, rates: Rates, is_fused: Collection[str], constant: Collection[Value]
) -> frozenset[Value]:
    """Return the values of several readers that are faster read than computed in each.

    Args:
      is_fused: the operations that a kernel with a reader can compute.
      constant: values that cost nothing.
    """
    found: frozenset[Value] = frozenset()
    for _ in range(_PASSES):  # a value that another one keeps is computed for fewer kernels
        kernels = _kernels_of(main, is_fused, found)
        found = frozenset(_kept(main, rates, kernels, constant, is_fused))
    return found


def _kept(
    main: Body,
    rates: Rates,
    kernels: Mapping[Value, frozenset[Node]],
    constant: Collection[Value],
    is_fused: Collection[str],
) -> Iterator[Value]:
    costs: dict[Value, int] = {}
    sources: dict[Value, frozenset[Value]] = {}
    for node in every_node(main):
        if node.operation not in is_fused or len(node.results) != 1:
            continue
        value = node.results[0]
        operands = {each for each in node.operands if each not in constant}
        cost = rates.cost(node.operation, value.dtype) + sum(costs.get(v, 0) for v in operands)
        read = frozenset[Value]().union(*(sources.get(each, (each,)) for each in operands))
        count = len(kernels[value])
        saved = (count - 1) * cost * prod(value.shape)
        is_slow = saved > _MOVED * count * value.bytes * rates.per_byte
        moved = (count - 1) * sum(each.bytes for each in read)
        if count > 1 and (is_slow or moved > (count + 1) * value.bytes):
            yield value
        else:
            costs[value], sources[value] = cost, read


def _kernels_of(
    main: Body, is_fused: Collection[str], kept: Collection[Value]
) -> dict[Value, frozenset[Node]]:
    """Return what each value is computed for: an operation of each kernel that would do it.

    Args:
      kept: values that one kernel computes for all others.
    """
    found: dict[Value, frozenset[Node]] = {}
    for node in reversed([*every_node(main)]):
        for value in node.results:
            kernels: set[Node] = set()
            for user in value.users:
                is_inside = user.operation in is_fused and user.body is value.body
                is_inside = is_inside and user.results[0] not in kept
                if is_inside and not _is_stored(user.results[0], is_fused):
                    kernels |= found[user.results[0]]
                else:
                    kernels.add(user)
            found[value] = frozenset(kernels)
    return found


def _is_stored(value: Value, is_fused: Collection[str]) -> bool:
    """Say whether a value is in memory whatever is faster."""
    return value.is_yielded or any(
        user.operation != "reduce" and user.operation not in is_fused for user in value.users
    )
