"""What ``echo2-learner export`` asks of its child; specification: ``docs/specs/children.md``."""

from protocols.codec import Message


class Export(Message, frozen=True, tag="export"):
    """Write the weights of a checkpoint as a model folder, then load and compare it."""

    checkpoint_dir: str
    """What the trainer saved."""
    model_dir: str
    """The model that was trained: config and tokenizer are its."""
    folder: str
    """Where to write; does not exist yet."""
    dtype: str
    """Of the weights."""
    card: str
    """Text of ``README.md``."""


class Exported(Message, frozen=True):
    """The folder is complete, and loads."""

    num_parameters: int
    """Size of the model."""
    num_tensors: int
    """Compared with the checkpoint, bit for bit."""
    size_bytes: int
    """Of all files."""
    files: tuple[str, ...]
    """Their names."""
