"""Train the policy that nodes sample from: the published one, rounding included.

An update moves most weights by less than their published type can tell apart.
Only what adds up over many updates shows; until then the master weights, in
float32, are another policy than the one that made the rollouts, and further
from it than the noise of rounding would suggest, since all that is lost points
the same way. So gradients and log-probabilities are taken at the rounded
weights, and applied to the master weights.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from learner.trainer.sharding import local


@contextmanager
def rounded(parameters: Iterable[torch.nn.Parameter], dtype: torch.dtype) -> Iterator[None]:
    """For the length of the context, let ``parameters`` hold what ``dtype`` can tell apart.

    They are the same objects in the same memory, and keep the gradients that they get meanwhile.
    """
    masters = []
    try:
        with torch.no_grad():
            for parameter in parameters:
                values = local(parameter)
                if values.dtype != dtype:
                    masters.append((values, values.clone()))
                    values.copy_(values.to(dtype))
        yield
    finally:
        with torch.no_grad():
            for values, master in masters:
                values.copy_(master)
