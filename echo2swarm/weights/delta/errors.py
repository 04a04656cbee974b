"""What can be wrong with a delta."""


class BadDeltaError(Exception):
    """The bytes are not a delta that can be applied; nothing made of them may be used."""


class WrongBaseError(BadDeltaError):
    """It is a delta, and its base is another version."""
