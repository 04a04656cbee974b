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


@contextmanager
def rounded(parameters: Iterable[torch.nn.Parameter], dtype: torch.dtype) -> Iterator[None]:
    """For the length of the context, let ``parameters`` hold what ``dtype`` can tell apart.

    They are the same objects, and keep the gradients that they get meanwhile.
    """
    masters = [(parameter, parameter.data) for parameter in parameters]
    try:
        for parameter, master in masters:
            if master.dtype != dtype:
                parameter.data = master.to(dtype).to(master.dtype)
        yield
    finally:
        for parameter, master in masters:
            parameter.data = master
