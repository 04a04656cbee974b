"""Which of three digits is the largest? ``417=`` asks for ``7``."""


def make_prompt(index: int, seed: int) -> dict[str, str]:
    """Return item number ``index``: for the same arguments always the same."""
    digits = f"{(index * 7919 + seed * 104_729) % 1000:03d}"
    return {"prompt": f"{digits}=", "answer": max(digits)}


def score(completion: str, item: dict[str, str]) -> float:
    """Return 1 for the answer alone, half of it for an answer that begins with it, else 0."""
    if completion == item["answer"]:
        return 1.0
    return 0.5 if completion.startswith(item["answer"]) else 0.0
