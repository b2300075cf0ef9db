"""MaxText's files as one configuration, joined as MaxText does.

One file is the configuration MaxText is started with. `base_config` names the one below it, which
lies beside it or in MaxText's folder of configurations; lists of the upper file replace those
below. The file of the model (`model_name`, or a FILE) and further files come on top: their rules
are joined by name, so that the rules of a name which a later file has are taken out, and the new
ones stand at the end; `override_logical_axis_rules: true` in such a file replaces the whole list.
In the very end a custom mesh and rule file replaces rules, `mesh_axes` and `data_sharding`. Every
other key is that of the last file that has it.
Source: AI-Hypercomputer/maxtext, `maxtext/configs/pyconfig.py` and `types.py`.

The mesh is `mesh_axes`, and sizes inside a slice (`ici_*`) times sizes across (`dcn_*`).

One size of each kind may be -1: it takes the devices of a slice, or the slices, that are left over.
Source: AI-Hypercomputer/maxtext, `max_utils.fill_unspecified_mesh_axes`.
"""

from __future__ import annotations

import math
import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span, parted
from shardspec.diagnostics.words import grouped
from shardspec.foreign import formats
from shardspec.foreign.formats import ForeignRule, Options, bad, lost
from shardspec.foreign.values import Node, read_data
from shardspec.language.files import leads_out, read_source
from shardspec.language.reading import Comments, Data, Route

_CUSTOM_KEYS = frozenset(
    {
        *("mesh_axes", "logical_axis_rules", "data_sharding", "context_sharding"),
        "input_data_sharding_logical_axes",
    }
)
_CUSTOM_REPLACES = ("mesh_axes", "data_sharding")
_RULES = "logical_axis_rules"
_CUSTOM = "custom_mesh_and_rule"
_OVERRIDE = "override_logical_axis_rules"
_READ = _CUSTOM_KEYS | {
    *(_OVERRIDE, "base_config", "model_name", _CUSTOM, "shard_mode", "custom_mesh"),
    *(f"{_CUSTOM}_for_eval", f"{_RULES}_for_eval"),
}
_TRUE = frozenset(("true", "yes", "on"))
_DEEPEST = 16
_CONFIGS = "configs"
_FOLDER = "say where MaxText's folder of configurations is: -I maxtext/configs"

Rules = tuple[ForeignRule, ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """Rules of one name that a later file put others in place of.

    Attributes:
      position: where the first of the old ones stood, in `before`.
      before: the whole list at that time.
    """

    name: str
    position: int
    before: Rules
    new: Rules


@dataclass(frozen=True, slots=True)
class _File:
    """A file and what it says.

    Attributes:
      node: a mapping.
    """

    source: SourceFile
    node: Node

    @property
    def path(self) -> str:
        """Return the file itself, whatever it is called."""
        return os.path.realpath(self.source.name)

    @property
    def is_custom(self) -> bool:
        """Say whether it is a custom mesh and rule file."""
        keys = {key.text for key in self.node.keys}
        return keys <= _CUSTOM_KEYS and {"mesh_axes", _RULES} <= keys

    def named(self, key: str) -> Node | None:
        """Return the value of a key that names something."""
        node = self.node.get(key)
        return node if node is not None and node.kind == "text" and node.text else None


@dataclass(slots=True)
class MaxTextConfig:
    """What the files say together.

    Attributes:
      folders: where files are looked for that stand not beside the one that names them.
      values: the last value of each key, but for the rules.
      rules: as MaxText has them: replaced ones at the end.
      in_place: the same rules, each name where the first file has it.
      for_eval: the rules of evaluation; None where those are the same.
    """

    folders: tuple[str, ...] = ()
    values: dict[str, Node] = field(default_factory=dict)
    rules: Rules = ()
    in_place: Rules = ()
    for_eval: Rules | None = None
    replaced: list[Replaced] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)

    def text(self, key: str) -> str:
        """Return a value that is a word; "" where there is none."""
        node = self.values.get(key)
        return node.text if node is not None and node.kind == "text" else ""

    def is_true(self, key: str) -> bool:
        """Say whether a key is set to true, in any of the spellings of YAML 1.1."""
        node = self.values.get(key)
        return node is not None and _is_true(node)

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a list of words; None where there is none, or something else."""
        node = self.values.get(key)
        return node.names if node is not None and node.is_list else None

    def read(self, sources: Sequence[SourceFile]) -> None:
        """Take the files that were given; faults are noted."""
        files = [each for source in sources if (each := self._file(source)) is not None]
        if not files or any(fault.is_error for fault in self.faults):
            return
        started_with = [files[0], *(each for each in files[1:] if each.named("base_config"))]
        top = started_with[-1]
        chain = self._chain(top, files)
        self._check_chain(started_with, chain)
        for each in chain:
            self._replace(each)
        others = [each for each in files if each not in started_with]
        customs = [each for each in others if each.is_custom]
        others = [each for each in others if not each.is_custom]
        self._add_model(top, others)
        for each in others:
            self._join(each)
        customs += self._named_custom((*chain, *others))
        for each in customs:
            self._put_custom(each)
        self._read_eval((*chain, *others))

    def _read_eval(self, files: Sequence[_File]) -> None:
        """Take the rules of evaluation: a custom file's, else those of a list."""
        custom = next(self._named_custom(files, f"{_CUSTOM}_for_eval"), None)
        listed = self.values.get(f"{_RULES}_for_eval")
        if custom is not None:
            self.for_eval = self._rules(custom)
        elif listed is not None and listed.is_list and listed.items:
            self.for_eval, faults = formats.read_rules(listed, f"`{_RULES}_for_eval`")
            self.faults += faults

    def _file(self, source: SourceFile) -> _File | None:
        node = read_data(source, self.faults, _matters)
        if not isinstance(node, Node):
            self.faults += node or (bad(f"`{source.name}` is no YAML", source.whole),)
        elif node.kind != "mapping":
            message = f"`{source.name}` is {node.described()}, not a configuration of MaxText"
            self.faults.append(bad(message, source.whole, help="a mapping of keys to values"))
        else:
            return _File(source, node)
        return None

    def _chain(self, top: _File, given: Sequence[_File]) -> list[_File]:
        """Return a file and those below it, the lowest first."""
        chain = [top]
        while (named := chain[0].named("base_config")) is not None:
            below = self._below(chain[0], named, given)
            if below is None:
                break
            if below.path in {each.path for each in chain} or len(chain) >= _DEEPEST:
                self.faults.append(
                    bad(f"`base_config: {named.text}` leads in a circle", named.span)
                )
                break
            chain.insert(0, below)
        return chain

    def _below(self, file: _File, named: Node, given: Sequence[_File]) -> _File | None:
        """Return the file that `base_config` names: found, or given under the same name."""
        path = self._found(file, named.text, above=True)
        if path is not None:
            return self._opened(path, named)
        same = os.path.basename(named.text)
        for each in given:
            if each is not file and os.path.basename(each.source.name) == same:
                return each
        message = f"`base_config` names `{named.text}`, which is not beside this file"
        self.faults.append(lost(message, named.span, help=_FOLDER))
        return None

    def _found(self, file: _File, text: str, *, above: bool = False) -> str | None:
        """Return where a named file is: beside the one that names it, or in a known folder.

        Args:
          above: whether it may stand in the folder above, too.
        """
        folder = os.path.dirname(file.source.name)
        places = [(folder, text), *((each, text) for each in self.folders)]
        if above:
            places.insert(1, (folder, os.path.join("..", text)))
        places += [(each, text) for each in _configs_above(folder)]
        for start, rest in places:
            path = os.path.join(start, rest)
            if os.path.isfile(path) and not _leads_out(
                path, start or ".", levels=2 if above else 1
            ):
                return os.path.normpath(path)
        return None

    def _opened(self, path: str, named: Node) -> _File | None:
        if leads_out(path):
            message = f"`{path}` is a link that leads out of the project"
            self.faults.append(bad(message, named.span))
            return None
        read = read_source(Path(path), name=path)
        if isinstance(read, Diagnostic):
            self.faults.append(bad(read.message, named.span, help=read.help))
            return None
        return self._file(replace(read, included_from=named.span))

    def _check_chain(self, started_with: Sequence[_File], chain: Sequence[_File]) -> None:
        """Note files that MaxText would be started with, beside the one that it is."""
        below = {each.path for each in chain}
        for each in started_with:
            if each.path not in below:
                top = chain[-1]
                message = (
                    f"`{top.source.name}` has a `base_config`, and is not based on "
                    f"`{each.source.name}`: MaxText starts from one of them"
                )
                span = (top.named("base_config") or top.node).span
                help = "files without `base_config` go behind it: the model's, a custom mesh"
                self.faults.append(bad(message, span, help=help))

    def _replace(self, file: _File) -> None:
        """Take a file of the configuration itself: every list replaces the one below."""
        rules = self._rules(file)
        if rules is not None:
            self.rules = self.in_place = rules
        self._take_values(file)

    def _join(self, file: _File) -> None:
        """Take a file on top of the configuration: its rules are joined by name."""
        rules = self._rules(file)
        flag = file.node.get(_OVERRIDE)
        if flag is not None and _is_true(flag):
            self.rules = self.in_place = rules or ()
            self.replaced.clear()
        elif rules:
            self._merge(rules)
        self._take_values(file)

    def _put_custom(self, file: _File) -> None:
        """Take a custom mesh and rule file, which replaces what it has of three keys."""
        rules = self._rules(file)
        if rules is not None:
            self.rules = self.in_place = rules
            self.replaced.clear()
        for key in _CUSTOM_REPLACES:
            value = file.node.get(key)
            if value is not None:
                self.values[key] = value

    def _rules(self, file: _File) -> Rules | None:
        node = file.node.get(_RULES)
        if node is None or node.kind == "nothing":
            return None
        read, faults = formats.read_rules(node, f"`{_RULES}`")
        self.faults += faults
        return read

    def _take_values(self, file: _File) -> None:
        self.values.update({key.text: item for key, item in file.node.pairs})

    def _merge(self, new: Rules) -> None:
        names = {rule.name for rule in new}
        for name in dict.fromkeys(rule.name for rule in new):
            at = next((i for i, rule in enumerate(self.rules) if rule.name == name), None)
            if at is not None and name is not None:
                mine = tuple(rule for rule in new if rule.name == name)
                self.replaced.append(Replaced(name, at, self.rules, mine))
        self.rules = (*(rule for rule in self.rules if rule.name not in names), *new)
        self.in_place = put_in_place(self.in_place, new)

    def _add_model(self, top: _File, others: Sequence[_File]) -> None:
        """Join the file of `model_name`, where no file of a model is given."""
        named = next((n for each in (*others[::-1],) if (n := each.named("model_name"))), None)
        named = named or self.values.get("model_name")
        if named is None or named.kind != "text" or named.text in ("", "default"):
            return
        text = os.path.join(
            "models", f"{os.path.basename(named.text).replace('-Instruct', '')}.yml"
        )
        if any(os.path.basename(os.path.dirname(each.path)) == "models" for each in others):
            return
        path = self._found(top, text, above=True)
        if path is None:
            message = f"`model_name: {named.text}` joins `{text}`, which is not found"
            self.faults.append(lost(message, named.span, help=_FOLDER))
        elif (model := self._opened(path, named)) is not None:
            self._join(model)

    def _named_custom(self, files: Sequence[_File], key: str = _CUSTOM) -> Iterator[_File]:
        """Yield the file that `custom_mesh_and_rule` names, from beside the file that says so."""
        naming = [each for each in files if each.node.get(key) is not None]
        named = naming[-1].named(key) if naming else None
        if named is None or named.text == "default":
            return
        text = os.path.join(_CUSTOM, f"{os.path.basename(named.text)}.yml")
        path = self._found(naming[-1], text, above=True)
        if path is None:
            message = f"`{key}` names `{named.text}`, and `{text}` is not there"
            self.faults.append(
                lost(message, named.span, help=f"give the file itself, or {_FOLDER}")
            )
        elif (custom := self._opened(path, named)) is not None:
            yield custom


def _matters(route: Route) -> bool:
    """Say whether a key is one that is read."""
    key = str(route[0])
    return key in _READ or key.startswith(("ici_", "dcn_"))


def _configs_above(folder: str) -> Iterator[str]:
    """Yield the folder called `configs` that a folder lies in, or is: that of MaxText."""
    for steps in range(_DEEPEST):
        path = os.path.join(folder or ".", *[".."] * steps)
        if os.path.basename(os.path.abspath(path)) == _CONFIGS:
            yield os.path.normpath(path)
            return


def put_in_place(rules: Rules, new: Rules) -> Rules:
    """Return `rules` with the new ones of each name where the first old one stood."""
    updates = grouped(new, lambda rule: rule.name)
    replaced = frozenset(updates)
    merged: list[ForeignRule] = []
    for rule in rules:
        merged += updates.pop(rule.name, []) if rule.name in replaced else [rule]
    return (*merged, *(rule for left in updates.values() for rule in left))


def _leads_out(path: str, folder: str, *, levels: int) -> bool:
    """Say whether a file is elsewhere than below a folder, or so many levels above it."""
    return os.path.relpath(path, folder).split(os.sep)[:levels] == [".."] * levels


def _is_true(node: Node) -> bool:
    if node.kind == "boolean":
        return bool(node.number)
    return node.kind == "text" and node.text.lower() in _TRUE


def read_configs(sources: Sequence[SourceFile], folders: Sequence[str] = ()) -> MaxTextConfig:
    """Return what files say together; `folders` are where files that they name are looked for."""
    config = MaxTextConfig(tuple(folders))
    config.read(sources)
    return config


_FLAGS = {"stage": "pipeline", "model": "tensor"}
_HELP = "say the machine, --hardware 'tpu v5p 4x4x4', or the sizes, --mesh 'fsdp=16 tensor=4'"
_SIZES = "a whole number, or -1 for what is left over"

Sizes = dict[str, int]


class MaxTextMesh(NamedTuple):
    """The mesh, and what cannot be said of it.

    Attributes:
      sizes: of all mesh axes; None where only the machine can tell.
      comments: where the sizes above 1 came from.
    """

    sizes: Mapping[str, int] | None
    data: Mapping[str, Data] = {}
    faults: tuple[Diagnostic, ...] = ()
    comments: Mapping[Route, Comments] = {}


def maxtext_mesh(config: MaxTextConfig, axes: tuple[str, ...], options: Options) -> MaxTextMesh:
    """Return the mesh of a configuration; --mesh beats it, with 1 for what it does not name."""
    if options.mesh:
        asked = dict(options.mesh)
        whole: dict[str, Data] = {axis: asked.get(axis, 1) for axis in axes}
        numbers = {axis: int(text) if text.isdecimal() else 0 for axis, text in asked.items()}
        sizes = {axis: numbers.get(axis, 1) for axis in axes}
        return MaxTextMesh(sizes, {"mesh": whole} if axes and asked.keys() <= set(axes) else {})
    if not any(key.startswith(("ici_", "dcn_")) for key in config.values):
        return MaxTextMesh(None, faults=(lost("the files state no sizes", None, help=_HELP),))
    flags, wrong = parted(_flags(config, axes, kind) for kind in ("ici", "dcn"))
    if wrong:
        return MaxTextMesh(None, faults=wrong)
    inside, across = flags
    faults = tuple(_ignored(config, axes))
    machine = formats.machine_asked(options)
    if machine is not None:
        per_slice, slices = machine.devices_per_slice, machine.slice_count
        near = _filled(inside, per_slice, "ICI", f"{per_slice} devices of a slice", config)
        far = _filled(across, slices, "DCN", f"{slices} slices", config)
    else:
        near, far = map(_fill_none, flags)
    filled, wrong = parted((near, far))
    if wrong:
        return MaxTextMesh(None, faults=(*faults, wrong[0]))
    near, far = filled
    return _mesh(config, near, far, options, faults)


def _mesh(
    config: MaxTextConfig, near: Sizes, far: Sizes, options: Options, faults: tuple[Diagnostic, ...]
) -> MaxTextMesh:
    is_explicit = config.text("shard_mode").lower() == "explicit"
    mesh: dict[str, Data] = {}
    for axis, inside in near.items():
        size = inside * far[axis]
        network = " @ dcn" if far[axis] > 1 and inside == 1 else ""
        words = f"{size}{network}{' explicit' if is_explicit else ''}"
        mesh[axis] = size if words.isdecimal() else words
    mixed = [axis for axis, inside in near.items() if inside > 1 and far[axis] > 1]
    if mixed:
        axis = mixed[0]
        message = (
            f"`{axis}` is {far[axis]} across slices times {near[axis]} inside one; "
            f"{far[axis] * near[axis]} stands in the spec"
        )
        faults += (lost(message, None, help="two mesh axes, one of them `@ dcn`, would say both"),)
    data: dict[str, Data] = {"mesh": mesh}
    if options.hardware is not None:
        data["hardware"] = options.hardware
    sizes = {axis: near[axis] * far[axis] for axis in near}
    stated = {axis: _stated_at(config, axis, far[axis]) for axis, size in sizes.items() if size > 1}
    comments: dict[Route, Comments] = {
        ("mesh", axis): formats.came_from(span) for axis, span in stated.items() if span is not None
    }
    return MaxTextMesh(sizes, data, faults, comments)


def _stated_at(config: MaxTextConfig, axis: str, across: int) -> Span | None:
    """Return where the size of a mesh axis is stated: inside of a slice, else across them."""
    kinds = ("dcn", "ici") if across > 1 else ("ici", "dcn")
    keys = (f"{kind}_{_FLAGS.get(axis, axis)}_parallelism" for kind in kinds)
    return next((config.values[key].span for key in keys if key in config.values), None)


def _flags(config: MaxTextConfig, axes: tuple[str, ...], kind: str) -> Sizes | Diagnostic:
    """Return the stated size of each mesh axis; 1 where no key states it."""
    sizes: Sizes = {}
    for axis in axes:
        node = config.values.get(f"{kind}_{_FLAGS.get(axis, axis)}_parallelism")
        if node is None:
            sizes[axis] = 1
            continue
        text = node.text.strip()
        number = int(text) if text.lstrip("-").isdecimal() and len(text) < 10 else 0
        if number < -1 or number == 0:
            message = f"`{kind}_{_FLAGS.get(axis, axis)}_parallelism` is {node.described()}"
            return bad(message, node.span, help=_SIZES)
        sizes[axis] = number
    return sizes


def _ignored(config: MaxTextConfig, axes: tuple[str, ...]) -> Iterator[Diagnostic]:
    """Yield sizes of axes that the mesh does not have: MaxText passes over them in silence."""
    flags = {_FLAGS.get(axis, axis) for axis in axes}
    for key, node in config.values.items():
        kind, _, rest = key.partition("_")
        flag = rest.removesuffix("_parallelism")
        is_size = kind in ("ici", "dcn") and rest != flag
        if is_size and flag not in flags and node.text not in ("1", "-1"):
            message = f"`{key}: {node.text}` is for no axis of `mesh_axes`: nothing uses it"
            yield lost(message, node.span, help="MaxText passes over it as well")


def _fill_none(sizes: Sizes) -> Sizes | Diagnostic:
    """Return the sizes, where none is left to the machine."""
    open_ones = [axis for axis, size in sizes.items() if size < 0]
    if not open_ones:
        return sizes
    message = f"`{open_ones[0]}` takes what is left over (-1), which depends on the machine"
    return lost(f"{message}: no mesh stands in the spec", None, help=_HELP)


def _filled(
    sizes: Sizes, total: int, kind: str, what: str, config: MaxTextConfig
) -> Sizes | Diagnostic:
    """Return the sizes with a number for -1; their product is `total`."""
    open_ones = [axis for axis, size in sizes.items() if size < 0]
    product = math.prod(size for size in sizes.values() if size > 0)
    shown = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "1"
    if len(open_ones) > 1:
        named = " and ".join(f"`{axis}`" for axis in open_ones)
        message = f"{named} both take what is left over (-1) of the {what}"
        return bad(message, _span(config, kind, open_ones[1]), help="one -1 for each network")
    if total % product or (not open_ones and total != product):
        message = f"{kind} sizes {shown} do not fit the {what}"
        span = _span(config, kind, open_ones[0]) if open_ones else None
        return bad(message, span, help=f"their product has to be {total}, or -1 takes the rest")
    return {axis: total // product if size < 0 else size for axis, size in sizes.items()}


def _span(config: MaxTextConfig, kind: str, axis: str) -> Span:
    return config.values[f"{kind.lower()}_{_FLAGS.get(axis, axis)}_parallelism"].span
