"""Formats of numbers and dates in text columns: detected if unambiguous, and stored in the schema.

number   '' (1234.5), or an example: '1,234.5', '1.234,5', '1 234,5', "1'234.5", '1234,5'
date     formats as pandas reads them, several separated by '|': 'ISO8601|%d.%m.%Y'; 'seconds' since 1970; 'spreadsheet' days
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import preprocess
from fedgraph_flwr.data.preprocess import COUNTS, SAME, floats, whole_dates
from fedgraph_flwr.errors import FedGraphError, unknown

NAMED = {"none": "", "space": " ", "apostrophe": "'"}
"""Names for thousands separators that are awkward to type in a shell."""


ANY = "any"
"""Format of a numeric column that parties write differently: it is detected per table."""


@dataclass(frozen=True)
class NumberFormat:
    """Format of numbers.

    Attributes:
        decimal: ``.`` or ``,``.
        thousands: ``,``, ``.``, a space, an apostrophe, or "" for none.
    """

    decimal: str = "."
    thousands: str = ""

    def __str__(self) -> str:
        return "" if self == PLAIN else f"1{self.thousands}234{self.decimal}5"

    @classmethod
    def parse(cls, text: str) -> "NumberFormat":
        """Parse an example such as ``1.234,5``; "" and `ANY` give the plain format.

        Raises:
            FedGraphError: the text is not a known format.
        """
        if text in ("", ANY):
            return PLAIN
        for known in FORMATS:
            if text.translate(SAME) == str(known):
                return known
        raise unknown("number format", text, filter(None, map(str, FORMATS)))

    def read(self, texts: Any) -> np.ndarray:
        """Parse texts [N] to float64 [N]; NaN where a text does not have this format."""
        return preprocess.numbers(texts, str(self))


PLAIN = NumberFormat()
FORMATS = [NumberFormat(d, t) for t in ("", ",", ".", " ", "'") for d in ".," if d != t]


_FEW = 100
"""Number of texts on which a format is tried first."""


def readings(texts: Sequence[str], accepted: Iterable[NumberFormat] = FORMATS) -> list[NumberFormat]:
    """Return the formats by which all texts are numbers, one per distinct interpretation."""
    lines = "\n".join(texts).translate(SAME)
    fits: list[tuple[NumberFormat, np.ndarray]] = []
    for form in accepted:
        if form.thousands and not _groups(lines, form):
            continue
        if form.decimal not in lines and any(form.thousands == other.thousands for other, _ in fits):
            continue  # the same numbers
        if len(texts) > _FEW and np.isnan(form.read(texts[:_FEW])).any():
            continue
        read = form.read(texts)
        if np.isnan(read).any():
            continue
        if not any(np.array_equal(read, other) for _, other in fits):
            fits.append((form, read))
    return [form for form, _ in fits]


def _groups(lines: str, form: NumberFormat) -> bool:
    """Return whether the thousands separator occurs; a dot does not count if a longer number has none."""
    if form.thousands not in lines or (form.thousands == " " and not re.search(r"\S +\S", lines)):
        return False
    return form.thousands != "." or not re.search(r"^\s*[+-]?\d{4,}", lines, re.MULTILINE)


def number_like(texts: Sequence[str]) -> np.ndarray:
    """Return a mask of the texts that are numbers in some format, bool [N]."""
    mask = np.array([bool(re.match(r"\s*[+−-]?[\d.,]|inf", word)) for word in texts], dtype=bool)
    places = np.flatnonzero(mask)
    tried = [texts[place] for place in places.tolist()]
    mask[places] = np.logical_or.reduce([~np.isnan(form.read(tried)) for form in FORMATS])
    return mask


_MEASURE = re.compile(r"(?:[€$£¥]|[A-Z]{3} )?\s*[+-]?\d[\d., ']*\s?(?:%|[€$£¥]|[A-Za-z]{1,4})?")
_DATE = re.compile(r"\d{1,4}[-./ ][A-Za-z]{0,9}\d{0,2}\.?[-./ ,]+\d{1,4}(?:[ T,].*)?|[A-Za-z]{3,9}\.? \d{1,2},? \d{4}")


def looks_like(texts: Sequence[str]) -> tuple[str, list[str]]:
    """Return ``numbers`` or ``dates`` if at least a fifth of the texts resemble them, and these texts.

    They may have units or unsupported formats. Return "" and an empty list otherwise.
    """
    for what, pattern in (("dates", _DATE), ("numbers", _MEASURE)):
        alike = [word for word in texts if pattern.fullmatch(word.translate(SAME).strip())]
        if len(alike) >= 0.2 * len(texts):
            return what, alike
    return "", []


DATES: tuple[tuple[str, ...], ...] = (
    ("ISO8601",),
    ("%d.%m.%Y",),
    ("%d.%m.%Y %H:%M",),
    ("%d.%m.%Y %H:%M:%S",),
    ("%d/%m/%Y", "%m/%d/%Y"),
    ("%Y/%m/%d",),
    ("%d-%m-%Y", "%m-%d-%Y"),
)
"""Detected date formats; a group holds the two interpretations of the same texts."""


def read_dates(column: Any, formats: str) -> Any:
    """Parse a pandas column, or texts, to UTC times, each by the first format that fits; NaT if none does."""
    import pandas as pd

    try:
        return preprocess.read_dates(pd.Series(column), formats)
    except ValueError as error:
        raise FedGraphError(str(error)) from error


SECONDS, SPREADSHEET = COUNTS


def distinct_numbers(values: Any) -> NDArray[np.float64]:
    """Return the distinct numbers of a column, or of texts, in ascending order; with NaN at the end if a value is none."""
    import pandas as pd

    return np.unique(floats(pd.Series(values).dropna().drop_duplicates()))


def whole_date_format(numbers: NDArray[np.float64], name: str, where: str, instead: str, times: bool = True) -> str:
    """Return the format by which numbers [N] are dates; "" if they are none.

    Args:
        numbers: as of `whole_dates`.
        name: the column.
        where: its file, for errors.
        instead: the option by which they are no dates.
        times: as of `whole_dates`.

    Raises:
        FedGraphError: several formats fit, or most of the numbers are dates, but not all.
    """
    whole, nearly = whole_dates(numbers, times)
    if len(whole) == 1:
        return whole[0]
    here = f"{where}: column '{name}' has"
    if whole:
        fix = " or ".join(f"date_formats.{name}={form}" for form in whole)
        raise FedGraphError(
            f"{here} numbers such as {numbers[0]:.15g}, which may be dates as {' or '.join(whole)}: pass {fix}, or {instead}"
        )
    if nearly:
        years = read_dates(numbers, nearly[0]).dt.year
        dated = years.between(1900, 2099).to_numpy()
        wrong, right = numbers[~dated][0], numbers[dated][0]
        fix = f"correct the value, or pass date_formats.{name}=FORMAT, or {instead}"
        raise FedGraphError(f"{here} {wrong:.15g}, and dates such as {right:.15g}: {fix}")
    return ""


SIMULATED = 10 * 365
"""Days since 1970. If all times of data without tables lie between 0 and this, they count the days of a simulation."""


def time_texts(seconds: NDArray[np.int64], dated: bool = False) -> NDArray[Any]:
    """Return times as text [N]: ``2026-03-01T12:30:00``; of a simulation ``day 12 06:30:00``, from day 0.

    If all are at midnight, as in books that have only dates, the date alone: ``2026-03-01``, ``day 12``.

    Args:
        seconds: since 1970, or since the first day of a simulation [N].
        dated: whether they are of tables, whose times are always dates.
    """
    day, rest = np.divmod(seconds, 86_400)
    only_days = not rest.any()
    if dated or not seconds.size or seconds.min() < 0 or seconds.max() >= SIMULATED * 86_400:
        unit: Literal["D", "s"] = "D" if only_days else "s"
        return np.asarray(np.datetime_as_string(seconds.astype("datetime64[s]"), unit)).astype(object)
    if only_days:
        return np.array([f"day {number}" for number in day.tolist()], dtype=object)
    clock = [f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}" for second in rest.tolist()]
    return np.array([f"day {number} {time}" for number, time in zip(day.tolist(), clock, strict=True)], dtype=object)


def _date_fits(texts: Any) -> dict[str, np.ndarray]:
    """Return a mask [N] of the texts that have each format of `DATES`.

    Parsing is slow, so texts that an earlier group covers are not tried with later ones, unless some of them have two formats.
    """
    fits: dict[str, np.ndarray] = {}
    covered = np.zeros(len(texts), dtype=bool)
    for group in DATES:
        tried = ~covered
        sample = np.flatnonzero(covered)[:_FEW]
        if any(read_dates(texts.iloc[sample], form).notna().any() for form in group) if sample.size else False:
            tried = np.ones(len(texts), dtype=bool)
        for form in group:
            fits[form] = np.zeros(len(texts), dtype=bool)
            fits[form][tried] = read_dates(texts[tried], form).notna().to_numpy() if tried.any() else False
        covered |= np.logical_or.reduce([fits[form] for form in group])
    return fits


def _near_date(texts: Sequence[str]) -> np.ndarray:
    """Return a mask [N] of the texts that start like a date: a cheap test."""
    import pandas as pd

    return np.asarray(pd.Series(texts, dtype=str).str.match(r"\s*\d{1,4}[-./]\d").to_numpy(dtype=bool))


def date_like(texts: Sequence[str]) -> np.ndarray:
    """Return a mask of the texts that are dates in some format, bool [N]."""
    import pandas as pd

    mask = _near_date(texts).copy()
    if mask.any():
        tried = pd.Series([word for word, near in zip(texts, mask, strict=True) if near])
        mask[mask] = np.logical_or.reduce([*_date_fits(tried).values()])
    return mask


_SHAPED = r"\s*\d{1,6}([-./])\d{1,2}\1\d{1,6}(?:[ T].*)?"
_FAR = r"\s*\d{5,}-\d{2}-\d{2}(?:[ T].*)?"
"""A date after the year 9999, which no library here reads."""


def date_shaped(texts: Sequence[str]) -> np.ndarray:
    """Return a mask of the texts that have the shape of a date, bool [N]; of none if no text is one, or is after the year 9999.

    Codes such as 01.11.1 have that shape, too.
    """
    import pandas as pd

    words = pd.Series(texts, dtype=str).str
    if not (words.fullmatch(_FAR).any() or date_like(texts).any()):
        return np.zeros(len(texts), dtype=bool)
    return np.asarray(words.fullmatch(_SHAPED).to_numpy(dtype=bool))


def date_format(written: Sequence[str], name: str, where: str) -> str:
    """Return the formats by which all texts are dates, separated by ``|``; "" if some text is not a date.

    Raises:
        FedGraphError: day and month are ambiguous, or occur in both orders.
    """
    import pandas as pd

    if not _near_date(written).all():
        numbers = distinct_numbers(written)
        finite = np.isfinite(numbers).all()
        return whole_date_format(numbers, name, where, f"kinds.{name}=ignored") if finite else ""
    masks, chosen = _date_fits(pd.Series(written)), []
    if not np.logical_or.reduce([*masks.values()]).all():
        return ""
    for group in DATES:
        fits = {form: masks[form] for form in group}
        covered = np.logical_or.reduce(list(fits.values()))
        if not covered.any():
            continue
        full = [form for form in group if (fits[form] == covered).all()]
        example = written[int(covered.argmax())]
        if len(full) != 1:
            why = "where day and month are ambiguous" if full else "some with day first and some with month first"
            fix = f"pass {' or '.join(f'date_formats.{name}={form}' for form in group)}, or kinds.{name}=ignored"
            raise FedGraphError(f"{where}: column '{name}' has dates such as '{example}', {why}: {fix}")
        chosen.append(full[0])
    return "|".join(chosen)
