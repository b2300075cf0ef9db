"""Random edits of real specs, as an editor sends them: no crash, and no stale answer.

After each edit something is asked at a random place while findings are on their way. An answer is
compared with that of a fresh look at the same text, and every range lies in the text.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from shardspec.lsp import types
from shardspec.lsp.findings import diagnostics
from shardspec.lsp.snapshot import Lines, Snapshot
from tests.lsp.client import Editor, RefusedError, editor
from tests.lsp.texts import DSL, SPEC

ROOT = Path(__file__).parents[2]
IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
PIECES = [
    *(
        "",
        " ",
        "\n",
        "\n  ",
        ": ",
        "- ",
        "-> ",
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        "#",
        ",",
        "|",
        "@",
        "\t",
    ),
    *(
        "rules:",
        "axes",
        "model",
        "embed",
        "tpu v4 4x4x4",
        "extends: fsdp\n",
        "phases:\n  a:\n",
        "🧊",
        "層",
    ),
    *(
        "\r\n",
        "\u2028",
        "\x00",
        "**/",
        "re:(",
        "&a",
        "*a",
        "!!python/object",
        "99999999999999999999",
    ),
]
#: What is asked, and where: at a position, about a range, or about all of it.
AT = ("hover", "completion", "definition", "references", "documentHighlight", "prepareRename")
ALL = ("documentSymbol", "foldingRange", "semanticTokens/full", "formatting")
ABOUT = ("codeAction", "inlayHint")


def edited(text: str, chance: random.Random) -> str:
    """Return a text with a piece put in, taken out, doubled or moved; now and then as it began."""
    start = chance.randint(0, len(text))
    end = min(len(text), start + chance.choice((0, 0, 1, 3, 20)))
    match chance.randrange(4):
        case 0:
            return text[:start] + text[end:]
        case 1:
            return text[:start] + text[start:end] * 2 + text[end:]
        case _:
            return text[:start] + chance.choice(PIECES) + text[end:]


def ranges_in(answer: Any) -> list[dict[str, Any]]:
    if isinstance(answer, list):
        return [found for each in answer for found in ranges_in(each)]
    if not isinstance(answer, dict):
        return []
    own = [answer] if set(answer) == {"start", "end"} else []
    # places in other files are about those
    if "uri" in answer:
        return []
    return own + [found for each in answer.values() for found in ranges_in(each)]


def asked(session: Editor, uri: str, text: str, chance: random.Random) -> tuple[str, int]:
    lines = Lines(text)
    at = lines.position(chance.randint(0, len(text)))
    position = {"line": at.line, "character": at.character}
    feature = chance.choice(AT + ALL + ABOUT)
    params: dict[str, Any] = {"textDocument": {"uri": uri}}
    if feature in AT:
        params |= {"position": position, "context": {"includeDeclaration": True}}
    if feature == "completion":
        params["context"] = {"triggerKind": 1}
    if feature in ABOUT:
        params |= {"range": {"start": position, "end": position}, "context": {"diagnostics": []}}
    if feature == "formatting":
        params["options"] = {"tabSize": 2, "insertSpaces": True}
    return feature, session.begin(f"textDocument/{feature}", params)


def check_answer(session: Editor, number: int, text: str) -> None:
    try:
        answer = session.end(number)
    except RefusedError as refused:
        # refused by a rename, or because the text has changed meanwhile
        if refused.code not in (-32803, -32801):
            raise
        return
    lines = Lines(text)
    for each in ranges_in(answer):
        for side in ("start", "end"):
            position = types.Position(each[side]["line"], each[side]["character"])
            assert lines.position(lines.offset(position)) == position


def fresh(session: Editor, uri: str, path: Path, text: str) -> list[tuple[Any, ...]]:
    """Return the findings of a look at the text by itself."""
    real = os.path.realpath(path)
    found = diagnostics(Snapshot(uri, 1, real, {real: text}))[real]
    return [
        (each.code, each.message, each.range.start.line, each.range.start.character)
        for each in found
    ]


@pytest.mark.parametrize(("name", "text"), [("spec.yaml", SPEC), ("spec.shard", DSL)])
def test_random_edits(tmp_path: Path, name: str, text: str) -> None:
    """500 of each spelling nightly, 50 in an ordinary run."""
    chance = random.Random(name if not IS_NIGHTLY else None)
    count = 500 if IS_NIGHTLY else 50
    with editor(tmp_path) as session:
        uri = session.open(name, text)
        now = text
        for turn in range(count):
            now = text if turn % 25 == 0 else edited(now, chance)
            session.edit(uri, now)
            if chance.random() < 0.3:  # typing goes on before anything is answered
                _, early = asked(session, uri, now, chance)
                before, now = now, edited(now, chance)
                session.edit(uri, now)
                check_answer(session, early, before)
            _, number = asked(session, uri, now, chance)
            check_answer(session, number, now)
            if turn % 3 == 0:
                told = [
                    (
                        each["code"],
                        each["message"],
                        each["range"]["start"]["line"],
                        each["range"]["start"]["character"],
                    )
                    for each in session.findings(uri)
                ]
                assert told == fresh(session, uri, tmp_path / name, now), now
        versions = [each["version"] for each in session.published[uri]]
        assert versions == sorted(versions)
        assert not session.shown, "the server has shown an error"
