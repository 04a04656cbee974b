"""A run's configuration: where it comes from, and what is refused."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.system.errors import ConfigError
from learner.config import LearnerConfig, RolloutConfig
from learner.config.file import load_config, resolved

WriteFile = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    def write_file(text: str) -> Path:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write_file


def read(path: Path | None, *overrides: str, **environment: str) -> LearnerConfig:
    return load_config(path, overrides, environment=environment)


def test_an_empty_file_is_the_defaults_with_the_default_task(write: WriteFile) -> None:
    config = read(write(""))

    assert config == read(None)
    assert config.rollouts == RolloutConfig()
    assert config.task == {
        "kind": "arithmetic",
        "largest": 9,
        "score_limit_s": 2.0,
        "num_scorers": "auto",
        "held_out_share": 0.1,
        "held_out_by": "content",
        "keep_special": (),
    }


def test_flags_win_over_the_environment_over_the_file_over_defaults(write: WriteFile) -> None:
    path = write("[run]\nnum_steps = 1\nseed = 1\nname = 'a'\n[rollouts]\ngroup_size = 4")

    config = read(
        path,
        "run.num_steps=3",
        "run.num_steps=4",
        ECHO2_RUN__NUM_STEPS="2",
        ECHO2_RUN__SEED="2",
    )

    assert config.run.num_steps == 4, "of two flags the later counts"
    assert config.run.seed == 2
    assert config.run.name == "a"
    assert config.rollouts.group_size == 4
    assert config.rollouts.prompts_per_step == RolloutConfig().prompts_per_step


def test_values_of_flags_are_toml_or_plain_text() -> None:
    config = read(
        None,
        "run.name=123",
        "model.path=some/model",
        "rollouts.temperature=1",
        "trainer.scale_advantages=false",
        'swarm.listen=["/ip4/127.0.0.1/tcp/0"]',
        'trainer.device="cpu"',
    )

    assert config.run.name == "123"
    assert config.model.path == "some/model"
    assert config.rollouts.temperature == 1.0
    assert config.trainer.scale_advantages is False
    assert config.swarm.listen == ("/ip4/127.0.0.1/tcp/0",)
    assert config.trainer.device == "cpu"


def test_a_flag_may_reach_into_the_options_of_a_task(write: WriteFile) -> None:
    path = write('[task]\nkind = "reasoning_gym"\ndataset_options = {min_terms = 2, max_terms = 4}')

    config = read(path, "task.dataset_options.max_terms=3")

    assert config.task["dataset_options"] == {"min_terms": 2, "max_terms": 3}


def test_a_task_of_another_kind_takes_over_only_what_every_kind_knows(write: WriteFile) -> None:
    path = write('[task]\nkind = "arithmetic"\nlargest = 20\nheld_out_share = 0.25')

    config = read(path, "task.kind=sort_digits")

    assert config.task["kind"] == "sort_digits"
    assert config.task["held_out_share"] == 0.25
    assert "largest" not in config.task
    with pytest.raises(ConfigError, match=r"task\.largest"):
        read(path, "task.kind=sort_digits", "task.largest=30")


def test_other_variables_of_ours_are_left_alone() -> None:
    assert read(None, ECHO2_CHILD_FD="7", PATH="/bin", ECHO_RUN__SEED="7") == read(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[rollouts]\nmax_stalenes = 2",
            'rollouts.max_stalenes: no such key in [rollouts]; did you mean "max_staleness"?',
        ),
        ("[rolouts]\n", 'rolouts: no such key at the top; did you mean "rollouts"?'),
        (
            "[rollouts]\nmax_staleness = -1",
            "rollouts.max_staleness: expected `int` >= 0, got -1",
        ),
        (
            "[rollouts]\nmax_staleness = 2.5",
            "rollouts.max_staleness: expected `int`, got 2.5",
        ),
        ('[run]\nseed = "x"', 'run.seed: expected `int`, got "x"'),
        ("rollouts = 3", "rollouts: expected `object`, got 3"),
        (
            '[trainer]\nkind = "ppo"',
            'trainer.kind: expected one of "grpo", "sleep", got "ppo"',
        ),
        ("[trainer]\ntrain_s = inf", "trainer.train_s: expected a finite number, got inf"),
        ("[run]\nseed = 99999999999999999999", "run.seed: expected a number up to 90071992547409"),
        ("[swarm]\nticket_valid_h = 1e300", "swarm.ticket_valid_h: expected a number up to 9007"),
        ("[task]\nseeds = [0, -1e17]", "task.seeds: expected a number up to 9007"),
        ('[model]\npath = "\\u0000"', "model.path: expected a text without NUL"),
        ("[swarm]\nlisten = [1]", "swarm.listen[0]: expected `str`, got 1"),
        ("[swarm]\nlisten = []", "swarm.listen: expected at least one address, or nobody can join"),
        (
            '[swarm]\nlisten = ["0.0.0.0:4150"]',
            'swarm.listen: expected addresses like /ip4/0.0.0.0/tcp/4150, got "0.0.0.0:4150"',
        ),
        (
            '[swarm]\nlisten = ["/ip4/127.0.0.1"]',
            'swarm.listen: expected addresses like /ip4/0.0.0.0/tcp/4150, got "/ip4/127.0.0.1"',
        ),
        (
            '[swarm]\nadvertise = ["/ip4/127.0.0.1"]',
            "swarm.advertise: expected addresses like /ip4/203.0.113.9/tcp/4150 or ",
        ),
        (
            '[swarm]\nadvertise = ["/ip4/0.0.0.0/tcp/4150"]',
            'swarm.advertise: "/ip4/0.0.0.0/tcp/4150": no machine is at 0.0.0.0',
        ),
        ('[swarm]\nbootstrap = ["/ip4/1.2.3.4/tcp/1"]', "swarm.bootstrap: '/ip4/1.2.3.4/tcp/1' is"),
        ('[trainer]\ndevice = "gpu"', 'trainer.device: expected "auto", "cpu"'),
        (
            "[rollouts]\nmax_staleness = 2\npublish_every = 4",
            "rollouts.publish_every: expected at most rollouts.max_staleness + 1 = 3, got 4",
        ),
        (
            '[rollouts]\nlease_prompts = "many"',
            'rollouts.lease_prompts: expected one of "auto" or a number, got "many"',
        ),
        (
            "[rollouts]\nlease_prompts = 257",
            "rollouts.lease_prompts: expected at most 256, got 257",
        ),
        (
            "[rollouts]\nlease_prompts = 256\ngroup_size = 256",
            "rollouts.lease_prompts: a lease would be of 65536 completions",
        ),
        (
            "[task]\nlargst = 3",
            'task.largst: no such key in [task] of kind "arithmetic"; did you mean "largest"?',
        ),
        ("[task]\nlargest = 0", "task.largest: expected `int` >= 1, got 0"),
        ('[task]\nkind = "arithmetik"', 'task.kind: no "arithmetik"; did you mean "arithmetic"?'),
        ("[task]\nkind = 3", "task.kind: expected the name of a kind, got 3"),
        ("[run\n", "not valid TOML"),
        ("x = " + "[" * 5000, "too deeply nested"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line_with_file_and_key(
    write: WriteFile, text: str, message: str
) -> None:
    path = write(text)

    with pytest.raises(ConfigError) as caught:
        read(path)

    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_keys_from_two_places_that_do_not_fit_are_told_with_the_one_to_change(
    write: WriteFile,
) -> None:
    message = r"^--set rollouts\.publish_every: rollouts\.publish_every: expected .* = 1, got 2"
    with pytest.raises(ConfigError, match=message):
        read(write("[rollouts]\nmax_staleness = 0"), "rollouts.publish_every=2")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.sed=1", '--set run.sed: run.sed: no such key in [run]; did you mean "seed"?'),
        ("run.seed=-1", "--set run.seed: run.seed: expected `int` >= 0, got -1"),
        (
            "run.name=-x/y",
            "--set run.name: run.name: expected a name of up to 48 letters, digits, dots, hyphens "
            'and underscores, the first of them no dot or hyphen, got "-x/y"',
        ),
        ("run.seed", "'run.seed': a setting is written as table.key=value"),
        (
            "seed=1",
            "'seed=1': a setting is written as table.key=value; did you mean run.seed=1?",
        ),
        ("temperature=1", "'temperature=1': a setting is written as table.key=value"),
        ("swarm.listen=[", "--set swarm.listen: '[' is not a valid TOML value"),
        ("task.largest=100", "--set task.largest: task.largest: expected `int` <= 99, got 100"),
    ],
)
def test_what_is_wrong_in_a_flag_is_told_with_the_flag(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(None, override)

    assert str(caught.value) == message


def test_what_is_wrong_in_the_environment_is_told_with_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"^ECHO2_RUN__SED: run\.sed: no such key in \[run\]"):
        read(None, ECHO2_RUN__SED="1")


def test_a_variable_with_one_underscore_too_few_is_told_and_no_other() -> None:
    with pytest.raises(ConfigError, match=r"^ECHO2_TRAINER_THREADS: .*ECHO2_TRAINER__THREADS, wit"):
        read(None, ECHO2_TRAINER_THREADS="8")
    with pytest.raises(ConfigError, match="ECHO2_ROLLOUTS__MAX_STALENESS"):
        read(None, ECHO2_ROLLOUTS_MAX_STALENESS="8")
    with pytest.raises(ConfigError, match="ECHO2_TASK__KIND"):
        read(None, ECHO2_TASK_KIND="jsonl")

    read(None, ECHO2_TICKET="x", ECHO2_STATE_DIR="x", ECHO2_TRAINER_NOTE="x", ECHO2_RUN="x")


def test_a_file_that_is_not_there_is_told_with_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.toml: can't be read: .*echo2-learner init"):
        read(tmp_path / "run.toml")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read(tmp_path / "f")


def test_paths_are_relative_to_the_file_and_those_of_flags_to_the_current_folder(
    write: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    path = write('[task]\nkind = "jsonl"\npath = "data.jsonl"\n[model]\npath = "models/tiny"')

    config = read(path)
    overridden = read(path, "task.path=other.jsonl", "model.path=./mine")

    assert config.task["path"] == str(tmp_path / "data.jsonl")
    assert config.model.path == str(tmp_path / "models" / "tiny")
    assert overridden.task["path"] == str(here / "other.jsonl")
    assert overridden.model.path == str(here / "mine")


def test_names_of_models_are_no_paths(write: WriteFile) -> None:
    path = write('[model]\npath = "HuggingFaceTB/SmolLM2-135M"')

    assert read(path).model.path == "HuggingFaceTB/SmolLM2-135M"
    assert read(None).model.path == "embedded"


def test_the_functions_of_a_task_lie_beside_the_file_by_default(
    write: WriteFile, tmp_path: Path
) -> None:
    path = write('[task]\nkind = "function"\nscore = "mine:score"\nmake_prompt = "mine:ask"')

    assert read(path).task["folder"] == str(tmp_path)


ROLLOUTS = st.fixed_dictionaries(
    {},
    optional={
        "prompts_per_step": st.integers(1, 1000),
        "group_size": st.integers(2, 16),
        "max_staleness": st.integers(0, 1000),
        "temperature": st.floats(0.01, 10),
        "lease_timeout_s": st.floats(0.001, 1e15),
    },
)


@given(
    rollouts=ROLLOUTS,
    nodes=st.none() | st.integers(1, 9),
    listen=st.lists(st.just("/ip4/127.0.0.1/tcp/0"), min_size=1),
)
def test_the_resolved_configuration_reads_back_as_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    rollouts: dict[str, Any],
    nodes: int | None,
    listen: list[str],
) -> None:
    tables = {"rollouts": rollouts, "swarm": {"listen": listen}}
    tables |= {"selector": {"max_nodes": nodes}} if nodes else {}
    config = msgspec.convert(
        tables
        | {
            "task": {
                "kind": "sort_digits",
                "num_digits": 3,
                "score_limit_s": 1.0,
                "num_scorers": 2,
                "held_out_share": 0.2,
                "held_out_by": "position",
                "keep_special": (),
            }
        },
        LearnerConfig,
    )
    path = tmp_path_factory.mktemp("resolved") / "config.toml"
    path.write_text(resolved(config))

    assert read(path) == config


def test_the_resolved_configuration_has_every_key_that_has_a_value() -> None:
    tables = tomllib.loads(resolved(read(None)))

    assert set(tables) == {field.name for field in msgspec.structs.fields(LearnerConfig)}
    assert set(tables["rollouts"]) == set(RolloutConfig.__struct_fields__)
    assert "max_nodes" not in tables["selector"]


def commented(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_what_other_keys_decide_is_in_the_resolved_configuration_as_comments() -> None:
    text = resolved(read(None, "trainer.objective=dapo", "trainer.clip_low=0.1"))

    of_trainer = text.partition("\n[trainer]\n")[2].partition("\n[")[0]
    assert commented(of_trainer) == [
        '# Left out, and decided by objective = "dapo":',
        "# clip_high = 0.28",
        '# ratio_level = "token"',
        '# length_norm = "token"',
        "# scale_advantages = true",
    ]
    assert "\nclip_low = 0.1\n" in of_trainer
    of_eval = text.partition("\n[eval]\n")[2].partition("\n[")[0]
    assert commented(of_eval) == [
        "# Left out, and decided by [rollouts]:",
        "# temperature = 1.0",
        f"# max_new_tokens = {LearnerConfig().rollouts.max_new_tokens}",
    ]


def test_nothing_is_commented_where_every_key_is_set() -> None:
    text = resolved(
        read(
            None,
            "trainer.clip_low=0.1",
            "trainer.clip_high=0.1",
            "trainer.ratio_level=token",
            "trainer.length_norm=token",
            "trainer.scale_advantages=true",
            "eval.temperature=1.0",
            "eval.max_new_tokens=4",
        )
    )

    assert commented(text) == []


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf[run]\r\nnum_steps = 7\r\n")

    assert read(path).run.num_steps == 7


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_file_in_another_encoding_is_refused_with_what_to_do(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes("[run]\nnum_steps = 7\n".encode(encoding))

    with pytest.raises(ConfigError, match=r"run\.toml: it .*; save it in UTF-8$"):
        read(path)


def test_a_run_that_older_software_began_keeps_what_it_holds_out(tmp_path: Path) -> None:
    before, mine = tmp_path / "config.toml", tmp_path / "run.toml"
    before.write_text('[task]\nkind = "sort_digits"\nnum_digits = 3\nheld_out_share = 0.1\n')
    mine.write_text('[task]\nkind = "sort_digits"\n')

    assert read(mine).task["held_out_by"] == "content"
    for path in (before, mine):
        old = load_config(path, environment={}, of_run=before)
        assert old.task["held_out_by"] == "position"
        # Once it is resolved, it says so itself.
        again = tmp_path / "again.toml"
        again.write_text(resolved(old))
        assert load_config(again, environment={}, of_run=again) == old
    asked = load_config(mine, ['task.held_out_by="content"'], environment={}, of_run=before)
    assert asked.task["held_out_by"] == "content"


def test_a_path_in_a_home_that_nobody_knows_is_refused_with_what_to_set(write: WriteFile) -> None:
    path = write('[model]\npath = "~nobody-of-this-name/model"')

    with pytest.raises(ConfigError, match=r"model\.path: there is no home directory for ~nobody"):
        read(path)
