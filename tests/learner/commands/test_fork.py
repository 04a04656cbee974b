"""A new run from a checkpoint of another: its own in all but weights, step and data position."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio
from click.testing import CliRunner

from echo2swarm.system.errors import ConfigError, StoreError, UsageError
from echo2swarm.system.files import write_atomically
from echo2swarm.text.cli_errors import error_boundary
from learner.cli import learner
from learner.commands.checkpoints import survey
from learner.commands.fork import ForkOptions, fork_run
from learner.config import LearnerConfig
from learner.config.file import load_config, resolved
from learner.ledger.ledger import open_ledger
from learner.ledger.resume import LeftOver, Reach
from learner.run.checkpoint_store import damage_of
from learner.run.inputs import Recorded, read_inputs, write_inputs
from learner.run.run_dir import RunDir, make_run_dir, open_run_dir, read_run_dir
from learner.tasks.inputs import Input
from learner.tasks.registry import check_table
from learner.tasks.rows import read_rows
from tests.learner.run.test_checkpoint_store import flip_a_bit, save


@pytest.fixture
def source(tmp_path: Path) -> RunDir:
    """Return a run of 100 steps with checkpoints of steps 10 and 20, and a ledger."""
    run_dir = make_run_dir(tmp_path / "old", name="old")
    write_atomically(run_dir.config, resolved(LearnerConfig()).encode())
    for step in (10, 20):
        save(run_dir.checkpoints, step)

    async def begin() -> None:
        async with open_ledger(run_dir.ledger, run_id=run_dir.run_id, max_staleness=2):
            pass

    trio.run(begin)
    return run_dir


def used(run_dir: RunDir, groups: Iterator[tuple[int, int | None, str | None]]) -> None:
    """Record prompts by the update that they were trained in, or why they were dropped."""
    with closing(sqlite3.connect(run_dir.ledger)) as db, db:
        db.executemany(
            "INSERT INTO groups (group_id, prompt_tokens, opened_unix_s, trained_step, "
            "drop_reason) VALUES (?, x'00', 0, ?, ?)",
            groups,
        )


def options(source: RunDir, tmp_path: Path, **changes: object) -> ForkOptions:
    chosen = ForkOptions(
        source=source.folder,
        step=None,
        run_dir=tmp_path / "new",
        name=None,
        overrides=(),
        fresh_optimizer=False,
    )
    fields = {name: getattr(chosen, name) for name in ForkOptions.__slots__}
    return ForkOptions(**{**fields, **changes})


def test_a_fork_is_another_run_with_the_checkpoint_and_says_where_it_came_from(
    source: RunDir, tmp_path: Path
) -> None:
    made = fork_run(options(source, tmp_path, overrides=("trainer.learning_rate=1e-5",))).run_dir
    found = open_run_dir(tmp_path / "new", name="", resume=True)

    assert found.run_id == made.run_id != source.run_id
    assert found.forked_from is not None
    assert (found.forked_from.run_id, found.first_step) == (source.run_id, 20)
    (checkpoint,) = found.checkpoints.all()
    assert (checkpoint.step, damage_of(checkpoint)) == (20, None)
    assert load_config(found.config, environment={}).trainer.learning_rate == 1e-5
    assert not found.identity.exists(), "it makes an identity of its own"


def test_any_checkpoint_may_be_chosen(source: RunDir, tmp_path: Path) -> None:
    assert fork_run(options(source, tmp_path, step=10)).origin.step == 10
    with pytest.raises(UsageError, match="no checkpoint of step 15; there are: 10, 20"):
        fork_run(options(source, tmp_path, step=15, run_dir=tmp_path / "other"))


def test_a_damaged_checkpoint_is_passed_over_and_one_asked_for_refused(
    source: RunDir, tmp_path: Path
) -> None:
    flip_a_bit(source.checkpoints.all()[1].trainer / "model.safetensors")

    forked = fork_run(options(source, tmp_path))

    assert forked.origin.step == 10
    assert [step for step, _ in forked.passed_over] == [20]
    with pytest.raises(StoreError, match="its hash differs"):
        fork_run(options(source, tmp_path, step=20, run_dir=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_it_goes_on_with_the_prompts_that_no_update_before_was_made_of(
    source: RunDir, tmp_path: Path
) -> None:
    used(
        source,
        iter([(0, 8, None), (1, 12, None), (2, None, "stale"), (3, 9, None), (4, 11, None)]),
    )
    made = fork_run(options(source, tmp_path, step=10)).run_dir

    async def resume() -> tuple[Reach, LeftOver]:
        async with open_ledger(made.ledger, run_id=made.run_id, max_staleness=2) as ledger:
            reach = await ledger.reach()
            return reach, await ledger.resume(10, max_staleness=2, now_unix_s=0.0)

    reach, left = trio.run(resume)

    assert (reach.first_step, reach.step) == (10, 10)
    assert left.next_group == 4
    assert left.skipped == (1,)


def test_a_run_that_would_be_over_at_once_is_refused(source: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.num_steps: expected more than the 20 updates"):
        fork_run(options(source, tmp_path, overrides=("run.num_steps=20",)))


def test_only_the_first_checkpoint_is_taken_without_the_optimizer(
    source: RunDir, tmp_path: Path
) -> None:
    made = fork_run(options(source, tmp_path, fresh_optimizer=True)).run_dir
    (first,) = made.checkpoints.all()
    later = save(made.checkpoints, 30)

    found = read_run_dir(made.folder)
    assert found.begins_with_fresh_optimizer(first)
    assert not found.begins_with_fresh_optimizer(later)
    assert not source.begins_with_fresh_optimizer(first)
    assert (made.warmup_from, source.warmup_from) == (first.step, 0)


def test_checkpoints_are_listed_with_what_is_wrong_with_them(
    source: RunDir, tmp_path: Path
) -> None:
    flip_a_bit(source.checkpoints.all()[0].trainer / "model.safetensors")
    arguments = ["checkpoints", str(source.folder)]

    text = CliRunner().invoke(learner, arguments, obj=error_boundary()).output.splitlines()
    data = CliRunner().invoke(learner, [*arguments, "--json"], obj=error_boundary()).output

    assert "DAMAGED: trainer/model.safetensors is not what was saved" in text[0]
    assert text[1].startswith("step       20")
    assert text[1].endswith("whole")
    listed = msgspec.json.decode(data)["checkpoints"]
    assert [item["step"] for item in listed] == [10, 20]
    assert [item["fault"] is None for item in listed] == [False, True]


def test_a_fork_of_a_checkpoint_that_is_deleted_meanwhile_says_so(
    source: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = source.checkpoints.all()[-1]
    monkeypatch.setattr("learner.commands.fork.pick", lambda *_: (newest, ()))
    source.checkpoints._discard(newest.folder)

    with pytest.raises(StoreError, match="the run has deleted it meanwhile"):
        fork_run(options(source, tmp_path))


def test_a_checkpoint_that_is_deleted_while_it_is_listed_is_not_called_damaged(
    source: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source.checkpoints.survey()
    monkeypatch.setattr(source.checkpoints, "survey", lambda: found)
    source.checkpoints._discard(source.checkpoints.all()[0].folder)

    assert [listed.step for listed in survey(source)] == [20]


@pytest.fixture
def with_data(source: RunDir, tmp_path: Path) -> Path:
    """Give the run a file of questions; returns it."""
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "q", "answer": 1}\n')
    config = LearnerConfig(task=check_table({"kind": "jsonl", "path": str(data)}))
    write_atomically(source.config, resolved(config).encode())
    recorded = read_rows(str(data)).source
    write_inputs(source.inputs, Recorded((recorded, Input("model.path", "config.json", "0" * 64))))
    return data


def test_a_fork_depends_on_what_its_run_did(
    source: RunDir, with_data: Path, tmp_path: Path
) -> None:
    made = fork_run(options(source, tmp_path)).run_dir
    other = fork_run(
        options(
            source,
            tmp_path,
            run_dir=tmp_path / "other",
            overrides=("task.kind=sort_digits",),
        )
    ).run_dir

    assert read_inputs(made.inputs) == read_inputs(source.inputs)
    found = read_inputs(other.inputs)
    assert found is not None
    assert [each.key for each in found.inputs] == ["model.path"]


def test_a_fork_of_a_run_whose_data_changed_is_refused_until_that_is_accepted(
    source: RunDir, with_data: Path, tmp_path: Path
) -> None:
    with_data.write_text('{"question": "q", "answer": 2}\n')

    with pytest.raises(ConfigError, match=r"^task\.path: \S+ has changed .*--accept-changed-inp"):
        fork_run(options(source, tmp_path))
    assert not (tmp_path / "new").exists()

    made = fork_run(options(source, tmp_path, accept_changed_inputs=True)).run_dir
    found = read_inputs(made.inputs)
    assert found is not None
    assert [each.key for each in found.inputs] == ["model.path"], "the task is recorded anew"
