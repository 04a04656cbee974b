"""Each example is in the list, and says what it reached."""

from tests.test_packaging import ROOT

EXAMPLES = ROOT / "examples"


def test_every_example_is_in_the_list_and_has_its_figures() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    folders = {path.parent.name for path in EXAMPLES.glob("*/run.toml")}

    assert folders
    for name in folders:
        assert f"({name}/README.md)" in listed
        assert "mean reward" in (EXAMPLES / name / "README.md").read_text()
