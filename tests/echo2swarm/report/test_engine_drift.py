from pathlib import Path
from typing import Any

import pytest

from echo2swarm.report.engine_drift import Drift, NodeDrift, by_engine, drift_of_nodes
from echo2swarm.report.engines import engines_text
from echo2swarm.report.report import summarize_run, write_report
from echo2swarm.report.run_reader import read_run
from tests.echo2swarm.sample_run import NUM_STEPS, write_run


def line(step: int, **peers: object) -> dict[str, Any]:
    return {"step": step, "drift_by_peer": peers}


def told(num_tokens: float, drift: float, kl: float) -> dict[str, float]:
    return {"num_tokens": num_tokens, "drift_mean": drift, "kl_behaviour_prox": kl}


def contribution(engine: str, node: str, drift: Drift | None = None, num: int = 1) -> NodeDrift:
    return NodeDrift(
        engine=engine,
        node=node,
        num_accepted=3 * num,
        num_trained=2 * num,
        drift=drift or Drift(),
    )


def test_every_token_counts_alike_whatever_step_it_was_trained_in() -> None:
    drifts = drift_of_nodes([line(1, a=told(1, 0.1, 0.01)), line(2, a=told(3, 0.5, 0.05))])

    assert drifts["a"].num_tokens == 4
    assert drifts["a"].mean_difference == pytest.approx(0.4)
    assert drifts["a"].mean_kl == pytest.approx(0.04)


def test_of_a_step_done_again_the_last_line_counts() -> None:
    first, again = line(1, a=told(5, 9.0, 9.0)), line(1, a=told(2, 0.1, 0.2))

    drifts = drift_of_nodes([first, line(2, b=told(1, 0.3, 0.4)), again])

    assert drifts["a"].num_tokens == 2
    assert drifts["a"].mean_difference == pytest.approx(0.1)
    assert drifts["b"].mean_kl == pytest.approx(0.4)


@pytest.mark.parametrize(
    "of_peer", [0.25, None, {}, {"num_tokens": 3}, told(0, 0.1, 0.1), {**told(3, 1, 1), "x": []}]
)
def test_what_is_of_another_form_is_left_out_or_read_as_far_as_it_goes(of_peer: object) -> None:
    drifts = drift_of_nodes([{"event": "x"}, {"step": 1}, line(2, a=of_peer)])

    assert drifts["a"].num_tokens == (3 if isinstance(of_peer, dict) and "x" in of_peer else 0)


def test_nothing_is_said_of_no_tokens() -> None:
    assert Drift().mean_difference is None
    assert Drift().mean_kl is None


def test_nodes_with_the_same_engine_and_version_are_taken_together() -> None:
    near = Drift(num_tokens=10, sum_difference=0.1, sum_kl=0.01)
    far = Drift(num_tokens=30, sum_difference=0.9, sum_kl=0.09)

    vllm, one, other = by_engine(
        [
            contribution("transformers 5.24.0", "b", near),
            contribution("transformers 5.19.0", "d", near),
            contribution("transformers 5.24.0", "c", far, num=2),
        ]
    ) + by_engine([contribution("vllm 0.32.0", "a")])

    assert (vllm.engine, vllm.node) == ("transformers 5.19.0", "d")
    assert (one.engine, one.node) == ("transformers 5.24.0", "all 2")
    assert (one.num_accepted, one.num_trained) == (9, 6)
    assert one.drift.mean_difference == pytest.approx(0.025)
    assert one.drift.mean_kl == pytest.approx(0.0025)
    assert (other.engine, other.node) == ("vllm 0.32.0", "a")


def test_the_table_has_a_line_per_node_and_one_per_engine_of_several() -> None:
    drift = Drift(num_tokens=4, sum_difference=0.08, sum_kl=0.004)
    text = engines_text(
        [
            contribution("transformers", "a", drift),
            contribution("transformers", "b|<b>"),
            contribution("vllm", "c"),
        ]
    )

    assert text.splitlines()[4:] == [
        "| transformers | a | 3 | 2 | 4 | 0.02 | 0.001 |",
        "| transformers | b\\|\\<b\\> | 3 | 2 | 0 | - | - |",
        "| transformers | all 2 | 6 | 4 | 4 | 0.02 | 0.001 |",
        "| vllm | c | 3 | 2 | 0 | - | - |",
    ]


def test_a_report_tells_of_engines_what_ledger_and_metrics_hold(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    num = 3 * NUM_STEPS - 2

    text = write_report(tmp_path / "run", tmp_path / "out").read_text()
    figures = summarize_run(read_run(tmp_path / "run"))

    assert f"| transformers | node-a | {num} | {num} | {3 * NUM_STEPS} | 0.03 | 0.001 |" in text
    (engine,) = figures["engines"]
    assert engine["engine"] == "transformers"
    assert engine["num_tokens_compared"] == 3 * NUM_STEPS
    assert engine["drift_mean"] == pytest.approx(0.03)
    assert figures["contributions"] == figures["engines"]


def test_a_run_without_rollouts_says_so(tmp_path: Path) -> None:
    assert engines_text(()) == "No rollout is on record."
