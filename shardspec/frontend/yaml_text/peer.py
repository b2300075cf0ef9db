"""YAML as PyYAML itself reads it: a witness for what our own reader makes of a file."""

from __future__ import annotations

from typing import Any


def load_as_pyyaml(text: str) -> Any:
    r"""Return the value of a YAML text; what stands under a tag of its own is None.

    Give it only texts that our own reader takes: it knows no limit of depth.

    >>> load_as_pyyaml("a: [b, null]\nc: !include d.yaml\non: 1\n")
    {'a': ['b', None], 'c': None, True: '1'}
    """
    import yaml

    class Loader(yaml.CSafeLoader):
        """Reads numbers and dates as the text that they are."""

    for kind in ("timestamp", "binary", "int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", lambda loader, node: node.value)
    Loader.add_multi_constructor("", lambda loader, suffix, node: None)
    return yaml.load(text.removeprefix("\ufeff"), Loader)
