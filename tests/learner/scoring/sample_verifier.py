"""A verifier that does what the completion says, good and bad."""

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any


def make_prompt(index: int, seed: int) -> dict[str, Any]:
    return {"prompt": f"{seed}/{index}", "wanted": index}


def make_some_prompts(index: int, seed: int) -> dict[str, Any]:
    if index in {0, 7}:
        raise KeyError(f"no item {index}")
    return make_prompt(index, seed)


def make_most_prompts(index: int, seed: int) -> dict[str, Any]:
    if index == 9:
        os._exit(9)
    return make_some_prompts(index, seed)


def make_no_prompt(index: int, _seed: int) -> dict[str, Any]:
    raise KeyError(f"no item {index}")


def make_another_prompt(_index: int, _seed: int) -> str:
    return str(next(_numbers))


_numbers = itertools.count()


def make_chat(index: int, seed: int) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": f"{seed}/{index}"}], "wanted": index}


def score(completion: str, item: Mapping[str, Any]) -> float:  # noqa: PLR0911, PLR0912
    match completion:
        case "raise":
            raise ValueError("no such answer")
        case "exit":
            sys.exit(3)
        case "nan":
            return float("nan")
        case "infinite":
            return float("inf")
        case "text":
            return "much"  # type: ignore[return-value]
        case "slow":
            time.sleep(60)
        case "stubborn":
            with contextlib.suppress(BaseException):
                time.sleep(60)
            time.sleep(60)
        case "die":
            os._exit(9)
        case "hang":
            # As a long computation inside a C library: no signal gets through.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            time.sleep(60)
        case "spin":
            # Inside C, where no signal handler runs.
            return float(sum(itertools.repeat(0)))
        case "huge":
            return 1.7e308
        case "torch":
            return float("torch" in sys.modules)
        case "pid":
            return float(os.getpid())
        case _:
            pass
    return float(completion == str(item["wanted"]))
