"""A model folder's weights, loaded whole or refused: nothing is made up for what is missing.

transformers gives tensors that it does not find random values, leaves out those that it has no
place for, and says so in a table in the log. What is trained then is not what was meant.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from echo2swarm.system.errors import ConfigError

_MAX_NAMED: Final = 3


def load_causal_lm(folder: Path, *, dtype: torch.dtype | str) -> PreTrainedModel:
    """Return the model in ``folder``, on the CPU, with exactly the weights that the files hold.

    Code in the folder is never run. Tied tensors and buffers may be absent.

    Raises:
        ConfigError: it can't be loaded, or not as it is; the message names the tensors.
    """
    load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    verbosity = transformers_logging.get_verbosity()
    # Its table of what is missing has a line for each tensor; ours has the same in one.
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        model, info = load(
            folder,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            ignore_mismatched_sizes=True,  # they are refused below, with their names
            output_loading_info=True,
        )
    except Exception as exc:  # of any kind: what a config may break is not known
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ConfigError(f"the model in {folder} can't be loaded: {lines[0][:300]}") from exc
    finally:
        transformers_logging.set_verbosity(verbosity)
    assert isinstance(model, PreTrainedModel)  # noqa: S101 - for the type checker
    fault = _fault_of(info) or _untied(model) or _not_finite(model)
    if fault:
        raise ConfigError(f"the model in {folder} can't be used: {fault}")
    return model


def _fault_of(info: Mapping[str, Any]) -> str:
    """Return what of a report of transformers' is a fault; empty if nothing is."""
    missing, unexpected = set(info["missing_keys"]), set(info["unexpected_keys"])
    mismatched = {name: (found, wanted) for name, found, wanted in info["mismatched_keys"]}
    missing -= mismatched.keys()
    if prefix := _common_prefix(missing, unexpected):
        return (
            f"its {len(unexpected)} tensors are named {prefix}NAME where {min(missing)} and "
            f'others are looked for: save the model itself, without the "{prefix}" around it'
        )
    faults = []
    if missing:
        faults.append(f"{_tensors(missing)} missing from the files")
    if mismatched:
        name = min(mismatched)
        found, wanted = (tuple(shape) for shape in mismatched[name])
        faults.append(
            f"{_tensors(mismatched)} of another shape than config.json says ({name}: {found}, "
            f"expected {wanted})"
        )
    if unexpected:
        faults.append(f"{_tensors(unexpected)} in the files that the model has no place for")
    faults += [str(error).strip().splitlines()[0][:300] for error in info.get("error_msgs") or ()]
    return "; ".join(faults)


def _common_prefix(missing: set[str], unexpected: set[str]) -> str:
    """Return what stands before all names that are looked for without it."""
    if not missing or not unexpected:
        return ""
    # The shortest name, as far as a name that is looked for: whatever was wrapped around it.
    first = min(unexpected, key=len)
    ends = [name for name in missing if first.endswith(f".{name}")]
    prefix = first.removesuffix(max(ends, key=len, default=first))
    if not prefix or not all(name.startswith(prefix) for name in unexpected):
        return ""
    return prefix if {name.removeprefix(prefix) for name in unexpected} <= missing else ""


def _tensors(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_MAX_NAMED])
    more = len(names) - _MAX_NAMED
    shown += f" and {more} more" if more > 0 else ""
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown})"


def _untied(model: PreTrainedModel) -> str:
    """Return which tensors are tied by the config, and two different ones in the files."""
    tied: Mapping[str, str] = model.get_expanded_tied_weights_keys(all_submodels=True)
    for target, source in sorted(tied.items()):
        one, other = (model.get_parameter_or_buffer(name) for name in (target, source))
        if one is not other:
            return (
                f"config.json ties {target} to {source} (tie_word_embeddings), but the files hold "
                f"both, and they differ in {int((one != other).sum())} of {one.numel()} values: "
                "set tie_word_embeddings to false, or remove one of them"
            )
    return ""


@torch.no_grad()
def _not_finite(model: PreTrainedModel) -> str:
    """Return which weights are NaN or infinite."""
    counts = {
        name: tensor.numel() - int(torch.isfinite(tensor).sum())
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }
    bad = {name: count for name, count in counts.items() if count}
    if not bad:
        return ""
    return f"{sum(bad.values())} values are NaN or infinite, in {_tensors(bad)}"
