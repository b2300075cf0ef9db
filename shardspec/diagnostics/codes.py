"""The number of every finding, in one table. Each has its page in `lints/`.

Families: 0xx file and keys, 1xx mesh and targets, 2xx names, rules and matching, 3xx shapes
and divisibility, 4xx memory, 5xx communication, 6xx lost in import or export, 9xx verification.
"""

from __future__ import annotations

from shardspec.diagnostics.diagnostic import Code, Severity

_E, _W = Severity.ERROR, Severity.WARNING

UNREADABLE = Code("SHD001", "unreadable", _E, "a file cannot be read as text")
SYNTAX = Code("SHD002", "syntax", _E, "text is not YAML, or not the shardspec language")
UNKNOWN_KEY = Code("SHD003", "unknown-key", _E, "a key means nothing here")
WRONG_TYPE = Code("SHD004", "wrong-type", _E, "a value has the wrong type or form")
DUPLICATE_KEY = Code("SHD005", "duplicate-key", _E, "a key stands twice; only one could count")
YAML_TRAP = Code("SHD006", "yaml-trap", _E, "YAML 1.1 reads a plain word as something else")
TOO_DEEP = Code("SHD007", "too-deep", _E, "nesting or aliases go too deep or in a circle")
UNKNOWN_PRESET = Code(
    "SHD008", "unknown-preset", _E, "`extends` or `manifest` names nothing there is"
)
PRESET_CYCLE = Code("SHD009", "preset-cycle", _E, "specs extend each other in a circle")
VERSION = Code("SHD010", "version", _E, "the document asks for another language version")
UNKNOWN_LINT = Code("SHD011", "unknown-lint", _E, "no finding has this name")
BAD_MANIFEST = Code("SHD012", "bad-manifest", _E, "a manifest entry is not an array")
UNUSED_SUPPRESSION = Code(
    "SHD013", "unused-suppression", _W, "a `# shardspec: ignore[...]` silences nothing"
)
BAD_SUPPRESSION = Code(
    "SHD014", "bad-suppression", _W, "a comment is nearly a suppression, and silences nothing"
)
BAD_CHECKPOINT = Code(
    "SHD015", "bad-checkpoint", _E, "a checkpoint is damaged, or holds no arrays with names"
)
UNSAFE_MANIFEST = Code(
    "SHD016", "unsafe-manifest", _E, "reading the arrays would run code from a file"
)
BAD_LOCK = Code("SHD017", "bad-lock", _E, "a lock cannot be read: edited by hand, or half merged")
STALE_LOCK = Code("SHD018", "stale-lock", _W, "a lock is older than the files it was made from")
GIT_IN_A_FILE = Code("SHD019", "git-in-a-file", _E, "a file asks for a revision, which runs git")
NOTHING_CHECKED = Code("SHD020", "nothing-checked", _W, "there are no arrays to check the rules on")

OWN_FILE = Code(
    "SHD021", "own-file", _E, "a plan, a lock or a list of arrays stands where a spec should"
)

UNKNOWN_HARDWARE = Code("SHD101", "unknown-hardware", _E, "the catalogue has no such hardware")
MESH_PRODUCT = Code("SHD102", "mesh-product", _E, "mesh sizes do not multiply to the device count")
TWO_REST = Code("SHD103", "two-rest", _E, "more than one mesh axis takes the rest")
UNSOLVED_SIZE = Code("SHD104", "unsolved-size", _E, "a mesh size needs hardware to be known")
SUBMESH_TILING = Code("SHD105", "submesh-tiling", _E, "a submesh does not tile the slice")
UNKNOWN_TARGET = Code("SHD106", "unknown-target", _E, "no target has this name")
SIZE_ONE_AXIS = Code("SHD107", "size-one-axis", _W, "a mesh axis of size 1 wins a rule")
CROSSES_SLICES = Code(
    "SHD108", "crosses-slices", _W, "a mesh axis crosses slices or nodes and does not say so"
)
SLOW_RING = Code("SHD109", "slow-ring", _W, "another submesh of the same size has more links")
UNUSED_MESH_AXIS = Code(
    "SHD110", "unused-mesh-axis", _W, "nothing is split over a mesh axis: its devices hold copies"
)
TENSOR_OVER_DCN = Code(
    "SHD111", "tensor-over-dcn", _W, "a mesh axis that each layer waits for crosses slices"
)
REPLICATED_HERE = Code(
    "SHD112",
    "replicated-here",
    _W,
    "a target holds whole what others with the same mesh axes split",
    is_pedantic=True,
)
EXPLICIT_FSDP = Code(
    "SHD113", "explicit-fsdp", _W, "a result would be split twice over an explicit mesh axis"
)

UNKNOWN_MESH_AXIS = Code(
    "SHD201", "unknown-mesh-axis", _E, "a rule names a mesh axis no target has"
)
UNKNOWN_LOGICAL_AXIS = Code(
    "SHD202", "unknown-logical-axis", _E, "an array's or activation's axis that no rule knows"
)
AXIS_WITHOUT_RULE = Code(
    "SHD203", "axis-without-rule", _W, "a logical axis is in use and has no rule"
)
UNMATCHED_PATTERN = Code(
    "SHD204", "unmatched-pattern", _E, "a pattern or override matches no array"
)
UNNAMED_ARRAY = Code("SHD205", "unnamed-array", _E, "nothing names the dimensions of an array")
RANK_MISMATCH = Code("SHD206", "rank-mismatch", _E, "names and dimensions differ in number")
SLOW_REGEX = Code("SHD207", "slow-regex", _W, "a regex needs backtracking, which may take for ever")
BAD_PATTERN = Code("SHD208", "bad-pattern", _E, "a glob or regex cannot be read")
REPEATED_AXIS = Code(
    "SHD209", "repeated-axis", _E, "two dimensions of an array have one logical axis"
)
BAD_PLACE = Code("SHD210", "bad-place", _E, "`at` or `drop` names an axis that has no rules")
UNKNOWN_SIZE = Code(
    "SHD211", "unknown-size", _E, "an array's type needs a size that no axis states"
)
DUPLICATE_ARRAY = Code("SHD212", "duplicate-array", _E, "one path stands for two arrays")
UNKNOWN_ACTIVATION = Code(
    "SHD213", "unknown-activation", _E, "code asks for an activation not named"
)
DEAD_RULE = Code("SHD214", "dead-rule", _E, "a rule can never fire")
HIDDEN_PATTERN = Code(
    "SHD215", "hidden-pattern", _W, "a pattern matches arrays, and decides on none"
)
SINGLE_DIGIT = Code("SHD216", "single-digit", _W, "a regex has room for one digit, and misses 10")
RULE_WITHOUT_ARRAY = Code("SHD217", "rule-without-array", _W, "a rule fires for nothing it is for")
FALLBACK_NEVER_REACHED = Code(
    "SHD218", "fallback-never-reached", _W, "a fallback is never tried", is_pedantic=True
)
PRIORITY_REORDERS = Code(
    "SHD219",
    "priority-reorders",
    _W,
    "a priority changes who wins a mesh axis, or changes nothing",
    is_pedantic=True,
)
TUPLE_SKIPPED = Code(
    "SHD220", "tuple-skipped", _W, "a tuple is skipped whole, and part of it would have split more"
)
CONFLICTING_NAMES = Code(
    "SHD221", "conflicting-names", _W, "two patterns overlap, and name the same array differently"
)
REGEX_LIKE_GLOB = Code(
    "SHD222", "regex-like-glob", _W, "a glob reads like a regex, or a regex like a glob"
)
NNX_DIFFERS = Code(
    "SHD223", "nnx-differs", _W, "Flax NNX reads the rules to another answer", is_pedantic=True
)
TARGET_NAME = Code(
    "SHD224", "target-name", _W, "a target is called after other hardware than it has"
)
NAMELESS_DIMENSION = Code(
    "SHD225", "nameless-dimension", _W, "a dimension has no name, and one that fits would split it"
)
LOST_CONTEST = Code(
    "SHD226", "lost-contest", _W, "a dimension lost its mesh axis, and another one is left idle"
)
SHORT_RANGE = Code("SHD227", "short-range", _W, "arrays have fewer layers than those beside them")
BROKEN_UNIT = Code("SHD228", "broken-unit", _E, "an axis is no whole number of its units")
WHOLE_BATCH = Code(
    "SHD229", "whole-batch", _W, "an activation's batch is whole: another rule came first"
)
AXIS_WITHOUT_ARRAY = Code(
    "SHD230", "axis-without-array", _W, "a rule is for a logical axis that nothing has"
)
REGEX_BUDGET = Code("SHD231", "regex-budget", _E, "a regex ran out of the time it is given")

INDIVISIBLE = Code("SHD301", "indivisible", _E, "mesh axes do not divide a dimension")
SIZE_MISMATCH = Code(
    "SHD302", "size-mismatch", _E, "an array contradicts the stated size of an axis"
)
BELOW_TILE = Code("SHD303", "below-tile", _W, "shards do not fill the tiles of a TPU's memory")
BELOW_MINIMUM = Code("SHD304", "below-minimum", _E, "a shard is smaller than its axis allows")
BEYOND_COUNT = Code(
    "SHD305", "beyond-count", _E, "an array, an activation or a mesh of 2^63 elements or more"
)
CUT_UNIT = Code("SHD312", "cut-unit", _E, "a shard holds part of a unit, such as half a head")

REPLICATED_LARGE = Code("SHD401", "replicated-large", _W, "every device holds a large array whole")
REPLICATED_OVER_BUDGET = Code(
    "SHD402", "replicated-over-budget", _E, "more bytes are whole than the gate `coverage:` allows"
)
EXCEEDS_MEMORY = Code(
    "SHD403", "exceeds-memory", _E, "a device has less memory than parameters and state take"
)
DOMINANT_ARRAY = Code("SHD404", "dominant-array", _W, "one array takes most of what a device holds")
UNEVEN_LOAD = Code("SHD405", "uneven-load", _W, "some devices hold notably more than others")
NEEDLESS_REPLICATE = Code(
    "SHD406", "needless-replicate", _W, "an entry of `replicate:` is about arrays that are split"
)
STATE_NOT_SPLIT = Code("SHD407", "state-not-split", _W, "ZeRO cannot split the state of an array")
AMBIGUOUS_STATE = Code(
    "SHD408", "ambiguous-state", _E, "state may be its parameter without either of two dimensions"
)
UNRELATED_STATE = Code(
    "SHD409", "unrelated-state", _W, "large optimizer state has no dimension of its parameter"
)
PINNED_LARGE = Code("SHD410", "pinned-large", _W, "rules pin large arrays whole, and say no reason")

ACTIVATION_CONFLICT = Code(
    "SHD501", "activation-conflict", _W, "activations are split where their parameters are whole"
)

NOT_CARRIED_OVER = Code(
    "SHD601", "not-carried-over", _W, "another tool's file says what a spec cannot say, or back"
)
IMPORT_DIFFERS = Code(
    "SHD602", "import-differs", _E, "the imported spec and the other tool split an array otherwise"
)
BAD_FOREIGN_FILE = Code(
    "SHD603", "bad-foreign-file", _E, "a file is not what its own tool would read"
)
AMBIGUOUS_READING = Code(
    "SHD604", "ambiguous-reading", _E, "a file has two readings, and they give other answers"
)
MOVED_BY_MERGE = Code(
    "SHD605", "moved-by-merge", _W, "a tool moves replaced rules to the end, which changes answers"
)
EXPORT_DIFFERS = Code(
    "SHD606", "export-differs", _E, "the exported file would split an array otherwise"
)
CANNOT_HOLD = Code("SHD607", "cannot-hold", _E, "a format has no way at all to say what a plan is")
NOT_COMPARED = Code(
    "SHD608", "not-compared", _W, "a proof leaves arrays out: what may split them is not read"
)

SHARDING_DIFFERS = Code(
    "SHD901", "sharding-differs", _E, "a live array lies otherwise than the plan says"
)
PROCESSES_DIFFER = Code(
    "SHD902", "processes-differ", _E, "the processes of one run plan by different specs"
)
CHECKPOINT_DIFFERS = Code(
    "SHD903", "checkpoint-differs", _E, "a checkpoint does not hold the arrays to be restored"
)
LOCK_DIFFERS = Code(
    "SHD904", "lock-differs", _E, "the plan of a live tree is not what the lock says"
)

#: Every code, in order of number.
ALL: tuple[Code, ...] = tuple(
    sorted(
        (value for value in tuple(globals().values()) if isinstance(value, Code)),
        key=lambda c: c.id,
    )
)
