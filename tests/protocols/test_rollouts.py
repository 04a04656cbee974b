import msgspec

from protocols import rollouts
from protocols.codec import decode, encode
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout, RolloutVerdict, SubmissionReply


def test_a_verdict_on_every_rollout_fits_one_reply_however_long_the_reasons() -> None:
    verdict = RolloutVerdict(
        group_id=2**63 - 1,
        sample_index=255,
        refusal=max(Reason, key=len),
        detail="\U0001f600" * 200,
    )
    longest = SubmissionReply(
        verdicts=(verdict,) * rollouts.MAX_ROLLOUTS,
        refusal=max(Reason, key=len),
        detail="\U0001f600" * 200,
        learner_step=2**63 - 1,
    )

    wire = encode(longest, max_bytes=rollouts.MAX_REPLY_BYTES)

    assert decode(wire, SubmissionReply, max_bytes=rollouts.MAX_REPLY_BYTES) == longest


def test_there_is_no_place_for_a_reward_that_a_node_claims() -> None:
    assert not {"reward", "score", "advantage"} & set(Rollout.__struct_fields__)


def test_the_words_for_how_a_completion_ended_are_frozen() -> None:
    assert msgspec.json.encode(list(FinishReason)) == b'["stop","length"]'
