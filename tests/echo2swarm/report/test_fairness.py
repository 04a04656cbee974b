"""Whether slow nodes or long answers are starved can be read from the ledger."""

import sqlite3
from collections.abc import Iterator

import pytest

from echo2swarm.report.fairness import MIN_ISSUED, NONE, Shares, read_shares
from learner.ledger.schema import SCHEMA

FAST, SLOW = "peer-of-the-fast-one", "peer-of-the-slow-one"


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    connection.execute("INSERT INTO meta VALUES ('max_staleness', '2')")
    yield connection
    connection.close()


def add(
    db: sqlite3.Connection,
    group: int,
    *,
    peer: str = FAST,
    issued: int = 4,
    accepted: int = 4,
    is_trained: bool = True,
    prompt_tokens: int = 5,
    answer_tokens: int = 10,
    reward: float = 1.0,
    lease: str | None = None,
) -> None:
    lease = lease or f"lease-{group}"
    step = 1 if is_trained else None
    db.execute(
        "INSERT INTO groups VALUES (?, ?, 0, ?, NULL, NULL) ON CONFLICT DO NOTHING",
        (group, bytes(4 * prompt_tokens), step),
    )
    db.execute("INSERT INTO leases VALUES (?, ?, 's', 0, 2, 0, 1, 'done', 0)", (lease, peer))
    for index in range(issued):
        db.execute("INSERT INTO leased_samples VALUES (?, ?, ?, 0)", (lease, group, index))
    for index in range(accepted):
        db.execute(
            "INSERT INTO rollouts VALUES (?, ?, ?, ?, 0, ?, 0, ?, '', NULL, NULL, 0, ?)",
            (group, index, lease, peer, answer_tokens, reward, step),
        )


def by(db: sqlite3.Connection, what: str) -> Shares:
    (found,) = [s for s in read_shares(db, {FAST: "fast", SLOW: "slow"}) if s.by == what]
    return found


def counts(shares: Shares) -> dict[str, tuple[int, int, int]]:
    return {k.name: (k.num_issued, k.num_accepted, k.num_trained) for k in shares.kinds}


def test_rollouts_are_counted_by_node(db: sqlite3.Connection) -> None:
    add(db, 1)
    add(db, 2, peer=SLOW, accepted=1, is_trained=False)

    assert counts(by(db, "node")) == {"fast": (4, 4, 4), "slow": (4, 1, 0)}


def test_a_node_that_is_trained_on_less_than_it_is_asked_is_starved(
    db: sqlite3.Connection,
) -> None:
    for group in range(0, 2 * MIN_ISSUED, 2):
        add(db, group, issued=1, accepted=1)
        add(db, group + 1, peer=SLOW, issued=1, accepted=1, is_trained=group % 8 == 0)
    shares = by(db, "node")

    assert [kind.name for kind in shares.starved] == ["slow"]
    fast, slow = shares.kinds
    assert shares.issued_share(slow) == 0.5
    assert shares.trained_share(fast) == pytest.approx(20 / 25)


def test_of_few_rollouts_nothing_is_said(db: sqlite3.Connection) -> None:
    add(db, 1)
    add(db, 2, peer=SLOW, issued=MIN_ISSUED - 1, accepted=0, is_trained=False)

    assert by(db, "node").starved == ()


def test_lengths_are_counted_from_one_power_of_two_to_the_next(db: sqlite3.Connection) -> None:
    for group, tokens in enumerate((1, 2, 3, 4, 7, 8)):
        add(db, group, issued=1, accepted=1, prompt_tokens=tokens, answer_tokens=tokens)

    expected = {"1": (1, 1, 1), "2 to 3": (2,) * 3, "4 to 7": (2,) * 3, "8 to 15": (1,) * 3}
    assert counts(by(db, "prompt tokens")) == expected
    assert counts(by(db, "answer tokens")) == expected


def test_what_was_never_answered_counts_with_its_siblings_length(db: sqlite3.Connection) -> None:
    add(db, 1, accepted=1, is_trained=False, answer_tokens=100)
    add(db, 2, accepted=0, is_trained=False)

    found = by(db, "answer tokens")
    assert counts(found) == {"64 to 127": (4, 1, 0), NONE: (4, 0, 0)}
    assert [kind.name for kind in found.kinds][-1] == NONE


def test_prompts_are_told_apart_by_how_hard_they_are(db: sqlite3.Connection) -> None:
    for group, reward in enumerate((0.0, 0.2, 0.6, 1.0)):
        add(db, group, issued=1, accepted=1, reward=reward)
    add(db, 9, issued=1, accepted=0, is_trained=False)

    names = [kind.name for kind in by(db, "mean reward of the prompt").kinds]
    assert names == ["0 or less", "to 0.25", "to 0.75", "1 or more", NONE]


def test_what_was_asked_of_two_nodes_was_issued_twice_and_trained_once(
    db: sqlite3.Connection,
) -> None:
    add(db, 1, issued=2, accepted=2)
    add(db, 1, peer=SLOW, issued=2, accepted=0, lease="backup")

    assert counts(by(db, "node")) == {"fast": (2, 2, 2), "slow": (2, 0, 0)}


def test_an_empty_ledger_has_no_kinds_and_nothing_starved(db: sqlite3.Connection) -> None:
    assert [(shares.kinds, shares.starved) for shares in read_shares(db, {})] == [((), ())] * 4
