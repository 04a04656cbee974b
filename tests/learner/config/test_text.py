"""The configuration explained; explanations that can't go stale."""

import re
from pathlib import Path

import msgspec
import pytest

from echo2swarm.system.errors import ConfigError, StoreError
from echo2swarm.text.toml_docs import field_docs, type_text, with_generated
from learner.config import LearnerConfig
from learner.config.file import load_config, write_commented
from learner.config.text import MODULE, commented, config_markdown, tasks_markdown
from learner.tasks.registry import BUILT_IN, find_kind

DOCS = Path(__file__).parents[3] / "docs"

TABLES: dict[str, type[msgspec.Struct]] = {
    name: type(getattr(LearnerConfig(), name))
    for name in LearnerConfig.__struct_fields__
    if name != "task"
}
STRUCTS = [*TABLES.values(), *(find_kind(kind).Options for kind in BUILT_IN)]


def test_the_commented_file_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"

    write_commented(path)

    assert load_config(path, environment={}) == load_config(None, environment={})


@pytest.mark.parametrize("table", TABLES)
def test_the_commented_file_has_every_key_with_its_explanation_above(table: str) -> None:
    (section,) = re.findall(
        rf"^\[{table}\]\n(.*?)(?:^\[|\Z)", commented(), re.DOTALL | re.MULTILINE
    )

    explained = re.findall(r"^# .*\n(?:# )?(\w+) =", section, re.MULTILINE)

    assert explained == list(TABLES[table].__struct_fields__)


def test_a_file_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("mine")

    with pytest.raises(ConfigError, match="exists already"):
        write_commented(path)

    assert path.read_text() == "mine"


def test_a_file_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="can't be written: No such file"):
        write_commented(tmp_path / "nowhere" / "run.toml")


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda s: f"{s.__module__}.{s.__name__}")
def test_every_key_is_explained(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) <= set(field_docs(struct))


@pytest.mark.parametrize(
    ("page", "text"), [("config.md", config_markdown()), ("tasks.md", tasks_markdown())]
)
def test_the_tables_in_the_pages_are_up_to_date(page: str, text: str) -> None:
    content = (DOCS / page).read_text()

    assert with_generated(content, text, by=MODULE) == content, (
        f"run: python -m learner.config.text docs/{page}"
    )


def test_types_and_ranges_are_told_in_words() -> None:
    fields = {
        field.name: field.type for struct in STRUCTS for field in msgspec.structs.fields(struct)
    }

    assert type_text(fields["max_staleness"]) == "integer >= 0, <= 1000"
    assert type_text(fields["max_usd_per_hour"]) == "number > 0"
    assert type_text(fields["listen"]) == "list of text"
    assert type_text(fields["length_norm"]) == '"token" or "sequence" or "constant"'
    assert type_text(fields["scale_advantages"]) == "true or false"
