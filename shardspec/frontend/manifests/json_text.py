"""JSON as other tools write it, read strictly: no key twice, nothing nested for ever."""

from __future__ import annotations

from typing import Any

from shardspec.frontend.manifests.arrays import MOST_ARRAYS, damaged

#: Signs in the JSON of one array, generously: what has more lists more arrays than there are.
_BRACKETS, _COMMAS = 4, 16


def parse_json(raw: bytes | str, name: str) -> Any:
    """Return the data of a JSON text, or the `Diagnostic` that says why there is none.

    Args:
      name: what messages call the text: "the header of `model.safetensors`".
    """
    import json

    twice: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs) and not twice:
            names = [key for key, _ in pairs]
            seen: set[str] = set()
            twice.extend(key for key in names if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return data

    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        if _is_endless(text):
            return damaged(f"{name} lists more than {MOST_ARRAYS:,} arrays")
        data = json.loads(text, object_pairs_hook=mapping)
        if "\\u" in text and not is_text(data):
            return damaged(f"{name} has a name that is no text: half of a surrogate pair")
    except UnicodeDecodeError as fault:
        return damaged(f"{name} is not UTF-8 at byte {fault.start:,}")
    except json.JSONDecodeError as fault:
        why = f"{fault.msg[0].lower()}{fault.msg[1:]}"
        return damaged(f"{name} is not JSON: {why}, line {fault.lineno}, column {fault.colno}")
    except RecursionError:
        return damaged(f"{name} is not JSON: brackets are nested too deep")
    except ValueError as fault:
        return damaged(f"{name} is not JSON: {str(fault).partition(';')[0].lower()}")
    if twice:
        return damaged(f"{name} has `{twice[0]}` twice")
    return data


def _is_endless(text: str) -> bool:
    brackets = text.count("{") + text.count("[")
    return brackets > _BRACKETS * MOST_ARRAYS or text.count(",") > _COMMAS * MOST_ARRAYS


def is_text(data: Any) -> bool:
    """Say whether every text in `data` can be written as UTF-8, which half a pair cannot."""
    import json

    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def sizes_of(data: Any) -> tuple[int, ...] | None:
    """Return a list of sizes as a shape, or None for anything else.

    >>> sizes_of([2, 3]), sizes_of([-1]), sizes_of([True])
    ((2, 3), None, None)
    """
    if not isinstance(data, list) or len(data) > MOST_DIMS:
        return None
    if not all(type(size) is int and 0 <= size < LARGEST_SIZE for size in data):
        return None
    return tuple(data)


#: No array has more dimensions, or a larger one.
MOST_DIMS = 64
LARGEST_SIZE = 1 << 48
