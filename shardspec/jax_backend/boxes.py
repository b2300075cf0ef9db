"""Boxes: nodes that hold one array and what its author said about it.

Flax has two families, Linen's `AxisMetadata` (`Partitioned`, `LogicallyPartitioned`) and
NNX's `Variable`. Neither is imported here: a tree can hold a box only where its module has
been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

#: Metadata keys in which NNX keeps names; the last two are its own older spellings.
_NNX_NAMES = ("out_sharding", "sharding_names", "sharding")

_LINEN = (("flax.core.meta", "AxisMetadata"),)
_VARIABLES = (("flax.nnx", "Variable"), ("flax.nnx", "VariableState"))
#: What a Variable keeps, as far as it differs from one to the next.
_VARIABLE_STATE = {"_raw_value", "_var_metadata"}
_OF_OPTIMIZERS = (("flax.nnx.training.optimizer", "OptState"),)
_NNX = (*_VARIABLES, ("flax.nnx.variablelib", "HijaxVariable"))


class _Derived(dict[type, bool]):
    """A type -> whether it derives from one of these, asked once for each.

    A type that does not when it is first met never will: what it derives from was imported before
    it was made.
    """

    def __init__(self, places: tuple[tuple[str, str], ...]) -> None:
        """Start without having met any type."""
        super().__init__()
        self._places = places

    def __missing__(self, kind: type) -> bool:
        """Return the answer for a type that was not met before."""
        self[kind] = answer = issubclass(kind, _loaded(self._places))
        return answer


_IS_LINEN, _IS_NNX, _IS_BOX = _Derived(_LINEN), _Derived(_NNX), _Derived((*_LINEN, *_NNX))
_IS_OF_OPTIMIZER = _Derived(_OF_OPTIMIZERS)


def is_linen(kind: type) -> bool:
    """Say whether `kind` is a box of Linen."""
    return _IS_LINEN[kind]


def is_nnx(kind: type) -> bool:
    """Say whether `kind` is a box of NNX."""
    return _IS_NNX[kind]


def is_optimizer_variable(kind: type) -> bool:
    """Say whether `kind` is a box that an `nnx.Optimizer` keeps its state in."""
    return _IS_OF_OPTIMIZER[kind]


def is_box(kind: type) -> bool:
    """Say whether `kind` is a box."""
    return _IS_BOX[kind]


def _loaded(places: tuple[tuple[str, str], ...]) -> tuple[type, ...]:
    found = (vars(sys.modules[name]).get(kind) for name, kind in places if name in sys.modules)
    return tuple(kind for kind in found if isinstance(kind, type))


def box_test() -> Callable[[Any], bool]:
    """Return the `is_leaf` that stops at boxes."""
    return lambda node: _IS_BOX[type(node)]


def box_value(box: Any) -> Any:
    """Return what a box holds, without the constraint that Linen's `unbox` would apply."""
    if is_nnx(type(box)):
        return nnx_value(box)
    return box.value if hasattr(box, "value") else box.unbox()


def unboxed(tree: Any) -> Any:
    """Return a tree with what its boxes hold in their place."""
    import jax

    structure: Any
    nodes, structure = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
    return structure.unflatten(box_value(node) if is_box(type(node)) else node for node in nodes)


def box_names(box: Any) -> Any:
    """Return the names a box carries, as its author wrote them; None where it has none."""
    return nnx_names(box) if is_nnx(type(box)) else getattr(box, "names", None)


def nnx_value(box: Any) -> Any:
    """Return what a box of NNX holds."""
    return box.get_raw_value() if hasattr(box, "get_raw_value") else box.value


def nnx_names(box: Any) -> Any:
    """Return the names a box of NNX carries; it takes an empty annotation for none at all."""
    metadata = box.get_metadata()
    for key in _NNX_NAMES:
        names = metadata.get(key)
        if names:
            return names
    return None


class VariableMaker:
    """Makes Variables of one type like given ones, faster than JAX does from a structure.

    The first is made as NNX makes its own. The others take what it knows of the trace around
    it, by the protocol that pickling uses, and each the metadata of the Variable it is like.
    """

    def __init__(self, kind: type) -> None:
        """Start without a first one."""
        self._kind = kind
        self._state: dict[str, Any] | None = None

    def __call__(self, box: Any, content: Any) -> Any:
        """Return a Variable like `box` that holds `content`."""
        metadata = box.get_metadata()
        if self._state is None:
            made = box.from_metadata(content, metadata)
            state = made.__getstate__()
            self._state = state if state.keys() >= _VARIABLE_STATE else None
            return made
        made = object.__new__(self._kind)
        made.__setstate__({**self._state, "_raw_value": content, "_var_metadata": metadata})
        return made


def box_maker(kind: type) -> Callable[[Any, Any], Any]:
    """Return what makes a box of `kind` from another one and new content, alike to JAX."""
    has_protocol = all(hasattr(kind, name) for name in ("from_metadata", "__setstate__"))
    is_variable = issubclass(kind, _loaded(_VARIABLES))
    return VariableMaker(kind) if is_variable and has_protocol else _from_structure


def _from_structure(box: Any, content: Any) -> Any:
    import jax

    structure: Any = jax.tree_util.tree_structure(box)
    return structure.unflatten((content,))
