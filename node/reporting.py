"""What a heartbeat says of the node."""

from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.traffic import Traffic
from node.engine.base import RolloutEngine
from node.life import Life
from node.links import Links
from node.membership import NodeReport
from node.snapshot import EngineNews
from node.trouble import trouble_of
from node.worker import Worker
from protocols.activation import TroubleKind


def report_of(
    *,
    life: Life,
    engine: RolloutEngine,
    sync: PolicySync,
    worker: Worker,
    traffic: Traffic,
    links: Links,
    engine_news: EngineNews,
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
