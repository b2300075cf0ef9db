"""Attention in a traced program: one line for the products that make scores and use them."""

from __future__ import annotations

from collections.abc import Sequence

from shardspec.jax_backend.step_lines.dims import Atom, Dim, Dims, all_atoms, flat
from shardspec.jax_backend.step_lines.streams import Row, Stream, Weight


def join_attention(rows: list[Row]) -> None:
    """Put one line of attention in place of the product that makes scores, and that uses them."""
    for row in list(rows):
        if row.call or len(row.reads) != 2 or row.weight is not None:
            continue
        for side in (0, 1):
            found = _scores(row, side, rows)
            if found is not None:
                _join(row, side, *found, rows)
                break


def _join(row: Row, side: int, scores: Row, keys: int, rows: list[Row]) -> None:
    query, key, value = scores.reads[1 - keys], scores.reads[keys], row.reads[1 - side]
    rows.remove(scores)
    row.call, row.pairs = "flash", ()
    row.reads = [query, key, value]
    row.flops += scores.flops
    result = row.result.found()
    if not result.is_constrained and isinstance(query[0], Stream):
        result.dims = _as_query(query[0].found().dims, result.dims)


def _scores(row: Row, side: int, rows: Sequence[Row]) -> tuple[Row, int] | None:
    """Return the product that makes the scores of attention, and which of its sides the keys are.

    Nothing else reads the scores, and what is summed over are the positions of the keys.
    """
    scores = row.reads[side][0]
    if isinstance(scores, Weight) or not row.pairs:
        return None
    scores = scores.found()
    users = [1 for each in rows for read, _ in each.reads if _is(read, scores)]
    if scores.is_input or len(users) != 1 or len(scores.rows) != 1:
        return None
    (product,) = scores.rows
    if product.call or len(product.reads) != 2 or product.weight is not None or not product.pairs:
        return None
    dims = row.reads[side][1]
    summed = {a for pair in row.pairs[: row.summed] for a in flat(dims[pair[side]].atoms)}
    sides = (keys for keys in (1, 0) if summed and summed <= set(_free(product, keys)))
    keys = next(sides, None)
    return None if keys is None else (product, keys)


def _is(source: Stream | Weight, stream: Stream) -> bool:
    return isinstance(source, Stream) and source.found() is stream


def _free(row: Row, side: int) -> Sequence[Atom]:
    """Return the atoms of the result that one side of a product alone gives it."""
    paired = {pair[side] for pair in row.pairs}
    dims = row.reads[side][1]
    free = [a for at, dim in enumerate(dims) if at not in paired for a in flat(dim.atoms)]
    made = all_atoms(row.dims)
    return free if side == 0 else made[len(made) - len(free) :]


def _as_query(query: Dims, dims: Dims) -> Dims:
    """Return what attention makes with the dimensions of the query; its own where they differ."""
    left = list(all_atoms(dims))
    asked = [atom for dim in query for atom in flat(dim.atoms)]
    spare = [atom for atom in left if atom not in asked]
    made = []
    for dim in query:
        atoms: list[Atom] = []
        for atom in flat(dim.atoms):
            own = atom if atom in left else next((a for a in spare if a.size == atom.size), None)
            if own is None:
                return dims
            left.remove(own)
            spare = [each for each in spare if each is not own]
            atoms.append(own)
        made.append(Dim(tuple(atoms), dim.label))
    return dims if left else tuple(made)
