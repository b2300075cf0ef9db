"""What callers pass, checked at the door: a wrong value is told as itself, not by what it breaks.

A value of the wrong type is a `TypeError`, as everywhere in Python; a tree or an array that is of
the right type and cannot be used is a finding, since it comes out of data.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import listed
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.jax_backend.trees import leaves_of, shape_of

#: What JAX raises for a value it cannot use.
UNUSABLE = (TypeError, ValueError, RuntimeError, NotImplementedError)


#: Iterables that are no sequence of names or sizes.
_UNORDERED = (bytes, Mapping, Set)


def kind_of(value: Any) -> str:
    """Return what a message calls a value: itself where it is short, else its type.

    >>> kind_of(5.0), kind_of(None), kind_of([1, 2])
    ('5.0', 'None', 'a `list`')
    """
    if value is None or isinstance(value, bool | int | float):
        return f"{value}"
    return f"a `{type(value).__name__}`"


def require_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit a function of the user, by the names of its parameters.

    >>> require_call(lambda params, batch: batch, [0], {})
    Traceback (most recent call last):
    TypeError: `<lambda>(params, batch)` is given no `batch`: pass what one call of it takes

    Raises:
      TypeError: it is no function, a parameter has no value, or a value has no parameter.
    """
    if not callable(function):
        raise TypeError(f"a step is a function, not {kind_of(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a builtin, which JAX will say
    inner = getattr(function, "func", function)  # of a `functools.partial`
    name = getattr(inner, "__name__", type(inner).__name__)
    called = f"`{name}({', '.join(signature.parameters)})`"
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{called} cannot be called so: {error}") from None
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        each.name
        for each in signature.parameters.values()
        if each.name not in given and each.default is each.empty and each.kind not in optional
    ]
    if missing:
        raise TypeError(f"{called} is given no {listed(missing)}: pass what one call of it takes")


def names_given(names: Any) -> str | tuple[str | None, ...]:
    """Return logical axes as they may be asked for.

    Raises:
      TypeError: they are no string, and no sequence of strings and None.
    """
    if isinstance(names, str):
        return names
    if _is_partition(names):
        raise TypeError(
            'logical axes are a string such as "batch embed", not a PartitionSpec, which has mesh'
            " axes: `jax.lax.with_sharding_constraint` takes that"
        )
    is_array = hasattr(names, "dtype")
    if not is_array and isinstance(names, Iterable) and not isinstance(names, _UNORDERED):
        found = tuple(names)
        wrong = [each for each in found if each is not None and not isinstance(each, str)]
        if not wrong:
            return found
        raise TypeError(f"a logical axis is a string or None, not {wrong[0]!r}")
    raise TypeError(f'logical axes are a string such as "batch embed", not {kind_of(names)}')


def sizes_given(shape: Any) -> tuple[Any, ...]:
    """Return the sizes of a shape: numbers, or the symbols of `jax.export`.

    Raises:
      TypeError: it is no sequence, or has something else in it.
      ValueError: a size is negative.
    """
    if isinstance(shape, (str, *_UNORDERED)) or not isinstance(shape, Iterable):
        more = ": pass its `shape`" if hasattr(shape, "shape") else ""
        raise TypeError(f"a shape is a sequence of numbers, not {kind_of(shape)}{more}")
    dims, dtype = getattr(shape, "ndim", 1), getattr(shape, "dtype", None)
    if dims != 1 or getattr(dtype, "kind", "i") not in "iu":
        raise TypeError(f"a shape is a sequence of numbers, not {kind_of(shape)}: pass its `shape`")
    return tuple(map(_size, shape))


def _size(size: Any) -> Any:
    if type(size).__module__.partition(".")[0] == "jax" and not isinstance(size, jax.Array):
        return size  # a symbol
    found = _index(size)
    if found is None:
        raise TypeError(f"a size is a whole number, not {kind_of(size)}")
    if found < 0:
        raise ValueError(f"a size is not negative: {found}")
    return found


def _index(value: Any) -> int | None:
    """Return a whole number as Python's own, None for what is none."""
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # an array that is traced, or deleted
        return None


def count_given(count: Any, what: str) -> int | None:
    """Return a number of rows, None where none is given.

    Raises:
      TypeError, ValueError: it is no number, or not positive.
    """
    if count is None:
        return None
    found = None if isinstance(count, bool) else _index(count)
    if found is None:
        raise TypeError(f"{what} is a whole number, not {kind_of(count)}")
    if not 0 < found < 1 << 63:
        raise ValueError(f"{what} is a number of rows, not {found}")
    return found


def process_given(process: Any, mesh: Any) -> int | None:
    """Return a process that has devices of a mesh, None for this one.

    Raises:
      TypeError, ValueError: it is no number, or has none.
    """
    if process is None:
        return None
    if isinstance(process, bool) or not isinstance(process, int):
        raise TypeError(f"a process is a number, not {kind_of(process)}")
    known = sorted({device.process_index for device in mesh.devices.flat})
    if process not in known:
        shown = ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
        raise ValueError(f"process {process} has no device in the mesh: it is of {shown}")
    return process


def path_given(path: Any) -> str:
    """Return the path of a file or folder.

    Raises:
      TypeError: it is none.
    """
    if isinstance(path, str | os.PathLike):
        found = os.fspath(path)
        if isinstance(found, str):
            return found
    raise TypeError(f"a path is a string or a `Path`, not {kind_of(path)}")


def kinds_given(kinds: Any) -> frozenset[str]:
    """Return the names of kinds of memory.

    Raises:
      TypeError: it is no collection of strings.
    """
    if isinstance(kinds, Iterable) and not isinstance(kinds, str | bytes):
        found = tuple(kinds)
        if all(isinstance(each, str) for each in found):
            return frozenset(found)
    shown = f'"{kinds}"' if isinstance(kinds, str) else kind_of(kinds)
    help = f": `({shown},)`" if isinstance(kinds, str) else ""
    raise TypeError(f"`memory_kinds` is a collection of strings, not {shown}{help}")


def devices_given(devices: Any) -> None:
    """Raise for what is neither a sequence of devices, nor None, nor `"abstract"`.

    Raises:
      TypeError: naming what it is.
    """
    if devices is None or (isinstance(devices, str) and devices == "abstract"):
        return
    if isinstance(devices, str):
        raise TypeError(f"`devices` is a sequence of devices, None or 'abstract', not {devices!r}")
    if not isinstance(devices, Sequence) and not _holds_objects(devices):
        raise TypeError(f"`devices` is a sequence such as `jax.devices()`, not {kind_of(devices)}")
    wrong = [each for each in devices if not hasattr(each, "device_kind")]
    if wrong:
        raise TypeError(f"`devices` has {kind_of(wrong[0])} in it, which is no device")


def _holds_objects(array: Any) -> bool:
    return getattr(getattr(array, "dtype", None), "kind", "") == "O"


def refuse_no_tree(tree: Any) -> list[Any]:
    """Return the leaves; raise for what JAX cannot take apart, such as keys that do not sort.

    Raises:
      ShardspecError: saying why not.
    """
    try:
        return jax.tree_util.tree_leaves(tree)
    except (TypeError, ValueError) as error:
        first = str(error).partition("\n")[0].rstrip(".")
        help = "give all keys of one dict the same type"
        message = f"JAX cannot take the tree apart: {first}"
        diagnostic = Diagnostic(codes.WRONG_TYPE, message, help=help if "key" in first else None)
        raise ShardspecError((diagnostic,)) from None


def opened(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of a node by their key paths, and its structure, one level deep.

    A leaf is its own only child, at no key.

    Raises:
      ShardspecError: JAX cannot take it apart, and why.
    """
    flat: Any
    structure: Any
    try:
        flat, structure = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda other: other is not node
        )
        return flat, structure
    except (TypeError, ValueError):
        refuse_no_tree(node)
        raise


def refuse_no_arrays(tree: Any, name: str) -> None:
    """Raise for what JAX cannot take apart, and for what has leaves and no array among them.

    An empty tree is fine, as the state of SGD is; so is what is no array beside arrays.

    Args:
      name: the argument that it is.

    Raises:
      TypeError: saying what to give instead.
      ShardspecError: JAX cannot take the tree apart.
    """
    leaves = refuse_no_tree(tree)
    if tree is not None and not leaves:
        return
    if any(shape_of(leaf) is not None or _is_partition(leaf) for leaf in leaves):
        return
    first = tree if tree is None else leaves[0]
    is_optimizer = hasattr(tree, "init") and hasattr(tree, "update")
    if first is not tree and callable(first) and not is_optimizer:
        return  # modules of Equinox hold functions, and some of them nothing else
    within = "" if first is tree else f" without any, whose first leaf is {_named_kind(first)}"
    found = f"{_named_kind(tree)}{within}"
    raise TypeError(f"`{name}` is a tree of arrays, not {found}: {_instead(first, name)}")


def _is_partition(leaf: Any) -> bool:
    """Say whether a leaf is a `PartitionSpec`, which has a finding of its own."""
    return isinstance(leaf, jax.sharding.PartitionSpec)


def _named_kind(value: Any) -> str:
    return repr(value) if isinstance(value, str) else kind_of(value)


def _instead(value: Any, name: str) -> str:
    """Return what to write instead of a leaf that is no array."""
    if isinstance(value, jax.sharding.Sharding):
        plan = ", or `resolver.plan` of those" if name in {"like", "params"} else ""
        return f"pass the arrays, boxed where they were, that the shardings are for{plan}"
    if isinstance(value, str):
        return 'for logical axes there is `resolver.sharding("batch embed")`'
    if isinstance(value, ShardingPlan):
        return "pass the arrays; `params` and `like=` take what `resolver.plan(arrays)` returns"
    if isinstance(value, Spec) or isinstance(getattr(value, "ir", None), Spec):
        return "a spec has rules; pass the arrays that they are for"
    if callable(value):
        return "pass what it returns, which is `jax.eval_shape(function, ...)` without a run"
    return "pass arrays or `ShapeDtypeStruct`s, in dicts, lists, tuples or classes of JAX"


def refuse_unmovable(tree: Any, verb: str, *, sums: bool = False) -> None:
    """Raise for the first array of a tree that has no values to move.

    Args:
      verb: what was to be done, for the message.
      sums: whether partial sums may be among them.

    Raises:
      ShardspecError: it is abstract, traced, deleted, or holds partial sums.
    """
    if not any(_unmovable(leaf, "", verb, sums) for leaf in jax.tree_util.tree_leaves(tree)):
        return
    for leaf in leaves_of(tree):
        if leaf.shape is not None:
            name = f"`{leaf.path}`" if leaf.path else "the array"
            found = _unmovable(leaf.value, name, verb, sums)
            if found is not None:
                raise ShardspecError((found,))


def _unmovable(value: Any, name: str, verb: str, sums: bool = False) -> Diagnostic | None:
    if isinstance(value, jax.ShapeDtypeStruct):
        message = f"{name} is a ShapeDtypeStruct, which has no values to put anywhere"
        help = "make the arrays first: `jax.jit(init, out_shardings=resolver.shardings(tree))`"
    elif isinstance(value, jax.core.Tracer):
        message = f"{name} is being traced: `{verb}` moves arrays that are there"
        help = (
            f"call `{verb}` outside of `jax.jit`; inside it,"
            " `jax.lax.with_sharding_constraint(tree, resolver.shardings(tree))`"
        )
    elif isinstance(value, jax.Array) and value.is_deleted():
        message = f"{name} has been deleted, or donated to a `jax.jit`, and has no values any more"
        help = "use what came out of the `jax.jit` that it was donated to"
    elif (axes := unreduced_axes(getattr(value, "sharding", None))) and not sums:
        message = f"{name} holds partial sums, one on each part of {', '.join(axes)}"
        help = "`jax.sharding.reshard(array, partition_spec)` in `jax.set_mesh` sums them up"
    else:
        return None
    return Diagnostic(codes.WRONG_TYPE, message, help=help)


def unreduced_axes(sharding: Any) -> tuple[str, ...]:
    """Return the mesh axes over which an array holds partial sums."""
    found = getattr(getattr(sharding, "spec", None), "unreduced", None)
    return tuple(sorted(map(str, found or ())))


def mesh_axes_of_sums(sharding: Any) -> tuple[str, ...]:
    """Return the mesh axes of all sums of a sharding, `unreduced` and `reduced`."""
    found = getattr(getattr(sharding, "spec", None), "reduced", None)
    return (*unreduced_axes(sharding), *sorted(map(str, found or ())))


def refuse_unusable(array: Any, name: str, error: Exception, verb: str) -> None:
    """Raise a finding for an array that JAX has refused, if that is about the array.

    Raises:
      ShardspecError: it has no values, or is of a kind that no device takes.
    """
    if isinstance(array, jax.core.Tracer):
        return
    shown = f"`{name}`" if name else "the array"
    found = _unmovable(array, shown, verb)
    if found is None and not isinstance(array, jax.Array):
        first = str(error).partition("\n")[0].rstrip(".")
        found = Diagnostic(codes.WRONG_TYPE, f"JAX cannot take {shown}, {kind_of(array)}: {first}")
    if found is not None:
        raise ShardspecError((found,)) from None


def argument_names(function: Callable[..., Any], count: int, keywords: Sequence[str]) -> list[str]:
    """Return what the function calls each of its arguments; by number where it does not say."""
    try:
        kinds = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        kinds = ()  # type: ignore[assignment]
    known = [each.name for each in kinds if each.kind is not inspect.Parameter.VAR_POSITIONAL]
    return [known[at] if at < len(known) else str(at) for at in range(count)] + list(keywords)
