"""What the command line asks for, and what verbs do with it: load, choose, say.

A step that cannot go on ends the verb: with 1 where findings are why, with 2 where the job cannot
be done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from shardspec import pipeline
from shardspec.cli import streams
from shardspec.cli.streams import FAILED, FINDINGS, Failure, echo, fail, show, write_file
from shardspec.diagnostics import Diagnostic, ShardspecError, SourceFile, codes
from shardspec.diagnostics.codes import NOTHING_ASKED, Levels, LevelTable
from shardspec.diagnostics.words import counted, listed
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import Hardware, Params, Spec, StatePolicy, Target
from shardspec.language.files import SPEC_NAMES, Boundary, boundary_of, read_argument

if TYPE_CHECKING:
    from shardspec.language.loader import Kind
    from shardspec.report.saved_cost import SavedCost

#: Of a YAML file, what is looked at to tell whether it is a spec.
_LOOKED_AT_BYTES = 2**20
_YAML = (".yaml", ".yml")
_NO_SOURCES = frozenset({"node_modules", "__pycache__"})

_MOST_LISTED = 8
_NAME_IT = "name the spec with --spec FILE"


def find_spec(named: str | None) -> str:
    """Return the path of the spec, as short as it can be written from here.

    What is named, else `$SHARDSPEC`, else `[tool.shardspec] spec` of the nearest pyproject.toml,
    else the one `shardspec.yaml`, `spec.yaml` or `*.shard` in this folder or the nearest parent.
    A folder that is named stands for the one spec in it. None, or more than one, is a failure.
    """
    named = named or os.environ.get("SHARDSPEC")
    if named:
        return _the_one_in(named) if os.path.isdir(named) else named
    here = Path.cwd()
    folders = (here, *here.parents)
    configured = project_path("spec")
    if configured is not None:
        return _as_path(configured)
    for folder in folders:
        found = [_as_path(os.path.relpath(path)) for path in _candidates(folder)]
        if len(found) == 1:
            return found[0]
        if found:
            fail(f"several specs here: {', '.join(found)}", "say which with --spec FILE")
    if others := [
        each.name for each in _files(here) if each.suffix in _YAML and _is_spec(each.name)
    ]:
        import shlex

        help = f"say which with --spec, as in `--spec {shlex.quote(others[0])}`"
        fail(f"no spec is called shardspec.yaml; here is {_shown(others)}", help)
    return fail(
        "no spec found", "name one with --spec FILE or $SHARDSPEC, or call it shardspec.yaml"
    )


def _the_one_in(folder: str) -> str:
    files = expand((folder,)).files
    if len(files) > 1:
        fail(f"several specs in `{folder}`: {_shown(files)}", "name one of them")
    return files[0]


def _shown(files: Sequence[str]) -> str:
    return ", ".join(files[:_MOST_LISTED]) + (", ..." if len(files) > _MOST_LISTED else "")


def _as_path(found: str) -> str:
    """Return the name of a file that was found, which is a path whatever it looks like.

    >>> _as_path("spec.yaml"), _as_path("git:main:spec.yaml"), _as_path("-")
    ('spec.yaml', './git:main:spec.yaml', './-')
    """
    looks_otherwise = found == "-" or found.startswith("git:")
    return os.path.join(os.curdir, found) if looks_otherwise else found


class Setting(NamedTuple):
    """What `[tool.shardspec]` of a pyproject.toml says under one key.

    Attributes:
      folder: of the pyproject.toml.
      shown: how that file is named from here.
    """

    value: str
    folder: Path
    shown: str


def project_setting(key: str, as_in: str, *, is_needed: bool = True) -> Setting | None:
    """Return what the nearest pyproject.toml that has the key says; None where none has it.

    Args:
      as_in: what it could be, for where it is no text.
      is_needed: whether a pyproject.toml that cannot be read ends the verb; elsewhere, that it
        cannot is a finding.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        value = _table(file, is_needed).get(key) if file.is_file() else None
        if value is None:
            continue
        shown = os.path.relpath(file)
        if not isinstance(value, str) or "\0" in value:
            what = "path" if "." in as_in else "name"
            fail(f"`[tool.shardspec] {key}` in {shown} is no {what}", f'as in `{key} = "{as_in}"`')
        return Setting(value, folder, shown)
    return None


def project_path(key: str, *, is_needed: bool = True) -> str | None:
    """Return the file that the project names under a key, from here; it lies in its folder."""
    as_in = "spec.yaml" if key == "spec" else f"{key}.json"
    found = project_setting(key, as_in, is_needed=is_needed)
    if found is None:
        return None
    path = found.folder / found.value
    below = os.path.relpath(os.path.realpath(path), os.path.realpath(found.folder))
    if below.split(os.sep)[0] == os.pardir:
        option = f"name the {key} with --{key} FILE"
        fail(f"`[tool.shardspec] {key}` in {found.shown} leads out of its folder", option)
    return os.path.relpath(path)


def _table(file: Path, is_needed: bool) -> dict[str, Any]:
    """Return `[tool.shardspec]` of a pyproject.toml."""
    from shardspec.language.files import read_source

    shown = os.path.relpath(file)
    source = read_source(file, name=shown)
    if isinstance(source, Diagnostic):
        if is_needed:
            fail(f"cannot read {shown}: {source.message}", _NAME_IT)
        return {}
    if not is_needed and "shardspec" not in source.text:
        return {}
    import tomllib

    try:
        tool = tomllib.loads(source.text).get("tool", {})
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        if is_needed:
            fail(f"cannot read {shown}: {why}", f"mend it, or {_NAME_IT}")
        return {}
    table = tool.get("shardspec") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _candidates(folder: Path) -> list[Path]:
    return [path for path in _files(folder) if path.name in SPEC_NAMES or path.suffix == ".shard"]


#: What a file may be called in the text of a spec, without its folders.
_WORD = re.compile(r"[^\s\"'/\[\]{},]+")


class FoundSpecs(NamedTuple):
    """The specs that some paths lead to.

    Attributes:
      files: each once, folders walked in order of name.
      others: YAML files in the folders that are no specs, and that no spec there names.
    """

    files: tuple[str, ...]
    others: tuple[str, ...] = ()


def expand(paths: Iterable[str]) -> FoundSpecs:
    """Return the specs at `paths`: files as they are, and of folders all specs in them."""
    files: dict[str, str] = {}
    others: list[str] = []
    for path in paths:
        if path == "-" or not os.path.isdir(path):
            files.setdefault(os.path.realpath(path), path)
            continue
        is_spec = {each: _is_spec(each) for each in _files_below(path)}
        specs = [each for each, found in is_spec.items() if found]
        if not specs:
            help = "a spec is `*.shard`, or `*.yaml` with keys of one, such as `shardspec: 1`"
            fail(f"no specs in `{path}`", help)
        left = [each for each, found in is_spec.items() if not found]
        for each in specs:
            files.setdefault(os.path.realpath(each), each)
            named = set(_WORD.findall(_head_of(each))) if left else ()
            left = [other for other in left if os.path.basename(other) not in named]
        others += left
    return FoundSpecs(tuple(files.values()), tuple(others))


def _files_below(folder: str) -> Iterator[str]:
    """Yield the DSL and YAML files of a folder tree, without hidden folders and environments."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if _may_hold_specs(os.path.join(where, each)))
        for name in sorted(names):
            if name.endswith((".shard", *_YAML)) and not name.startswith("."):
                yield _as_path(os.path.normpath(os.path.join(where, name)))


def _may_hold_specs(folder: str) -> bool:
    name = os.path.basename(folder)
    if name.startswith(".") or name in _NO_SOURCES:
        return False
    return not os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def _is_spec(path: str) -> bool:
    """Say whether a file of a folder is a spec: by its name, or by its keys at the margin."""
    if path.endswith(".shard"):
        return True
    from shardspec.language.validate import looks_like_spec

    return looks_like_spec(_head_of(path))


def _head_of(path: str) -> str:
    """Return the beginning of a file, which has the keys of a spec; of one that fails, nothing."""
    from shardspec.language.files import open_regular

    try:
        with open(path, "rb", opener=open_regular) as stream:
            return stream.read(_LOOKED_AT_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return ""


#: Findings shown in full; a file broken from end to end has thousands.
MOST_IN_FULL = 100
#: How a spec begins, behind its comments.
_SPEC_TEXT = re.compile(r"(?:\s++|#[^\n]*\n)*+shardspec(?::\s*+|[ \t]+)\d+[ \t]*(?:[\n#]|$)")
NO_ARRAYS = "add `arrays:` or `manifest:`, or pass --arrays FILE"


Found = TypeVar("Found", Spec, Target)
Needed = TypeVar("Needed")


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for by the options that verbs share.

    Attributes:
      named: specs and folders, as they were named.
      target_names: targets, for verbs that take one after the other.
      phase: the name of a phase, which stands for the spec; None for the spec itself.
      step_name: as `--step` gave it; None for the step that the spec states.
      arrays: a manifest, a checkpoint or a function, in place of the spec's own arrays.
      settings: what-ifs.
      table: `--select`, `--ignore`, `--pedantic`.
      only: a path or a glob that chooses arrays.
      form: the format of what is printed.
      output: the file to write; None where none is named.
      cost: the file of a saved cost; None where none is named.
      is_forced: whether files that were read, or are specs, may be written over.
      basis: whom to ask what a step costs: `auto`, `compiler` or `model`.
      wait_s: seconds that `auto` waits for the compiler.
      tokens: of a step; None for those that are known of it.
      tolerance: by what share of all compiled bytes a prediction may differ.
      timeout_s: seconds that one compile may take.
      no_cache: whether what was compiled of the same before is not taken.
      patch: the file of a diff with all changes of a search; None where none is named.
      within_s: seconds that a search over code may take.
      no_compile: whether such a search asks no compiler.
    """

    named: tuple[str, ...] = ()
    target: str | None = None
    target_names: tuple[str, ...] = ()
    phase: str | None = None
    step_name: str | None = None
    arrays: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    table: LevelTable = NOTHING_ASKED
    only: str | None = None
    form: str = "text"
    output: str | None = None
    cost: str | None = None
    color: str = "auto"
    is_quiet: bool = False
    is_forced: bool = False
    basis: str = "model"
    wait_s: float = 30.0
    tokens: int | None = None
    tolerance: float = 0.1
    timeout_s: float = 600.0
    no_cache: bool = False
    patch: str | None = None
    within_s: float = 300.0
    no_compile: bool = False

    # which specs

    def spec_file(self) -> str:
        """Return the one spec that is meant."""
        return find_spec(next(iter(self.named), None))

    def spec_files(self) -> tuple[str, ...]:
        """Return all specs that are meant, those in folders too."""
        found = expand(self.named or (find_spec(None),))
        if found.others:
            skipped = f"{listed(found.others, 2)} skipped"
            self.remark(f"{skipped}: {'no spec' if len(found.others) == 1 else 'no specs'}")
        if self.output and len(found.files) > 1:
            fail(f"-o names one file for {len(found.files)} specs", "name one spec, or no file")
        return found.files

    # loading and choosing

    def reload(self, name: str, text: str) -> Spec | None:
        """Return a spec as it would be read with another text; None where it has faults."""
        texts = {os.path.realpath(name): text}
        spec, _ = pipeline.load_path(name, self.settings, texts=texts)
        found = None if spec is None else pipeline.find_phase(spec, self.phase)
        return None if isinstance(found, Diagnostic) else found

    def load(self, path: str | None = None) -> tuple[Spec, tuple[Diagnostic, ...]]:
        """Return a spec and its findings; exit where nothing can be made of the file."""
        path = self.spec_file() if path is None else path
        spec, diagnostics = pipeline.load_path(
            path, self.settings, with_manifests=self.arrays is None, asked=self.table
        )
        if spec is None:
            self.report(diagnostics)
            unreadable = any(d.code.id == "SHD001" for d in diagnostics)
            raise SystemExit(FAILED if unreadable else FINDINGS)
        found = pipeline.report(spec, diagnostics).shown
        if not spec.is_whole:
            self.report(found)
            raise SystemExit(FINDINGS)
        return self.of_phase(spec, found), found

    def of_phase(self, spec: Spec, diagnostics: Sequence[Diagnostic] = ()) -> Spec:
        """Return the phase that is meant, the spec itself where none is; exit where it has none."""
        return self._the(pipeline.find_phase(spec, self.phase), spec, diagnostics)

    def choose_target(self, spec: Spec, diagnostics: Sequence[Diagnostic] = ()) -> Target:
        """Return the target that is meant; exit where there is none: with 1 if faults took it."""
        return self._the(pipeline.find_target(spec, self.target), spec, diagnostics)

    def _the(self, found: Found | Diagnostic, spec: Spec, others: Sequence[Diagnostic]) -> Found:
        """Return what was found by its name; exit, after a report of all, where nothing was."""
        if not isinstance(found, Diagnostic):
            return found
        shown = pipeline.report(spec, (*others, found)).shown
        self.report(shown)
        raise SystemExit(FAILED if found in shown else FINDINGS)

    def require_sound(self, target: Target, found: Sequence[Diagnostic]) -> None:
        """Exit with 1, after a report, where the mesh of the target is not known."""
        if target.is_sound:
            return
        self.report(why_unsound([target], found))
        self.remark(f"nothing is shown for target {target.name}")
        raise SystemExit(FINDINGS)

    def plan(self) -> tuple[ShardingPlan, tuple[Diagnostic, ...]]:
        """Return the plan on the target that is meant, and all there is to say of it."""
        spec, diagnostics = self.load()
        chosen = self.choose_target(spec, diagnostics)
        told = pipeline.about(diagnostics, chosen.name)
        (plan,), found = plans_and_findings(spec, told, self.params(spec), [chosen])
        return plan, found

    def sources(self, files: Iterable[str], *, inside: bool = False) -> list[SourceFile]:
        """Return files as texts; exit with 2 where one cannot be read.

        Args:
          inside: whether links that lead out of the project are refused.
        """
        read = [read_argument(file) for file in files]
        faults = [found for found in read if isinstance(found, Diagnostic)]
        if faults:
            self.refuse(faults)
        found = [each for each in read if isinstance(each, SourceFile)]
        for each in found if inside else ():
            if each.is_outside:
                where = f"name {os.path.realpath(each.name)}"
                fail(f"{each.name} is a link that leads out of the project", where)
        return found

    def params(self, spec: Spec) -> Params:
        """Return the arrays that are named instead of the spec's, or those of the spec."""
        if self.arrays is None:
            return spec.params
        found = pipeline.find_target(spec, self.target)
        target = found if isinstance(found, Target) and found.is_sound else None
        return self.read_arrays(self.arrays, boundary_of(spec.source.name), spec.state, target)

    def machine(self, text: str) -> Hardware:
        """Return the machine that a text names; exit with 2 where there is none such."""
        from shardspec.foreign.formats import machine_named

        found = machine_named(text)
        if isinstance(found, tuple):
            self.refuse(found)
        return found

    def read_arrays(
        self,
        name: str,
        boundary: Boundary | None = None,
        policy: StatePolicy | None = None,
        target: Target | None = None,
    ) -> Params:
        """Return the arrays of a manifest, checkpoint, function or spec; exit with 2 on faults.

        Args:
          boundary: of the project whose texts may be quoted; None for that of the manifest.
          policy: on optimizer state, which a function may give beside the parameters.
          target: has the devices that a function gets where it asks for some.
        """
        from shardspec.arrays.listing import is_entry_point

        if is_entry_point(name):
            self.remark(f"{name}: importing it, which runs its code")
            with streams.unbroken():
                from shardspec.jax_backend.entry_point import call_entry_point

            params, diagnostics = call_entry_point(name, policy, target)
        else:
            arrays, diagnostics = pipeline.read_arrays(name, boundary=boundary)
            params = arrays.params
            if diagnostics and _is_spec_file(name):
                params, diagnostics = _arrays_of_spec(name)
        if diagnostics:
            self.refuse(diagnostics)
        return params

    def saved_cost(self, *, is_asked: bool = True) -> SavedCost | None:
        """Return the saved cost that is named, or the project's; exit with 2 where it is none.

        Args:
          is_asked: whether somebody waits for it, and hears that the project has none yet.
        """
        name = self.cost or project_path("cost", is_needed=False)
        if name is None:
            return None
        from shardspec.report.saved_cost import saved_cost

        if self.cost is None and not os.path.exists(name):
            if is_asked:
                self.remark(f"`[tool.shardspec] cost`: there is no {name} yet")
            return None
        return self.need(saved_cost(name, is_named=self.cost is not None))

    # saying

    def heard(self, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """Return findings that belong to no spec, as loud as the command line asks."""
        return tuple(Levels((self.table,)).heard(diagnostics))

    def report(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Print findings on stderr."""
        found = tuple(diagnostics)
        if not found:
            return
        from shardspec.diagnostics.render import render

        paint, width = streams.wants_color(self.color, stream=2), streams.width_of(2)
        for diagnostic in found[:MOST_IN_FULL]:
            text = render(diagnostic, color=paint, width=width)
            echo(f"{text}\n", err=True, is_painted=True)
        if len(found) > MOST_IN_FULL:
            echo(f"... and {len(found) - MOST_IN_FULL} more: shardspec check shows them", err=True)

    def refuse(self, diagnostics: Iterable[Diagnostic]) -> NoReturn:
        """Print findings on stderr, and exit with 2."""
        self.report(diagnostics)
        raise SystemExit(FAILED) from None

    def need(self, found: Needed | Diagnostic) -> Needed:
        """Return what was found; exit with 2, after a report, where that is a fault."""
        if isinstance(found, Diagnostic):
            self.refuse([found])
        return found

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Exit with 2, after a report, where some work raises findings."""
        try:
            yield
        except ShardspecError as error:
            self.refuse(error.diagnostics)

    def remark(self, text: str) -> None:
        """Say something on stderr that is no finding and no error, unless the reader has left."""
        if not self.is_quiet and streams.has_reader():
            show(text.split("\n"), err=True)

    def wrote(self, path: str, text: str) -> None:
        """Say that a file is written, where it is one and is not merely shown."""
        if path != "-" and not streams.is_dry_run():
            self.remark(text)

    def undone(self, text: str) -> None:
        """Say what was asked for and is not done; `--quiet` does not silence that."""
        if streams.has_reader():
            show(text.split("\n"), err=True)

    def error(self, message: str, help: str) -> None:
        """Say what is wrong, and the way out, where the verb itself ends otherwise."""
        streams.show_failure(Failure(message, help))

    def write(self, text: str) -> None:
        """Write what the verb makes where it is asked for, else to stdout."""
        self.write_to(self.output or "-", text)

    def write_to(self, path: str, text: str, own: Kind | None = None) -> None:
        """Write a file, as `write_file` does."""
        write_file(path, text, own, is_forced=self.is_forced)

    def require_place(self, path: str | None = None, own: Kind | None = None) -> None:
        """Fail before a long job where its answer could not go to a path, or where -o says."""
        streams.require_place(path or self.output, own, is_forced=self.is_forced)

    def give(
        self, text: Callable[[bool], str], lines: Iterable[str], width: int, *, err: bool = False
    ) -> None:
        """Write JSON where -o says, and show on stdout what the form asks for.

        Args:
          text: returns the JSON, told whether a file keeps it.
          width: of the lines, where no terminal says.
        """
        if self.output:
            self.write_to(self.output, text(True))
        if self.output == "-":
            return
        if self.form == "json":
            echo(text(False).rstrip("\n"))
        else:
            from shardspec.diagnostics.lines import fitted

            show(fitted(lines, streams.width_of() or width), err=err)

    def show(self, lines: Iterable[str], *, is_painted: bool = False) -> None:
        """Write the lines of a report where it is asked for, else show them on stdout."""
        if self.output in (None, "-"):
            show(lines, is_painted=is_painted)
        else:
            self.write_to(self.output, "\n".join(lines) + "\n")


def request_of(values: dict[str, Any]) -> tuple[Request, dict[str, Any]]:
    """Return the options of a command line that verbs share, and those of the verb."""
    names = {each.name for each in fields(Request)}
    table = {name: values.pop(name, ()) for name in ("select", "ignore")}
    table["is_pedantic"] = values.pop("is_pedantic", False)
    spec_name = values.pop("spec_name", None)
    if spec_name and values.get("named"):
        message = f"two specs: {values['named'][0]} and --spec {spec_name}"
        fail(message, "name the spec once")
    if spec_name:
        values["named"] = (spec_name,)
    shared = {name: values.pop(name) for name in names & set(values)}
    return Request(**shared, table=LevelTable(**table)), values


def for_each(files: Iterable[str], job: Callable[[str], int]) -> NoReturn:
    """Do a job for each file and exit with the worst code: one that fails stops no other."""
    raise SystemExit(max(_exit_code(job, file) for file in files))


def _exit_code(job: Callable[[str], int], file: str) -> int:
    try:
        return job(file)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else streams.FINE
    except Failure as failure:
        streams.show_failure(failure)
        return FAILED


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Say whether a run with these findings has failed."""
    return any(diagnostic.is_error for diagnostic in diagnostics)


def why_unsound(targets: Iterable[Target], found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return `found`, and for a target without a mesh an error, where none of these is one."""
    if has_errors(found):
        return tuple(found)
    faults = (pipeline.unsound(target) for target in targets)
    return (*found, *(fault for fault in faults if fault is not None))


def plans_and_findings(
    spec: Spec,
    diagnostics: Sequence[Diagnostic],
    params: Params,
    targets: Sequence[Target] | None = None,
) -> tuple[tuple[ShardingPlan, ...], tuple[Diagnostic, ...]]:
    """Return the plans on `targets`, and all there is to say of spec and plans.

    Args:
      diagnostics: what loading the spec found.
      targets: None for all, those of phases too.
    """
    if targets is None:
        plans = pipeline.plans_of_phases(spec, params)
    else:
        plans = pipeline.compile_plans(spec, params, targets)
    found = pipeline.findings(spec, plans, faults=diagnostics).shown
    return plans, why_unsound((plan.target for plan in plans), found)


def quiet_spec(name: str | None) -> Spec | None:
    """Return the spec, or None and no word: for shell completion."""
    try:
        return pipeline.load_path(find_spec(name))[0]
    except (Failure, OSError):
        return None


def begins_a_spec(text: str) -> bool:
    """Say whether a text is a spec, in YAML or the DSL: by the version that it begins with."""
    return _SPEC_TEXT.match(text) is not None


# arrays by path or glob


def _is_spec_file(name: str) -> bool:
    source = None if name == "-" else read_argument(name)
    return isinstance(source, SourceFile) and begins_a_spec(source.text)


def _arrays_of_spec(name: str) -> tuple[Params, tuple[Diagnostic, ...]]:
    """Return the arrays of a spec that is named for them; or its errors, or that it has none."""
    spec, faults = pipeline.load_path(name)
    if spec is not None and spec.params:
        return spec.params, ()
    errors = tuple(each for each in faults if each.is_error)
    if errors:
        return (), errors
    help = (
        "add `arrays:` or `manifest: FILE` to it; or name a manifest, a checkpoint or"
        " `package.module:function`"
    )
    return (), (Diagnostic(codes.BAD_MANIFEST, f"the spec `{name}` has no arrays", help=help),)


def select(subject: str, plan: ShardingPlan) -> list[ParamSharding]:
    """Return the arrays that `subject` names; fail with the nearest where there is none."""
    by_path = {sharding.param.path: sharding for sharding in plan.arrays}
    paths = matching(subject, by_path)
    if not paths:
        others = [each.activation.name for each in plan.activations]
        others += [*plan.spec.mesh_axis_names, *(each.name for each in plan.spec.targets)]
        others += [each.name for each in plan.spec.logical_axes]
        unknown_path(subject, list(by_path), others)
    return [sharding for sharding in plan.arrays if sharding.param.path in paths]


def has_path(plan: ShardingPlan, path: str) -> bool:
    """Say whether an array has this path."""
    return any(sharding.param.path == path for sharding in plan.arrays)


def matching(subject: str, paths: Iterable[str]) -> frozenset[str]:
    """Return the path that is `subject`, or those that match it as a glob."""
    if subject in paths or not set(subject) & set("*{?"):
        return frozenset({subject} & set(paths))
    from shardspec.ir.spec import Pattern
    from shardspec.language.glob import compile_glob
    from shardspec.language.grammar.syntax import SyntaxFault
    from shardspec.resolve.match import PathMatcher

    compiled = compile_glob(subject)
    if isinstance(compiled, SyntaxFault):
        fail(f"`{subject}`: {compiled.message}", compiled.help or "as in `decoder/**/kernel`")
    matcher = PathMatcher((Pattern(subject),))
    return frozenset(path for path in paths if matcher.first_match(path) is not None)


def parts_of(subject: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that have `subject` as a run of their components: a last part, a prefix.

    Dots join components where there is no `/`, as in checkpoints of Hugging Face.

    >>> parts_of("mlp/wi", ["a/mlp/wi", "a/mlp/wi_0", "mlp/wi/kernel"]), parts_of("/a", ["b/a"])
    (['a/mlp/wi', 'mlp/wi/kernel'], ['b/a'])
    >>> parts_of("mlp", ["layers.0.mlp.up", "layers.0.mlp_norm.scale"])
    ['layers.0.mlp.up']
    """
    run = subject.strip("/.")
    is_part = re.compile(rf"(?:^|[/.]){re.escape(run)}(?:[/.]|$)")
    return [path for path in paths if run and is_part.search(path)]


def glob_of_part(part: str, paths: Iterable[str], found: Sequence[str]) -> str:
    """Return the glob that matches those of `paths` that were `found` by a part of them.

    >>> paths = ["layers.0.mlp.up", "layers.1.mlp.up", "mlp/up"]
    >>> glob_of_part("mlp.up", paths, paths[:2]), glob_of_part("layers.0", paths, paths[:1])
    ('*.mlp.up', 'layers.0.*')
    """
    run, paths = part.strip("/."), list(paths)
    ends = (("**/", "/**"), ("*.", ""), ("", ".*"), ("*.", ".*"))
    globs = [f"{before}{run}{after}" for before, after in ends]
    exact = (glob for glob in globs if matching(glob, paths) == set(found))
    return next(exact, "{" + ",".join([globs[0], *(f"**/{glob}/**" for glob in globs[1:])]) + "}")


def unknown_path(subject: str, paths: Sequence[str], others: Sequence[str] = ()) -> NoReturn:
    """Fail with the nearest of `paths`, or of `others` that could be meant."""
    from shardspec.diagnostics.words import as_one, nearest, one_of, template
    from shardspec.report.pages import near_names

    named = near_names(subject)
    if not paths:
        fail("the spec lists no arrays", "; ".join(filter(None, (NO_ARRAYS, named))))
    templates = {template(path): path for path in reversed(paths)}
    alike = [path for path in paths if template(path) == template(subject)]
    if alike:
        help = f"there are `{as_one(alike)}`"
        fail(f"no array has the path `{subject}` ({counted(len(paths), 'array')})", help)
    near = [
        _with_numbers(subject, templates[key], paths)
        for key in nearest(template(subject), templates, count=3)
    ]
    near += nearest(subject, [each for each in others if each != subject], count=1)
    meant = f"did you mean {one_of(near)}?" if near else None
    all_of_them = None if named or meant else "`shardspec compile` lists them"
    help = "; ".join(filter(None, (named, meant, all_of_them)))
    fail(f"no array has the path `{subject}` ({counted(len(paths), 'array')})", help)


def _with_numbers(subject: str, path: str, paths: Sequence[str]) -> str:
    """Return `path` with the numbers of `subject`, where such an array exists."""
    numbers = iter(re.findall(r"\d+", subject))
    candidate = re.sub(r"\d+", lambda found: next(numbers, found[0]), path)
    return candidate if candidate in paths else path
