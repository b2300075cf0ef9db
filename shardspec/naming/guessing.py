"""Arrays without names -> what their dimensions are, by what they are called and how long they are.

Each array is looked up in the table of roles, which leaves a few forms: inputs first or outputs
first, heads apart or joined, layers or experts stacked. Sizes decide between them. The width of the
model is the size that most arrays of a module have, and the number of stacked layers one that all
norms there have; other axes are as long as in other arrays. What the table does not know is named
where exactly one axis is as long as each dimension. What is left is a question.

An axis has one size. Where two towers differ, the larger one keeps the name and the other is called
after the part of the paths that is its own: `embed` and `text_embed`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import NamedTuple

from shardspec.diagnostics.words import by_key, template
from shardspec.ir.spec import LogicalAxes, Param, Params, Shape, axis_of
from shardspec.naming import roles
from shardspec.naming.roles import Place, Role

Names = tuple[str | None, ...]
#: An axis of the table and its size, which together are one axis of a model.
Sized = tuple[str, int]

#: Rows whose heads the steps of the library read after attention.
_OF_ATTENTION = ("output of attention", "output of attention, or down")
_EXPERTS = re.compile(r"(?:^|[/_])(?:experts?|moe)(?:[/_\d]|$)")
_ROUTED = re.compile(r"router|moe|sparse|expert|gate/wg")
_IN_ROUTER = re.compile(r"(?:gate|router)\w{0,20}/")
_STACKS = re.compile(
    r"(?:^|/)(?:\w*layers?|\w*blocks?|h|stack|scan\w*|encoder\w*|decoder\w*)(?:/|$)"
)
_OWN_EXPERT = re.compile(r"experts?[./_](?:\w{1,40}\.weight)?(\d+)(?:[./]|$)")
#: The kind of a dimension of which nothing is known, in an array of others that are.
UNKNOWN = "dim"
#: How the names of a row begin that knows how many experts there are.
_ROUTER = "embed -> router"
#: The names of a table of tokens.
_TABLE = "vocab embed"
_TOKENS = Role("tokens", "", _TABLE)
#: What libraries call such a table, and modules whose tables are of something else.
_EMBEDDINGS = ("embedding", "embeddings", "input_embedding")
_NO_TOKENS = re.compile(r"pos|time|step|type|segment|class|label|bucket|codebook|cond")
_NUMBER = re.compile(r"(?:^|[/_])\d+(?:/|$)")
#: Dimensions as short as this need no name where the others have one.
SHORT = 8
#: How often each array is named: weights say what other weights are, and then what biases are.
_ROUNDS = 3
_DEEPEST = 16
#: What it weighs against a form that it is of a later answer of its row.
_SECOND_CHOICE = 0.5
#: What it weighs against one that it is stored the other way round than arrays are here.
_OTHER_ORDER = 0.4
#: The same where more than so many arrays are stored in one way for each in the other.
_NO_OTHER_ORDER, _MANY = 8, 4
#: What it weighs that it is as wide as norms elsewhere, and not as arrays are near it.
_OTHER_TOWER = -2
#: A convolution that no row knows.
_CONVOLUTION = Role("", "", "conv: channels -> embed | conv: embed -> embed")
_WIDEST_WINDOW = 32
#: What is no weight, whatever it is called: `rngs/key` is no projection.
_NUMBERS = Role("whole numbers or random keys", "", "")
#: Dimensions longer than `SHORT` that weights of whole numbers have.
_OF_WEIGHTS = 2
#: What is added to a weight in two steps of low rank.
_HALF = Role("half of what is added to its weight", "", "low_rank")
#: Arrays that tell how many layers are stacked in all of them.
_LEAST_STACKED = 4
#: Arrays of one module among which such halves are looked for.
_MOST_BESIDE = 64
#: Axes that may be one long.
_STACKED = frozenset(("expert", "router", "layers"))
_MAY_BE_ONE = ("heads", "kv_heads", "expert", "layers", "joined_kv_heads")
#: What has to speak for the dimensions of an array that no row knows.
_LEAST = -1.2
#: Characters of a component that an axis may be called after.
_LONGEST_PART = 16


INPUTS_FIRST, OUTPUTS_FIRST = "inputs first", "outputs first"


class Form(NamedTuple):
    """Dimensions that an array of some role may have.

    Attributes:
      choice: which of the answers of its row it is, 0 for the usual one.
      order: `INPUTS_FIRST` or `OUTPUTS_FIRST`; "" where there is no such choice.
    """

    names: Names
    choice: int
    order: str


@dataclass(slots=True, eq=False)
class Kind:
    """Arrays that differ in numbers of layers alone: one path template, one shape.

    Attributes:
      own: the names that the arrays carry themselves; None where they carry none.
      prefixes: of their modules, innermost first, "" last.
      forms: the dimensions that they may have, the usual ones first.
    """

    params: list[Param]
    place: Place
    own: LogicalAxes | None
    prefixes: tuple[str, ...]
    role: Role | None = None
    forms: tuple[Form, ...] = ()
    names: Names | None = None

    @property
    def shape(self) -> Shape:
        """Return the shape of each of the arrays."""
        return self.params[0].shape

    @property
    def bytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(param.bytes for param in self.params)

    @property
    def module(self) -> str:
        """Return the module of the arrays in any layer."""
        around, _, last = self.place.module.rpartition("/")
        return f"{template(around)}/{last}"

    @property
    def is_by_size(self) -> bool:
        """Say whether only sizes tell what the arrays are: they map between some widths."""
        return self.role is not None and not self.role.what and self.role is not _CONVOLUTION

    @property
    def is_known(self) -> bool:
        """Say whether nothing is unknown of the dimensions."""
        return UNKNOWN not in (self.names or ())

    @property
    def is_output_of_attention(self) -> bool:
        """Say whether the steps of the library read the heads of these after attention."""
        return self.role is not None and self.role.what in _OF_ATTENTION

    @property
    def sized(self) -> Iterator[Sized]:
        """Yield the axes that the arrays are taken to have, with their sizes."""
        for name, size in zip(self.names or (), self.shape, strict=False):
            if name is not None:
                yield axis_of(name), size


class Guess(NamedTuple):
    """What is made of some arrays that are alike.

    Attributes:
      names: an axis for each dimension, None for one that needs none; `dim_77` for one of 77 of
        which nothing is known beside others that are. None where nothing is known.
      what: what the table calls them; "" where it does not know them.
      by_size: whether sizes bear it out.
      is_own: whether the arrays carry these names themselves.
    """

    params: tuple[Param, ...]
    names: Names | None
    what: str = ""
    by_size: bool = False
    is_own: bool = False

    @property
    def bytes(self) -> int:
        """Return the bytes of all the arrays."""
        return sum(param.bytes for param in self.params)


class GuessedAxis(NamedTuple):
    """A logical axis of a model.

    Attributes:
      size: in most bytes, where `has_one_size` is False.
      kind: its name in the table, `embed` of `text_embed`; its own where the table has none such.
      has_one_size: whether all dimensions of this name are as long: those that arrays name
        themselves need not be.
    """

    name: str
    size: int
    kind: str
    has_one_size: bool = True


class Guesses(NamedTuple):
    """What is made of the arrays of a model, and the axes that they come to have."""

    arrays: tuple[Guess, ...]
    axes: tuple[GuessedAxis, ...]


def guess(params: Params) -> Guesses:
    """Return names for the dimensions of all arrays that have any.

    Invariants:
      all: each array of rank 1 and more is in exactly one guess.
      fit: there are as many names as dimensions, and an array has no name twice.
      one_size: an axis is as long in one array as in any other.
    """
    kinds = list(_kinds(params))
    halves = _halves(kinds)
    whole = [kind for kind in kinds if kind not in halves]
    evidence = _Evidence(whole)
    for _ in range(_ROUNDS):
        for kind in whole:
            if kind.own is None:
                kind.names = evidence.best(kind)
        evidence.add_support(whole)
    for kind in whole:
        kind.names = evidence.settled(kind)
    _name_by_size(whole, evidence)
    for kind, (weight, at) in halves.items():
        names = weight.names
        kind.role = _HALF
        kind.names = None if names is None else (*names[:at], _HALF.names, *names[at + 1 :])
    named = _final_names(kinds)
    return Guesses(
        tuple(_guess(kind, named, evidence) for kind in kinds),
        tuple(_axes(named)),
    )


def _halves(kinds: Iterable[Kind]) -> dict[Kind, tuple[Kind, int]]:
    """Return what two steps of low rank add to weights, as LoRA does, by shapes alone.

    Each half is as its weight is but for one dimension, and has few of the same number there.

    Returns:
      For each half its weight, and the dimension of few.
    """
    found: dict[Kind, tuple[Kind, int]] = {}
    for near in by_key((template(_around(each.params[0].path)), each) for each in kinds).values():
        for weight in near if len(near) <= _MOST_BESIDE else ():
            parts = [(each, at) for each in near if (at := _few(weight, each)) is not None]
            for (one, first), (other, second) in permutations(parts, 2):
                few, ways = one.shape[first], (weight.shape[first], weight.shape[second])
                if first != second and few == other.shape[second] and few * sum(ways) < prod(ways):
                    found[one] = weight, first
    return found


def _few(weight: Kind, kind: Kind) -> int | None:
    """Return the only dimension in which an array differs from a weight, where it has fewer."""
    if len(kind.shape) != len(weight.shape) or kind.own is not None:
        return None
    pairs = enumerate(zip(kind.shape, weight.shape, strict=True))
    other = [at for at, (size, whole) in pairs if size != whole]
    return other[0] if len(other) == 1 and kind.shape[other[0]] < weight.shape[other[0]] else None


def _kinds(params: Params) -> Iterator[Kind]:
    """Yield the arrays that have dimensions, those alike together, with the forms they may have."""
    groups = by_key((_ends_alike(param), param) for param in params if param.rank)
    kinds: dict[object, Kind] = {}
    beside = Counter(_around(path) for path in {param.path for param in params})
    places = [
        roles.place_of(group[0].path, is_boxed=beside[_around(group[0].path)] == 1)
        for group in groups.values()
    ]
    inside = by_key(place.module.rpartition("/")[::2] for place in places)
    for ((path, _, shape, own), group), place in zip(groups.items(), places, strict=True):
        near = inside[place.module.rpartition("/")[0]]
        role, forms = (None, ()) if own is not None else _role_and_forms(place, shape, near)
        if own is None and _is_of_numbers(group[0]):
            role, forms = _NUMBERS, _stacked_or_not(len(shape))
        known = kinds.get((path, shape, own, role, forms))
        if known is not None:
            known.params += group
            continue
        prefixes = _prefixes(place.module)
        kinds[path, shape, own, role, forms] = Kind(group, place, own, prefixes, role, forms, own)
    yield from kinds.values()


def _around(path: str) -> str:
    """Return what an array is in, by its path."""
    return path.replace(".", "/").rpartition("/")[0]


def _prefixes(module: str) -> tuple[str, ...]:
    """Return the modules around a module, innermost first: in its own layer, then in any.

    >>> _prefixes("layers/3/mlp/up")
    ('layers/3/mlp', 'layers/3', 'layers/#/mlp', 'layers/#', 'layers', '')
    """
    parts = module.split("/")[:-1][:_DEEPEST]
    every = ["/".join(parts[:end]) for end in range(len(parts), -1, -1)]
    return (*(each for each in every if each != template(each)), *map(template, every))


def _ends_alike(param: Param) -> tuple[str, tuple[str, ...], Shape, LogicalAxes | None]:
    """Return what arrays that may have one role have in common: numbers near the end tell apart."""
    parts = param.path.replace(".", "/").split("/")
    return template(param.path), tuple(parts[-3:]), param.shape, param.logical_axes


def _is_of_numbers(param: Param) -> bool:
    """Say whether an array holds random keys, counters or indices, and no weights.

    Weights that are quantized are whole numbers, too, and have two dimensions of some length.
    """
    if param.dtype.startswith("key"):
        return True
    is_whole = param.dtype == "bool" or param.dtype.startswith(("s", "u"))
    return is_whole and sum(size > SHORT for size in param.shape) < _OF_WEIGHTS


def _stacked_or_not(rank: int) -> tuple[Form, ...]:
    """Return the dimensions of numbers: none has a name but that of stacked layers."""
    nameless = (None,) * (rank - 1)
    return Form((None, *nameless), 0, ""), Form(("layers", *nameless), 1, "")


def _role_and_forms(
    place: Place, shape: Shape, beside: Collection[str]
) -> tuple[Role | None, tuple[Form, ...]]:
    """Return the first role of the table that an array of this shape may have, and its forms.

    Dimensions of length 1 may be left out, as of a map by a convolution of one place.

    Args:
      beside: the last components of the modules in the same module.
    """
    is_window = _is_window(shape, place.leaf)
    every = tuple(range(len(shape)))
    long = tuple(at for at in every if shape[at] > 1)
    kept = (every, long) if not is_window or shape[-1] == 1 else (every,)
    is_conv = is_window or _is_window_first(shape, place.leaf)
    for role in (*roles.roles_of(place, beside), *((_CONVOLUTION,) if is_conv else ())):
        is_fit = not is_window or "conv: " in role.names or " _" in role.names
        found: list[Form] = []
        for ats in kept if is_fit else kept[1:] if role.what else ():
            for form in forms_of(role, place, len(ats)):
                names = dict(zip(ats, form.names, strict=True))
                found.append(form._replace(names=tuple(map(names.get, every))))
        if found:
            return role, tuple(dict.fromkeys(found))
    return None, ()


def _is_window(shape: Shape, leaf: str) -> bool:
    """Say whether an array is a convolution by its shape: `[out, in, 3, 3]`."""
    *_, last = space = shape[2:] or (0,)
    if leaf not in roles.OUTPUTS_FIRST or not 1 <= last <= _WIDEST_WINDOW:
        return False
    return (
        len(shape) == 5
        or (len(space) == 2 and space[0] == last)
        or (len(space) == 1 and (last % 2 == 1 or min(shape[:2]) >= 8 * last))
    )


def _is_window_first(shape: Shape, leaf: str) -> bool:
    """Say whether an array is a convolution of Flax by its shape: `[3, 3, in, out]`."""
    *space, _, _ = shape if len(shape) in (4, 5) else (0, 0, 0)
    return leaf == "kernel" and len({*space}) == 1 and 1 < space[0] <= _WIDEST_WINDOW


def forms_of(role: Role, place: Place, rank: int) -> Iterator[Form]:
    """Yield the dimensions that an array of a role may have, the usual ones first.

    >>> place = roles.place_of("attn/q_proj/weight")
    >>> [form.names for form in forms_of(next(roles.roles_of(place)), place, 2)]
    [('joined_kv', 'embed'), ('embed', 'joined_kv')]
    """
    is_expert = _EXPERTS.search(place.module) is not None
    may_stack = not is_expert or _STACKS.search(place.module) is not None
    for choice, names in enumerate(role.names.split(" | ")):
        has_expert = (is_expert or "mlp" in role.names) and "router" not in names
        for names_stored, order in _stored(names, place.leaf, rank):
            for stacked in _stacked(names_stored, rank, has_expert, may_stack):
                yield Form(stacked, choice, order)


def _stacked(form: Names, rank: int, is_expert: bool, may_stack: bool) -> Iterator[Names]:
    """Yield a form with the axes that stack arrays, as many as its rank leaves room for."""
    missing = rank - len(form)
    if missing == 0:
        yield form
    if missing == 1 and is_expert:
        yield ("expert", *form)
    if missing == 1 and may_stack:
        yield ("layers", *form)
        yield (*form[:1], "layers", *form[1:])
    if missing == 2 and is_expert:
        yield ("layers", "expert", *form)
        yield ("expert", "layers", *form)


def _stored(names: str, leaf: str, rank: int) -> Iterator[tuple[Names, str]]:
    """Yield the dimensions of one array of a row, as libraries store them, nothing stacked."""
    if "->" not in names:
        yield _names(names), ""
        return
    is_conv = names.startswith("conv: ")
    if is_conv and rank == 2 and not leaf:
        return  # a matrix, and no bias of stacked layers
    left, _, right = names.removeprefix("conv: ").partition("->")
    ins, outs = list(_sides(left)), list(_sides(right))
    if leaf not in roles.MATRICES:
        yield from ((side, "") for side in outs)
    space: Names = (None,) * (rank - 2) if is_conv else ()
    if leaf in roles.VECTORS or leaf in roles.SCALES or (is_conv and not space):
        return
    flax = [((*space, *i, *o), INPUTS_FIRST) for i in ins for o in outs]
    flax += [((*o[:1], *i, *o[1:]), INPUTS_FIRST) for i in ins for o in outs if len(o) > 1]
    torch = [((*o, *i, *space), OUTPUTS_FIRST) for i in ins for o in outs]
    yield from (*torch, *flax) if leaf in roles.OUTPUTS_FIRST else (*flax, *torch)


def _names(text: str) -> Names:
    return tuple(None if name == "_" else name for name in text.split())


def _sides(text: str) -> Iterator[Names]:
    """Yield the axes of one side of a map, joined first where they have a name for that."""
    joined = roles.JOINED.get(tuple(text.split()))
    if joined is not None:
        yield (joined,)
    yield _names(text)


def _tells_width(kind: Kind) -> bool:
    """Say whether an array has the width of the model: norms, and weights at one end of a block."""
    names = {name for form in kind.forms for name in form.names}
    is_shift = kind.place.leaf in (*roles.VECTORS, "offset", "beta")
    is_norm = bool(kind.forms) and "norm" in kind.forms[0].names and not is_shift
    is_conv = kind.role is not None and "conv: " in kind.role.names and not is_norm
    is_inside = is_conv or _IN_ROUTER.search(kind.place.module) is not None
    return not is_inside and (is_norm or ("embed" in names and len(kind.shape) > 1))


def _widths(kind: Kind) -> set[int]:
    """Return the sizes that some form of an array has as the width of the model.

    Of heads and their width apart that leaves one out: each array of attention has that of a head.
    """
    named = (zip(form.names, kind.shape, strict=True) for form in kind.forms)
    found = {size for form in named for name, size in form if name == "embed"}
    return found or set(kind.shape)


def _stack_of(kinds: Sequence[Kind]) -> int | None:
    """Return how many layers are stacked in all arrays of a module, where no norm says it.

    All begin with that number, whatever their rank, and it is the least that they have.
    """
    shapes = [kind.shape for kind in kinds]
    first = {shape[0] for shape in shapes}
    rest = {size for shape in shapes for size in shape[1:]}
    is_told = len(shapes) >= _LEAST_STACKED and len({*map(len, shapes)}) > 1
    return min(first) if is_told and len(first) == 1 and 1 < min(first) < min(rest) else None


class _Evidence:
    """What the sizes of all arrays say of one."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.widths: dict[str, Counter[int]] = {}
        self.stacks: dict[str, set[int]] = {}
        self.support: dict[str, dict[str, Counter[int]]] = {}
        self.orders: dict[str, Counter[str]] = {}
        self.routed: dict[str, set[int]] = {}
        self.separate: dict[str, set[int]] = {}
        self.inner: dict[str, Counter[int]] = {}
        self.norms: set[int] = set()
        self.stored: dict[str, Counter[str]] = {}
        self._add_stored(kinds)
        beside = Counter((kind.prefixes[0], *sorted(kind.shape)) for kind in kinds)
        self.twins = {kind for kind in kinds if beside[kind.prefixes[0], *sorted(kind.shape)] > 1}
        inside = by_key((prefix, kind) for kind in kinds for prefix in kind.prefixes)
        for prefix, members in inside.items():
            stack = _stack_of(members)
            if stack is not None:
                self.stacks[prefix] = {stack}
        for kind in kinds:
            self._add_experts(kind)
            if kind.is_by_size and len(kind.shape) > 1:
                self.inner.setdefault(kind.prefixes[0], Counter()).update(set(kind.shape))
            if _tells_width(kind):
                self._add_width(kind)
        self.add_support([kind for kind in kinds if kind.own is not None])

    def _add_width(self, kind: Kind) -> None:
        is_norm = kind.role is not None and kind.role.names.endswith("norm")
        self.norms.update(kind.shape if is_norm and len(kind.shape) == 1 else ())
        sizes = set(kind.shape) if is_norm else _widths(kind)
        if kind.role is not None and kind.role.names == _TABLE and len(sizes) > 1:
            sizes.remove(max(sizes))  # tokens, which the other end of the model has as well
        for prefix in kind.prefixes:
            self.widths.setdefault(prefix, Counter()).update(sizes)
            if is_norm and len(kind.shape) == 2:
                sizes = set(kind.shape)
                self.stacks[prefix] = self.stacks.get(prefix, sizes) & sizes

    def _add_stored(self, kinds: Sequence[Kind]) -> None:
        """Count how matrices are stored that have a bias: it is as long as their outputs."""
        vectors = [kind for kind in kinds if kind.place.leaf in roles.VECTORS]
        biases = {(kind.module, kind.shape[0]) for kind in vectors}
        for kind in kinds:
            first, last = ((kind.module, size) in biases for size in (*kind.shape, 0)[:2])
            if first != last and kind.place.leaf in roles.MATRICES:
                order = OUTPUTS_FIRST if first else INPUTS_FIRST
                self.stored.setdefault(kind.place.leaf, Counter())[order] += len(kind.params)

    def _add_experts(self, kind: Kind) -> None:
        """Count the experts around an array: what a router tells apart, or arrays of their own."""
        numbers = [found[1] for param in kind.params if (found := _OWN_EXPERT.search(param.path))]
        if numbers:
            self._note(self.separate, kind, {max(map(int, numbers)) + 1})
        elif kind.role and kind.role.names.startswith(_ROUTER) and not self._is_gate(kind):
            self._note(self.routed, kind, set(kind.shape))

    @staticmethod
    def _note(found: dict[str, set[int]], kind: Kind, counts: set[int]) -> None:
        for prefix in kind.prefixes:
            found.setdefault(prefix, set()).update(counts)

    def add_support(self, kinds: Iterable[Kind]) -> None:
        """Take what arrays are named now for evidence about others, by their bytes."""
        self.support, self.orders = {}, {}
        for kind in kinds:
            if len({size for name, size in kind.sized if name not in ("layers", "expert")}) > 1:
                orders = {form.order for form in kind.forms if form.names == kind.names}
                votes = dict.fromkeys(orders, len(kind.params))
                self.orders.setdefault(kind.place.leaf, Counter()).update(votes)
            held = kind.bytes
            for name, size in kind.sized:
                for prefix in kind.prefixes:
                    known = self.support.setdefault(prefix, {}).setdefault(name, Counter())
                    known[size] += held

    def width(self, kind: Kind) -> int | None:
        """Return the width of the model where an array is; None where sizes do not say."""
        layers = self.stack(kind)
        close: int | None = None
        for prefix in kind.prefixes:
            votes = Counter(self.widths.get(prefix, {}))
            if layers is not None:
                votes.pop(layers, None)
            (first, most), (_, second) = (*votes.most_common(2), (0, 0), (0, 0))[:2]
            if most > second + 1:
                return first
            if most > second and most > 1 and close is None:
                close = first
        return close

    def stack(self, kind: Kind) -> int | None:
        """Return how many layers are stacked where an array is."""
        return next(
            (min(found) for prefix in kind.prefixes[:-1] if (found := self.stacks.get(prefix))),
            None,
        )

    def best(self, kind: Kind) -> Names | None:
        """Return the form that the sizes say most for; the usual one where they say nothing."""
        if not kind.forms:
            return None
        width, layers = self.width(kind), self.stack(kind)
        scores = [self._score(kind, form, width, layers) for form in kind.forms]
        best = max(scores)
        is_known = best > _LEAST or not kind.is_by_size
        return kind.forms[scores.index(best)].names if is_known else None

    def _score(self, kind: Kind, form: Form, width: int | None, layers: int | None) -> float:
        score = -_SECOND_CHOICE * form.choice
        score -= self._against_order(kind, form.order)
        for name, size in zip(form.names, kind.shape, strict=True):
            if size == 1 and name is not None and name not in _MAY_BE_ONE:
                score -= 4
            elif kind.is_by_size and name is not None and name not in _STACKED:
                score += self._as_width(kind, name, size, width)
            elif name in ("embed", "norm"):
                other = _OTHER_TOWER if name == "embed" and size in self.norms else -3
                score += 0 if width is None else 3 if size == width else other
            elif name == "layers":
                is_known = layers is not None or _NUMBER.search(kind.place.module)
                score += 4 if size == layers else -8 if is_known else -1
            elif name == "expert":
                score += self._as_expert(kind, size)
            elif name == "router":
                score += self._as_router(kind, size)
            elif name == "kv" and len(form.names) == 1 and self._told(kind, "joined_kv", size) > 0:
                score -= 3  # a norm of all heads at once
            elif name == "gate_up":
                both = self._told(kind, name, size), self._told(kind, "mlp", size / 2)
                score += max(both) if max(both) > 0 else 5 * min(both)
            elif name == "vocab":
                told = self._told(kind, name, size)
                score += told if told >= 0 else -3
            elif name is None:
                score += 0 if size <= SHORT or kind.role is None else -0.5
            else:
                score += self._told(kind, name, size)
        return score

    def _as_expert(self, kind: Kind, size: int) -> float:
        """Return what the routers nearby, and the path, say of so many stacked experts."""
        known = _nearest(self.routed, kind)
        if known:
            return 4 if size in known - {self.width(kind), self.stack(kind)} else -8
        return 1 if _EXPERTS.search(kind.place.module) else -8

    def _has_experts(self, kind: Kind) -> bool:
        """Say whether something tells of experts: the path of a router, or arrays of theirs."""
        is_said = _ROUTED.search(kind.place.module) is not None
        return is_said or "" in self.separate or "expert" in self.support.get("", {})

    def _is_gate(self, kind: Kind) -> bool:
        """Say whether an array that may be a router is of the sizes of a matrix beside it."""
        return kind in self.twins and any("mlp" in form.names for form in kind.forms)

    def _as_router(self, kind: Kind, size: int) -> float:
        """Return what the experts nearby say of scores for so many."""
        if self._is_gate(kind):
            return -8
        if size in _nearest(self.separate, kind) or self._told(kind, "expert", size) > 0:
            return 3
        return self._told(kind, "router", size)

    def _as_width(self, kind: Kind, name: str, size: int, width: int | None) -> float:
        """Return what speaks for an axis of an array that no row knows: it maps between widths."""
        is_width = size == width or size in self.norms
        if name == "embed":
            return 3 if size == width else -0.5 if is_width else -8
        if name == "channels":
            return -3 if is_width else 0
        if name == "vocab":
            return 2 if self._told(kind, name, size) > 0 else -8
        return 1 if self.inner.get(kind.prefixes[0], Counter())[size] > 1 and not is_width else -8

    def _against_order(self, kind: Kind, order: str) -> float:
        """Return what speaks against an order: arrays of this leaf are stored the other way."""
        leaf = kind.place.leaf
        usual = OUTPUTS_FIRST if leaf in roles.OUTPUTS_FIRST else INPUTS_FIRST
        votes = self.stored.get(leaf) or self.orders.get(leaf, Counter())
        most = max((usual, INPUTS_FIRST, OUTPUTS_FIRST), key=lambda each: votes[each])
        if order in ("", most):
            return 0
        is_rare = most == usual and votes[most] > _MANY * votes[order]
        return _NO_OTHER_ORDER if is_rare or kind.is_by_size else _OTHER_ORDER

    def _told(self, kind: Kind, name: str, size: float) -> float:
        """Return what other arrays near an array say of an axis and its size."""
        for prefix in kind.prefixes:
            known = self._others(kind, prefix, name)
            if known:
                usual = max(known, key=lambda each: (known[each], -each))
                if usual == size:
                    return 2 if prefix else 1
                return -1 if prefix else -0.25
        return 0

    def _others(self, kind: Kind, prefix: str, name: str) -> Counter[int]:
        """Return the sizes that an axis has in other arrays, each with their bytes."""
        known = Counter(self.support.get(prefix, {}).get(name, {}))
        for own, size in kind.sized:
            if own == name:
                known[size] -= kind.bytes
        return +known

    def is_borne_out(self, kind: Kind) -> bool:
        """Say whether other arrays have axes of the same names and sizes."""
        return any(self._others(kind, "", name)[size] for name, size in kind.sized)

    def settled(self, kind: Kind) -> Names | None:
        """Return names that nothing contradicts; heads of keys are heads where they are as many."""
        if kind.names is None or kind.own is not None:
            return kind.names
        if (
            "layers" in kind.names
            and self.stack(kind) is None
            and _NUMBER.search(kind.place.module)
        ):
            return None
        if "router" in kind.names and not self._has_experts(kind):
            return None
        width = self.width(kind)
        has_other_width = any(
            name == "embed" and width not in (None, size) for name, size in kind.sized
        )
        if has_other_width and not self.is_borne_out(kind):
            return None
        is_deep = kind.role is not None and "conv: " in kind.role.names and 1 in kind.shape[:-1]
        as_known = self._as_nearby if is_deep else self._as_many
        sized = zip(kind.names, kind.shape, strict=True)
        return tuple(as_known(kind, name, size) for name, size in sized)

    def _as_nearby(self, kind: Kind, name: str | None, size: int) -> str | None:
        """Return what so many channels, each convolved alone, are called in the same module."""
        if name is None or size == 1:
            return None
        others = [each for each in self.nearby(kind, size) if each not in (name, "norm")]
        return others[0] if others and size != self.width(kind) else name

    def nearby(self, kind: Kind, size: int) -> list[str]:
        """Return the axes of other arrays that are as long, in the innermost module with some."""
        for prefix in kind.prefixes:
            names = self.support.get(prefix, {})
            found = [each for each in names if self._others(kind, prefix, each)[size]]
            if found:
                return sorted(found)
        return []

    def _as_many(self, kind: Kind, name: str | None, size: int) -> str | None:
        query = {"joined_kv_heads": "joined_kv", "kv_heads": "heads"}.get(name or "")
        if query is None:
            return name
        known = (self.support.get(prefix, {}).get(query) for prefix in kind.prefixes)
        return query if size in next(filter(None, known), ()) else name


def _nearest(found: Mapping[str, set[int]], kind: Kind) -> set[int]:
    """Return the sizes that are known of the innermost module for which some are."""
    return next(filter(None, map(found.get, kind.prefixes)), set())


def _final_names(kinds: Sequence[Kind]) -> dict[Sized, str]:
    """Return the name of each axis by its name in the table and its size."""
    in_part, whole = (
        by_key((sized, kind) for kind in kinds for sized in kind.sized if kind.is_known == is_known)
        for is_known in (False, True)
    )
    found = in_part | whole
    weights = {sized: sum(kind.bytes for kind in members) for sized, members in found.items()}
    own = {sized for kind in kinds if kind.own is not None for sized in kind.sized}
    taken = {name for name, _ in own}
    of_output = {sized for kind in kinds if kind.is_output_of_attention for sized in kind.sized}
    named: dict[Sized, str] = {}
    for base, several in by_key((sized[0], sized) for sized in found).items():
        main = max(
            several,
            key=lambda sized: (sized in own, sized in of_output, weights[sized], -sized[1]),
        )
        for sized in (main, *(each for each in several if each != main)):
            is_base = (sized == main and base != UNKNOWN) or sized in own
            named[sized] = base if is_base else _apart(sized, found, main, taken)
            taken.add(named[sized])
    return named


def _axes(named: Mapping[Sized, str]) -> Iterator[GuessedAxis]:
    """Yield each axis once, the main size first of those that it has."""
    for name, several in by_key((name, sized) for sized, name in named.items()).items():
        base, size = several[0]
        yield GuessedAxis(name, size, base, len(several) == 1)


_PLAIN = re.compile(r"[a-z][a-z0-9_]*")
_FILLING = re.compile(r"_(?:model|tower|encoder|decoder|net|module)$")


def _apart(sized: Sized, found: Mapping[Sized, list[Kind]], main: Sized, taken: set[str]) -> str:
    """Return a name for an axis that has another size than the main one: `text_embed`."""
    base, size = sized
    if base == UNKNOWN:
        return f"{base}_{size}"
    others = {part for kind in found[main] for part in kind.place.module.split("/")}
    weights: Counter[str] = Counter()
    for kind in found[sized]:
        weights.update(dict.fromkeys(kind.place.module.split("/"), kind.bytes))
    total = sum(kind.bytes for kind in found[sized])
    for part, weight in weights.items():
        is_own = part not in others and 2 * weight > total
        name = f"{_FILLING.sub('', part)}_{base}"
        is_plain = _PLAIN.fullmatch(part) is not None and 1 < len(part) <= _LONGEST_PART
        if is_own and is_plain and name not in taken:
            return name
    return f"{base}_{size}"


def _name_by_size(kinds: Sequence[Kind], evidence: _Evidence) -> None:
    """Give names to arrays that no row knows, and biases those of their weights."""
    evidence.add_support(kinds)
    outputs: dict[Sized, str] = {}
    for kind in sorted(kinds, key=lambda kind: len(kind.shape) == 1):  # biases are as weights are
        bias = outputs.get((kind.module, kind.shape[0]))
        if kind.own is None and kind.place.leaf in roles.VECTORS and len(kind.shape) == 1 and bias:
            kind.names = (bias,)
        elif kind.names is None and max(kind.shape) > SHORT:
            kind.role = None
            kind.names = _by_size(kind, outputs, evidence)
            if kind.names == (UNKNOWN, "embed") and _is_table(kind.place):
                kind.role, kind.names = _TOKENS, ("vocab", "embed")
        sized = list(kind.sized) if len(kind.shape) > 1 else []
        for name, size in sized[:1] if kind.place.leaf in roles.OUTPUTS_FIRST else sized[-1:]:
            outputs[kind.module, size] = name


def _is_table(place: Place) -> bool:
    """Say whether an array is called a table of embeddings, and not one of something else."""
    return place.leaf in _EMBEDDINGS and _NO_TOKENS.search(place.module) is None


def _by_size(kind: Kind, outputs: Mapping[Sized, str], evidence: _Evidence) -> Names | None:
    """Return the only names that fit the sizes of an array; None where none of them is known.

    A vector is as long as the outputs of its module, or as norms are; a matrix as wide as the model
    keeps that width; a short dimension beside others needs no name. A dimension that two names fit,
    or none, is `UNKNOWN` beside one that is known.
    """
    is_stacked = len(kind.shape) > 1 and kind.shape[0] == evidence.stack(kind)
    shape = kind.shape[is_stacked:]
    is_vector = sum(size > 1 for size in shape) == 1
    names: list[str | None] = ["layers"] * is_stacked
    for size in shape:
        near = evidence.nearby(kind, size) if size > 1 else []
        near = [name for name in near if is_vector or name != "norm"]
        if not is_vector and not _STACKED.isdisjoint(near):
            return None
        output = outputs.get((kind.module, size))
        if is_vector and output is not None:
            near = [output]
        elif is_vector and "norm" in near:
            near = ["norm"]
        elif "embed" in near and (is_vector or size == evidence.width(kind)):
            near = ["embed"]
        if len(near) > 1 or (not near and size > SHORT):
            names.append(UNKNOWN)
        else:
            names.append(near[0] if near else None)
    return tuple(names) if {*names[is_stacked:]} - {None, UNKNOWN} else None


def _guess(
    kind: Kind,
    named: Mapping[Sized, str],
    evidence: _Evidence,
) -> Guess:
    params = tuple(kind.params)
    if kind.own is not None:
        return Guess(params, kind.own, "", True, True)
    if kind.names is None:
        if max(kind.shape) <= SHORT:
            return Guess(params, (None,) * len(kind.shape), "too short to split", True)
        return Guess(params, None, "", True)
    sized = zip(kind.names, kind.shape, strict=True)
    names = tuple(None if name is None else named[name, size] for name, size in sized)
    what = kind.role.what if kind.role else ""
    return Guess(params, without_repeats(names), what, evidence.is_borne_out(kind))


def without_repeats(names: Names) -> Names:
    """Return names of which none comes twice: the second `embed` is `embed'`.

    >>> without_repeats(("embed", None, "embed"))
    ('embed', None, "embed'")
    """
    found: list[str | None] = []
    for name in names:
        while name is not None and name in found:
            name += "'"
        found.append(name)
    return tuple(found)
