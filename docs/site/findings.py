"""Every page of `shardspec explain`, as one Markdown text: docs/findings.md.

`python -m docs.site.findings` prints it; a test holds the file to it. The pages of the
site of the documentation are made of the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from shardspec.diagnostics import Code
from shardspec.diagnostics.codes import ALL
from shardspec.lints.registry import codes, page, step_codes
from shardspec.report.pages import level_text

#: The fourth letter of a code -> what such findings are about.
FAMILIES = {
    "0": "File and keys",
    "1": "Mesh and targets",
    "2": "Names, rules and matching",
    "3": "Shapes and divisibility",
    "4": "Memory",
    "5": "Communication",
    "6": "Lost in import or export",
    "9": "Verification",
}

_INTRODUCTION = """\
# Findings

Made from the pages that `shardspec explain CODE` prints; `make docs` writes this file anew. Each
finding has a spec that fires it, and one that does not; the tests run both.

`lints:` in a spec sets the level of a finding, by code or name: `error`, `warn` or `allow`. Errors
make the exit code 1. Pedantic findings are reported under `--pedantic`, or where `lints:` names
them.

**Large** means the same in every finding: at least 2 % of a device's parameters (of its optimizer
state or of its traffic in a step, if the finding is about these) and at least 16 MiB; for FLOPs, at
least 2 % of the step and 34 GFLOP. It applies to {large}.

SHD503 and the findings after it need a step: a function of yours, traced without devices. In their
examples it is in the comments: `params` are the arrays of the spec, `x` is the activation.
"""


def findings_doc() -> str:
    """Return the text of docs/findings.md."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield introduction()
    yield from table_lines(ALL, lambda code: f"#{_anchor(code)}")
    family = ""
    for code in ALL:
        if code.id[3] != family:
            family = code.id[3]
            yield f"\n## {FAMILIES[family]}"
        yield f"\n### {code.id} {code.name}\n"
        yield from section_lines(code)


def introduction() -> str:
    """Return what stands before all findings, as Markdown."""
    large = ", ".join(code.id for code in codes_by_size())
    return _INTRODUCTION.format(large=large)


def table_lines(codes: Iterable[Code], link: Callable[[Code], str]) -> Iterator[str]:
    """Yield a table of findings, each with a link to its page."""
    yield "| code | name | level | says |"
    yield "|---|---|---|---|"
    for code in codes:
        level = "pedantic" if code.is_pedantic else str(code.severity)
        summary = code.summary.replace("|", "\\|")
        yield f"| [{code.id}]({link(code)}) | {code.name} | {level} | {summary} |"


def section_lines(code: Code) -> Iterator[str]:
    """Yield the page of a finding below its heading, as Markdown."""
    yield f"*{level_text(code)[0].upper()}{level_text(code)[1:]}.*\n"
    yield from _markdown(page(code))


def codes_by_size() -> tuple[Code, ...]:
    """Return the codes of checks whose pages are about what is large, in order of number."""
    found = sorted((*codes(), *step_codes()), key=ALL.index)
    return tuple(code for code in found if re.search(r"\blarge\b", page(code)))


def _anchor(code: Code) -> str:
    """Return the anchor that GitHub gives the heading of a finding."""
    return f"{code.id.lower()}-{code.name}"


def _markdown(text: str) -> Iterator[str]:
    """Yield a page's lines: its headings bold, its indented blocks fenced."""
    for block in re.split(r"\n(?=(?:Bad|Good):\n)", text):
        heading, _, rest = block.partition("\n")
        if heading in ("Bad:", "Good:"):
            body = "\n".join(line.removeprefix("    ") for line in rest.rstrip().splitlines())
            yield f"**{heading[:-1]}**\n\n```yaml\n{body}\n```\n"
        else:
            yield f"{block.rstrip()}\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(findings_doc())
