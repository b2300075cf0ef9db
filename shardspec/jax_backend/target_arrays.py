"""Arrays on a machine that is not here: what code makes there has shapes and shardings, no values.

Training code makes its state before its first step: `jax.jit(init, out_shardings=...)(key)`, or
`jax.device_put(state, shardings)`. While a step is traced for a target, such a call returns arrays
without values, which the step can be called with. Code that reads a value gets a `TypeError`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.extend.core
import numpy as np
from jax._src import core, dtypes, mesh

from shardspec.jax_backend.target_devices import TargetDevice
from shardspec.jax_backend.versions import AXES_CONTEXT, DEVICE_CONTEXT

#: What the error says that code gets where it reads a value.
NO_VALUE = "has no values: it is on the target"
#: How many values are made here of what code makes under a mesh of the target that it has set.
_MOST_VALUES = 1 << 16
#: How deep constraints are looked for in functions that call others.
_DEEPEST = 20


class TargetArray(jax.Array):
    """An array on the target, without values.

    Attributes:
      sharding: None where XLA would choose it.
    """

    __slots__ = ("_given",)

    def __init__(self, aval: Any, sharding: Any = None) -> None:
        """Take what JAX knows of the array."""
        self._given = aval, sharding

    aval = property(lambda self: self._given[0])
    sharding = property(lambda self: self._given[1])
    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    weak_type = property(lambda self: getattr(self.aval, "weak_type", False))
    ndim = property(lambda self: len(self.aval.shape))
    size = property(lambda self: int(np.prod(self.aval.shape)))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    is_fully_addressable = property(lambda self: self._is("addressable"))
    is_fully_replicated = property(lambda self: self._is("replicated"))
    committed = _committed = property(lambda self: self.sharding is not None)

    def _is(self, what: str) -> bool:
        return self.sharding is None or bool(getattr(self.sharding, f"is_fully_{what}"))

    def __repr__(self) -> str:
        """Return `f32[4,8] (of the target)`."""
        return f"{self.aval.str_short()} (of the target)"

    def __len__(self) -> int:
        """Return the size of its first dimension."""
        return int(self.shape[0])

    def block_until_ready(self) -> TargetArray:
        """Return the array itself."""
        return self

    def copy_to_host_async(self) -> None:
        """Do nothing: what waits for the copy is refused."""

    def _value(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{self.aval.str_short()} {NO_VALUE}")

    __array__ = __bool__ = __int__ = __float__ = __index__ = __complex__ = item = tolist = _value
    __iter__ = __hash__ = _value


def _can_compute() -> None:
    """Let code compute with such arrays; JAX traces what it does, and nothing more."""
    from jax._src.numpy import array_methods

    core.pytype_aval_mappings[TargetArray] = _aval
    try:
        dtypes.register_canonicalize_value_handler(TargetArray, None)
    except AttributeError:  # before jax 0.10.1
        dtypes.canonicalize_value_handlers[TargetArray] = lambda array: array
    own = {name for name in vars(TargetArray) if not name.startswith("__slots")}
    array_methods._set_array_base_attributes(TargetArray, exclude=own | {"__array__", "__iter__"})


def _aval(array: TargetArray) -> Any:
    own = core.ShapedArray(array.shape, array.dtype, weak_type=array.weak_type)
    return own if array.sharding is None else core.update_aval_with_sharding(own, array.sharding)


def instead(is_traced: Callable[[], bool]) -> tuple[tuple[Any, Any], ...]:
    """Return JAX's functions that make arrays and ours for them; none where this JAX has others.

    Args:
      is_traced: whether this thread traces for a target; elsewhere, arrays are made as ever.
    """
    try:
        from jax._src import api, array, dispatch, pjit, sharding_impls
        from jax._src.lax import lax

        _can_compute()
        known = (
            (pjit._pjit_call_impl_python, _called),
            (dispatch._device_put_impl, _put),
            (api._check_sharding, _checked),
            (lax.full_like, _like),
            (sharding_impls.set_mesh, _set_mesh),
            (array.make_array_from_callback, _of_callback),
            (array.make_array_from_single_device_arrays, _of_shards),
        )
    except (ImportError, AttributeError):
        return ()
    return tuple((original, _wrapped(original, ours, is_traced)) for original, ours in known)


def _wrapped(
    original: Callable[..., Any], ours: Callable[..., Any], is_traced: Callable[[], bool]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> Any:
        return ours(original, args, kwargs) if is_traced() else original(*args, **kwargs)

    return made


def _called(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    """Return what a jitted function makes on the target; one for this machine is run here."""
    jaxpr = told["jaxpr"].jaxpr
    wanted = (*told["in_shardings"], *told["out_shardings"], *_constraints(jaxpr, _DEEPEST))
    if not any(isinstance(each, TargetArray) or _is_of_target(each) for each in (*args, *wanted)):
        if not _is_of_target(told["ctx_mesh"]):
            return original(*args, **told)
        if sum(var.aval.size for var in jaxpr.outvars) <= _MOST_VALUES:
            with contextlib.suppress(Exception):
                return _here(original, args, told)
    return list(_results(jaxpr, args, told)), None, None, []


def _here(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    """Run a function on this machine, without the mesh around it."""
    kept = DEVICE_CONTEXT.get_local(), AXES_CONTEXT.get_local()
    try:
        DEVICE_CONTEXT.set_local(mesh.empty_concrete_mesh)
        AXES_CONTEXT.set_local(mesh.empty_abstract_mesh)
        return original(*args, **told | {"ctx_mesh": mesh.empty_concrete_mesh})
    finally:
        DEVICE_CONTEXT.set_local(kept[0])
        AXES_CONTEXT.set_local(kept[1])


def _results(jaxpr: Any, args: Sequence[Any], told: dict[str, Any]) -> Iterator[TargetArray]:
    """Yield the results, with the shardings that code asks for or that arguments bring along."""
    given = zip(jaxpr.invars, args, strict=True)
    known = {id(var): getattr(arg, "sharding", None) for var, arg in given}
    around = told["ctx_mesh"]
    theirs = [arg.sharding for arg in args if isinstance(arg, TargetArray)]
    is_whole = all(each is not None and each.is_fully_replicated for each in theirs)
    is_known = is_whole and _is_of_target(around)
    whole = jax.sharding.NamedSharding(around, jax.sharding.PartitionSpec()) if is_known else None
    for equation in filter(_is_constraint, jaxpr.eqns):
        known[id(equation.outvars[0])] = equation.params["sharding"]
    for var, sharding in zip(jaxpr.outvars, told["out_shardings"], strict=True):
        is_stated = isinstance(sharding, jax.sharding.Sharding)
        typed = getattr(var.aval, "sharding", None)  # has the mesh alone where axes are automatic
        is_typed = typed is not None and not typed.mesh.empty and typed.mesh.are_all_axes_explicit
        found = sharding if is_stated else typed if is_typed else known.get(id(var)) or whole
        own = _with_devices(found, around)
        if not is_stated and own is not None and typed is not None:
            own = _of_types(own, typed.mesh)
        yield TargetArray(var.aval, own)


def _put(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    array, device = args[0], told.get("device")
    if isinstance(array, TargetArray) and (device is None or not _is_of_target(device)):
        return array
    if not _is_of_target(device):
        return original(*args, **told)
    aval = told.get("aval") or core.typeof(array)
    return TargetArray(aval, device if isinstance(device, jax.sharding.Sharding) else None)


def _checked(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> None:
    if not isinstance(args[1], TargetDevice):
        original(*args, **told)


def _like(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    given = dict(zip(("x", "fill_value", "dtype", "shape", "sharding"), args, strict=False)) | told
    array, shape, dtype, sharding = map(given.get, ("x", "shape", "dtype", "sharding"))
    if not isinstance(array, TargetArray):
        return original(*args, **told)
    if sharding is None and shape in (None, array.shape):
        sharding = array.sharding
    shape = array.shape if shape is None else tuple(shape)
    return TargetArray(
        core.ShapedArray(shape, array.dtype if dtype is None else np.dtype(dtype)), sharding
    )


def _set_mesh(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    """Set a mesh also where a step that calls a jitted function is itself traced."""
    given = (*args, *told.values())[0]
    if core.trace_state_clean() or not _is_of_target(given):
        return original(*args, **told)
    return jax.sharding.use_abstract_mesh(given.abstract_mesh)


def _of_callback(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    given = dict(zip(("shape", "sharding", "data_callback", "dtype"), args, strict=False)) | told
    shape, sharding, dtype = tuple(given["shape"]), given["sharding"], given.get("dtype")
    if not _is_of_target(sharding):
        return original(*args, **told)
    if dtype is None:
        index = next(iter(sharding.devices_indices_map(shape).values()))
        dtype = jax.numpy.asarray(given["data_callback"](index)).dtype
    return TargetArray(core.ShapedArray(shape, dtype), sharding)


def _of_shards(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    given = dict(zip(("shape", "sharding", "arrays"), args, strict=False)) | told
    if not _is_of_target(given["sharding"]):
        return original(*args, **told)
    dtype = given["arrays"][0].dtype if given["arrays"] else given["dtype"]
    return TargetArray(core.ShapedArray(tuple(given["shape"]), dtype), given["sharding"])


def _is_of_target(place: Any) -> bool:
    """Say whether a device, a mesh, a sharding or a layout is of a machine that is not here."""
    around = getattr(getattr(place, "sharding", place), "mesh", place)
    if isinstance(around, jax.sharding.AbstractMesh):
        return int(around.size) > 1
    if isinstance(around, jax.sharding.Mesh):
        return not around.empty and isinstance(around.devices.flat[0], TargetDevice)
    devices = getattr(place, "_device_assignment", (place,))
    return isinstance(next(iter(devices), None), TargetDevice)


def _with_devices(sharding: Any, around: Any) -> Any:
    """Return a sharding over the devices of the mesh that code has set, where it names none."""
    if not _is_of_target(sharding):
        return None
    meshes = (around, mesh.thread_resources.env.physical_mesh)
    is_abstract = isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh)
    same = (
        each for each in meshes if is_abstract and each.shape_tuple == sharding.mesh.shape_tuple
    )
    own = next(same, None)
    return sharding if own is None else jax.sharding.NamedSharding(own, sharding.spec)


def _of_types(sharding: Any, other: Any) -> Any:
    """Return a sharding whose mesh has the types of axes that an array has, set by `auto_axes`."""
    own = getattr(sharding, "mesh", other)
    if own.shape_tuple != other.shape_tuple or own.axis_types == other.axis_types:
        return sharding
    return jax.sharding.NamedSharding(own.update(axis_types=other.axis_types), sharding.spec)


def _is_constraint(equation: Any) -> bool:
    return bool(equation.primitive.name == "sharding_constraint")


def _constraints(jaxpr: Any, depth: int) -> Iterator[Any]:
    """Yield the shardings that a function asks for, also in what it calls."""
    for equation in jaxpr.eqns:
        if _is_constraint(equation):
            yield equation.params["sharding"]
        for inner in jax.extend.core.jaxprs_in_params(equation.params) if depth else ():
            yield from _constraints(inner, depth - 1)
