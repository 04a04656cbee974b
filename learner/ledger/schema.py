"""The tables of the ledger. What must never happen is forbidden here, not only in the code."""

from typing import Final

SCHEMA_VERSION: Final = 3

_EVALUATIONS: Final = """
-- Evaluations on held-out prompts. Training knows nothing of these tables, and reads none of them.
CREATE TABLE evaluations (
    version INTEGER PRIMARY KEY,
    num_prompts INTEGER NOT NULL,
    samples_per_prompt INTEGER NOT NULL,
    temperature REAL NOT NULL,
    max_new_tokens INTEGER NOT NULL,
    started_unix_s REAL NOT NULL,
    ended_unix_s REAL,
    outcome TEXT,
    figures TEXT,
    CHECK ((ended_unix_s IS NULL) = (outcome IS NULL))
);

-- As they are numbered in evaluations: the same ones in each.
CREATE TABLE evaluation_prompts (
    prompt_index INTEGER PRIMARY KEY,
    prompt_tokens BLOB NOT NULL
);

CREATE TABLE evaluation_leases (
    lease_id TEXT PRIMARY KEY,
    version INTEGER NOT NULL REFERENCES evaluations,
    peer TEXT NOT NULL,
    session_id TEXT NOT NULL,
    granted_unix_s REAL NOT NULL,
    samples TEXT NOT NULL
) WITHOUT ROWID;

-- One row per judged sample; the key forbids two for one sample.
CREATE TABLE evaluation_samples (
    version INTEGER NOT NULL REFERENCES evaluations,
    prompt_index INTEGER NOT NULL REFERENCES evaluation_prompts,
    sample_index INTEGER NOT NULL,
    lease_id TEXT NOT NULL REFERENCES evaluation_leases,
    peer TEXT NOT NULL,
    num_tokens INTEGER NOT NULL,
    is_truncated INTEGER NOT NULL,
    reward REAL NOT NULL,
    is_failed INTEGER NOT NULL,
    text TEXT NOT NULL,
    accepted_unix_s REAL NOT NULL,
    PRIMARY KEY (version, prompt_index, sample_index)
) WITHOUT ROWID;
"""

_TRAINING: Final = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- One row per prompt that was ever leased. Open until trained or dropped, never both.
CREATE TABLE groups (
    group_id INTEGER PRIMARY KEY,
    prompt_tokens BLOB NOT NULL,
    opened_unix_s REAL NOT NULL,
    trained_step INTEGER,
    drop_reason TEXT,
    closed_unix_s REAL,
    CHECK (trained_step IS NULL OR drop_reason IS NULL)
);
CREATE INDEX open_groups ON groups (group_id)
    WHERE trained_step IS NULL AND drop_reason IS NULL;

CREATE TABLE leases (
    lease_id TEXT PRIMARY KEY,
    peer TEXT NOT NULL,
    session_id TEXT NOT NULL,
    min_version INTEGER NOT NULL,
    deadline_step INTEGER NOT NULL,
    granted_unix_s REAL NOT NULL,
    ended_unix_s REAL,
    outcome TEXT,
    num_unfinished INTEGER
) WITHOUT ROWID;

CREATE TABLE leased_samples (
    lease_id TEXT NOT NULL REFERENCES leases,
    group_id INTEGER NOT NULL REFERENCES groups,
    sample_index INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    PRIMARY KEY (lease_id, group_id, sample_index)
) WITHOUT ROWID;

-- One row per accepted rollout; the key forbids two for one sample.
CREATE TABLE rollouts (
    group_id INTEGER NOT NULL REFERENCES groups,
    sample_index INTEGER NOT NULL,
    lease_id TEXT NOT NULL REFERENCES leases,
    peer TEXT NOT NULL,
    version INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL,
    is_truncated INTEGER NOT NULL,
    reward REAL NOT NULL,
    text TEXT NOT NULL,
    tokens BLOB,
    logprobs BLOB,
    accepted_unix_s REAL NOT NULL,
    trained_step INTEGER,
    staleness INTEGER GENERATED ALWAYS AS (trained_step - version) STORED,
    PRIMARY KEY (group_id, sample_index),
    CHECK (staleness IS NULL OR staleness >= 0)
);
CREATE INDEX rollouts_by_step ON rollouts (trained_step);
CREATE INDEX rollouts_by_peer ON rollouts (peer, trained_step);
CREATE INDEX repeatable_rollouts ON rollouts (trained_step) WHERE tokens IS NOT NULL;
CREATE INDEX groups_by_step ON groups (trained_step);

CREATE TRIGGER no_rollout_is_trained_twice
BEFORE UPDATE OF trained_step ON rollouts
WHEN OLD.trained_step IS NOT NULL AND NEW.trained_step IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a rollout would be trained twice'); END;

-- Trained rollouts by staleness, so that nobody counts millions of them at each update.
CREATE TABLE staleness (
    lag INTEGER PRIMARY KEY,
    num_rollouts INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER trained_rollouts_are_counted
AFTER UPDATE OF trained_step ON rollouts
WHEN OLD.trained_step IS NULL AND NEW.trained_step IS NOT NULL
BEGIN
    INSERT INTO staleness VALUES (NEW.staleness, 1)
    ON CONFLICT DO UPDATE SET num_rollouts = num_rollouts + 1;
END;

CREATE TRIGGER no_stale_rollout_is_trained
AFTER UPDATE OF trained_step ON rollouts
WHEN NEW.staleness > (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'max_staleness')
BEGIN SELECT RAISE(ABORT, 'a rollout beyond max_staleness would be trained'); END;

CREATE TABLE refusals (
    peer TEXT NOT NULL,
    reason TEXT NOT NULL,
    num_refused INTEGER NOT NULL,
    last_detail TEXT NOT NULL,
    last_unix_s REAL NOT NULL,
    PRIMARY KEY (peer, reason)
) WITHOUT ROWID;

CREATE TABLE versions (
    version INTEGER PRIMARY KEY,
    weights_sha256 BLOB NOT NULL,
    size_bytes INTEGER NOT NULL,
    published_unix_s REAL NOT NULL
);

CREATE TABLE nodes (
    peer TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    engine TEXT NOT NULL,
    device TEXT NOT NULL,
    usd_per_hour REAL NOT NULL,
    num_sessions INTEGER NOT NULL,
    first_unix_s REAL NOT NULL,
    last_unix_s REAL NOT NULL
) WITHOUT ROWID;
"""
SCHEMA: Final = _TRAINING + _EVALUATIONS

MIGRATIONS: Final = {
    1: """
DROP INDEX rollouts_by_peer;
CREATE INDEX rollouts_by_peer ON rollouts (peer, trained_step);
CREATE INDEX repeatable_rollouts ON rollouts (trained_step) WHERE tokens IS NOT NULL;
CREATE INDEX groups_by_step ON groups (trained_step);
CREATE TABLE staleness (
    lag INTEGER PRIMARY KEY,
    num_rollouts INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO staleness SELECT staleness, COUNT(*) FROM rollouts
    WHERE staleness IS NOT NULL GROUP BY 1;
CREATE TRIGGER trained_rollouts_are_counted
AFTER UPDATE OF trained_step ON rollouts
WHEN OLD.trained_step IS NULL AND NEW.trained_step IS NOT NULL
BEGIN
    INSERT INTO staleness VALUES (NEW.staleness, 1)
    ON CONFLICT DO UPDATE SET num_rollouts = num_rollouts + 1;
END;
INSERT OR REPLACE INTO meta SELECT 'forgotten_before', CAST(MAX(trained_step) + 1 AS TEXT)
    FROM rollouts WHERE trained_step IS NOT NULL AND tokens IS NULL
    HAVING MAX(trained_step) IS NOT NULL;
""",
    2: _EVALUATIONS,
}
"""What brings a ledger of the format before to the next one."""
