"""Formatting of numbers with units."""

import math

_BYTES = ("B", "kB", "MB", "GB", "TB")


def size(count: float) -> str:
    """Format bytes: ``147.6 MB``."""
    if math.isnan(count):
        return "–"
    power = min(int(math.log10(count) / 3), len(_BYTES) - 1) if count >= 1 else 0
    return f"{_digits(count / 1000**power)} {_BYTES[power]}"


def duration(seconds: float) -> str:
    """Format seconds: ``3 ms``, ``4.2 s``, ``12 min 5 s``, ``3 h 10 min``."""
    if math.isnan(seconds):
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def about(seconds: float) -> str:
    """Format an estimate in whole seconds: ``about 1 s``, ``about 12 min 5 s``."""
    return f"about {duration(max(1, round(seconds)))}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share: ``84.1 %``."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def points(difference: float) -> str:
    """Format a difference of shares with its sign: ``+2.1``."""
    return "–" if math.isnan(difference) else f"{100 * difference:+.1f}".replace("-", "−")


def count(number: float) -> str:
    """Format an integer with thin spaces: ``10 556``."""
    return "–" if math.isnan(number) else f"{number:,.0f}".replace(",", "\u202f")


def _digits(value: float) -> str:
    """Format three digits with at most one decimal."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
