"""What a heartbeat says of the node."""

from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.traffic import Traffic
from node.engine.base import RolloutEngine
from node.engine.state import EngineState
from node.membership.heartbeats import NodeReport
from node.membership.lifecycle import LifecycleRunner
from node.membership.link_reports import LinkReporter
from node.membership.trouble import trouble_of
from node.rollouts.worker import Worker
from protocols.heartbeat import TroubleKind


def report_of(
    *,
    life: LifecycleRunner,
    engine: RolloutEngine,
    sync: PolicySync,
    worker: Worker,
    traffic: Traffic,
    links: LinkReporter,
    engine_news: EngineState,
) -> NodeReport:
    """Return what there is to report now."""
    held = sync.held
    return NodeReport(
        state=life.state,
        applied_version=engine.applied_version,
        held_version=None if held is None else held.version,
        num_rollouts_in_hand=worker.num_rollouts_in_hand,
        num_engine_restarts=engine.num_restarts,
        payload_bytes_sent=traffic.sent_bytes,
        payload_bytes_received=traffic.received_bytes,
        receiving_s=links.flow.receiving_s,
        links=links.reports(),
        calibrated_tokens_per_s=worker.calibrated_tokens_per_s,
        trouble=trouble_of(
            {
                **worker.errors,
                TroubleKind.ENGINE: "" if engine_news.is_up else engine_news.last_death,
                TroubleKind.FETCH: sync.trouble,
            }
        ),
    )
