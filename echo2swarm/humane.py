"""Numbers, names and bars as people read them; for status, demo and report.

Names and explanations come from other people's machines: whatever is shown of
them goes through :func:`printable`, so that nobody can steer our terminal.
"""

import math
from typing import Final

from protocols.activation import Trouble

MISSING: Final = "-"
_BYTE_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_LONG_TIMES: Final = ((5970, 60, "min"), (172_800, 3600, "h"), (math.inf, 86_400, "d"))
_FULL: Final = "\u2588"
_EMPTY: Final = "\u2591"
_EIGHTHS: Final = ("", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589")


def printable(text: str, *, max_chars: int = 200) -> str:
    """Return ``text`` on one line, without control characters, cut to ``max_chars``."""
    clean = "".join(c if c.isprintable() else " " for c in text[: 4 * max_chars])
    clean = " ".join(clean.split())
    return clean if len(clean) <= max_chars else clean[: max_chars - 3] + "..."


def trouble_text(trouble: Trouble) -> str:
    """Return what a node says keeps it from working."""
    return f"{trouble.kind}: {printable(trouble.detail)}"


def format_bytes(num_bytes: float) -> str:
    """Return ``269 MB`` and the like: three digits, decimal units."""
    value = float(num_bytes)
    for unit in _BYTE_UNITS:
        if value < 999.5 or unit == _BYTE_UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{_digits(value)} {unit}"


def format_seconds(seconds: float | None) -> str:
    """Return ``12 ms``, ``3.40 s``, ``34 s``, ``12 min``, ``2.5 h`` or ``3.1 d``."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 599.5:
        return f"{_digits(seconds) if seconds < 19.95 else format(seconds, '.0f')} s"
    value, unit = next(
        (seconds / unit_s, unit) for limit_s, unit_s, unit in _LONG_TIMES if seconds < limit_s
    )
    return f"{value:.0f} {unit}" if unit == "min" else f"{value:.1f} {unit}"


def format_rate(per_s: float | None) -> str:
    """Return a number per second with enough digits to compare."""
    if per_s is None or not math.isfinite(per_s):
        return MISSING
    return "0" if per_s == 0 else f"{per_s:.0f}" if per_s >= 99.95 else _digits(per_s)


def format_mbit(bytes_per_s: float | None) -> str:
    """Return bytes per second in Mbit/s, as lines are sold."""
    return format_rate(None if bytes_per_s is None else bytes_per_s * 8 / 1e6)


def format_count(count: int) -> str:
    """Return a count in at most six characters: exact below 100,000."""
    if count < 100_000:
        return str(count)
    return f"{count / 1e3:.0f}k" if count < 999_500 else f"{count / 1e6:.3g}M"


def format_percent(share: float) -> str:
    """Return a share of 1 as a whole percentage."""
    return f"{100 * share:.0f} %"


def bar(share: float, *, width: int, ascii_only: bool = False) -> str:
    """Return a bar ``width`` characters long of which ``share`` is filled."""
    filled = min(1.0, max(0.0, share)) * width
    if ascii_only:
        whole = round(filled)
        return "#" * whole + "." * (width - whole)
    whole = int(filled)
    part = _EIGHTHS[int((filled - whole) * 8)]
    return _FULL * whole + part + _EMPTY * (width - whole - len(part))


def rod(share: float, *, width: int, ascii_only: bool = False) -> str:
    """Return what of :func:`bar` is filled; anything above zero leaves a mark."""
    filled = min(1.0, max(0.0, share)) * width
    if share > 0:
        filled = max(filled, 1.0 if ascii_only else 0.125)
    if ascii_only:
        return "#" * round(filled)
    whole = int(filled)
    return _FULL * whole + _EIGHTHS[int((filled - whole) * 8)]


def _digits(value: float) -> str:
    """Three significant digits below 10, one place after the point above."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def table_cell(text: str) -> str:
    """Return what others call themselves, as a table's cell: no end of it, no link, no HTML."""
    shown = printable(text, max_chars=100)
    return "".join(f"\\{c}" if c in "\\|<>[]()`*_!#&" else c for c in shown) or "-"
