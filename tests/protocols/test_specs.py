"""The specification pages say what the code does."""

import importlib
import re

import pytest

import protocols
from protocols.reasons import Reason
from tests.protocols.pages import MODULES, SPECS, VECTORS, filled, render_vectors_file
from tests.protocols.samples import wire_bytes

HEADINGS = [
    "Purpose",
    "Roles",
    "Messages",
    "States and transitions",
    "Timers",
    "Errors and what they cost the peer",
    "Security",
    "Test vectors",
]
REWRITE = "python -m tests.protocols.pages rewrites it; read the difference"

pages = pytest.mark.parametrize("page", sorted(MODULES))


def text_of(page: str) -> str:
    return (SPECS / f"{page}.md").read_text()


@pages
def test_a_page_has_every_heading_in_order(page: str) -> None:
    assert re.findall(r"^## (.*)$", text_of(page), flags=re.M) == HEADINGS


@pages
def test_fields_limits_and_vectors_on_a_page_are_those_of_the_code(page: str) -> None:
    assert text_of(page) == filled(page, text_of(page)), REWRITE


@pages
def test_a_page_shows_the_vectors_that_the_golden_tests_use(page: str) -> None:
    shown = re.sub(r"\s", "", text_of(page))

    assert all(data.hex() in shown for data in wire_bytes().get(page, {}).values())


def test_the_golden_bytes_are_those_of_the_samples() -> None:
    assert VECTORS.read_text() == render_vectors_file(), REWRITE


def test_every_protocol_that_the_package_names_has_a_page_in_the_index() -> None:
    named = re.findall(r":mod:`protocols\.(\w+)`", protocols.__doc__ or "")

    assert len(named) >= 9
    for name in named:
        assert name in MODULES
        assert f"[{name}]({name}.md)" in text_of("README")


@pages
def test_a_page_and_the_index_name_the_protocol_ids_of_the_code(page: str) -> None:
    (row,) = [line for line in text_of("README").splitlines() if f"({page}.md)" in line][:1]
    for module in map(importlib.import_module, MODULES[page]):
        for name, value in vars(module).items():
            if name.endswith("PROTOCOL_ID") and not name.startswith("OLD_"):
                assert f"`{value}`" in row
                assert f"`{value}`" in text_of(page)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_meaning_and_a_remedy(reason: Reason) -> None:
    row = rf"^\| `{reason.value}` \| [^|]{{10,}} \| [^|]{{5,}} \|$"

    assert len(re.findall(row, text_of("reasons"), flags=re.M)) == 1


def test_no_reason_is_explained_that_the_code_does_not_know() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", text_of("reasons"), flags=re.M)

    assert set(explained) == {reason.value for reason in Reason}
