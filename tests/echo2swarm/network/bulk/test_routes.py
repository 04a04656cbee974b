from echo2swarm.network.bulk.routes import MEMORY_S, BulkRoute, Routes
from protocols.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def test_dialling_comes_first_and_being_called_only_for_who_can_be() -> None:
    assert Routes(is_dialable=True).ways_to(A, now_s=0) == (BulkRoute.DIAL, BulkRoute.CALL_BACK)
    assert Routes(is_dialable=False).ways_to(A, now_s=0) == (BulkRoute.DIAL,)


def test_a_way_that_failed_is_left_out_for_a_while_and_for_that_peer() -> None:
    routes = Routes(is_dialable=True)
    routes.failed(A, BulkRoute.DIAL, now_s=10)

    assert routes.ways_to(A, now_s=10 + MEMORY_S - 1) == (BulkRoute.CALL_BACK,)
    assert routes.ways_to(B, now_s=10) == (BulkRoute.DIAL, BulkRoute.CALL_BACK)
    assert routes.ways_to(A, now_s=10 + MEMORY_S) == (BulkRoute.DIAL, BulkRoute.CALL_BACK)


def test_where_no_way_is_left_there_is_none() -> None:
    routes = Routes(is_dialable=True)
    routes.failed(A, BulkRoute.DIAL, now_s=0)
    routes.failed(A, BulkRoute.CALL_BACK, now_s=0)

    assert routes.ways_to(A, now_s=1) == ()
