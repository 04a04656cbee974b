"""That leases and groups of training change in one place."""

import ast
from pathlib import Path

from echo2swarm.scheduling.leases.dispatcher import Dispatcher

LEARNER = Path(__file__).parents[3] / "learner"
CHANGES = {
    "accept",
    "advance",
    "begin_judging",
    "cancel_judging",
    "drop",
    "end_lease",
    "form",
    "grant",
    "node_is_back",
    "refuse",
    "restore",
    "settle",
    "take",
}
"""What changes leases or groups."""
OTHER = {"add_prompts", "version_published", "prompt_tokens", "status_of", "status_for"}
OTHER |= {"next_late_s"}
"""What changes neither."""


def dispatcher_calls(path: Path) -> set[str]:
    """Return the methods that a module calls on something called a dispatcher."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name.endswith("dispatcher"):
                found.add(node.func.attr)
    return found


def test_leases_and_groups_of_training_change_through_the_lease_desk_alone() -> None:
    by_module = {
        path.relative_to(LEARNER).as_posix(): dispatcher_calls(path) & CHANGES
        for path in LEARNER.rglob("*.py")
    }

    assert {path for path, calls in by_module.items() if calls} == {"rollouts/lease_desk.py"}
    assert by_module["rollouts/lease_desk.py"] == CHANGES


def test_every_method_of_the_dispatcher_is_known_to_change_leases_or_not() -> None:
    methods = {
        name
        for name, value in vars(Dispatcher).items()
        if callable(value) and not name.startswith("_")
    }

    assert methods == CHANGES | OTHER
