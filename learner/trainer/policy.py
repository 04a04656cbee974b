"""The model as the trainer sees it: log-probabilities of completion tokens.

Letters in names are shapes, as in :mod:`learner.trainer.prefix_packing`; H is the
hidden size (or, for a plain policy, the vocabulary), V the vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import structlog
import torch
from transformers import PreTrainedModel

from echo2swarm.models.loading import load_causal_lm
from learner.trainer.prefix_packing import Ints, MicroBatch, PackedSample, make_micro_batches
from learner.trainer.ranks import Ranks
from learner.trainer.rounding import rounded
from learner.trainer.sharding import forget_gathered, hidden_states, shard

log = structlog.get_logger()

_CHECK_TOLERANCE: Final = 1e-3
"""Of logprobs, between two ways to lay out a batch, in float32: rounding gives under 1e-4."""


class Policy:
    """A causal language model with its weights in float32, whole or spread over ``ranks``."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        autocast: torch.dtype | None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.ranks = ranks or Ranks()
        self.shares_prefixes = False
        self._temperature = temperature
        self._autocast = autocast
        self.shares_prefixes = self._can_share_prefixes()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: what a token id must be below."""
        return self._embedding_shape()[0]

    @property
    def hidden_size(self) -> int:
        """Width of the model."""
        return self._embedding_shape()[1]

    def _embedding_shape(self) -> torch.Size:
        weight = self.model.get_input_embeddings().weight
        assert isinstance(weight, torch.Tensor)  # noqa: S101 - for the type checker
        return weight.shape

    def features(self, batch: MicroBatch) -> torch.Tensor:
        """Return what :meth:`logits` takes, for the positions that predict something (P, H)."""
        inputs = {
            "input_ids": self.tensor(batch.tokens_BT),
            "position_ids": self.tensor(batch.positions_BT),
            "use_cache": False,
        }
        source_P = self.tensor(batch.source_P)
        with self.precision():
            if not self.shares_prefixes:
                inputs["attention_mask"] = self._lengths_mask(batch)
                logits_BTV: torch.Tensor = self.model(**inputs).logits
                return logits_BTV.flatten(0, 1)[source_P]
            inputs["attention_mask"] = _tree_mask(self.tensor(batch.ends_BT))
            hidden_BTH = hidden_states(self.model, **inputs)
            return hidden_BTH.flatten(0, 1)[source_P]

    def logits(self, features_PH: torch.Tensor) -> torch.Tensor:
        """Return next-token logits in float32, at the temperature of sampling (P, V)."""
        if self.shares_prefixes:
            with self.precision():
                features_PH = self.model.get_output_embeddings()(features_PH)
        return features_PH.float() / self._temperature

    def precision(self) -> torch.autocast:
        """The precision in which the model computes."""
        return torch.autocast(
            self.device.type, dtype=self._autocast, enabled=self._autocast is not None
        )

    @contextmanager
    def rounded(self, dtype: torch.dtype) -> Iterator[None]:
        """For the length of the context, compute with weights rounded to ``dtype``."""
        forget_gathered(self.model)
        try:
            with rounded(self.model.parameters(), dtype):
                yield
        finally:
            forget_gathered(self.model)

    def tensor(self, values: Ints) -> torch.Tensor:
        """Copy ``values`` to the model's device."""
        return torch.from_numpy(values).to(self.device)

    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Return the log-probability of each of the batch's M completion tokens."""
        log_probs_PV = self.logits(self.features(batch)).log_softmax(-1)
        return log_probs_PV[self.tensor(batch.source_M), self.tensor(batch.target_M)]

    def _lengths_mask(self, batch: MicroBatch) -> torch.Tensor:
        columns = torch.arange(batch.tokens_BT.shape[1], device=self.device)
        return (columns[None] < self.tensor(batch.lengths_B)[:, None]).long()

    def _can_share_prefixes(self) -> bool:
        """Try it: not every model takes our masks and positions, or has a plain last layer."""
        config = self.model.config.get_text_config()
        layer_types = getattr(config, "layer_types", None)
        if layer_types is None:
            only_full_attention = getattr(config, "sliding_window", None) is None
        else:
            only_full_attention = set(layer_types) == {"full_attention"}
        reason = "" if only_full_attention else "it has layers without full attention"
        if only_full_attention:
            reason = self._difference_when_sharing()
        if reason:
            log.warning("trainer.rows_not_shared", model=config.model_type, reason=reason)
        return not reason

    @torch.no_grad()
    def _difference_when_sharing(self) -> str:
        samples = _check_samples(self.vocab_size)
        found = []
        autocast, self._autocast = self._autocast, None
        try:
            for shared in (False, True):
                self.shares_prefixes = shared
                logprobs_N = torch.zeros(sum(s.num_completion for s in samples))
                for batch in make_micro_batches(
                    samples, max_tokens=1024, hidden_size=1 << 20, share_prefixes=shared
                ):
                    logprobs_N[torch.from_numpy(batch.index_M)] = self.logprobs(batch).cpu()
                found.append(logprobs_N)
        except (TypeError, ValueError, RuntimeError, AttributeError) as exc:
            if not self.shares_prefixes:
                raise  # the model can't do even the ordinary
            return f"{type(exc).__name__}: {exc}"[:300]
        finally:
            self._autocast = autocast
        difference = float((found[0] - found[1]).abs().max())
        if difference <= _CHECK_TOLERANCE:
            return ""
        return f"logprobs differ by {difference:.2g}"


def _tree_mask(ends_BT: torch.Tensor) -> torch.Tensor:
    """Return which position (third axis) sees which (fourth axis); see the module batching."""
    at_T = torch.arange(ends_BT.shape[1], device=ends_BT.device)
    is_before_TT = at_T[None, :] <= at_T[:, None]
    return (is_before_TT & (at_T[:, None] < ends_BT[:, None, :])).unsqueeze(1)


def _check_samples(vocab_size: int) -> list[PackedSample]:
    """Return two groups of two completions that differ early, late, and in length."""
    rng = np.random.default_rng(0)
    prompt, other = rng.integers(vocab_size, size=(2, 7)).tolist()
    samples: list[PackedSample] = []
    for start in (prompt, prompt[:5] + other[:3]):
        common = rng.integers(vocab_size, size=2).tolist()
        for size in (3, 5):
            completion = common + rng.integers(vocab_size, size=size).tolist()
            first = sum(sample.num_completion for sample in samples)
            samples.append(
                PackedSample(tokens=start + completion, num_prompt=len(start), first=first)
            )
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """How a policy computes."""

    device: torch.device
    temperature: float
    autocast: torch.dtype | None


def load_policy(folder: Path, options: PolicyOptions, ranks: Ranks) -> Policy:
    """Load a model folder's policy, spread over all ranks if there are several.

    Raises:
        ConfigError: it can't be loaded, or lacks weights.
    """
    policy: Policy | None = None
    # One after the other: main memory has room for one whole model, perhaps not for several.
    for turn in range(ranks.size):
        with ranks.together():
            if turn == ranks.rank:
                # One process tries the policy out where it will be; several before it is spread,
                # since there no rank can do anything by itself.
                model = load_model(
                    folder, device=options.device if ranks.size == 1 else torch.device("cpu")
                )
                policy = Policy(
                    model, temperature=options.temperature, autocast=options.autocast, ranks=ranks
                )
                shard(model, ranks, device=options.device)
    assert policy is not None  # noqa: S101 - its turn has come
    policy.shares_prefixes = all(ranks.all_of(policy.shares_prefixes))
    return policy


def load_model(folder: Path, *, device: torch.device) -> PreTrainedModel:
    """Load a model folder's weights in float32; code in the folder is never run.

    Raises:
        ConfigError: they are not exactly those of the model.
    """
    loaded = load_causal_lm(folder, dtype=torch.float32)
    # eval: no dropout, or else what is trained is not the policy that was sampled.
    model: torch.nn.Module = loaded
    model.to(device)
    model.eval()
    return loaded
