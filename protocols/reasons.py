"""Every reason for which something is refused; specification: ``docs/specs/reasons.md``.

The value is what travels, what the contributor's log shows, what ``swarm
status`` counts and what metrics are labelled with, so it never changes meaning.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why a message, rollout, chunk or manifest was refused."""

    # Any message.
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    BAD_SIGNATURE = "bad_signature"
    WRONG_RUN = "wrong_run"
    EXPIRED = "expired"
    RATE_LIMITED = "rate_limited"
    NOT_A_MEMBER = "not_a_member"
    INTERNAL = "internal"

    # Manifests.
    OLD_VERSION = "old_version"

    # Leases and rollouts.
    UNKNOWN_LEASE = "unknown_lease"
    LEASE_EXPIRED = "lease_expired"
    NOT_YOUR_LEASE = "not_your_lease"
    UNKNOWN_PROMPT = "unknown_prompt"
    DUPLICATE = "duplicate"
    ALREADY_ANSWERED = "already_answered"
    WRONG_VERSION = "wrong_version"
    STALE = "stale"
    FROM_THE_FUTURE = "from_the_future"
    WRONG_SHAPE = "wrong_shape"
    NON_FINITE_LOGPROB = "non_finite_logprob"
    POSITIVE_LOGPROB = "positive_logprob"
    IMPOSSIBLE_LOGPROB = "impossible_logprob"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"  # noqa: S105 - not a password
    WRONG_FINISH = "wrong_finish"
    UNSCORABLE = "unscorable"
    NOT_SAMPLED = "not_sampled"

    # Chunks.
    UNKNOWN_PAYLOAD = "unknown_payload"
    UNKNOWN_CHUNK = "unknown_chunk"
    BAD_CHUNK_HASH = "bad_chunk_hash"

    # Deltas.
    BAD_DELTA = "bad_delta"
    WRONG_BASE = "wrong_base"
