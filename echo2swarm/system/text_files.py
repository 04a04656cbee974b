"""Text that people wrote in whatever editor: byte order marks, and encodings other than UTF-8."""

import codecs
from typing import Final

_OTHER_MARKS: Final = (
    # UTF-32 first: its mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_LOOKED_AT_BYTES: Final = 4096


def without_mark(data: bytes) -> bytes:
    """Return the beginning of a file, or all of it, less a byte order mark of UTF-8."""
    return data.removeprefix(codecs.BOM_UTF8)


def why_not_utf8(data: bytes) -> str:
    """Return why the beginning of a file can't be text in UTF-8, and what to do; "" if it may be.

    Only what is told by a mark or by NULs is looked for: whoever decodes it finds the rest.
    """
    for mark, encoding in _OTHER_MARKS:
        if data.startswith(mark):
            return f"it is text in {encoding}; save it in UTF-8"
    if b"\0" in data[:_LOOKED_AT_BYTES]:
        return "it has NUL bytes, as text in UTF-16 has, and no text in UTF-8; save it in UTF-8"
    return ""
