"""The memory that results of a program take: of donated parameters, or of their own.

A result takes the memory of the parameter that the program gives to it, or else of a donated one
of its type and shape. On a TPU some results are copied to the place that they take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Set

from shardspec.analysis.memory import relaid_bytes
from shardspec.ir.spec import Shape
from shardspec.programs.hlo import Program
from shardspec.programs.peak_graph import Body, Value
from shardspec.programs.peak_narrow import converted, noted_anew, replaced


def buffers_of(
    main: Body, aliases: Mapping[int, int], donated: Collection[int], relaid: Collection[Value]
) -> list[Value | None]:
    """Return for each result of a program the parameter whose memory it takes.

    Args:
      aliases: the parameters that the program itself gives to results, by the results' numbers.
      donated: the numbers of the other parameters that may be taken.
      relaid: results in another layout than a parameter of their shape has.
    """
    pool: dict[tuple[str, Shape], list[Value]] = defaultdict(list)
    for at, argument in enumerate(main.arguments):
        if at in donated and at not in aliases.values():
            pool[argument.dtype, argument.shape].append(argument)
    found: list[Value | None] = []
    for at, value in enumerate(main.yields):
        number = aliases.get(at, len(main.arguments))
        same = None if value in relaid else pool.get((value.dtype, value.shape))
        if number < len(main.arguments):
            found.append(main.arguments[number])
        else:
            found.append(same.pop(0) if same else None)
    return found


def relaid_results(main: Body, program: Program, free: Mapping[int, Shape]) -> dict[Value, int]:
    """Copy results into the layouts that a TPU gives them; return what these copies take.

    Where the caller states no sharding of a result, libtpu chooses its layout for the whole array,
    before that is sharded. One head on a device then takes the place of two in bf16, and of four in
    int8, and the result cannot take the memory of an argument.
    Source: libtpu 0.0.52, programs that return an argument plus one.
    """
    found = {}
    root = None if program.entry is None else program.entry.root
    results = () if root is None else root.arrays
    for at, shape in free.items():
        if at >= len(main.yields) or at >= len(results) or len(shape) != len(results[at].shape):
            continue
        value = main.yields[at]
        size = relaid_bytes(results[at].shape, value.dtype, shape)
        if size is not None:
            found[_yielded_copy(main, at)] = size
    return found


def copy_gathered(main: Body, buffers: list[Value | None]) -> None:
    """Copy donated parameters into which an all-gather writes, as a TPU does.

    What else reads the parameter reads its copy, made at the start. The gathered array has memory
    of its own as well, and is copied to that of the parameter at the end.
    Source: libtpu 0.0.52 on all chips, steps that gather updated parameters from their shards.
    """
    pairs = [*zip(buffers, main.yields, strict=True)]
    gathered = [
        (at, buffer)
        for at, (buffer, value) in enumerate(pairs)
        if buffer is not None and value.maker is not None and value.maker.operation == "all-gather"
    ]
    for at, _ in gathered:
        _yielded_copy(main, at)
    if gathered:
        _read_copies(main, {buffer for _, buffer in gathered})
        noted_anew(main)


def _read_copies(main: Body, arguments: Set[Value]) -> None:
    """Let all that reads some arguments read a copy of each."""
    copies: dict[Value, Value] = {}
    for node in [*main.nodes]:
        for each in (*node.operands, *node.captures):
            if each in arguments and each not in copies:
                copies[each] = converted(each, each.dtype, node, "copy")
    replaced(main, copies)
    for argument, copy in copies.items():
        if copy.maker is not None:
            copy.maker.operands = [argument]


def _yielded_copy(main: Body, at: int) -> Value:
    """Let a program give back a copy of a result."""
    value = main.yields[at]
    copy = main.yields[at] = converted(value, value.dtype, main)
    copy.is_yielded, value.is_yielded = True, value in main.yields
    return copy
