"""The number of every finding, in one table, and how loud each is. Each has its page in `lints/`.

Families: 0xx file and keys, 1xx mesh and targets, 2xx names, rules and matching, 3xx shapes
and divisibility, 4xx memory, 5xx communication, 6xx lost in import or export, 9xx verification.

Its code says how loud a finding is, then the project, the spec and the command line. Each is a
table of settings, and a later table beats an earlier one. Within a table what names a finding in
full beats the start of its id, and a longer start a shorter one: of `SHD3` and `SHD30`, the second
counts for SHD301. Of two that are equally exact, the later one counts, and `ignore` beats `select`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from shardspec.diagnostics.diagnostic import Code, Diagnostic, Severity, Span, point

#: An error that nothing silences: something was dropped, or could not be worked out.
fault = partial(Code, severity=Severity.ERROR, is_fault=True)
#: A fault of an entry of the document, which was dropped.
lost = partial(fault, loses_entry=True)
#: A finding that makes a run fail.
error = partial(Code, severity=Severity.ERROR)
#: A finding that makes no run fail.
warning = partial(Code, severity=Severity.WARNING)
#: A warning that nothing uses what stands at its place.
idle = partial(warning, is_idle=True)
#: A warning that is said only where it is asked for.
pedantic = partial(warning, is_pedantic=True)
#: A warning about a step that was traced.
of_step = partial(warning, runs="step")
#: A warning that nothing silences: something is missing in every figure.
uncounted = partial(warning, is_fault=True)

#: Sections of a document, by what is missing where an entry of theirs is lost.
_RULES = frozenset({"rules", "drop", "extends"})
_NAMES = frozenset({"params", "overrides", "derive", "scan", "extends"})
_ARRAYS = frozenset({"arrays", "caches", "manifest"})
_MACHINES = frozenset({"targets", "mesh", "hardware"})
_AXES = frozenset({"axes"})
_LAYOUT = _RULES | _NAMES

#: Why arrays are whole.
_WHY_WHOLE = (
    *("SHD201", "SHD202", "SHD203", "SHD204", "SHD205", "SHD206"),
    *("SHD232", "SHD241", "SHD242", "SHD301", "SHD312", "SHD313"),
)

UNREADABLE = fault("SHD001", "a file cannot be read as text")
SYNTAX = lost("SHD002", "text is not valid YAML, or not valid shardspec DSL")
UNKNOWN_KEY = lost("SHD003", "a key is not part of the language here")
WRONG_TYPE = lost("SHD004", "a value has the wrong type or form")
DUPLICATE_KEY = fault("SHD005", "a key is given twice")
YAML_TRAP = lost("SHD006", "YAML 1.1 reads a plain word as something else")
TOO_DEEP = fault("SHD007", "nesting or aliases are too deep, or form a cycle")
UNKNOWN_PRESET = lost("SHD008", "`extends` or `manifest` does not match any preset or file")
PRESET_CYCLE = fault("SHD009", "specs extend each other in a cycle")
VERSION = fault("SHD010", "the document needs another language version")
UNKNOWN_LINT = fault("SHD011", "no finding that a level can change has this name")
BAD_MANIFEST = lost(
    "SHD012", "an entry of a manifest, or a value returned by code, is not an array"
)
UNUSED_SUPPRESSION = warning("SHD013", "a `# shardspec: ignore[...]` silences nothing", runs=None)
BAD_SUPPRESSION = warning(
    "SHD014", "a comment looks like a suppression but silences nothing", runs=None
)
BAD_CHECKPOINT = lost("SHD015", "a checkpoint is damaged, or has no named arrays")
UNSAFE_MANIFEST = lost("SHD016", "reading the arrays would run code from a file")
BAD_LOCK = fault("SHD017", "a lock cannot be read: edited by hand, or half merged")
STALE_LOCK = warning("SHD018", "a lock is older than the files it was made from")
GIT_IN_A_FILE = fault("SHD019", "a file refers to a revision, which would run git")
NOTHING_CHECKED = warning(
    "SHD020", "there are no arrays to check the rules against", is_alone=True, runs=None
)

OWN_FILE = fault("SHD021", "a plan, a lock, arrays or another tool's file is given as a spec")

BAD_STEP = fault("SHD022", "the function that `--step` names does not return a step")
BAD_COST = fault("SHD023", "a saved cost or search cannot be read")
STALE_COST = warning("SHD024", "a saved cost belongs to another spec, target or mesh")
BAD_CALIBRATION = fault("SHD025", "a calibration cannot be read")
FOREIGN_CALIBRATION = warning("SHD026", "a calibration is for another chip and is not used")
STALE_CALIBRATION = pedantic(
    "SHD027", "a calibration was made with other versions than those installed"
)
ASKS_THIS_MACHINE = warning("SHD028", "code of a step queries devices that only its target has")
TOO_MUCH_WORK = fault("SHD029", "a file needs more work than `check` allows for one file")
IDLE_CONSTRAINT = warning("SHD030", "a constraint of Flax does nothing: no rules are in context")
NO_RESOLVER = fault("SHD031", "`shardspec.constrain` runs under no resolver")

UNKNOWN_HARDWARE = lost("SHD101", "the catalogue has no such hardware")
MESH_PRODUCT = fault(
    "SHD102", "mesh sizes do not multiply to the device count", explained_in_entry=True
)
TWO_REST = fault("SHD103", "more than one mesh axis takes the rest")
UNSOLVED_SIZE = error("SHD104", "a mesh size needs hardware to be known", explained_in_entry=True)
SUBMESH_TILING = fault("SHD105", "a submesh does not tile the slice")
UNKNOWN_TARGET = fault("SHD106", "no target has this name", explained_by=_MACHINES | {"extends"})
SIZE_ONE_AXIS = warning("SHD107", "a mesh axis of size 1 wins a rule")
CROSSES_SLICES = warning("SHD108", "a mesh axis crosses slices or nodes without being marked so")
SLOW_RING = warning("SHD109", "another submesh of the same size uses more links")
UNUSED_MESH_AXIS = idle(
    "SHD110",
    "nothing is sharded over a mesh axis, so its devices hold copies",
    explained_by=_LAYOUT | _ARRAYS,
)
TENSOR_OVER_DCN = warning(
    "SHD111", "a mesh axis that every layer waits for crosses slices", outranked_here=("SHD506",)
)
REPLICATED_HERE = pedantic(
    "SHD112", "a target replicates what targets with the same mesh axes shard", explained_by=_LAYOUT
)
EXPLICIT_FSDP = warning("SHD113", "a result would be sharded twice over an explicit mesh axis")
UNKNOWN_PHASE = fault("SHD114", "no phase has this name")
FAST_LINK = warning("SHD115", "the fast link inside a chip joins an axis that no layer waits for")
SUMS_NOT_EXPLICIT = error("SHD116", "a sum over mesh axes on a mesh that is not explicit")
DEVICE_ORDER = fault("SHD117", "an order of devices written by hand leaves a device out")
MISSING_MEMORY = error("SHD118", "the devices of a target do not have this kind of memory")

UNKNOWN_MESH_AXIS = error(
    "SHD201", "a rule names a mesh axis that no target has", explained_by_name=_MACHINES
)
UNKNOWN_LOGICAL_AXIS = error(
    "SHD202",
    "an array or activation has a logical axis that no rule names",
    explained_by_name=_LAYOUT | _ARRAYS | _AXES,
)
AXIS_WITHOUT_RULE = warning(
    "SHD203",
    "a logical axis is used but has no rule",
    explained_by_name=_RULES,
    outranked_here=("SHD202",),
)
UNMATCHED_PATTERN = error(
    "SHD204", "a pattern or override matches no array", is_idle=True, explained_by=_ARRAYS
)
UNNAMED_ARRAY = error("SHD205", "the dimensions of an array have no names", explained_by=_NAMES)
RANK_MISMATCH = error(
    "SHD206", "an array has more or fewer dimensions than names", explained_by=frozenset({"scan"})
)
SLOW_REGEX = warning(
    "SHD207", "a regex needs backtracking, which can take exponential time", runs="last"
)
BAD_PATTERN = lost("SHD208", "a glob or regex cannot be read")
REPEATED_AXIS = error("SHD209", "two dimensions of an array have the same logical axis")
BAD_PLACE = fault("SHD210", "`at` or `drop` names an axis that has no rules")
UNKNOWN_SIZE = lost(
    "SHD211",
    "an array's type needs the size of an axis that has none",
    explained_by_name=_AXES,
)
DUPLICATE_ARRAY = fault("SHD212", "two arrays have the same path")
UNKNOWN_ACTIVATION = error("SHD213", "code names an activation that the spec does not have")
DEAD_RULE = error("SHD214", "a rule can never fire", is_idle=True)
HIDDEN_PATTERN = idle("SHD215", "a pattern matches arrays but never decides their names")
SINGLE_DIGIT = warning("SHD216", "a regex matches one digit, and misses layer 10")
RULE_WITHOUT_ARRAY = idle(
    "SHD217",
    "a rule shards none of the arrays that have its axis",
    explained_by=_NAMES | _ARRAYS,
    outranked_here=("SHD220", "SHD226", "SHD229"),
)
FALLBACK_NEVER_REACHED = pedantic("SHD218", "a fallback is never tried", is_idle=True)
PRIORITY_REORDERS = pedantic(
    "SHD219", "a priority changes which rule wins a mesh axis, or has no effect", is_idle=True
)
TUPLE_SKIPPED = warning("SHD220", "a tuple is skipped although part of it would divide")
CONFLICTING_NAMES = warning(
    "SHD221", "two patterns overlap and give the same array different names"
)
REGEX_LIKE_GLOB = warning("SHD222", "a glob looks like a regex, or a regex like a glob")
NNX_DIFFERS = warning(
    "SHD223",
    "two rules for one axis give two answers: Flax NNX takes the last",
    outranked_here=("SHD214", "SHD217"),
)
TARGET_NAME = warning("SHD224", "a target is named after hardware that it does not have")
NAMELESS_DIMENSION = warning(
    "SHD225", "a dimension has no name, and a fitting name would shard it", explained_by=_LAYOUT
)
LOST_CONTEST = warning("SHD226", "a dimension lost its mesh axis while another axis stays unused")
SHORT_RANGE = warning("SHD227", "arrays have fewer layers than their neighbours")
BROKEN_UNIT = error("SHD228", "the size of an axis is not a multiple of its unit")
WHOLE_BATCH = warning("SHD229", "an activation's batch is replicated: another rule came first")
AXIS_WITHOUT_ARRAY = idle(
    "SHD230",
    "a rule is for a logical axis that nothing has",
    explained_by_name=(_NAMES | _ARRAYS | _AXES) - _RULES,
    explained_in_entry=True,
)
REGEX_BUDGET = fault("SHD231", "a regex exceeded its time limit", runs="last")
LOST_IN_PHASE = error("SHD232", "a phase replicates what a mesh axis of another phase shards")
CONTESTED_AXIS = pedantic("SHD233", "two dimensions of an array have rules for the same mesh axis")
UNUSED_LET = warning("SHD234", "a number that `let` names is never used")
UNNAMED_SMALL = pedantic("SHD235", "the dimensions of small arrays have no names")

UNPLACED_ACTIVATION = error(
    "SHD236", "a place in code has no value to constrain, or several of different ranks"
)
STEP_LINE = fault(
    "SHD240",
    "a line of `step:` does not match the arrays and axes",
    explained_by_name=_ARRAYS | _AXES | {"step", "activations"},
)

MISSING_PARENT = error(
    "SHD241", "the array that another one derives from does not exist", explained_by=_ARRAYS
)
DERIVED_MISFIT = error("SHD242", "an array does not have the dimensions that `derive:` gives it")
#: An error of `cost` and `search`, which show figures without what was left out.
UNREAD_ARRAYS = uncounted(
    "SHD243", "no line of `step:` reads a large part of the model", explained_by=frozenset({"step"})
)

INDIVISIBLE = error("SHD301", "mesh axes do not divide a dimension")
SIZE_MISMATCH = error("SHD302", "an array contradicts the stated size of an axis")
BELOW_TILE = warning("SHD303", "shards do not fill the tiles of a TPU's memory")
BELOW_MINIMUM = error("SHD304", "a shard is smaller than its axis allows")
BEYOND_COUNT = fault(
    "SHD305", "an array, an activation or a mesh has 2^63 elements or more", explained_by=_AXES
)
RESIZED_IN_PHASE = error(
    "SHD306", "an array has another shape in a phase, and cannot be moved there"
)
CUT_UNIT = error("SHD312", "a shard holds part of a unit, such as half a head")
CUT_PART = error("SHD313", "a shard holds pieces of two parts of a fused axis")
UNEVEN_MICROBATCH = error("SHD314", "mesh axes do not divide a microbatch")
PADDED_AXIS = pedantic("SHD315", "an axis is padded so that mesh axes divide it")
MUCH_PADDING = warning("SHD316", "padding makes an axis 10 % longer or more")

REPLICATED_LARGE = warning(
    "SHD401",
    "a large array is replicated on every device",
    explained_by=_LAYOUT,
    outranked_by=_WHY_WHOLE,
)
REPLICATED_OVER_BUDGET = error(
    "SHD402", "more bytes are replicated than `coverage:` allows", explained_by=_LAYOUT
)
EXCEEDS_MEMORY = error(
    "SHD403",
    "parameters and state need more memory than a device has",
    explained_by=_LAYOUT,
    outranked_by=("SHD205", "SHD206"),
)
DOMINANT_ARRAY = warning(
    "SHD404",
    "one array takes most of a device's memory",
    explained_by=_LAYOUT,
    outranked_by=(*_WHY_WHOLE, "SHD401", "SHD410"),
)
UNEVEN_LOAD = warning(
    "SHD405",
    "some devices hold notably more than others",
    explained_by=_LAYOUT,
    outranked_on_target=("SHD301",),
)
NEEDLESS_REPLICATE = idle("SHD406", "an entry of `replicate:` names arrays that are sharded")
STATE_NOT_SPLIT = warning(
    "SHD407", "ZeRO cannot shard the optimizer state of an array", explained_by=_LAYOUT
)
AMBIGUOUS_STATE = error(
    "SHD408", "state could be its parameter without either of two dimensions", runs=None
)
UNRELATED_STATE = warning(
    "SHD409", "large optimizer state shares no dimension with its parameter", runs=None
)
PINNED_LARGE = warning("SHD410", "rules replicate large arrays and give no reason")

ACTIVATION_CONFLICT = warning(
    "SHD501", "activations are sharded where their parameters are replicated"
)
NO_PROPAGATION = fault("SHD502", "the installed jaxlib cannot propagate through a traced step")
RESHARDED_TWICE = of_step(
    "SHD503",
    "an array is resharded twice before anything uses it",
    outranked_here=("SHD513",),
)
FORCED_GATHER = of_step(
    "SHD504", "a constraint or a result causes an all-gather that no operation needs"
)
NEEDLESS_GATHER = of_step(
    "SHD505", "a sharded weight is gathered although no work is shared over its axis"
)
REPEATED_OVER_DCN = of_step(
    "SHD506",
    "an activation crosses DCN several times in a step",
    outranked_by=("SHD518",),
    outranked_here=("SHD513",),
)
REPEATED_WORK = of_step(
    "SHD507",
    "all devices along a mesh axis compute the same large products",
    outranked_here=("SHD513",),
)
FULL_REMATERIALIZATION = of_step("SHD508", "XLA gathers a full array to reshard it")
INVARIANT_GATHER = of_step(
    "SHD509",
    "a loop gathers the same array in every iteration",
    outranked_by=("SHD518",),
)
STEP_EXCEEDS_MEMORY = error("SHD510", "a step needs more memory than a device has", runs="step")
FASTER_MESH = pedantic("SHD511", "another mesh of the same devices is predicted 10 % faster")
#: Nothing shows figures without what could not be counted, and no level silences it.
UNKNOWN_OPERATION = uncounted("SHD512", "an operation of the step cannot be counted", runs="step")

ACTIVATIONS_SUMMED = of_step(
    "SHD513", "activations are summed although gathering weights would send less"
)
EXPERTS_GATHERED = of_step(
    "SHD514", "expert weights are gathered although sending tokens would cost less"
)
REPEATED_SUM = of_step(
    "SHD515", "a loop sums over devices in every iteration, and only adds the result up"
)
TORN_BATCH = of_step(
    "SHD516", "a reshape splits a sharded batch and moves its parts to other devices"
)
COMPILES_TWICE = of_step("SHD517", "a step changes its state's type or layout, and compiles twice")
GUESSED_PLACEMENT = of_step("SHD518", "the sharding of an argument is not given, and is guessed")
MISSING_SUM = error("SHD519", "a partial sum is used as the complete one", runs="step")
SUMMED_TWICE = of_step("SHD520", "a value is summed over devices twice")
DONATION_LOST = of_step("SHD521", "a donated array is held twice, for its result is laid out anew")
ARGUMENT_COPIED = of_step(
    "SHD522",
    "the compiler copies a large argument or result",
    outranked_by=("SHD517", "SHD518"),
)
CONSTANT_WRITTEN_OUT = of_step("SHD523", "the compiler writes a constant out in memory")

NOT_CARRIED_OVER = warning(
    "SHD601", "a file of another tool has something a spec cannot express, or back"
)
IMPORT_DIFFERS = error("SHD602", "the imported spec and the other tool shard an array differently")
BAD_FOREIGN_FILE = fault("SHD603", "a file is not valid for its own tool")
AMBIGUOUS_READING = error("SHD604", "a file can be read in two ways that give different answers")
MOVED_BY_MERGE = warning("SHD605", "a tool moves replaced rules to the end, which changes answers")
EXPORT_DIFFERS = error("SHD606", "the exported file would shard an array differently")
CANNOT_HOLD = error("SHD607", "a format cannot express this plan")
NOT_COMPARED = warning("SHD608", "a proof leaves arrays out, because what shards them is not read")

SHARDING_DIFFERS = error("SHD901", "a live array is sharded differently from the plan", runs=None)
PROCESSES_DIFFER = error("SHD902", "the processes of one run use different specs", runs=None)
CHECKPOINT_DIFFERS = error(
    "SHD903", "a checkpoint does not have the arrays to be restored", runs=None
)
LOCK_DIFFERS = error("SHD904", "the plan of a live tree differs from the lock", runs=None)
BAD_PROGRAM = fault("SHD905", "a text is not a compiled program for this mesh")
NOT_COMPILED = fault("SHD906", "the compiler produced no program for the target")


def _named() -> Iterator[Code]:
    """Yield the codes, each called as it is here: a name is said once."""
    for constant, code in tuple(globals().items()):
        if isinstance(code, Code):
            globals()[constant] = replace(code, name=constant.lower().replace("_", "-"))
            yield globals()[constant]


#: Every code, in order of number.
ALL: tuple[Code, ...] = tuple(sorted(_named(), key=lambda code: code.id))
BY_ID = {code.id: code for code in ALL}


_EXACT = 100


class LevelTable(NamedTuple):
    """What one place asks for.

    Attributes:
      settings: severities by the id or name of a finding, or the start of an id.
      select: findings to be told of, and no others; empty for all.
      ignore: findings not to be told of.
      is_pedantic: whether pedantic findings are wanted.
    """

    settings: tuple[tuple[str, Severity], ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    is_pedantic: bool = False

    def names(self, code: Code) -> bool:
        """Say whether the table names a finding in full, to set its level or select it."""
        named = (*(finding for finding, _ in self.settings), *self.select)
        return any(_rank(finding, code) == _EXACT for finding in named)

    def severity(self, code: Code, before: Severity) -> Severity:
        """Return how loud a finding is for this table, after those before it."""
        set_by, level = _setting(self.settings, code)
        selected = max((_rank(finding, code) for finding in self.select), default=0)
        ignored = max((_rank(finding, code) for finding in self.ignore), default=0)
        if ignored and ignored >= max(selected, set_by):
            return Severity.ALLOW
        if self.select and not selected and set_by < _EXACT:
            return Severity.ALLOW
        if set_by:
            return level
        return code.severity if selected and before is Severity.ALLOW else before


#: The table of a place that asks for nothing: it changes no level.
NOTHING_ASKED = LevelTable()


class Levels(NamedTuple):
    """What is asked for in all places, the strongest last.

    Invariants:
      undeniable: a fault is as loud as its code says, whatever the tables hold.
      exact: within one table, what names a finding in full decides.
    """

    tables: tuple[LevelTable, ...] = ()

    def severity(self, code: Code, before: Severity | None = None) -> Severity:
        """Return how loud a finding is.

        Args:
          before: how loud the finding itself is; None for its code's severity.
        """
        severity = code.severity if before is None else before
        if code.is_fault:
            return severity
        if code.is_pedantic and not any(t.is_pedantic or t.names(code) for t in self.tables):
            return Severity.ALLOW
        for table in self.tables:
            severity = table.severity(code, severity)
        return severity

    def heard(self, diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
        """Yield the diagnostics as loud as they are wanted, without those that are allowed."""
        for diagnostic in diagnostics:
            severity = self.severity(diagnostic.code, diagnostic.severity)
            if severity is diagnostic.severity is not Severity.ALLOW:
                yield diagnostic
            elif severity is not Severity.ALLOW:
                yield diagnostic.with_level(severity)


@dataclass(frozen=True, slots=True)
class LintLevel:
    """A finding's severity as the spec sets it, by code id or name, or the start of an id."""

    finding: str
    severity: Severity
    span: Span | None = field(default=None, compare=False, repr=False)


#: The words for severities, in `lints:`, in pyproject.toml and in `levels=`.
WORDS = {"allow": Severity.ALLOW, "warn": Severity.WARNING, "error": Severity.ERROR}


def level_table(levels: Mapping[str, str] | None) -> LevelTable:
    """Return what a caller asks for in words: `{"indivisible": "warn", "SHD4": "allow"}`.

    Raises:
      TypeError: it is no mapping.
      ValueError: a finding or a level is not known.
    """
    given: Any = levels
    if not (given is None or isinstance(given, Mapping)):
        kind = type(given).__name__
        raise TypeError(f'levels are a dict such as {{"indivisible": "warn"}}, not a `{kind}`')
    settings = []
    for finding, word in (given or {}).items():
        if not isinstance(finding, str) or not known(finding):
            from shardspec.diagnostics.words import did_you_mean

            hint = did_you_mean(str(finding), [code.name for code in ALL])
            message = f"levels: no finding is called `{finding}`"
            raise ValueError(f"{message}; {hint}" if hint else message)
        if not isinstance(word, str) or word not in WORDS:
            raise ValueError(f"levels: `{finding}` is `allow`, `warn` or `error`, not `{word}`")
        if word != "error" and (fault := fault_named(finding)):
            raise ValueError(f"levels: {fault}")
        settings.append((finding, WORDS[word]))
    return LevelTable(tuple(settings))


def known(finding: str) -> bool:
    """Say whether `finding` is the id or name of a finding, or the start of ids.

    >>> known("SHD301"), known("indivisible"), known("SHD3"), known("SHD8"), known("indi")
    (True, True, True, False, False)
    """
    return any(_rank(finding, code) for code in ALL)


#: What helps where a level names a fault.
MEND_IT = "mend what it is about; only what was read, resolved and counted has a level"


def fault_named(finding: str) -> str | None:
    """Return what is wrong with silencing `finding`; None where that is possible.

    >>> fault_named("wrong-type")
    '`wrong-type` (SHD004) is a fault, and cannot be silenced: what it is about was left out'
    >>> fault_named("indivisible"), fault_named("SHD0")
    (None, None)
    """
    code = next((each for each in ALL if finding in (each.id, each.name)), None)
    if code is None or not code.is_fault:
        return None
    called = f"`{code.name}` ({code.id})"
    return f"{called} is a fault, and cannot be silenced: what it is about was left out"


def fault_found(finding: str, span: Span | None) -> Diagnostic | None:
    """Return the finding that `finding` cannot be silenced; None where it can."""
    message = fault_named(finding)
    return point(UNKNOWN_LINT, message, span, help=MEND_IT) if message else None


def _rank(finding: str, code: Code) -> int:
    """Return how exactly `finding` names `code`; 0 where it names others."""
    if finding in (code.id, code.name):
        return _EXACT
    return len(finding) if finding.startswith("SHD") and code.id.startswith(finding) else 0


def _setting(settings: Iterable[tuple[str, Severity]], code: Code) -> tuple[int, Severity]:
    """Return the most exact setting for a code, the last of several."""
    best, level = 0, code.severity
    for finding, severity in settings:
        rank = _rank(finding, code)
        if rank and rank >= best:
            best, level = rank, severity
    return best, level
