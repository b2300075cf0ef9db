"""The number of every finding, in one table. Each has its page in `lints/`.

Families: 0xx file and keys, 1xx mesh and targets, 2xx names, rules and matching, 3xx shapes
and divisibility, 4xx memory, 5xx communication, 6xx lost in import or export, 9xx verification.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from shardspec.diagnostics.diagnostic import Code, Severity

#: An error that nothing silences: something was dropped, or could not be worked out.
fault = partial(Code, severity=Severity.ERROR, is_fault=True)
#: A finding that makes a run fail.
error = partial(Code, severity=Severity.ERROR)
#: A finding that makes no run fail.
warning = partial(Code, severity=Severity.WARNING)
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
SYNTAX = fault("SHD002", "text is not YAML, or not the shardspec language", loses_entry=True)
UNKNOWN_KEY = fault("SHD003", "a key means nothing here", loses_entry=True)
WRONG_TYPE = fault("SHD004", "a value has the wrong type or form", loses_entry=True)
DUPLICATE_KEY = fault("SHD005", "a key is given twice; only one could count")
YAML_TRAP = fault("SHD006", "YAML 1.1 reads a plain word as something else", loses_entry=True)
TOO_DEEP = fault("SHD007", "nesting or aliases go too deep or in a circle")
UNKNOWN_PRESET = fault("SHD008", "`extends` or `manifest` names nothing there is", loses_entry=True)
PRESET_CYCLE = fault("SHD009", "specs extend each other in a circle")
VERSION = fault("SHD010", "the document asks for another language version")
UNKNOWN_LINT = fault("SHD011", "no finding that a level can change has this name")
BAD_MANIFEST = fault(
    "SHD012", "an entry of a manifest, or what code gives, is not an array", loses_entry=True
)
UNUSED_SUPPRESSION = warning("SHD013", "a `# shardspec: ignore[...]` silences nothing", runs=None)
BAD_SUPPRESSION = warning(
    "SHD014", "a comment is nearly a suppression, and silences nothing", runs=None
)
BAD_CHECKPOINT = fault(
    "SHD015", "a checkpoint is damaged, or holds no arrays with names", loses_entry=True
)
UNSAFE_MANIFEST = fault("SHD016", "reading the arrays would run code from a file", loses_entry=True)
BAD_LOCK = fault("SHD017", "a lock cannot be read: edited by hand, or half merged")
STALE_LOCK = warning("SHD018", "a lock is older than the files it was made from")
GIT_IN_A_FILE = fault("SHD019", "a file asks for a revision, which runs git")
NOTHING_CHECKED = warning(
    "SHD020", "there are no arrays to check the rules on", is_alone=True, runs=None
)

OWN_FILE = fault("SHD021", "a plan, a lock or a list of arrays stands where a spec should")

BAD_STEP = fault("SHD022", "the function that `--step` names makes no step")
BAD_COST = fault("SHD023", "a saved cost cannot be read")
STALE_COST = warning("SHD024", "a saved cost is of another spec, target or mesh")
BAD_CALIBRATION = fault("SHD025", "a calibration cannot be read")
FOREIGN_CALIBRATION = warning("SHD026", "a calibration is of another chip, and does not count")
STALE_CALIBRATION = pedantic("SHD027", "a calibration was made with other versions than are here")
ASKS_THIS_MACHINE = warning("SHD028", "code of a step asks what only its target could answer")
TOO_MUCH_WORK = fault("SHD029", "a file is more work than `check` does for one")

UNKNOWN_HARDWARE = fault("SHD101", "the catalogue has no such hardware", loses_entry=True)
MESH_PRODUCT = fault(
    "SHD102", "mesh sizes do not multiply to the device count", explained_in_entry=True
)
TWO_REST = fault("SHD103", "more than one mesh axis takes the rest")
UNSOLVED_SIZE = error("SHD104", "a mesh size needs hardware to be known", explained_in_entry=True)
SUBMESH_TILING = fault("SHD105", "a submesh does not tile the slice")
UNKNOWN_TARGET = fault("SHD106", "no target has this name", explained_by=_MACHINES | {"extends"})
SIZE_ONE_AXIS = warning("SHD107", "a mesh axis of size 1 wins a rule")
CROSSES_SLICES = warning("SHD108", "a mesh axis crosses slices or nodes and does not say so")
SLOW_RING = warning("SHD109", "another submesh of the same size has more links")
UNUSED_MESH_AXIS = warning(
    "SHD110",
    "nothing is split over a mesh axis: its devices hold copies",
    is_idle=True,
    explained_by=_LAYOUT | _ARRAYS,
)
TENSOR_OVER_DCN = warning(
    "SHD111", "a mesh axis that each layer waits for crosses slices", outranked_here=("SHD506",)
)
REPLICATED_HERE = pedantic(
    "SHD112", "a target holds whole what others with the same mesh axes split", explained_by=_LAYOUT
)
EXPLICIT_FSDP = warning("SHD113", "a result would be split twice over an explicit mesh axis")
UNKNOWN_PHASE = fault("SHD114", "no phase has this name")
FAST_LINK = warning("SHD115", "the fast link inside a chip joins an axis that no layer waits for")
SUMS_NOT_EXPLICIT = error("SHD116", "a sum over mesh axes on a mesh that is not explicit")
DEVICE_ORDER = fault("SHD117", "an order by hand does not give every device a place")
MISSING_MEMORY = error("SHD118", "the devices of a target have no memory of this kind")

UNKNOWN_MESH_AXIS = error(
    "SHD201", "a rule names a mesh axis no target has", explained_by_name=_MACHINES
)
UNKNOWN_LOGICAL_AXIS = error(
    "SHD202",
    "an array's or activation's axis that no rule knows",
    explained_by_name=_LAYOUT | _ARRAYS | _AXES,
)
AXIS_WITHOUT_RULE = warning(
    "SHD203",
    "a logical axis is in use and has no rule",
    explained_by_name=_RULES,
    outranked_here=("SHD202",),
)
UNMATCHED_PATTERN = error(
    "SHD204", "a pattern or override matches no array", is_idle=True, explained_by=_ARRAYS
)
UNNAMED_ARRAY = error("SHD205", "nothing names the dimensions of an array", explained_by=_NAMES)
RANK_MISMATCH = error(
    "SHD206", "names and dimensions differ in number", explained_by=frozenset({"scan"})
)
SLOW_REGEX = warning("SHD207", "a regex needs backtracking, which may take for ever", runs="last")
BAD_PATTERN = fault("SHD208", "a glob or regex cannot be read", loses_entry=True)
REPEATED_AXIS = error("SHD209", "two dimensions of an array have one logical axis")
BAD_PLACE = fault("SHD210", "`at` or `drop` names an axis that has no rules")
UNKNOWN_SIZE = fault(
    "SHD211",
    "an array's type needs a size that no axis states",
    loses_entry=True,
    explained_by_name=_AXES,
)
DUPLICATE_ARRAY = fault("SHD212", "one path stands for two arrays")
UNKNOWN_ACTIVATION = error("SHD213", "code asks for an activation not named")
DEAD_RULE = error("SHD214", "a rule can never fire", is_idle=True)
HIDDEN_PATTERN = warning("SHD215", "a pattern matches arrays, and decides on none", is_idle=True)
SINGLE_DIGIT = warning("SHD216", "a regex has room for one digit, and misses 10")
RULE_WITHOUT_ARRAY = warning(
    "SHD217",
    "a rule fires for nothing it is for",
    is_idle=True,
    explained_by=_NAMES | _ARRAYS,
    outranked_here=("SHD220", "SHD226", "SHD229"),
)
FALLBACK_NEVER_REACHED = pedantic("SHD218", "a fallback is never tried", is_idle=True)
PRIORITY_REORDERS = pedantic(
    "SHD219", "a priority changes who wins a mesh axis, or changes nothing", is_idle=True
)
TUPLE_SKIPPED = warning("SHD220", "a tuple is skipped whole, and part of it would have split more")
CONFLICTING_NAMES = warning("SHD221", "two patterns overlap, and name the same array differently")
REGEX_LIKE_GLOB = warning("SHD222", "a glob reads like a regex, or a regex like a glob")
NNX_DIFFERS = warning(
    "SHD223",
    "two rules of one name give two answers: Flax NNX takes the last",
    outranked_here=("SHD214", "SHD217"),
)
TARGET_NAME = warning("SHD224", "a target is called after other hardware than it has")
NAMELESS_DIMENSION = warning(
    "SHD225", "a dimension has no name, and one that fits would split it", explained_by=_LAYOUT
)
LOST_CONTEST = warning("SHD226", "a dimension lost its mesh axis, and another one is left idle")
SHORT_RANGE = warning("SHD227", "arrays have fewer layers than those beside them")
BROKEN_UNIT = error("SHD228", "an axis is no whole number of its units")
WHOLE_BATCH = warning("SHD229", "an activation's batch is whole: another rule came first")
AXIS_WITHOUT_ARRAY = warning(
    "SHD230",
    "a rule is for a logical axis that nothing has",
    is_idle=True,
    explained_by_name=(_NAMES | _ARRAYS | _AXES) - _RULES,
    explained_in_entry=True,
)
REGEX_BUDGET = fault("SHD231", "a regex ran out of the time it is given", runs="last")
LOST_IN_PHASE = error("SHD232", "a phase holds whole what a mesh axis of another phase splits")
CONTESTED_AXIS = pedantic("SHD233", "two dimensions of an array want one mesh axis")
UNUSED_LET = warning("SHD234", "nothing uses a number that `let` names")
UNNAMED_SMALL = pedantic("SHD235", "nothing names the dimensions of small arrays")

UNPLACED_ACTIVATION = error(
    "SHD236", "a place in code has no value to constrain, or several of different ranks"
)
STEP_LINE = fault(
    "SHD240",
    "a line of `step:` does not go with arrays and axes",
    explained_by_name=_ARRAYS | _AXES | {"step", "activations"},
)

MISSING_PARENT = error(
    "SHD241", "the array that another derives from is not there", explained_by=_ARRAYS
)
DERIVED_MISFIT = error("SHD242", "an array has not the dimensions that `derive:` gives it")
#: An error of `cost` and `search`, which show figures without what was left out.
UNREAD_ARRAYS = uncounted(
    "SHD243", "no line of `step:` reads much of the model", explained_by=frozenset({"step"})
)

INDIVISIBLE = error("SHD301", "mesh axes do not divide a dimension")
SIZE_MISMATCH = error("SHD302", "an array contradicts the stated size of an axis")
BELOW_TILE = warning("SHD303", "shards do not fill the tiles of a TPU's memory")
BELOW_MINIMUM = error("SHD304", "a shard is smaller than its axis allows")
BEYOND_COUNT = fault(
    "SHD305", "an array, an activation or a mesh of 2^63 elements or more", explained_by=_AXES
)
RESIZED_IN_PHASE = error("SHD306", "an array has another shape in a phase, and cannot move there")
CUT_UNIT = error("SHD312", "a shard holds part of a unit, such as half a head")
CUT_PART = error("SHD313", "a shard holds pieces of two parts of a fused axis")
UNEVEN_MICROBATCH = error("SHD314", "mesh axes do not divide a microbatch")

REPLICATED_LARGE = warning(
    "SHD401",
    "every device holds a large array whole",
    explained_by=_LAYOUT,
    outranked_by=_WHY_WHOLE,
)
REPLICATED_OVER_BUDGET = error(
    "SHD402", "more bytes are whole than the gate `coverage:` allows", explained_by=_LAYOUT
)
EXCEEDS_MEMORY = error(
    "SHD403",
    "a device has less memory than parameters and state take",
    explained_by=_LAYOUT,
    outranked_by=("SHD205", "SHD206"),
)
DOMINANT_ARRAY = warning(
    "SHD404",
    "one array takes most of what a device holds",
    explained_by=_LAYOUT,
    outranked_by=(*_WHY_WHOLE, "SHD401", "SHD410"),
)
UNEVEN_LOAD = warning(
    "SHD405",
    "some devices hold notably more than others",
    explained_by=_LAYOUT,
    outranked_on_target=("SHD301",),
)
NEEDLESS_REPLICATE = warning(
    "SHD406", "an entry of `replicate:` is about arrays that are split", is_idle=True
)
STATE_NOT_SPLIT = warning("SHD407", "ZeRO cannot split the state of an array", explained_by=_LAYOUT)
AMBIGUOUS_STATE = error(
    "SHD408", "state may be its parameter without either of two dimensions", runs=None
)
UNRELATED_STATE = warning(
    "SHD409", "large optimizer state has no dimension of its parameter", runs=None
)
PINNED_LARGE = warning("SHD410", "rules pin large arrays whole, and say no reason")

ACTIVATION_CONFLICT = warning("SHD501", "activations are split where their parameters are whole")
NO_PROPAGATION = fault("SHD502", "the installed jaxlib cannot propagate through a traced step")
RESHARDED_TWICE = of_step(
    "SHD503",
    "an array is made to lie otherwise twice before it is read once",
    outranked_here=("SHD513",),
)
FORCED_GATHER = of_step(
    "SHD504", "a constraint or a result asks for an all-gather no operation needs"
)
NEEDLESS_GATHER = of_step(
    "SHD505", "a split weight is gathered for work that its axis does not share"
)
REPEATED_OVER_DCN = of_step("SHD506", "an activation crosses DCN again and again in a step")
REPEATED_WORK = of_step(
    "SHD507", "devices of a mesh axis all do the same large products", outranked_here=("SHD513",)
)
FULL_REMATERIALIZATION = of_step("SHD508", "XLA gathers an array whole to make it lie otherwise")
INVARIANT_GATHER = of_step("SHD509", "a loop gathers the same array in every round")
STEP_EXCEEDS_MEMORY = error("SHD510", "a step needs more memory than a device has", runs="step")
FASTER_MESH = pedantic("SHD511", "another mesh of the same devices is predicted 10 % faster")
#: Nothing shows figures without what could not be counted, and no level silences it.
UNKNOWN_OPERATION = uncounted("SHD512", "an operation of the step cannot be counted", runs="step")

ACTIVATIONS_SUMMED = of_step(
    "SHD513", "activations are summed where gathered weights would send less"
)
EXPERTS_GATHERED = of_step("SHD514", "weights of experts are gathered where tokens would send less")
REPEATED_SUM = of_step("SHD515", "each round of a loop sums over devices what it only adds up")
TORN_BATCH = of_step(
    "SHD516", "a reshape cuts a sharded batch, and its parts move to other devices"
)
COMPILES_TWICE = of_step("SHD517", "a step changes its state's type or layout, and compiles twice")
GUESSED_PLACEMENT = of_step("SHD518", "nothing says how an argument is sharded, and it is guessed")
MISSING_SUM = error("SHD519", "a partial sum is used as the complete one", runs="step")
SUMMED_TWICE = of_step("SHD520", "a value is summed over devices twice")

NOT_CARRIED_OVER = warning("SHD601", "another tool's file says what a spec cannot say, or back")
IMPORT_DIFFERS = error("SHD602", "the imported spec and the other tool split an array otherwise")
BAD_FOREIGN_FILE = fault("SHD603", "a file is not what its own tool would read")
AMBIGUOUS_READING = error("SHD604", "a file has two readings, and they give other answers")
MOVED_BY_MERGE = warning("SHD605", "a tool moves replaced rules to the end, which changes answers")
EXPORT_DIFFERS = error("SHD606", "the exported file would split an array otherwise")
CANNOT_HOLD = error("SHD607", "a format has no way at all to say what a plan is")
NOT_COMPARED = warning("SHD608", "a proof leaves arrays out: what may split them is not read")

SHARDING_DIFFERS = error("SHD901", "a live array lies otherwise than the plan says", runs=None)
PROCESSES_DIFFER = error("SHD902", "the processes of one run plan by different specs", runs=None)
CHECKPOINT_DIFFERS = error(
    "SHD903", "a checkpoint does not hold the arrays to be restored", runs=None
)
LOCK_DIFFERS = error("SHD904", "the plan of a live tree is not what the lock says", runs=None)
BAD_PROGRAM = fault("SHD905", "a text is no program of a compiler for this mesh")
NOT_COMPILED = fault("SHD906", "the real compiler gave no program for the target")


def _named() -> Iterator[Code]:
    """Yield the codes, each called as it is here: a name is said once."""
    for constant, code in tuple(globals().items()):
        if isinstance(code, Code):
            globals()[constant] = replace(code, name=constant.lower().replace("_", "-"))
            yield globals()[constant]


#: Every code, in order of number.
ALL: tuple[Code, ...] = tuple(sorted(_named(), key=lambda code: code.id))
BY_ID = {code.id: code for code in ALL}
