"""Activation checkpointing: layers are computed again for their gradient, not remembered."""

from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from echo2swarm.system.errors import ConfigError


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Let ``model`` keep each layer's input only, and compute the rest once more when needed.

    Raises:
        ConfigError: this kind of model can't.
    """
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"trainer.activation_checkpointing: models of type {model.config.model_type} can't; "
            "set it to false"
        )
    # The newer name; the older one warns where both are there.
    enable = getattr(model, "activation_checkpointing_enable", None)
    enable = enable or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            # It asks for training mode, which means dropout too: but only to what is inside.
            module.training = True
