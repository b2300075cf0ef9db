"""An imported document -> the text of a spec, which is certain to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.diagnostics.printable import printable
from shardspec.formats.foreign.imported import Imported, Options
from shardspec.frontend.formatting import formatted
from shardspec.frontend.reading import Comments, Data, Route
from shardspec.frontend.yaml_text.printer import print_yaml
from shardspec.pipeline import load_text

#: The order of sections, as the language's own documents have it.
_ORDER = (
    *("shardspec", "doc", "extends", "axes", "hardware", "mesh", "targets", "rules", "drop"),
    *("params", "overrides", "scan", "activations", "arrays", "manifest", "policy", "state"),
    *("coverage", "replicate", "lints"),
)


def spec_text(
    imported: Imported, options: Options, sources: Sequence[SourceFile], name: str
) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """Return the text of the spec, or None and why it would not load.

    Args:
      name: what messages call the spec.

    Invariants:
      loads: reading the text gives a spec without faults.
      stable: `shardspec fmt` leaves the text as it is.
    """
    data = _with_machine(imported.data, options)
    comments = _with_header(imported.comments, data, sources)
    draft = SourceFile(name, print_yaml(data, comments))
    text, faults = formatted(draft, "yaml")
    if text is None:
        return None, faults
    spec, faults = load_text(text, name)
    return (None, faults) if spec is None or faults else (text, ())


def _with_machine(data: Mapping[str, Data], options: Options) -> dict[str, Data]:
    """Return the data with the mesh and hardware that were asked for, sections in order."""
    whole: dict[str, Data] = {"shardspec": 1, **data}
    if options.mesh:
        whole.pop("targets", None)
        if options.hardware is None:
            whole.pop("hardware", None)
        whole["mesh"] = _mesh(whole.get("mesh"), options)
    if options.hardware is not None and "mesh" in whole:
        whole["hardware"] = options.hardware
    known = {key: rank for rank, key in enumerate(_ORDER)}
    return dict(sorted(whole.items(), key=lambda entry: known.get(entry[0], len(known))))


def _mesh(own: Data, options: Options) -> Data:
    """Return the sizes that were asked for, in the mesh of the files where that has the axes."""
    asked: dict[str, Data] = {axis: _size(text) for axis, text in options.mesh}
    return {**own, **asked} if isinstance(own, dict) and own.keys() >= asked.keys() else asked


def _size(text: str) -> Data:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else text


def _with_header(
    comments: Mapping[Route, Comments], data: Mapping[str, Data], sources: Sequence[SourceFile]
) -> dict[Route, Comments]:
    """Return the comments with a first line that names the files."""
    named = ", ".join(dict.fromkeys(printable(source.name) for source in sources))
    first: Route = (next(iter(data)),)
    own = comments.get(first, Comments())
    head = Comments((f"imported from {named}", *own.before), own.trailing, own.after)
    return {first: head, **{route: each for route, each in comments.items() if route != first}}
