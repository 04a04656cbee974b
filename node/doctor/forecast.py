"""Whether a machine's rollouts would be in time: by the same functions that the learner uses."""

from math import ceil

from echo2swarm.scheduling.capacity import Delays, LearnerLoad, forecast, stale_share
from echo2swarm.weights.update_plan import REBUILT_BYTES_PER_S
from node.doctor.findings import Prospect
from protocols.manifest import PolicyManifest
from protocols.status import StatusReply


def prospect_of(
    status: StatusReply,
    manifest: PolicyManifest,
    *,
    tokens_per_s: float,
    download_bytes_per_s: float,
    load_s: float,
) -> Prospect | None:
    """Return what the run would have of this machine; None before its first update.

    Each rollout is taken for as long as the run allows, and a lease for one group: so what is
    in time here is in time in any case, and what is late may still be a little better.

    Args:
        status: of the run.
        manifest: of its newest version.
        tokens_per_s: what the engine does when it has enough to do.
        download_bytes_per_s: of the line.
        load_s: for the engine to apply a version.
    """
    train_s = status.train_s
    if train_s is None or tokens_per_s <= 0 or download_bytes_per_s <= 0:
        return None
    update_bytes = min(
        [manifest.weights.size_bytes, *(d.payload.size_bytes for d in manifest.deltas)]
    )
    rebuild_s = manifest.weights.size_bytes / REBUILT_BYTES_PER_S if manifest.deltas else 0.0
    tokens_per_group = status.group_size * manifest.sampling.max_new_tokens
    workload = LearnerLoad(
        rollouts_per_step=status.rollouts_per_step,
        train_s=max(train_s, 1e-3),
        max_staleness=status.max_staleness,
        publish_every=status.publish_every,
    )
    delays = Delays(
        broadcast_s=update_bytes / download_bytes_per_s + rebuild_s + load_s,
        rollout_s=tokens_per_group / tokens_per_s,
    )
    outlook = status.outlook
    # As measured and predicted; else as it would be with as many such machines as it takes.
    fed_per_s = workload.rollouts_per_step / workload.fed_period_s
    step_s = (outlook.step_s if outlook else None) or forecast(
        workload, delays, rollouts_per_s=fed_per_s
    ).period_s
    return Prospect(
        late_versions=late_versions(delays.total_s, step_s, max_staleness=status.max_staleness),
        wasted_share=stale_share(workload, delays),
        max_staleness=status.max_staleness,
        broadcast_s=delays.broadcast_s,
        rollout_s=delays.rollout_s,
        step_s=step_s,
        rollouts_per_s=tokens_per_s / manifest.sampling.max_new_tokens,
        required_rollouts_per_s=outlook.required_rollouts_per_s if outlook else None,
    )


def late_versions(delay_s: float, step_s: float, *, max_staleness: int) -> int:
    """Return how many updates have begun between a version and the use of rollouts with it.

    The first update after a version begins with it is on older rollouts; where none older may
    be used, that one waits.
    """
    num_steps = ceil(delay_s / step_s * (1 - 1e-9))
    return max(0, num_steps if max_staleness > 0 else num_steps - 1)
