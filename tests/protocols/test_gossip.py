import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protocols import manifest
from protocols.gossip import ManifestGate, Validation
from protocols.ids import RunId
from protocols.reasons import Reason
from tests.protocols.samples import KEY, MANIFEST, OTHER_KEY, RUN


def gate() -> ManifestGate:
    return ManifestGate(KEY.public_key(), RunId(RUN))


def sealed(version: int, *, publish_every: int = 1) -> bytes:
    other = msgspec.structs.replace(
        MANIFEST, version=version, publish_every=publish_every, deltas=()
    )
    return manifest.sign_manifest(other, KEY)


def test_a_new_genuine_manifest_is_accepted_and_becomes_the_newest() -> None:
    g = gate()

    judgement = g.judge(sealed(3))

    assert judgement.fate is Validation.ACCEPT
    assert judgement.manifest == manifest.verify_manifest(
        sealed(3), KEY.public_key(), run=RunId(RUN)
    )
    assert (g.newest, g.newest_bytes, g.newest_version) == (judgement.manifest, sealed(3), 3)


def test_before_any_manifest_there_is_no_newest() -> None:
    g = gate()

    assert (g.newest, g.newest_bytes, g.newest_version) == (None, None, None)


def test_the_same_manifest_again_is_ignored_as_known() -> None:
    g = gate()
    g.judge(sealed(3))

    judgement = g.judge(sealed(3))

    assert (judgement.fate, judgement.reason) == (Validation.IGNORE, Reason.DUPLICATE)
    assert judgement.manifest is None


def test_an_older_version_replayed_is_ignored_and_changes_nothing() -> None:
    g = gate()
    g.judge(sealed(3))

    judgement = g.judge(sealed(2))

    assert (judgement.fate, judgement.reason) == (Validation.IGNORE, Reason.OLD_VERSION)
    assert g.newest_version == 3


def test_another_manifest_of_the_same_version_is_ignored() -> None:
    g = gate()
    g.judge(sealed(3))

    judgement = g.judge(sealed(3, publish_every=2))

    assert (judgement.fate, judgement.reason) == (Validation.IGNORE, Reason.OLD_VERSION)
    assert g.newest_bytes == sealed(3)


def test_a_forged_manifest_is_rejected_and_changes_nothing() -> None:
    g = gate()
    g.judge(sealed(3))
    forged = manifest.sign_manifest(msgspec.structs.replace(MANIFEST, version=9), OTHER_KEY)

    judgement = g.judge(forged)

    assert (judgement.fate, judgement.reason) == (Validation.REJECT, Reason.BAD_SIGNATURE)
    assert judgement.manifest is None
    assert g.newest_version == 3


def test_a_manifest_of_another_run_of_the_same_learner_is_rejected() -> None:
    other = manifest.sign_manifest(msgspec.structs.replace(MANIFEST, run_id="other"), KEY)

    judgement = gate().judge(other)

    assert (judgement.fate, judgement.reason) == (Validation.REJECT, Reason.WRONG_RUN)


def test_a_message_over_the_limit_is_rejected_for_its_size() -> None:
    judgement = gate().judge(bytes(manifest.MAX_BYTES + 1))

    assert (judgement.fate, judgement.reason) == (Validation.REJECT, Reason.TOO_LARGE)


@given(st.binary(max_size=100))
def test_garbage_is_rejected_with_a_reason(data: bytes) -> None:
    judgement = gate().judge(data)

    assert judgement.fate is Validation.REJECT
    assert judgement.reason is not None
    assert judgement.detail


@given(st.lists(st.integers(0, 6), max_size=12))
def test_versions_only_ever_go_up_whatever_the_order_of_arrival(versions: list[int]) -> None:
    g = gate()
    accepted = [v for v in versions if g.judge(sealed(v)).fate is Validation.ACCEPT]

    assert accepted == sorted(set(accepted))
    assert g.newest_version == (max(versions) if versions else None)
