from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class Extent:
    file: str; line: int; column: int; end_line: int; end_column: int
