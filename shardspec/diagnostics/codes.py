"""The number of every finding, in one table. Each has its page in `lints/`.

Families: 0xx file and keys, 1xx mesh and targets, 2xx names, rules and matching, 3xx shapes
and divisibility, 4xx memory, 5xx communication, 6xx lost in import or export, 9xx verification.
"""

from __future__ import annotations

from shardspec.diagnostics.diagnostic import Code, Severity


def fault(id: str, name: str, summary: str) -> Code:
    """Return an error that nothing silences: something was dropped, or could not be worked out."""
    return Code(id, name, Severity.ERROR, summary, is_fault=True)


def error(id: str, name: str, summary: str) -> Code:
    """Return a finding that makes a run fail."""
    return Code(id, name, Severity.ERROR, summary)


def warning(id: str, name: str, summary: str) -> Code:
    """Return a finding that makes no run fail."""
    return Code(id, name, Severity.WARNING, summary)


def pedantic(id: str, name: str, summary: str) -> Code:
    """Return a warning that is said only where it is asked for."""
    return Code(id, name, Severity.WARNING, summary, is_pedantic=True)


UNREADABLE = fault("SHD001", "unreadable", "a file cannot be read as text")
SYNTAX = fault("SHD002", "syntax", "text is not YAML, or not the shardspec language")
UNKNOWN_KEY = fault("SHD003", "unknown-key", "a key means nothing here")
WRONG_TYPE = fault("SHD004", "wrong-type", "a value has the wrong type or form")
DUPLICATE_KEY = fault("SHD005", "duplicate-key", "a key is given twice; only one could count")
YAML_TRAP = fault("SHD006", "yaml-trap", "YAML 1.1 reads a plain word as something else")
TOO_DEEP = fault("SHD007", "too-deep", "nesting or aliases go too deep or in a circle")
UNKNOWN_PRESET = fault("SHD008", "unknown-preset", "`extends` or `manifest` names nothing there is")
PRESET_CYCLE = fault("SHD009", "preset-cycle", "specs extend each other in a circle")
VERSION = fault("SHD010", "version", "the document asks for another language version")
UNKNOWN_LINT = fault("SHD011", "unknown-lint", "no finding that a level can change has this name")
BAD_MANIFEST = fault("SHD012", "bad-manifest", "a manifest entry is not an array")
UNUSED_SUPPRESSION = warning(
    "SHD013", "unused-suppression", "a `# shardspec: ignore[...]` silences nothing"
)
BAD_SUPPRESSION = warning(
    "SHD014", "bad-suppression", "a comment is nearly a suppression, and silences nothing"
)
BAD_CHECKPOINT = fault(
    "SHD015", "bad-checkpoint", "a checkpoint is damaged, or holds no arrays with names"
)
UNSAFE_MANIFEST = fault(
    "SHD016", "unsafe-manifest", "reading the arrays would run code from a file"
)
BAD_LOCK = fault("SHD017", "bad-lock", "a lock cannot be read: edited by hand, or half merged")
STALE_LOCK = warning("SHD018", "stale-lock", "a lock is older than the files it was made from")
GIT_IN_A_FILE = fault("SHD019", "git-in-a-file", "a file asks for a revision, which runs git")
NOTHING_CHECKED = warning("SHD020", "nothing-checked", "there are no arrays to check the rules on")

OWN_FILE = fault(
    "SHD021", "own-file", "a plan, a lock or a list of arrays stands where a spec should"
)

BAD_STEP = fault("SHD022", "bad-step", "the function that `--step` names makes no step")
BAD_COST = fault("SHD023", "bad-cost", "a saved cost cannot be read")
STALE_COST = warning("SHD024", "stale-cost", "a saved cost is of another spec, target or mesh")
BAD_CALIBRATION = fault("SHD025", "bad-calibration", "a calibration cannot be read")
FOREIGN_CALIBRATION = warning(
    "SHD026", "foreign-calibration", "a calibration is of another chip, and does not count"
)
STALE_CALIBRATION = pedantic(
    "SHD027", "stale-calibration", "a calibration was made with other versions than are here"
)
ASKS_THIS_MACHINE = warning(
    "SHD028", "asks-this-machine", "code of a step asks what only its target could answer"
)
TOO_MUCH_WORK = fault("SHD029", "too-much-work", "a file is more work than `check` does for one")

UNKNOWN_HARDWARE = fault("SHD101", "unknown-hardware", "the catalogue has no such hardware")
MESH_PRODUCT = fault("SHD102", "mesh-product", "mesh sizes do not multiply to the device count")
TWO_REST = fault("SHD103", "two-rest", "more than one mesh axis takes the rest")
UNSOLVED_SIZE = error("SHD104", "unsolved-size", "a mesh size needs hardware to be known")
SUBMESH_TILING = fault("SHD105", "submesh-tiling", "a submesh does not tile the slice")
UNKNOWN_TARGET = fault("SHD106", "unknown-target", "no target has this name")
SIZE_ONE_AXIS = warning("SHD107", "size-one-axis", "a mesh axis of size 1 wins a rule")
CROSSES_SLICES = warning(
    "SHD108", "crosses-slices", "a mesh axis crosses slices or nodes and does not say so"
)
SLOW_RING = warning("SHD109", "slow-ring", "another submesh of the same size has more links")
UNUSED_MESH_AXIS = warning(
    "SHD110", "unused-mesh-axis", "nothing is split over a mesh axis: its devices hold copies"
)
TENSOR_OVER_DCN = warning(
    "SHD111", "tensor-over-dcn", "a mesh axis that each layer waits for crosses slices"
)
REPLICATED_HERE = pedantic(
    "SHD112", "replicated-here", "a target holds whole what others with the same mesh axes split"
)
EXPLICIT_FSDP = warning(
    "SHD113", "explicit-fsdp", "a result would be split twice over an explicit mesh axis"
)
UNKNOWN_PHASE = fault("SHD114", "unknown-phase", "no phase has this name")
FAST_LINK = warning(
    "SHD115", "fast-link", "the fast link inside a chip joins an axis that no layer waits for"
)
SUMS_NOT_EXPLICIT = error(
    "SHD116", "sums-not-explicit", "a sum over mesh axes on a mesh that is not explicit"
)
DEVICE_ORDER = fault(
    "SHD117", "device-order", "an order by hand does not give every device a place"
)
MISSING_MEMORY = error(
    "SHD118", "missing-memory", "the devices of a target have no memory of this kind"
)

UNKNOWN_MESH_AXIS = error("SHD201", "unknown-mesh-axis", "a rule names a mesh axis no target has")
UNKNOWN_LOGICAL_AXIS = error(
    "SHD202", "unknown-logical-axis", "an array's or activation's axis that no rule knows"
)
AXIS_WITHOUT_RULE = warning(
    "SHD203", "axis-without-rule", "a logical axis is in use and has no rule"
)
UNMATCHED_PATTERN = error("SHD204", "unmatched-pattern", "a pattern or override matches no array")
UNNAMED_ARRAY = error("SHD205", "unnamed-array", "nothing names the dimensions of an array")
RANK_MISMATCH = error("SHD206", "rank-mismatch", "names and dimensions differ in number")
SLOW_REGEX = warning("SHD207", "slow-regex", "a regex needs backtracking, which may take for ever")
BAD_PATTERN = fault("SHD208", "bad-pattern", "a glob or regex cannot be read")
REPEATED_AXIS = error("SHD209", "repeated-axis", "two dimensions of an array have one logical axis")
BAD_PLACE = fault("SHD210", "bad-place", "`at` or `drop` names an axis that has no rules")
UNKNOWN_SIZE = fault("SHD211", "unknown-size", "an array's type needs a size that no axis states")
DUPLICATE_ARRAY = fault("SHD212", "duplicate-array", "one path stands for two arrays")
UNKNOWN_ACTIVATION = error("SHD213", "unknown-activation", "code asks for an activation not named")
DEAD_RULE = error("SHD214", "dead-rule", "a rule can never fire")
HIDDEN_PATTERN = warning(
    "SHD215", "hidden-pattern", "a pattern matches arrays, and decides on none"
)
SINGLE_DIGIT = warning("SHD216", "single-digit", "a regex has room for one digit, and misses 10")
RULE_WITHOUT_ARRAY = warning("SHD217", "rule-without-array", "a rule fires for nothing it is for")
FALLBACK_NEVER_REACHED = pedantic("SHD218", "fallback-never-reached", "a fallback is never tried")
PRIORITY_REORDERS = pedantic(
    "SHD219", "priority-reorders", "a priority changes who wins a mesh axis, or changes nothing"
)
TUPLE_SKIPPED = warning(
    "SHD220", "tuple-skipped", "a tuple is skipped whole, and part of it would have split more"
)
CONFLICTING_NAMES = warning(
    "SHD221", "conflicting-names", "two patterns overlap, and name the same array differently"
)
REGEX_LIKE_GLOB = warning(
    "SHD222", "regex-like-glob", "a glob reads like a regex, or a regex like a glob"
)
NNX_DIFFERS = pedantic("SHD223", "nnx-differs", "Flax NNX reads the rules to another answer")
TARGET_NAME = warning(
    "SHD224", "target-name", "a target is called after other hardware than it has"
)
NAMELESS_DIMENSION = warning(
    "SHD225", "nameless-dimension", "a dimension has no name, and one that fits would split it"
)
LOST_CONTEST = warning(
    "SHD226", "lost-contest", "a dimension lost its mesh axis, and another one is left idle"
)
SHORT_RANGE = warning("SHD227", "short-range", "arrays have fewer layers than those beside them")
BROKEN_UNIT = error("SHD228", "broken-unit", "an axis is no whole number of its units")
WHOLE_BATCH = warning(
    "SHD229", "whole-batch", "an activation's batch is whole: another rule came first"
)
AXIS_WITHOUT_ARRAY = warning(
    "SHD230", "axis-without-array", "a rule is for a logical axis that nothing has"
)
REGEX_BUDGET = fault("SHD231", "regex-budget", "a regex ran out of the time it is given")
LOST_IN_PHASE = error(
    "SHD232", "lost-in-phase", "a phase holds whole what a mesh axis of another phase splits"
)
CONTESTED_AXIS = pedantic(
    "SHD233", "contested-axis", "two dimensions of an array want one mesh axis"
)
UNUSED_LET = warning("SHD234", "unused-let", "nothing uses a number that `let` names")

STEP_LINE = fault("SHD240", "step-line", "a line of `step:` does not go with arrays and axes")

MISSING_PARENT = error(
    "SHD241", "missing-parent", "the array that another derives from is not there"
)
DERIVED_MISFIT = error(
    "SHD242", "derived-misfit", "an array has not the dimensions that `derive:` gives it"
)
#: An error of `cost` and `search`, which show figures without what was left out.
UNREAD_ARRAYS = Code(
    "SHD243",
    "unread-arrays",
    Severity.WARNING,
    "no line of `step:` reads much of the model",
    is_fault=True,
)

INDIVISIBLE = error("SHD301", "indivisible", "mesh axes do not divide a dimension")
SIZE_MISMATCH = error("SHD302", "size-mismatch", "an array contradicts the stated size of an axis")
BELOW_TILE = warning("SHD303", "below-tile", "shards do not fill the tiles of a TPU's memory")
BELOW_MINIMUM = error("SHD304", "below-minimum", "a shard is smaller than its axis allows")
BEYOND_COUNT = fault(
    "SHD305", "beyond-count", "an array, an activation or a mesh of 2^63 elements or more"
)
RESIZED_IN_PHASE = error(
    "SHD306", "resized-in-phase", "an array has another shape in a phase, and cannot move there"
)
CUT_UNIT = error("SHD312", "cut-unit", "a shard holds part of a unit, such as half a head")
CUT_PART = error("SHD313", "cut-part", "a shard holds pieces of two parts of a fused axis")
UNEVEN_MICROBATCH = error("SHD314", "uneven-microbatch", "mesh axes do not divide a microbatch")

REPLICATED_LARGE = warning("SHD401", "replicated-large", "every device holds a large array whole")
REPLICATED_OVER_BUDGET = error(
    "SHD402", "replicated-over-budget", "more bytes are whole than the gate `coverage:` allows"
)
EXCEEDS_MEMORY = error(
    "SHD403", "exceeds-memory", "a device has less memory than parameters and state take"
)
DOMINANT_ARRAY = warning("SHD404", "dominant-array", "one array takes most of what a device holds")
UNEVEN_LOAD = warning("SHD405", "uneven-load", "some devices hold notably more than others")
NEEDLESS_REPLICATE = warning(
    "SHD406", "needless-replicate", "an entry of `replicate:` is about arrays that are split"
)
STATE_NOT_SPLIT = warning("SHD407", "state-not-split", "ZeRO cannot split the state of an array")
AMBIGUOUS_STATE = error(
    "SHD408", "ambiguous-state", "state may be its parameter without either of two dimensions"
)
UNRELATED_STATE = warning(
    "SHD409", "unrelated-state", "large optimizer state has no dimension of its parameter"
)
PINNED_LARGE = warning("SHD410", "pinned-large", "rules pin large arrays whole, and say no reason")

ACTIVATION_CONFLICT = warning(
    "SHD501", "activation-conflict", "activations are split where their parameters are whole"
)
NO_PROPAGATION = fault(
    "SHD502", "no-propagation", "the installed jaxlib cannot propagate through a traced step"
)
RESHARDED_TWICE = warning(
    "SHD503", "resharded-twice", "an array is made to lie otherwise twice before it is read once"
)
FORCED_GATHER = warning(
    "SHD504", "forced-gather", "a constraint or a result asks for an all-gather no operation needs"
)
NEEDLESS_GATHER = warning(
    "SHD505", "needless-gather", "a split weight is gathered for work that its axis does not share"
)
REPEATED_OVER_DCN = warning(
    "SHD506", "repeated-over-dcn", "an activation crosses DCN again and again in a step"
)
REPEATED_WORK = warning(
    "SHD507", "repeated-work", "devices of a mesh axis all do the same large products"
)
FULL_REMATERIALIZATION = warning(
    "SHD508", "full-rematerialization", "XLA gathers an array whole to make it lie otherwise"
)
INVARIANT_GATHER = warning(
    "SHD509", "invariant-gather", "a loop gathers the same array in every round"
)
STEP_EXCEEDS_MEMORY = error(
    "SHD510", "step-exceeds-memory", "a step holds more than a device has, at the least"
)
FASTER_MESH = pedantic(
    "SHD511", "faster-mesh", "another mesh of the same devices is predicted 10 % faster"
)
#: Nothing shows figures without what could not be counted, and no level silences it.
UNKNOWN_OPERATION = Code(
    "SHD512",
    "unknown-operation",
    Severity.WARNING,
    "an operation of the step cannot be counted",
    is_fault=True,
)

ACTIVATIONS_SUMMED = warning(
    "SHD513", "activations-summed", "activations are summed where gathered weights would send less"
)
EXPERTS_GATHERED = warning(
    "SHD514", "experts-gathered", "weights of experts are gathered where tokens would send less"
)
REPEATED_SUM = warning(
    "SHD515", "repeated-sum", "each round of a loop sums over devices what it only adds up"
)
TORN_BATCH = warning(
    "SHD516", "torn-batch", "a reshape cuts a sharded batch, and its parts move to other devices"
)
COMPILES_TWICE = warning(
    "SHD517", "compiles-twice", "a step changes its state's type or layout, and compiles twice"
)
GUESSED_PLACEMENT = warning(
    "SHD518", "guessed-placement", "nothing says how an argument is sharded, and it is guessed"
)

NOT_CARRIED_OVER = warning(
    "SHD601", "not-carried-over", "another tool's file says what a spec cannot say, or back"
)
IMPORT_DIFFERS = error(
    "SHD602", "import-differs", "the imported spec and the other tool split an array otherwise"
)
BAD_FOREIGN_FILE = fault("SHD603", "bad-foreign-file", "a file is not what its own tool would read")
AMBIGUOUS_READING = error(
    "SHD604", "ambiguous-reading", "a file has two readings, and they give other answers"
)
MOVED_BY_MERGE = warning(
    "SHD605", "moved-by-merge", "a tool moves replaced rules to the end, which changes answers"
)
EXPORT_DIFFERS = error(
    "SHD606", "export-differs", "the exported file would split an array otherwise"
)
CANNOT_HOLD = error("SHD607", "cannot-hold", "a format has no way at all to say what a plan is")
NOT_COMPARED = warning(
    "SHD608", "not-compared", "a proof leaves arrays out: what may split them is not read"
)

SHARDING_DIFFERS = error(
    "SHD901", "sharding-differs", "a live array lies otherwise than the plan says"
)
PROCESSES_DIFFER = error(
    "SHD902", "processes-differ", "the processes of one run plan by different specs"
)
CHECKPOINT_DIFFERS = error(
    "SHD903", "checkpoint-differs", "a checkpoint does not hold the arrays to be restored"
)
LOCK_DIFFERS = error("SHD904", "lock-differs", "the plan of a live tree is not what the lock says")
BAD_PROGRAM = fault("SHD905", "bad-program", "a text is no program of a compiler for this mesh")
NOT_COMPILED = fault("SHD906", "not-compiled", "the real compiler gave no program for the target")

#: Every code, in order of number.
ALL: tuple[Code, ...] = tuple(
    sorted(
        (value for value in tuple(globals().values()) if isinstance(value, Code)),
        key=lambda c: c.id,
    )
)
