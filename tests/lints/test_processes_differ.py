from __future__ import annotations

from shardspec.lints.checks.processes_differ import FAILED, View, finding

FACTS = {
    "shardspec": "0.1.0",
    "`spec.yaml`": "sha256:11",
    "`rules.yaml`": "sha256:22",
    "the target": "`laptop`",
    "the spec with its changes": "sha256:33",
    "the mesh": "data=4 model=2",
}


def view(process: int, **changes: str) -> View:
    by_word = {name.split()[-1].strip("`").partition(".")[0]: name for name in FACTS}
    facts = FACTS | {by_word[word]: what for word, what in changes.items()}
    return View(process, tuple(facts.items()))


def test_both_digests_and_the_file() -> None:
    here, other = view(0), view(1, rules="sha256:99", changes="sha256:44")
    found = finding([here, other, view(2)])
    assert here.digest != other.digest
    assert found.message == (
        "the processes of this run plan by different specs:"
        f" `{here.digest}` on processes 0, 2, `{other.digest}` on process 1"
    )
    assert found.notes == ("`rules.yaml`: sha256:22 on processes 0, 2, sha256:99 on process 1",)


def test_a_file_of_one_process() -> None:
    facts = tuple(pair for pair in FACTS.items() if pair[0] != "`rules.yaml`")
    found = finding([View(0, facts), view(1), view(2)])
    assert found.notes == ("`rules.yaml` is read on processes 1, 2 only",)


def test_consequences_are_told_only_where_there_is_no_cause() -> None:
    found = finding([view(0), view(1, changes="sha256:44", mesh="data=2 model=4")])
    assert found.notes == (
        "the spec with its changes: sha256:33 on process 0, sha256:44 on process 1",
        "the mesh: data=4 model=2 on process 0, data=2 model=4 on process 1",
    )


def test_many_processes_are_counted() -> None:
    found = finding([view(0, target="`tpu`"), *(view(n) for n in range(1, 256))])
    assert found.notes == (
        "the target: `tpu` on process 0, `laptop` on processes 1, 2, 3, 4, 5, 6, 7, 8 and 247 more",
    )


def test_a_process_without_a_plan_is_all_that_counts() -> None:
    failed = View(1, ((FAILED, "SHD201: unknown mesh axis `modle`"),))
    found = finding([view(0), failed, View(3, failed.facts)])
    assert found.message == "processes 1, 3 have no plan, so none can continue"
    assert found.notes == ("processes 1, 3: SHD201: unknown mesh axis `modle`",)
