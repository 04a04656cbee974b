"""What is known of the engine while a node runs; shown by status, told to the learner."""

from node.engine.base import EngineEvent, EngineExited, EngineReady, EngineWeakened


class EngineState:
    """What the engine has told of itself."""

    def __init__(self) -> None:
        self.device = ""
        self.is_up = False
        self.num_deaths = 0
        self.last_death = ""

    def take(self, event: EngineEvent) -> None:
        """Take in one event."""
        match event:
            case EngineReady(description):
                self.device, self.is_up = description.device, True
            case EngineExited(why):
                self.is_up, self.num_deaths, self.last_death = False, self.num_deaths + 1, why
            case EngineWeakened(why):
                self.num_deaths, self.last_death = self.num_deaths + 1, why
