"""Records: frozen types as JSON data and back; keys, types and what may be missing are said once.

A dataclass or a NamedTuple is an object whose keys are its fields; tuples are arrays, mappings are
objects. A field with a default may be missing, and one that is `Annotated[..., OMITTED]` is left
out where it holds it; an int in `Annotated` is the least that a number may be, else 0: counts,
sizes and times have no sign. A reader passes over keys that it does not know: a later version may
add some.

>>> class Size(NamedTuple):
...     bytes: int
...     basis: str = "exact"
>>> data_of(Size(4)), record_of(Size, {"bytes": 4, "basis": "floor"})
({'bytes': 4, 'basis': 'exact'}, Size(bytes=4, basis='floor'))
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin
from typing import get_type_hints as hints_of

T = TypeVar("T")
#: A record as JSON data.
Data = dict[str, Any]

#: Of a field in `Annotated`: left out where it holds its default; never missing in spite of one.
OMITTED = "omitted"
STATED = "stated"
_MISSING = dataclasses.MISSING


class Of(NamedTuple):
    """Of a field in `Annotated`: which attribute it is, where `made_of` makes the record.

    Attributes:
      name: `target.name`; nothing for the value itself.
      by: what makes the field of the attribute, where that is not the same.
    """

    name: str
    by: Callable[[Any], Any] = lambda found: found


_KINDS: dict[str, Any] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}


class RecordError(ValueError):
    """Why data is no such record, in its first fault: a clause that names the keys to it."""


class Field(NamedTuple):
    """A key of a record.

    Attributes:
      kind: its type, without None.
      default: what it is where it is missing.
      of: which attribute it is of what the record is made of.
    """

    name: str
    kind: Any
    default: Any
    is_optional: bool
    is_omitted: bool
    least: int
    of: Of

    @property
    def is_required(self) -> bool:
        """Say whether it may not be missing."""
        return self.default is _MISSING

    @property
    def inner(self) -> tuple[Field, ...]:
        """Return what items, or keys and values, of an array or an object are."""
        return _inner(self.kind)


@cache
def _inner(kind: Any) -> tuple[Field, ...]:
    return tuple(_field("", each) for each in get_args(kind) if each is not ...)


def data_of(value: Any) -> Any:
    """Return a value as JSON data."""
    if is_record(type(value)):
        found = ((each, getattr(value, each.name)) for each in fields_of(cast(Any, type(value))))
        return {
            field.name: data_of(inner)
            for field, inner in found
            if not (field.is_omitted and inner == field.default)
        }
    if isinstance(value, Mapping):
        return {key: data_of(inner) for key, inner in value.items()}
    return [data_of(inner) for inner in value] if isinstance(value, tuple | list) else value


def picked(value: Any, keys: str) -> Data:
    """Return some attributes of a value as JSON data; `key=attribute` where the key is another.

    >>> picked(1 + 2j, "real im=imag twice=real.real")
    {'real': 1.0, 'im': 2.0, 'twice': 1.0}
    """
    pairs = (each.partition("=") for each in keys.split())
    return {key: data_of(attrgetter(name or key)(value)) for key, _, name in pairs}


def made_of(kind: Callable[..., T], value: object, /, **own: Any) -> T:
    """Return the record of a value: a field is the attribute of its name, or that of its `Of`.

    Records in it are made likewise, or by the function `of` of their type. An empty text is None
    where the field may be None; an attribute of what is None is missing.

    Args:
      own: fields that are no attributes.

    >>> class Size(NamedTuple):
    ...     real: float
    ...     unit: str
    >>> made_of(Size, 1 + 2j, unit="GiB")
    Size(real=1.0, unit='GiB')
    """
    for field in fields_of(kind):
        if field.name not in own:
            found = _taken(field, _attribute(value, field.of.name))
            if found is not None or field.is_optional:
                own[field.name] = found
    return kind(**own)


def _attribute(value: Any, name: str) -> Any:
    for step in filter(None, name.split(".")):
        value = None if value is None else getattr(value, step)
    return value


def _taken(field: Field, value: Any) -> Any:
    """Return an attribute as a field holds it."""
    kind = field.kind
    if value is None or (field.is_optional and value == ""):
        return None
    if kind is str:
        return str(value)
    if hasattr(kind, "of"):
        return kind.of(value)
    if get_origin(kind) is tuple:
        return tuple(_taken(field.inner[0], each) for each in value)
    if is_record(kind):
        return value if isinstance(value, kind) else made_of(kind, value)
    if get_origin(kind) is dict:
        return dict(value)
    return field.of.by(value)


def record_of(kind: Callable[..., T], data: object) -> T:
    """Return the record that JSON data holds.

    Invariants:
      round_trip: of what `data_of` makes of a record, it is that record.
      total: any JSON data is such a record, or refused.

    Raises:
      RecordError: it holds none.
    """
    return cast(T, _read(_field("", kind), data, ""))


@cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    """Return the keys of a type of records."""
    if dataclasses.is_dataclass(kind):
        defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    else:
        defaults = {name: kind._field_defaults.get(name, _MISSING) for name in kind._fields}
    hints = hints_of(kind, include_extras=True)
    return tuple(_field(name, hints[name], default) for name, default in defaults.items())


def _field(name: str, kind: Any, default: Any = _MISSING) -> Field:
    more = getattr(kind, "__metadata__", ())
    bare = get_args(kind)[0] if more else kind
    least = next((each for each in more if isinstance(each, int)), 0)
    default = _MISSING if STATED in more else default
    inner = get_args(bare)
    is_optional = NoneType in inner
    if is_optional:
        bare = next(each for each in inner if each is not NoneType)
    of = next((each for each in more if isinstance(each, Of)), Of(name))
    return Field(name, bare, default, is_optional, OMITTED in more, least, of)


def is_record(kind: Any) -> bool:
    """Say whether values of a type are written by their fields."""
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


def _word(kind: Any) -> str:
    """Return what JSON calls a type."""
    if is_record(kind) or get_origin(kind) in (dict, Mapping):
        return "object"
    if get_origin(kind) is tuple:
        return "array"
    return {bool: "boolean", int: "integer", float: "number"}.get(kind, "string")


def _read(field: Field, data: Any, route: str) -> Any:
    if data is None and field.is_optional:
        return None
    kind, word = field.kind, _word(field.kind)
    if not isinstance(data, _KINDS[word]) or (isinstance(data, bool) and word != "boolean"):
        null = " or null" if field.is_optional else ""
        raise RecordError(f"`{route or 'it'}` should be {word}{null}")
    if get_origin(kind) is Literal and data not in get_args(kind):
        raise RecordError(f"`{route}` should be {' or '.join(get_args(kind))}")
    if word in ("integer", "number") and not field.least <= data < math.inf:
        raise RecordError(f"`{route}` is out of range")
    if word == "array":
        return _items(field, data, route)
    if word != "object":
        return data
    if is_record(kind):
        return _record(kind, data, route)
    key_of, to = field.inner
    return {key_of.kind(key): _read(to, each, _below(route, key)) for key, each in data.items()}


def _items(field: Field, data: list[Any], route: str) -> tuple[Any, ...]:
    inner = field.inner
    if ... in get_args(field.kind):
        inner *= len(data)
    if len(inner) != len(data):
        raise RecordError(f"`{route}` should have {len(inner)} items")
    items = enumerate(zip(inner, data, strict=True))
    return tuple(_read(of, each, f"{route}[{at}]") for at, (of, each) in items)


def _record(kind: Any, data: Data, route: str) -> Any:
    known = fields_of(kind)
    missing = (each.name for each in known if each.is_required and each.name not in data)
    for name in missing:
        raise RecordError(f"`{_below(route, name)}` is missing")
    present = (each for each in known if each.name in data)
    return kind(
        **{each.name: _read(each, data[each.name], _below(route, each.name)) for each in present}
    )


def _below(route: str, name: str) -> str:
    shown = name if len(name) <= 40 else f"{name[:38]}.."
    return f"{route}.{shown}" if route else shown
