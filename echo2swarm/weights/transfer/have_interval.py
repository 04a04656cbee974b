"""How often peers tell each other which chunks they hold."""

from typing import Final

MIN_NEWS_S: Final = 0.05
MAX_NEWS_S: Final = 0.25
NEWS_SHARE: Final = 0.01


def news_s(since_s: float) -> float:
    """Return how long news of chunks waits for more of it, in a transfer that began so long ago.

    A message costs as much for one chunk as for many, and a hundredth of the time so far is
    noticed by nobody.
    """
    return min(max(NEWS_SHARE * since_s, MIN_NEWS_S), MAX_NEWS_S)
