from pathlib import Path

import pytest

from benchmarks.wan import WanError, switch
from benchmarks.wan.tools import check_switch_possible

try:
    COMPILER = check_switch_possible()
except WanError as exc:
    pytest.skip(str(exc), allow_module_level=True)


def test_the_switch_is_compiled_once_and_outside_the_source_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    program = switch.build(COMPILER)
    made_at = program.stat().st_mtime_ns

    assert program.is_relative_to(tmp_path)
    assert switch.build(COMPILER) == program
    assert program.stat().st_mtime_ns == made_at
    assert [path.name for path in program.parent.iterdir()] == [program.name]


def test_a_source_that_does_not_compile_leaves_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "switch.c"
    source.write_text("int main(void) { return")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(switch, "SOURCE", source)

    with pytest.raises(WanError, match="error"):
        switch.build(COMPILER)

    assert list((tmp_path / "cache" / "echo2swarm").iterdir()) == []
