import io

import pytest
from rich.console import Console

from echo2swarm.status_view import eta_s, sort_nodes, status_view
from protocols.activation import NodeState, Trouble, TroubleKind
from protocols.reasons import Reason
from protocols.status import (
    Estimate,
    EvaluationPoint,
    EvaluationStatus,
    Outlook,
    Quantity,
    ReasonCount,
    StalenessCount,
    StatusReply,
)
from tests.echo2swarm.sample_status import STATUS, node_with, status_with


def shown(status: StatusReply, *, width: int, plain: bool = False, age_s: float = 0.0) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=not plain)
    console.print(status_view(status, width=width, plain=plain, age_s=age_s))
    return [line.rstrip() for line in console.export_text().splitlines()]


def fact(status: StatusReply, label: str, *, width: int = 140) -> str:
    return next(
        line.removeprefix(label).strip()
        for line in shown(status, width=width, plain=True)
        if line.startswith(label)
    )


def node_line(status: StatusReply, *, width: int = 140) -> str:
    return shown(status, width=width, plain=True)[-1]


def test_plain_text_at_80_columns() -> None:
    assert shown(STATUS, width=80, plain=True) == [
        "run demo-7f3a  training",
        "step       12 of 32  ########............  38 %  256 s to go",
        "version    12, published every step; staleness at most 2",
        "learner    busy ######.... 62 %   waiting ##........ 25 %   over 120 s",
        "rollouts   12.2/s supplied, 16.0/s needed;  34 buffered, 128 in flight",
        "staleness  0: 512 ####  1: 1024 ########  2: 12 #",
        "update     reward 0.547   train 8.00 s",
        "weights    to all nodes in 2.30 s, the links allow 1.90 s;  sent 4.00 GB",
        "refused    wrong_version 5, stale 3",
        "loop       at most 12 ms late;  up 312 s",
        "advice     Supply is short by 3.8 rollouts/s.",
        "node   state  version roll/s accept train refuse last refusal                  B",
        "node-a active      12   4.25   1234  1180      0 -                        2.13 s",
        "node-b active 11 (-1)   4.25   1234  1180      3 stale: version 8 at s... 2.13 s",
    ]


@pytest.mark.parametrize(
    ("num_prompts", "running", "text"),
    [
        (64, None, "version 10: mean@4 0.500 [0.438, 0.562], pass@1 0.250 [0.188, 0.312]"),
        (
            63,
            12,
            "version 10: mean@4 0.500 [0.438, 0.562], pass@1 0.250 [0.188, 0.312] (63 of 64 "
            "prompts);  now of version 12: 8 of 256 samples",
        ),
        (None, 0, "now of version 0: 8 of 256 samples"),
        (None, None, "none so far"),
    ],
)
def test_the_newest_evaluation_and_the_one_that_goes_on_have_a_line(
    num_prompts: int | None, running: int | None, text: str
) -> None:
    newest = None
    if num_prompts is not None:
        newest = EvaluationPoint(
            version=10,
            samples_per_prompt=4,
            num_prompts=num_prompts,
            num_prompts_wanted=64,
            mean_at_k=Estimate(0.5, 0.4375, 0.5625),
            pass_at_1=Estimate(0.25, 0.1875, 0.3125),
        )
    evaluation = EvaluationStatus(
        newest=newest, running_version=running, num_done=8, num_wanted=256
    )

    assert fact(status_with(evaluation=evaluation), "eval", width=200) == text
    assert not any(line.startswith("eval") for line in shown(STATUS, width=140, plain=True))


def test_a_very_wide_screen_shows_the_links_and_who_cannot_be_dialled() -> None:
    lines = shown(STATUS, width=160, plain=True)

    assert lines[-3].split()[-3:] == ["speed", "Mbit/s", "peers"]
    assert lines[-2].endswith("3.22 GB     - 24.0 / 100     12")
    assert lines[-1].endswith("3.22 GB     - 24.0 / 100 12 out")
    assert "sent 4.00 GB at up to 40.0 Mbit/s" in "".join(lines)


def test_a_speed_that_only_the_node_itself_has_measured_is_marked() -> None:
    measured = node_with(speed_rollouts_per_s=4.25, num_speed_samples=9)
    claimed = node_with(speed_rollouts_per_s=4.25, is_speed_prior=True)

    assert " 4.25 24.0" in node_line(status_with(nodes=(measured,)), width=160)
    assert "~4.25 24.0" in node_line(status_with(nodes=(claimed,)), width=160)


def test_it_is_said_why_nodes_stand_by() -> None:
    nodes = tuple(
        node_with(name=f"node-{i}", directive="standby", why=f"standby: \x1bothers {i} are cheaper")
        for i in range(6)
    )
    gone = node_with(name="gone", directive="standby", why="standby: lost", is_connected=False)

    lines = shown(status_with(nodes=(*nodes, gone)), width=80, plain=True)

    said = [line for line in lines if line.startswith("standby")]
    assert len(said) == 4
    assert said[0] == "standby    node-0: others 0 are cheaper"
    assert lines[lines.index(said[-1]) + 1].strip() == "and 2 more stand by"


def test_what_a_contributor_should_see_to_is_said_of_some_nodes() -> None:
    nodes = tuple(
        node_with(name=f"node-{i}", warning="\x1btwo processes share its identity")
        for i in range(9)
    )

    lines = [
        line
        for line in shown(status_with(nodes=nodes), width=80, plain=True)
        if line.startswith("warning")
    ]

    assert len(lines) == 3
    assert lines[0] == "warning    node-0 00000001: two processes share its identity"


def test_what_nodes_say_keeps_them_from_working_is_shown() -> None:
    trouble = Trouble(TroubleKind.APPLY, "\x1bout of memory")
    nodes = (
        node_with(name="ada", trouble=trouble),
        node_with(name="bob", trouble=trouble, is_connected=False),
        node_with(name="eve", num_left_out=12),
    )

    lines = shown(status_with(nodes=nodes), width=80, plain=True)

    assert "trouble    ada 00000001 says apply: out of memory" in lines
    assert not any("bob" in line for line in lines if line.startswith("trouble"))
    assert "left out   12 rollouts of eve 00000001" in lines


def test_plain_text_at_140_columns_tells_of_price_and_traffic() -> None:
    assert shown(STATUS, width=140, plain=True)[-3:] == [
        "node   id       state  wanted version roll/s accept train refuse "
        "last refusal                                B  $/h      up    down",
        "node-a 00000001 active active      12   4.25   1234  1180      0 "
        "-                                      2.13 s 0.50 1.30 GB 3.22 GB",
        "node-b 00000002 active active 11 (-1)   4.25   1234  1180      3 "
        "stale: version 8 at step 12, at most 2 2.13 s 0.50 1.30 GB 3.22 GB",
    ]


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    busy = node_with(
        name="a-name-that-goes-on-and-on",
        num_accepted=12_345_678,
        num_trained=12_345_678,
        last_refusal="x" * 200,
        refusals=(ReasonCount(Reason.STALE, 1_000_000),),
        applied_version=99_998,
        is_connected=False,
        seconds_since_heartbeat=500.0,
    )

    lines = shown(status_with(nodes=(busy,), newest_version=100_000), width=width)

    assert max(len(line) for line in lines) <= width
    assert "500 s" in lines[-2]


def test_on_a_terminal_the_state_is_framed_and_drawn() -> None:
    lines = shown(STATUS, width=80)

    assert lines[0].startswith("\u256d\u2500 run demo-7f3a  training \u2500")
    assert "12 of 32  \u2588\u2588\u2588\u2588\u2588\u2588\u2588\u258c\u2591" in lines[1]


def test_plain_text_has_only_ascii() -> None:
    assert "".join(shown(STATUS, width=80, plain=True)).isascii()


def test_what_a_node_calls_itself_is_neither_markup_nor_a_control_code() -> None:
    line = node_line(status_with(nodes=(node_with(name="\x1b[31m[bold]x"),)))

    assert line.startswith("[31m[bold]x ")


def test_a_node_that_is_silent_is_lost_not_active() -> None:
    lost = node_with(is_connected=False, seconds_since_heartbeat=34.2)

    assert " lost 34 s " in node_line(status_with(nodes=(lost,)))


def test_a_node_that_left_is_not_lost() -> None:
    left = node_with(is_connected=False, state=NodeState.LEFT)

    assert " left " in node_line(status_with(nodes=(left,)))


def test_present_nodes_come_first_then_lost_ones_then_those_that_left() -> None:
    left = node_with(name="a", state=NodeState.LEFT)
    lost = node_with(name="b", is_connected=False)
    here, other = node_with(name="c"), node_with(name="d")

    assert sort_nodes([left, other, lost, here]) == [here, other, lost, left]


def test_unknown_figures_are_dashes() -> None:
    status = status_with(
        train_s=None,
        broadcast_s=None,
        expected_broadcast_s=None,
        upload_bytes_per_s=None,
        reward_mean=None,
        needed_rollouts_per_s=None,
    )

    assert fact(status, "update") == "reward -   train -"
    assert fact(status, "weights") == "to all nodes in -, the links allow -;  sent 4.00 GB"
    assert fact(status, "rollouts").startswith("12.2/s supplied, -/s needed;")


def test_a_run_without_nodes_and_without_training_says_so() -> None:
    status = status_with(nodes=(), staleness=())

    assert node_line(status) == "no node has joined yet"
    assert fact(status, "staleness") == "nothing trained yet"


def test_staleness_beyond_what_fits_is_hinted_at() -> None:
    status = status_with(staleness=tuple(StalenessCount(s, 1) for s in range(40)))

    assert fact(status, "staleness").endswith("...")


def test_an_old_answer_says_how_old_it_is() -> None:
    assert "age        this is 10.0 s old" in shown(STATUS, width=80, plain=True, age_s=10)
    assert not [line for line in shown(STATUS, width=80, plain=True) if line.startswith("age")]


@pytest.mark.parametrize(
    ("phase", "age_s", "label", "start"),
    [
        (
            "training",
            30.0,
            "age",
            "this is 30 s old: is the learner at work? If not, ",
        ),
        ("stopped", 0.0, "next", "no learner is at work; echo2-learner serve --resume"),
        ("failed", 600.0, "next", "no learner is at work; echo2-learner serve --resume"),
    ],
)
def test_where_no_learner_is_at_work_it_says_how_to_go_on_and_nothing_of_what_is_to_come(
    phase: str, age_s: float, label: str, start: str
) -> None:
    status = status_with(phase=phase, advice="add a node")
    lines = shown(status, width=160, plain=True, age_s=age_s)

    assert [line for line in lines if line.startswith(f"{label:<11}{start}")]
    assert not [line for line in lines if line.startswith("advice")]
    if phase != "training":
        assert not [line for line in lines if "to go" in line]


def test_a_finished_run_needs_nothing_however_old_its_status_is() -> None:
    lines = shown(status_with(phase="finished"), width=80, plain=True, age_s=1e6)
    assert not [line for line in lines if line.startswith(("age", "next"))]


def test_shares_are_over_no_more_time_than_the_learner_has_run() -> None:
    status = status_with(window_s=300.0, uptime_s=20.0)
    assert "over 20 s" in fact(status, "learner")


@pytest.mark.parametrize("width", [50, 60, 70, 80, 100, 119])
def test_no_name_state_or_heading_is_cut_however_narrow_the_screen(width: int) -> None:
    lines = shown(status_with(nodes=(node_with(name="a-long-name-14"),)), width=width, plain=True)
    table = lines[-2:]

    assert table[1].startswith("a-long-name-14 active")
    assert table[0].split()[:3] == ["node", "state", "version"]
    assert "…" not in table[0]
    assert max(map(len, table)) <= width


def test_time_to_go_follows_from_the_update_and_the_busy_share() -> None:
    assert eta_s(status_with(learner_step=30, train_s=8.0, busy_share=0.5)) == 32.0
    assert eta_s(status_with(learner_step=32)) == 0.0
    assert eta_s(status_with(train_s=None)) is None
    assert eta_s(status_with(busy_share=0.0)) is None


def test_the_forecast_stands_beside_what_was_measured_and_says_what_it_rests_on() -> None:
    outlook = Outlook(
        train=Quantity(8.0, 8.5, 36),
        broadcast=Quantity(1.25, 1.5, 70),
        rollout=Quantity(4.0, 6.0, 0, is_prior=True),
        capacity_rollouts_per_s=14.0,
        required_rollouts_per_s=16.0,
        step_s=9.1,
        busy_share=0.875,
        binds="supply",
        min_staleness=2,
        refused_share=0.031,
        dropped_share=0.0,
        usd_per_hour=1.5,
        usd_per_million_tokens=0.125,
    )
    told = status_with(outlook=outlook)

    assert fact(told, "learner").endswith("over 120 s   forecast 88 %")
    assert fact(told, "measured") == (
        "update 8.00 s-8.50 s (36x);  broadcast 1.25 s-1.50 s (70x);  "
        "rollout 4.00 s-6.00 s (assumed)"
    )
    assert fact(told, "capacity") == (
        "14.0/s possible, 16.0/s required;  staleness 2 needed;  rollouts are short;  3 % refused"
    )
    assert fact(told, "cost") == (
        "$1.50/h for the active nodes;  $0.125 per million trained tokens"
    )
    assert max(len(line) for line in shown(told, width=80)) <= 80


def test_what_is_not_known_yet_takes_no_line() -> None:
    outlook = Outlook(None, None, None, 0.0, None, None, None, "", None, None, None, 0.0, None)

    assert shown(status_with(outlook=outlook), width=80) == shown(STATUS, width=80)


def test_it_is_said_how_many_nodes_are_left_out() -> None:
    cut = status_with(num_nodes_left_out=3000)

    assert shown(cut, width=100)[-1] == "and 3000 more nodes, which do less or nothing"
    assert "more nodes" not in "".join(shown(STATUS, width=100))
