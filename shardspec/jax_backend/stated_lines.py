"""The operations of `step:` in JAX: each line as somebody would write it by hand.

An operand is taken apart into the indices of its view, and those of size 1 are left out of a
product. Attention goes over the positions of queries in blocks, so that no scores are ever there
as a whole; the backward pass makes those of a block again, as a kernel does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp

from shardspec.analysis.step_values import Flow, Index, Op, Read, Value, Weight, is_position
from shardspec.diagnostics import ShardspecError, Span, codes, point
from shardspec.ir.spec import DTYPE_ALIASES

#: The scores of one head and one sequence that a block of attention makes at most.
_MOST_SCORES = 1_048_576
_FEWEST_ROWS = 64
#: How an array is laid out, by dimension; the second says which of them are to be whole.
Place = Callable[[Value, Any, frozenset[int]], Any]


def told(span: Span | None, run: Callable[[], Any]) -> Any:
    """Return what a function makes, in a frame that JAX takes for the line of the spec.

    Raises:
      ShardspecError: JAX refuses it.
    """
    code = _CALLED.__code__
    if span is not None:
        code = code.replace(co_filename=span.source.name, co_firstlineno=span.line)
    try:
        return FunctionType(code, {})(run)
    except ShardspecError:
        raise
    except Exception as error:  # of many kinds: what is traced is for the spec to say
        first = str(error).partition("\n")[0].rstrip(".")
        raise no_function(f"JAX refuses what this says: {first}", span) from error


_CALLED: Any = lambda run: run()  # noqa: E731


def no_function(message: str, span: Span | None) -> ShardspecError:
    """Return what is raised for a line that is no function of JAX."""
    help = "trace the code that does: `--step MODULE:FUNCTION`"
    return ShardspecError((point(codes.NOT_COMPILED, message, span, help=help),))


class Lines:
    """What the operations of a flow make of arrays.

    Attributes:
      place: lays an array out by the names of a value.
      ways: how many parts a dimension of a value is in.
    """

    def __init__(self, flow: Flow, place: Place, ways: Callable[[Value, int], int]) -> None:
        """Take the flow, and how its values lie."""
        self.flow, self.place, self.ways = flow, place, ways
        self.read = {read.source for op in flow.ops for read in op.reads}
        self.bases = {op.result.base for op in flow.ops}
        added = [op for op in flow.ops if op.result.base and not _is_branch(op, op.result.base)]
        self.sums = {value for op in added for value in (op.result, op.result.base)}
        self.masks: dict[Value | Weight, tuple[Any, Any]] = {}  # by scores, and by their masks
        self._is_dropless = bool(flow.step.experts and flow.step.experts.is_dropless)

    def normed(self, op: Op) -> list[Value]:
        """Return what an operation reads by way of a norm: all that others are added to."""
        if op.kind != "einsum":
            return []
        return [r.source for r in op.reads if isinstance(r.source, Value) and r.source in self.sums]

    def made(self, op: Op, values: Mapping[Value, Any], weights: Sequence[Any]) -> Any:
        """Return the result of an operation, but for what it is added to.

        Args:
          weights: those that this round uses, in the dtype of products.
        """
        given = [values[r.source] if isinstance(r.source, Value) else None for r in op.reads]
        kinds: dict[str, Callable[[Op, list[Any]], Any]] = {
            "einsum": self._product, "flash": self._attention, "gather": _lookup,
            "route": self._choice, "view": self._view, "op": self._sum,
        }  # fmt: skip
        run = kinds[op.kind]
        runs = [run(op, [w if g is None else g for g in given]) for w in self._each(op, weights)]
        made = runs[0]
        for other in runs[1:]:
            made = jax.nn.silu(made) * other
        return made.astype(dtype_called(op.result.dtype))

    def added(self, op: Op, base: Any, made: Any) -> Any:
        """Return a result added to what was there, or gated by it: one of two products."""
        before = op.result.base
        assert before is not None
        kinds = {op.kind, before.maker.kind if before.maker else None}
        is_gated = _is_branch(op, before) and kinds == {"einsum"}
        return jax.nn.silu(base) * made if is_gated else base + made

    def _each(self, op: Op, weights: Sequence[Any]) -> list[Any]:
        """Return what each copy of an operation multiplies: an array, or all experts in one."""
        if op.weight is None:
            return [None]
        apart = len(weights) // op.copies
        if apart > 1:
            return [jnp.stack(weights[at :: op.copies]) for at in range(op.copies)]
        return list(weights)

    def _views(self, op: Op, given: Sequence[Any]) -> list[tuple[Index, ...]]:
        """Return the indices of what is read; experts with arrays of their own have one more."""
        found = []
        for read, array in zip(op.reads, given, strict=True):
            own = read.indices
            if isinstance(read.source, Weight) and array.size > math.prod(i.size for i in own):
                others = [i for r in op.reads if r is not read for i in r.indices]
                own = (next(i for i in others if i.name in self.flow.experts), *own)
            found.append(own)
        return found

    def _product(self, op: Op, given: list[Any]) -> Any:
        made = [index for dim in op.view for index in dim if index.size > 1]
        views = self._views(op, given)
        found = self.masks.get(op.reads[-1].source)
        if self._is_dropless and found is not None:
            return _sorted(op, given[0], *found)
        indices = [index for view in (*views, made) for index in view if index.size > 1]
        least = {i.name: min(j.size for j in indices if j.name == i.name) for i in indices}
        numbers: dict[str, int] = {}
        parts: list[Any] = []
        for view, array in zip(views, given, strict=True):
            x, names = _grouped(array, [index for index in view if index.size > 1], least)
            parts += [x, [numbers.setdefault(name, len(numbers)) for name in names]]
        _, names = _grouped(None, made, least)
        is_scores = op.line.call == "flash"
        kind = jnp.float32 if is_scores and op.result is not self._end(op) else None
        x = jnp.einsum(*parts, [numbers[n] for n in names], preferred_element_type=kind)
        x = x.reshape(op.result.shape)
        if kind is None:
            return x
        width = math.prod(least.get(name, 1) for name in numbers if name not in names)
        return jax.nn.softmax(x * width**-0.5, axis=-1)

    def _end(self, op: Op) -> Value:
        """Return what the last operation of a line makes."""
        own = (o for o in reversed(self.flow.ops) if o.line is op.line and o.loop is op.loop)
        return next(own).result

    def _sum(self, op: Op, given: list[Any]) -> Any:
        """Return a stand-in for an operation whose FLOPs are stated and nothing else."""
        pairs = zip(op.reads, given, strict=True)
        return jnp.tanh(sum(_viewed(read, array, op.result, op.view) for read, array in pairs))

    def _view(self, op: Op, given: list[Any]) -> Any:
        found = self.masks.get(op.reads[0].source)
        if found is not None and op.result.name == "combine":
            self.masks[op.result] = found
            return jnp.zeros(op.result.shape) if self._is_dropless else found[1]
        if op.line.call == "split":
            return self._part(op, given[0])
        return _viewed(op.reads[0], given[0], op.result, op.view)

    def _part(self, op: Op, array: Any) -> Any:
        """Return one part of what is taken apart, gated by a part that nothing reads."""
        parts = [o for o in self.flow.ops if o.line is op.line and o.loop is op.loop]
        made = _parts(op.reads[0].source, parts, array)
        found = made[parts.index(op)]
        for other, beside in zip(parts, made, strict=True):
            is_lone = other.result not in self.read and other.result not in self.bases
            if other is not op and is_lone and beside.shape == found.shape:
                found = jax.nn.silu(beside) * found
        return found

    # experts

    def _choice(self, op: Op, given: list[Any]) -> Any:
        (scores,), (read,), result = given, op.reads, op.result
        if jnp.issubdtype(scores.dtype, jnp.integer):
            indices = set(read.indices)
            rest = [i.size for dim in op.view for i in dim if i not in indices]
            return jax.nn.one_hot(scores, math.prod(rest)).reshape(result.shape)
        taker = next(
            (o for o in self.flow.ops if any(r.source is result for r in o.reads[1:])), None
        )
        scores = jax.lax.stop_gradient(scores) if taker is None else scores
        if taker is None or result.name != "dispatch":
            return _viewed(read, scores, result, op.view)
        mask, weights = self._masks(op, taker, scores.astype(jnp.float32))
        self.masks[read.source] = self.masks[result] = (mask, weights)
        return jnp.zeros(result.shape) if self._is_dropless else mask

    def _masks(self, op: Op, taker: Op, scores: Any) -> tuple[Any, Any]:
        """Return where each token goes, and by what weight: a mask, or indices without drops."""
        view = [dim[0] for dim in op.view]
        source = {index.name for index in taker.reads[0].indices}
        made = {index.name: index.size for dim in taker.view for index in dim}
        expert = next(at for at, index in enumerate(view) if index.name not in source)
        position = next(at for at, index in enumerate(view) if index.name in source - made.keys())
        experts = self.flow.step.experts
        choices = min(experts.choices if experts else 1, scores.shape[expert])
        chances = jax.nn.softmax(scores, axis=expert)
        slots = made[view[-1].name]
        if self._is_dropless:
            by_expert = jnp.moveaxis(chances, (expert, position), (-2, -1))
            weights, chosen = jax.lax.top_k(by_expert, min(slots, by_expert.shape[-1]))
            return chosen, weights
        taken = jnp.zeros_like(chances)
        for _ in range(choices):
            best = jnp.argmax(jnp.where(taken > 0, -1.0, chances), axis=expert)
            taken += jax.nn.one_hot(best, scores.shape[expert], axis=expert)
        taken = jax.lax.stop_gradient(taken)
        at = (jnp.cumsum(taken, axis=position) * taken).astype(jnp.int32) - 1
        mask = jax.nn.one_hot(at, slots, dtype=dtype_called(op.result.dtype))
        shares = chances * taken
        shares /= shares.sum(expert, keepdims=True)
        return mask, mask * shares.astype(mask.dtype)[..., None]

    # attention

    def _attention(self, op: Op, given: list[Any]) -> Any:
        """Return what attention makes, a block of queries at a time."""
        query, key, *rest = op.reads
        asked, held = query.indices, {index.name: index.size for index in key.indices}
        names = {index.name for index in asked}
        summed = next((name for name in op.whole if name in names), "")
        keys = [name for name in held if name not in names]
        if not summed or len(keys) != 1:
            raise no_function(
                "attention without one width of heads, and one of positions", op.line.span
            )
        wholes = [
            self._whole(read, x, op.whole - {summed})
            for read, x in zip(op.reads, given, strict=True)
        ]
        q, qs = _grouped(wholes[0], asked, held)
        k, ks = _grouped(wholes[1], key.indices, {})
        if rest:
            v, vs = _grouped(wholes[2], rest[0].indices, {})
        else:  # keys and values side by side in each head
            at, wanted = ks.index(summed), q.shape[qs.index(summed)]
            width = math.prod(op.result.shape) * wanted // q.size
            v, vs = jax.lax.slice_in_dim(k, k.shape[at] - width, k.shape[at], axis=at), ks
            k = _first(k, at, k.shape[at] - width, wanted)
        own = [at for at, name in enumerate(qs) if name not in held and "/" not in name[-6:]]
        rows = next((at for at in own if is_position(qs[at])), own[0] if own else None)
        block = _block(qs, ks, vs, summed, keys[0])
        if rows is None:
            return block(q, k, v).reshape(op.result.shape)
        assert isinstance(query.source, Value)
        at = next((d for d, dim in enumerate(query.view) if qs[rows] in [i.name for i in dim]), 0)
        ways = self.ways(query.source, at)
        return _in_blocks(block, q, k, v, rows, ways, held[keys[0]]).reshape(op.result.shape)

    def _whole(self, read: Read, array: Any, whole: frozenset[str]) -> Any:
        """Return keys or values with all their positions, where a kernel goes over all."""
        dims = {at for at, dim in enumerate(read.view) if whole & {index.name for index in dim}}
        assert isinstance(read.source, Value)
        return self.place(read.source, array, frozenset(dims)) if dims else array


def _block(
    qs: Sequence[str], ks: Sequence[str], vs: Sequence[str], summed: str, position: str
) -> Callable[..., Any]:
    """Return attention of a block of queries, by the indices of queries, keys and values."""
    numbers = {name: at for at, name in enumerate(dict.fromkeys((*qs, *ks, *vs)))}
    width = next((name for name in vs if name not in ks), summed)  # values of another width
    to = [numbers[name] for name in (*(n for n in qs if n != summed), position)]
    out = [numbers[width if name == summed else name] for name in qs]
    q_at, k_at, v_at = ([numbers[name] for name in names] for names in (qs, ks, vs))

    @jax.checkpoint
    def block(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum(q, q_at, k, k_at, to, preferred_element_type=jnp.float32)
        shares = jax.nn.softmax(scores * q.shape[qs.index(summed)] ** -0.5, axis=-1)
        return jnp.einsum(shares.astype(v.dtype), to, v, v_at, out)

    return block


def _sorted(op: Op, x: Any, chosen: Any, weights: Any) -> Any:
    """Return tokens by the slots of experts that chose them, or the sum of what comes back."""
    read, mask = op.reads
    here = {index.name: index.size for index in read.indices}
    made = {index.name: index.size for dim in op.view for index in dim}
    slot = mask.indices[-1].name
    is_leaving = slot in made
    expert = next(
        n
        for n in (made if is_leaving else here)
        if n != slot and n not in (here if is_leaving else made)
    )
    position = next(
        n for n in (here if is_leaving else made) if n not in (made if is_leaving else here)
    )
    batch = [i.name for i in mask.indices if i.name in here and i.name in made]
    rest = [n for n in here if n not in (*batch, position, expert, slot)]
    inner = [position] if is_leaving else [expert, slot]
    order = [*batch, *inner, *rest]
    x = x.reshape([*here.values()]).transpose([[*here].index(name) for name in order])
    x = x.reshape(*(here[name] for name in batch), math.prod(here[n] for n in inner), -1)
    at = chosen.reshape(*x.shape[:-2], -1, 1)
    if is_leaving:
        x = jnp.take_along_axis(x, at, axis=-2)
        sizes, order = made, [*batch, expert, slot, *rest]
    else:
        x = x * weights.reshape(at.shape).astype(x.dtype)

        def added(at: Any, x: Any) -> Any:
            return jnp.zeros((made[position], x.shape[-1]), x.dtype).at[at[:, 0]].add(x)

        for _ in batch:
            added = jax.vmap(added)
        x, sizes, order = added(at, x), made, [*batch, position, *rest]
    x = x.reshape([sizes[name] for name in order])
    return x.transpose([order.index(name) for name in made]).reshape(op.result.shape)


def _in_blocks(
    block: Callable[..., Any], q: Any, k: Any, v: Any, rows: int, ways: int, keys: int
) -> Any:
    """Run attention over the positions of queries, block by block within each device's part."""
    size = q.shape[rows] // ways if q.shape[rows] % ways == 0 else q.shape[rows]
    ways = q.shape[rows] // size
    most = max(_FEWEST_ROWS, _MOST_SCORES // keys)
    count = next(n for n in range(-(-size // most), size + 1) if size % n == 0)
    if count == 1:
        return block(q, k, v)
    parts = q.reshape(*q.shape[:rows], ways, count, size // count, *q.shape[rows + 1 :])
    parts = jnp.moveaxis(parts, rows + 1, 0)

    def part(q: Any) -> Any:
        flat = q.reshape(*q.shape[:rows], ways * size // count, *q.shape[rows + 2 :])
        made = block(flat, k, v)
        return made.reshape(*made.shape[:rows], ways, size // count, *made.shape[rows + 1 :])

    return jnp.moveaxis(jax.lax.map(part, parts), 0, rows + 1)


def _grouped(x: Any, indices: Sequence[Index], held: Mapping[str, int]) -> tuple[Any, list[str]]:
    """Return an array by indices, with queries that share a head of keys along one of their own."""
    shape: list[int] = []
    names: list[str] = []
    for name, size in indices:
        kept = held.get(name, size)
        if kept < size and size % kept == 0:
            shape += [kept, size // kept]
            names += [name, f"{name}/group"]
        else:
            shape.append(size)
            names.append(name)
    return x if x is None else x.reshape(shape), names


def _first(x: Any, at: int, width: int, wanted: int) -> Any:
    """Return the keys of each head, as wide as queries are: positions turned are not stated."""
    part = jax.lax.slice_in_dim(x, 0, min(width, wanted), axis=at)
    pad = [(0, 0)] * x.ndim
    pad[at] = (0, wanted - part.shape[at])
    return jnp.pad(part, pad)


def _lookup(op: Op, given: list[Any]) -> Any:
    """Return the rows of a table, which is what is read last, by index."""
    made = {index.name for dim in op.view for index in dim}
    table = op.reads[-1]
    at = next((d for d, dim in enumerate(table.view) if made.isdisjoint(i.name for i in dim)), 0)
    if not jnp.issubdtype(given[0].dtype, jnp.integer):
        return _picked(op, *given)
    return jnp.take(given[-1], given[0], axis=at).reshape(op.result.shape)


def _picked(op: Op, x: Any, scores: Any) -> Any:
    """Return rows of an array by computed numbers: as many as the result has, of each example.

    What the numbers are is not stated. Here they are the first scores, in place of the best ones.
    """
    here, by = ([i.name for i in read.indices] for read in op.reads)
    made = {index.name: index.size for dim in op.view for index in dim}
    old, new = ([n for n in one if n not in other] for one, other in ((here, made), (made, here)))
    shared = [name for name in made if name in here and name in by]
    along = next((name for name in by if name in (*old, *new)), None)
    if (len(old), len(new)) != (1, 1) or along is None:
        raise no_function("which dimension is looked up in is not plain", op.line.span)
    rest = [name for name in by if name not in (*shared, along)]
    numbers = scores.transpose([by.index(name) for name in (*shared, along, *rest)])
    numbers = numbers.reshape(*numbers.shape[: len(shared) + 1], -1)
    numbers = numbers[..., jnp.arange(made[new[0]]) % numbers.shape[-2], 0]
    inner = [name for name in here if name not in (*shared, *old)]
    x = x.transpose([here.index(name) for name in (*shared, *old, *inner)])
    index = numbers.astype(jnp.int32).reshape(*numbers.shape, *(1 for _ in inner))
    x = jnp.take_along_axis(x, index % x.shape[len(shared)], axis=len(shared))
    lies = [*shared, *new, *inner]
    return x.transpose([lies.index(name) for name in made]).reshape(op.result.shape)


def _viewed(read: Read, array: Any, result: Value, view: Sequence[Sequence[Index]]) -> Any:
    """Return an array by other indices: turned, averaged over, cut to a part, or repeated."""
    made = [index for dim in view for index in dim]
    wanted = {index.name for index in made}
    array = array.reshape([index.size for index in read.indices])
    new = [index for index in made if index.name not in {i.name for i in read.indices}]
    names: list[str] = []
    for at, index in reversed([*enumerate(read.indices)]):
        if index.name in wanted:
            names.insert(0, index.name)
        elif new and new[-1].size <= index.size:
            cut = new.pop()
            array = jax.lax.slice_in_dim(array, 0, cut.size, axis=at)
            names.insert(0, cut.name)
        else:
            array = array.mean(axis=at)
    sizes = {index.name: index.size for index in made}
    kept = [index for index in made if index.name in names]
    array = array.transpose([names.index(index.name) for index in kept])
    array = array.reshape([sizes[i.name] if i.name in names else 1 for i in made])
    return jnp.broadcast_to(array, [index.size for index in made]).reshape(result.shape)


def _parts(source: Value | Weight, parts: Sequence[Op], array: Any) -> list[Any]:
    """Return all parts of a value that is cut along one dimension.

    Where it is interleaved they lie side by side in each of its groups.
    """
    assert isinstance(source, Value)
    made = {i.name for op in parts for dim in op.result.view for i in dim}
    at = next(
        (d for d, dim in enumerate(source.view) if made.isdisjoint(i.name for i in dim)), None
    )
    if at is None:
        raise no_function("which dimension is taken apart is not plain", parts[0].line.span)
    outer = array.size // array.shape[at]
    widths = [math.prod(op.result.shape) // outer for op in parts]
    groups, offset, found = 1, 0, []
    if parts[0].whole == frozenset():
        known = {i.name for dim in source.view for i in dim}
        heads = [
            next(i.size for d in op.result.view for i in d if i.name not in known) for op in parts
        ]
        groups = math.gcd(*heads, array.shape[at])
    inner = array.reshape(*array.shape[:at], groups, -1, *array.shape[at + 1 :])
    for op, width in zip(parts, widths, strict=True):
        end = offset + width // groups
        part = jax.lax.slice_in_dim(inner, offset, end, axis=at + 1)
        found.append(part.reshape(op.result.shape))
        offset = end
    return found


def _is_branch(op: Op, base: Value) -> bool:
    """Say whether a result and what it is added to are two products of one value."""
    first = next((r.source for r in op.reads if isinstance(r.source, Value)), None)
    maker = base.maker
    return maker is not None and any(read.source is first for read in maker.reads)


def dtype_called(name: str) -> Any:
    """Return the dtype of JAX that a spec calls so."""
    names = (long for long, short in DTYPE_ALIASES.items() if short == name and long != "pred")
    return jnp.dtype(next(names, name))
