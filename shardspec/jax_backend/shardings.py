"""Plan -> NamedShardings of a live tree, fast: one look-up per array.

The tree is flattened once, in C. What decides an array's sharding is its shape and its names,
and a model has a dozen such pairs however many layers it has. So every pair is resolved and
checked once, and every distinct spec has one `NamedSharding` object, for as long as the resolver
lives. Paths are made only where the answer depends on them: overrides, and arrays that leave their
names to `params:`.

`decoder/layers_7/mlp/wi/kernel` and `decoder/layers_8/mlp/wi/kernel` get the same answer from
`**/mlp/wi/kernel`, and from every pattern that says nothing about the 7. So each number in a
path is replaced by a mark, unless a pattern names it, and one array stands for all that share
the result: the *template*. This holds only for patterns whose answer cannot depend on a number they
do not name. `*1` does (it takes 21 and not 20), and so does `layer_.` (7 and not 10). Where one
pattern is of that kind there are no templates, and every path is matched.

The walk by paths goes down to the first key that has a number, and takes what lies under it as one
*layer*. Layers whose paths have one template, and that are alike in structure, shapes and names,
share their answers, so only the first of them has its paths made. Every layer still gets containers
of its own.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shardspec.diagnostics import ShardspecError
from shardspec.ir.plan import DimSharding
from shardspec.ir.spec import Param, Pattern, rooted
from shardspec.jax_backend.tree_plan import raise_faults
from shardspec.jax_backend.trees import (
    UNREADABLE,
    Key,
    KeyReader,
    array_param,
    axes_collections,
    box_test,
    box_value,
    component,
    is_box,
    is_linen,
    is_nnx,
    key_text,
    leaves_of,
)
from shardspec.resolve.resolver import ArrayResolver

if TYPE_CHECKING:
    import jax


#: Stands for a number; no path has it in a component that JAX or Flax made.
MARK = "\x00"

_NUMBER = re.compile(r"[0-9]+")

#: A glob's component that names numbers: plain text, and braces of plain texts or a range,
#: no digit next to a brace, where two numbers would become one.
_PLAIN = r"[^{}*?\[\]\\,]*"
_NUMBERED = re.compile(rf"{_PLAIN}(?:(?<![0-9}}])\{{[^{{}}*?\[\]\\/]*\}}(?![0-9{{]){_PLAIN})*")
_RANGE = re.compile(r"\{(0|[1-9][0-9]{0,4})\.\.(0|[1-9][0-9]{0,4})\}")

#: A regex between two of its `/`: text without digits, alternatives of such text, anything
#: that may be empty, and at most one piece that takes one character or more.
_TEXT = r"[A-Za-z_\-~]|\\[.\-_]|\(\?:|\(|\)\??|\||\.\*|\\w\*|\\d\*|\[0-9\]\*"
_RUN = r"\.\+|\\w\+|\\d\+|\[0-9\]\+"
_BLIND = re.compile(rf"\^?(?:{_TEXT})*(?:(?:{_RUN})(?:{_TEXT})*)?\$?")


def template_maker(patterns: Iterable[Pattern]) -> Callable[[str], str] | None:
    """Return the function that makes a path's template, or None where paths must be matched.

    Invariants:
      same_template: paths with one template match the same of `patterns`.
    """
    kept: set[str] = set()
    for pattern in patterns:
        named = numbers_named(pattern)
        if named is None:
            return None
        kept |= named

    free = rf"(?<![0-9])(?!(?:{'|'.join(sorted(kept))})(?![0-9]))[0-9]+" if kept else r"[0-9]+"
    return partial(re.compile(free).sub, MARK)


def numbers_named(pattern: Pattern) -> frozenset[str] | None:
    """Return the numbers a pattern names; None where others may change its answer as well.

    >>> sorted(numbers_named(Pattern("**/mlp/wi_{0,1}/kernel")))
    ['0', '1']
    >>> numbers_named(Pattern("layers_*1/kernel")) is None
    True
    """
    if pattern.dialect == "regex":
        parts = pattern.text.replace("[^/]", r"\w").split("/")
        return frozenset() if all(map(_is_blind, parts)) else None
    named: set[str] = set()
    for part in pattern.text.split("/"):
        if "\\" in part or "?" in part or "[" in part:
            return None
        if not _NUMBER.search(part):
            continue
        if not _NUMBERED.fullmatch(part):
            return None
        for low, high in _RANGE.findall(part):
            named.update(map(str, range(int(low), int(high) + 1)))
        if ".." in _RANGE.sub("", part):
            return None
        named.update(_NUMBER.findall(part))
    return frozenset(named)


def _is_blind(part: str) -> bool:
    """Say whether a regex between two `/` outside of groups takes any number for any other."""
    return part.count("(") == part.count(")") and _BLIND.fullmatch(part) is not None


def has_number(text: str) -> bool:
    """Say whether a component has a number in it."""
    return _NUMBER.search(text) is not None


def partition_entries(dims: Sequence[DimSharding]) -> tuple[Any, ...]:
    """Return what `jax.sharding.PartitionSpec` takes, one entry for every dimension.

    One mesh axis is a string, several are a tuple, none is None. Trailing Nones stay, so the
    length is always the rank: JAX holds `P('a', None)` and `P('a')` for different.
    """
    entries = (dim.mesh_axes for dim in dims)
    return tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in entries)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers on one mesh.

    Attributes:
      by_key: key, or key and template -> sharding, None for what is no array.
      boxed: the same, in the Linen box that all nodes of that key can share.
    """

    arrays: ArrayResolver
    mesh: jax.sharding.Mesh
    by_key: dict[Any, Any] = field(default_factory=dict, repr=False)
    boxed: dict[Any, Any] = field(default_factory=dict, repr=False)
    _by_spec: dict[Any, jax.sharding.NamedSharding] = field(default_factory=dict, repr=False)

    def named(self, dims: Sequence[DimSharding]) -> jax.sharding.NamedSharding:
        """Return the one sharding object for this answer."""
        import jax

        partition_spec: Any = jax.sharding.PartitionSpec
        spec = partition_spec(*partition_entries(dims))
        found = self._by_spec.get(spec)
        if found is None:
            found = self._by_spec[spec] = jax.sharding.NamedSharding(self.mesh, spec)
        return found

    def of_params(self, params: Iterable[Param | None], tree: Any) -> list[Any]:
        """Return the sharding of each array by its path, None for what is no array.

        Raises:
          ShardspecError: one is at fault; it says all that is wrong with `tree`.
        """
        resolved = [None if param is None else self.arrays.resolve(param) for param in params]
        # The resolver keeps equal dims as one object, which lives as long as it does.
        distinct = {
            (found.dims, found.origin, found.mismatch): found for found in resolved if found
        }
        if distinct:
            raise_faults(self.arrays, tuple(distinct.values()), tree)
        known = {found.dims: self.named(found.dims) for found in distinct.values()}
        return [None if found is None else known[found.dims] for found in resolved]

    def learn(self, fresh: Mapping[Any, Any], params: Iterable[Param | None], tree: Any) -> None:
        """Remember the answers for new keys.

        Args:
          fresh: key -> a node that has it.
          params: what to resolve for each.
        """
        shardings = self.of_params(params, tree)
        for (key, node), sharding in zip(fresh.items(), shardings, strict=True):
            self.by_key[key] = sharding
            self.boxed[key] = node.replace_boxed(sharding) if is_linen(type(node)) else sharding

    def needs_path(self, key: Key) -> bool:
        """Say whether an array with this key is named, or named anew, by its path."""
        shape, names = key[:2]
        if shape is None:
            return False
        return self.arrays.names.needs_paths or (names is None and self.names_by_path)

    @property
    def names_by_path(self) -> bool:
        """Say whether the spec names arrays that carry no names."""
        return bool(self.arrays.spec.path_rules)


def param_of(key: Key, node: Any, path: str) -> Param | None:
    """Return what to resolve for a key, None for what is no array."""
    shape, names = key[:2]
    if shape is None:
        return None
    content = box_value(node) if is_box(type(node)) else node
    return array_param(path, tuple(shape), content, names)


class PathDecides(Exception):  # noqa: N818
    """Raised where a layer's answer is not decided by its keys and templates."""


class LayerWalk:
    """The walk over one tree."""

    def __init__(
        self, tree: Any, answers: Answers, template: Callable[[str], str], *, boxed: bool
    ) -> None:
        """Start with nothing known.

        Args:
          template: makes a path's template.
          boxed: whether the boxes of Flax stay around the shardings.
        """
        import jax

        self._flatten = jax.tree_util.tree_flatten
        self._tree = tree
        self._answers = answers
        self._template = template
        self._boxed = boxed
        self._known = answers.boxed if boxed else answers.by_key
        self._reader = KeyReader()
        self._is_box = box_test()
        self._has_boxes = False
        self._leaf_kinds: dict[type, bool] = {}
        self._layers: dict[Any, list[Any]] = {}

    def placed(self) -> Any:
        """Return the tree with a sharding for every array, None for a leaf that is none.

        Raises:
          PathDecides: an array's answer depends on the whole of its path.
        """
        tree = self._tree
        return self._layer(tree, "") if self._is_whole(tree, "") else self._walk(tree, "")

    def _walk(self, node: Any, above: str) -> Any:
        """Return what is below `node`, whose path is `above`, a `/` at its end."""
        texts, children, structure = _opened(node)
        return structure.unflatten(
            [
                self._layer(child, above + text)
                if self._is_whole(child, text)
                else self._walk(child, f"{above}{text}/")
                for text, child in zip(texts, children, strict=True)
            ]
        )

    def _is_whole(self, node: Any, text: str) -> bool:
        """Say whether a node is taken as one layer; whether it is a leaf is told by its type."""
        if has_number(text) or self._is_box(node):
            return True
        kind = type(node)
        if kind not in self._leaf_kinds:
            self._leaf_kinds[kind] = _is_leaf(node)
        return self._leaf_kinds[kind]

    def _layer(self, layer: Any, path: str) -> Any:
        """Return one layer with its answers, those of the one before it that is alike."""
        # JAX asks about boxes only from the first that was found
        stop = self._is_box if self._has_boxes else None
        structure: Any
        nodes, structure = self._flatten(layer, is_leaf=stop)
        try:
            outline = (self._template(path), structure, self._reader.outline(nodes))
            found = self._layers.get(outline)
        except UNREADABLE:
            raise PathDecides from None
        if found is None:
            if stop is None and any(map(self._is_box, self._flatten(layer, self._is_box)[0])):
                self._has_boxes = True
                return self._layer(layer, path)
            found = self._layers[outline] = self._answered(layer, nodes, path)
        if self._boxed and self._has_boxes:
            found = self._reader.renewed(nodes, found)
        return structure.unflatten(found)

    def _answered(self, layer: Any, nodes: Sequence[Any], path: str) -> list[Any]:
        """Return the answers for the nodes of a layer that is like no other so far."""
        paths = self._paths(layer, path)
        try:
            keys = list(zip(self._reader.keys(nodes), map(self._template, paths), strict=True))
            places = {key: place for place, key in enumerate(keys) if key not in self._known}
            params = [param_of(key[0], nodes[at], paths[at]) for key, at in places.items()]
        except UNREADABLE:
            raise PathDecides from None
        self._answers.learn({key: nodes[at] for key, at in places.items()}, params, self._tree)
        return [self._known[key] for key in keys]

    def _paths(self, layer: Any, above: str) -> list[str]:
        import jax

        flat, _ = jax.tree_util.tree_flatten_with_path(layer, is_leaf=self._is_box)
        return [rooted("/".join((above, *map(component, keys)))) for keys, _ in flat]


def _opened(node: Any) -> tuple[Sequence[str], Sequence[Any], Any]:
    """Return the components of a node's children, the children, and the node's own structure."""
    import jax

    structure: Any
    children, structure = jax.tree_util.tree_flatten(node, is_leaf=lambda other: other is not node)
    if type(node) is dict:
        return list(map(key_text, structure.node_data()[1])), children, structure
    flat, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda other: other is not node)
    return [component(keys[0]) for keys, _ in flat], children, structure


def _is_leaf(node: Any) -> bool:
    """Say whether a node is one that JAX does not look into."""
    import jax

    structure: Any = jax.tree_util.tree_structure(node, is_leaf=lambda other: other is not node)
    return bool(structure.num_nodes == structure.num_leaves)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep the garbage collector off while a tree is taken apart and put together.

    That makes many containers and no garbage, and the collector would walk the whole model
    several times for nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class TreePlacer:
    """The shardings of trees on one mesh.

    Attributes:
      template: makes a path's template; None where the patterns of the spec allow none.
    """

    answers: Answers
    template: Callable[[str], str] | None = field(repr=False)

    def named(self, dims: Sequence[DimSharding]) -> jax.sharding.NamedSharding:
        """Return the one sharding object for this answer."""
        return self.answers.named(dims)

    def place(self, tree: Any, *, boxed: bool = True) -> Any:
        """Return `tree` with a sharding for every array, None for a leaf that is none.

        Args:
          boxed: whether the boxes of Flax stay around the shardings.
        """
        with collector_at_rest():
            with suppress(PathDecides):
                return self._by_key(tree, boxed)
            return self._by_path(tree, boxed)

    def _by_key(self, tree: Any, boxed: bool) -> Any:
        """Return the placed tree by keys, and templates where they count.

        Raises:
          PathDecides: they do not decide.
        """
        arrays, answers = self.answers.arrays, self.answers
        if axes_collections(tree):
            raise PathDecides
        paths_count = arrays.names.needs_paths or answers.names_by_path
        if not paths_count or (not arrays.names.needs_paths and _starts_with_box(tree)):
            placed = self._by_names(tree, boxed)
            if placed is not None:
                return placed
        if self.template is None or not paths_count:
            raise PathDecides
        return LayerWalk(tree, answers, self.template, boxed=boxed).placed()

    def _by_names(self, tree: Any, boxed: bool) -> Any:
        """Return the placed tree by the keys of its nodes alone; None where they do not decide."""
        import jax

        structure: Any
        nodes, structure = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
        reader = KeyReader()
        known = self.answers.boxed if boxed else self.answers.by_key
        placed = _looked_up(known, nodes, reader)
        if isinstance(placed, _Unknown):
            if self.answers.needs_path(placed.key) or not self._learnt(nodes, reader, tree):
                return None
            placed = [known[key] for key in reader.keys(nodes)]
        if placed is None:
            return None
        if boxed and any(map(is_nnx, set(map(type, nodes)))):
            placed = reader.renewed(nodes, placed)
        return structure.unflatten(placed)

    def _learnt(self, nodes: Sequence[Any], reader: KeyReader, tree: Any) -> bool:
        """Learn the answers for new keys; False where keys do not decide."""
        try:
            found = dict(zip(reader.keys(nodes), nodes, strict=True))
            fresh = {key: node for key, node in found.items() if key not in self.answers.by_key}
            if any(map(self.answers.needs_path, fresh)):
                return False
            params = [param_of(key, node, "") for key, node in fresh.items()]
        except (ShardspecError, *UNREADABLE):
            return False
        self.answers.learn(fresh, params, tree)
        return True

    def _by_path(self, tree: Any, boxed: bool) -> Any:
        """Return the placed tree by the whole path of each array."""
        import jax

        structure: Any
        nodes, structure = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
        flat = iter(self.answers.of_params((leaf.param for leaf in leaves_of(tree)), tree))
        return structure.unflatten(_put_back(nodes, flat, boxed))


class _Unknown(NamedTuple):
    """A key that was not met before."""

    key: Key


def _looked_up(
    known: Mapping[Any, Any], nodes: Sequence[Any], reader: KeyReader
) -> list[Any] | _Unknown | None:
    """Return what is known for each node, or the first key that is not, or None for no keys."""
    try:
        return [known[key] for key in reader.keys(nodes)]
    except KeyError as missing:
        return _Unknown(missing.args[0])
    except UNREADABLE:
        return None


def _starts_with_box(tree: Any) -> bool:
    """Say whether the first leaf of a tree is in a box of Flax."""
    below = _children(tree)
    while below and not is_box(type(tree)):
        tree = below[0]
        below = _children(tree)
    return is_box(type(tree))


def _children(node: Any) -> list[Any]:
    """Return the children of a node; none for a leaf."""
    import jax

    below = jax.tree_util.tree_leaves(node, is_leaf=lambda other: other is not node)
    return [] if below and below[0] is node else below


def tree_placer(arrays: ArrayResolver, mesh: jax.sharding.Mesh) -> TreePlacer:
    """Return the shardings of trees on `mesh`, none of them known yet."""
    spec = arrays.spec
    patterns = [
        *(override.pattern for override in spec.overrides),
        *(rule.pattern for rule in spec.path_rules),
        *(scan.pattern for scan in spec.scans),
    ]
    return TreePlacer(Answers(arrays, mesh), template_maker(patterns))


def _put_back(nodes: Sequence[Any], flat: Iterator[Any], boxed: bool) -> list[Any]:
    """Return what stands in place of each node, with its leaves taken from `flat`."""
    import jax

    parts = []
    for node in nodes:
        content = box_value(node) if not boxed and is_box(type(node)) else node
        structure: Any = jax.tree_util.tree_structure(content)
        parts.append(structure.unflatten([next(flat) for _ in range(structure.num_leaves)]))
    return parts
