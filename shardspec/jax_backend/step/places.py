"""Where an operation of a traced program stands in the user's code.

JAX gives every operation a location: the names of what was being done, `jit(step)/jvp()/dot`, and
the frames of Python that asked for it, innermost first. A frame of a library is of no use to a
user, so the place is the first frame outside of those that JAX code is written with.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from shardspec.ir.step import Place
from shardspec.programs.op_names import place_of, scope

_FRAME = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAME = re.compile(r'^loc\("((?:[^"\\]|\\.)*)"(?!:\d)')


class Located(NamedTuple):
    """The location of one operation.

    Attributes:
      name: what was being done, `/` between its parts.
      place: the user's line; unknown where there is none.
    """

    name: str
    place: Place


def located(location: Any) -> Located:
    """Return what the location of an operation says."""
    return _read(str(location))


@lru_cache(maxsize=65536)
def _read(text: str) -> Located:
    found = _NAME.match(text)
    name = found.group(1).rstrip(":") if found else ""
    frames = [(file, int(line)) for file, line, _ in _FRAME.findall(text)]
    return Located(name, place_of(frames, name))


def joined(outer: Located, inner: Located) -> Located:
    """Return the location of an operation that stands in a body which `outer` calls."""
    root = outer.name.partition("/")[0]
    own = inner.name.startswith(root + "/") or not outer.name
    name = inner.name if own else f"{outer.name}/{inner.name}"
    place = inner.place if inner.place.is_known else outer.place
    return Located(name, Place(place.file, place.line, scope(name)))
