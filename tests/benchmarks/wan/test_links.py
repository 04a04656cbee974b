from dataclasses import replace

import pytest

from benchmarks.wan.links import (
    Backend,
    Link,
    backend_for,
    mac_of,
    switch_settings,
    token_bucket,
)

PLAIN = Link(up_mbit_per_s=25, down_mbit_per_s=50)


def test_goodput_is_what_full_segments_leave_of_the_wire() -> None:
    assert PLAIN.up_bytes_per_s == pytest.approx(25e6 / 8 * 1448 / 1514)
    assert PLAIN.down_bytes_per_s == pytest.approx(2 * PLAIN.up_bytes_per_s)


@pytest.mark.parametrize(
    "link",
    [
        replace(PLAIN, delay_s=0.02),
        replace(PLAIN, loss=0.01),
        replace(PLAIN, accepts_inbound=False),
    ],
)
def test_delay_loss_and_nat_take_the_switch_even_if_one_host_has_them(link: Link) -> None:
    assert backend_for([PLAIN, link, PLAIN]) is Backend.TAP


def test_plain_links_take_the_kernel() -> None:
    assert backend_for([PLAIN, PLAIN]) is Backend.TC


@pytest.mark.parametrize(
    "wrong",
    [{"up_mbit_per_s": 0}, {"down_mbit_per_s": -1}, {"delay_s": -0.1}, {"loss": 1}],
)
def test_a_link_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a link's"):
        Link(**wrong)  # type: ignore[arg-type]  # one of its numbers


def test_a_token_bucket_is_told_bits_and_holds_some_milliseconds_of_them() -> None:
    assert token_bucket(12.5) == [
        *("tbf", "rate", "12500000bit", "burst", "70000", "latency", "100ms"),
    ]
    assert token_bucket(1000)[4] == "500000"


def test_the_switch_is_told_bits_and_nanoseconds() -> None:
    link = Link(up_mbit_per_s=12.5, down_mbit_per_s=25, delay_s=0.02, loss=0.01)

    assert switch_settings(link) == "12500000 25000000 20000000 0.010000 1"
    assert switch_settings(replace(link, accepts_inbound=False)).endswith(" 0")


def test_a_hardware_address_names_its_host() -> None:
    assert mac_of(3) == "02:57:00:00:00:03"
    assert mac_of(258) == "02:57:00:00:01:02"
