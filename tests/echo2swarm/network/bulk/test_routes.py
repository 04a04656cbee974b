from echo2swarm.network.bulk.routes import MEMORY_S, Routes, Way
from protocols.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def test_dialling_comes_first_and_being_called_only_for_who_can_be() -> None:
    assert Routes(is_dialable=True).ways_to(A, now_s=0) == (Way.DIAL, Way.CALL_BACK)
    assert Routes(is_dialable=False).ways_to(A, now_s=0) == (Way.DIAL,)


def test_a_way_that_failed_is_left_out_for_a_while_and_for_that_peer() -> None:
    routes = Routes(is_dialable=True)
    routes.failed(A, Way.DIAL, now_s=10)

    assert routes.ways_to(A, now_s=10 + MEMORY_S - 1) == (Way.CALL_BACK,)
    assert routes.ways_to(B, now_s=10) == (Way.DIAL, Way.CALL_BACK)
    assert routes.ways_to(A, now_s=10 + MEMORY_S) == (Way.DIAL, Way.CALL_BACK)


def test_where_no_way_is_left_there_is_none() -> None:
    routes = Routes(is_dialable=True)
    routes.failed(A, Way.DIAL, now_s=0)
    routes.failed(A, Way.CALL_BACK, now_s=0)

    assert routes.ways_to(A, now_s=1) == ()
