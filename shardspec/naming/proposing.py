"""Names for an array of a spec that has axes already: proposed where they allow one answer.

What the path says counts as far as the declared sizes bear it out; what it does not say, sizes
alone may. Where two answers fit, as for a square weight whose inputs may come first or last, none
is better than the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardspec.diagnostics.words import by_key
from shardspec.ir.spec import Param, Shape
from shardspec.naming import roles
from shardspec.naming.guessing import SHORT, Names, forms_of, without_repeats

#: No dimension of a weight, however long it is.
_BATCH = "batch"


def proposed_names(params: Iterable[Param], sizes: Mapping[str, int]) -> Names | None:
    """Return the one answer that fits all of some arrays; None where there are two, or none.

    Args:
      sizes: of the axes that the spec declares.

    >>> up = Param("layers_0/mlp/wi/kernel", (64, 256))
    >>> proposed_names([up], {"embed": 64, "joined_kv": 64, "mlp": 256})
    ('embed', 'mlp')
    >>> proposed_names([up], {"embed": 256, "mlp": 64}), proposed_names([up], {"embed": 64})
    (('mlp', 'embed'), None)
    >>> proposed_names([Param("norm/scale", (64,))], {"batch": 64}) is None
    True
    """
    answers = {_proposed(param, sizes) for param in params}
    return answers.pop() if len(answers) == 1 else None


def _proposed(param: Param, sizes: Mapping[str, int]) -> Names | None:
    by_path = set(_fitting(param.path, param.shape, sizes))
    if by_path:
        return by_path.pop() if len(by_path) == 1 else None
    known = (each for each in sizes.items() if each[0] != _BATCH or param.is_cache)
    by_size = by_key((size, name) for name, size in known)
    found = names_by_size(param.shape, by_size)
    return found if found and all(name or size == 1 for name, size in _dims(found, param)) else None


def _dims(names: Names, param: Param) -> Iterator[tuple[str | None, int]]:
    return zip(names, param.shape, strict=True)


def _fitting(path: str, shape: Shape, sizes: Mapping[str, int]) -> Iterator[Names]:
    """Yield the forms of an array whose axes are declared, and as long as its dimensions."""
    place = roles.place_of(path)
    for role in roles.roles_of(place):
        forms = [form.names for form in forms_of(role, place, len(shape))]
        for names in forms:
            dims = list(zip(names, shape, strict=True))
            if any(names) and all(name is None or sizes.get(name) == size for name, size in dims):
                yield without_repeats(names)
        if forms:
            return


def names_by_size(shape: Shape, by_size: Mapping[int, Sequence[str]]) -> Names | None:
    """Return the only names that fit the sizes of an array; None where there are two, or none.

    A vector as long as norms are is taken for one; a short dimension beside others needs no name.

    >>> names_by_size((4096, 128), {4096: ["embed", "norm"], 128: ["kv"]})
    ('embed', 'kv')
    >>> names_by_size((4096,), {4096: ["embed", "norm"]}), names_by_size((9,), {4096: ["embed"]})
    (('norm',), None)
    """
    names: list[str | None] = []
    for size in shape:
        fitting = [name for name in by_size.get(size, ()) if name != "norm" or len(shape) == 1]
        if len(shape) == 1 and "norm" in fitting:
            fitting = ["norm"]
        if len(fitting) > 1 or (not fitting and size > SHORT):
            return None
        names.append(fitting[0] if fitting else None)
    told = [name for name in names if name is not None]
    return tuple(names) if told and len(set(told)) == len(told) else None
