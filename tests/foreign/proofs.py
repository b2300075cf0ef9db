"""An import from text to the arrays that differ, as `import --against` goes through it."""

from __future__ import annotations

from typing import Any

from shardspec import pipeline
from shardspec.diagnostics import SourceFile
from shardspec.foreign.formats import Options, spec_text
from shardspec.foreign.proof import Difference, differences
from shardspec.ir.spec import Params
from shardspec.language.formatting import formatted


def spec_of(module: Any, source: SourceFile, options: Options) -> tuple[str, Any]:
    """Return the text of the imported spec, which loads and stays as it is, and the reading."""
    imported, faults = module.read([source], options)
    assert imported is not None, [fault.message for fault in faults]
    written, wrong = spec_text(imported, options, [source], "spec.yaml")
    assert written is not None, [fault.message for fault in wrong]
    assert formatted(SourceFile("spec.yaml", written)) == (written, ())
    return written, imported.reading


def proof(
    module: Any, source: SourceFile, params: Params, options: Options
) -> tuple[Difference, ...]:
    """Return where the compiled spec is not what the tool says."""
    written, reading = spec_of(module, source, options)
    spec, faults = pipeline.load_text(written, "spec.yaml")
    assert spec is not None, faults
    plan = pipeline.compile_plans(spec, params)[0]
    return differences(plan, module.answer(reading, params, plan.target.mesh))
