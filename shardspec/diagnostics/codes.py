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
UNKNOWN_LINT = Code("SHD011", "unknown-lint", _E, "`lints` names no finding")
BAD_MANIFEST = Code("SHD012", "bad-manifest", _E, "a manifest entry is not an array")

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

UNKNOWN_MESH_AXIS = Code(
    "SHD201", "unknown-mesh-axis", _E, "a rule names a mesh axis no target has"
)
UNKNOWN_LOGICAL_AXIS = Code(
    "SHD202", "unknown-logical-axis", _E, "a logical axis nobody else knows"
)
AXIS_WITHOUT_RULE = Code("SHD203", "axis-without-rule", _W, "an array's logical axis has no rule")
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
    "SHD215", "hidden-pattern", _W, "entries before a pattern take all that it matches"
)
SINGLE_DIGIT = Code("SHD216", "single-digit", _W, "a regex has room for one digit, and misses 10")

INDIVISIBLE = Code("SHD301", "indivisible", _E, "mesh axes do not divide a dimension")
SIZE_MISMATCH = Code(
    "SHD302", "size-mismatch", _E, "an array contradicts the stated size of an axis"
)
CUT_UNIT = Code("SHD312", "cut-unit", _E, "a shard holds part of a unit, such as half a head")

REPLICATED_LARGE = Code("SHD401", "replicated-large", _W, "every device holds a large array whole")

#: Every code, in order of number.
ALL: tuple[Code, ...] = tuple(
    sorted(
        (value for value in tuple(globals().values()) if isinstance(value, Code)),
        key=lambda c: c.id,
    )
)
