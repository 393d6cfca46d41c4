"""Measures of agreements: what a bank sets to be safe, words of the pages that say so, and honest months that end with a model.

python -m benchmarks.agreement             # options and words
python -m benchmarks.agreement --months    # plays the months of tests/safety/test_honest_months.py, too: ten minutes
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MONTHS = "tests/safety/test_honest_months.py"

Row = tuple[str, int, int, bool]
"""A measure, its value, its goal, and whether it is met."""


def to_set() -> list[str]:
    """Return options and keys of "What to set" in SECURITY.md, which a bank sets or signs to be safe."""
    text = (ROOT / "SECURITY.md").read_text().partition("## What to set")[2].partition("\nWithout an agreement")[0]
    return sorted(
        {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"--[a-z-]+|[a-z]+\.[a-z]+=\w+", code)}
    )


def words(page: str) -> int:
    """Return the number of words of a page."""
    return len((ROOT / page).read_text().split())


def measures() -> Iterator[Row]:
    """Yield the measures that need no run."""
    for what, value, goal in (
        (f"options and keys to set ({', '.join(to_set())})", len(to_set()), 5),
        ("words of SECURITY.md", words("SECURITY.md"), 1000),
        ("words of docs/attacks.md", words("docs/attacks.md"), 3000),
    ):
        yield what, value, goal, value <= goal


class Counter:
    """A plugin of pytest that counts runs which ended with a model, and tests that failed."""

    def __init__(self) -> None:
        self.finished = self.tests = self.failed = 0

    def pytest_runtest_setup(self) -> None:
        """Count each run that a test gets back."""
        from tests.support import Finished

        if getattr(Finished, "counted", False):
            return
        made, counter = Finished.__init__, self

        def counting(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            counter.finished += 1

        Finished.__init__, Finished.counted = counting, True  # type: ignore[method-assign, attr-defined]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count tests, by their calls, and failures of any part."""
        self.tests += report.when == "call"
        self.failed += report.failed


def months() -> Iterator[Row]:
    """Yield the scenarios that did not go as the pages say, such as a month without a model where no wait is named."""
    import pytest

    counter = Counter()
    pytest.main(["-n", "0", "-q", "-m", "slow or not slow", str(ROOT / MONTHS)], plugins=[counter])
    what = f"of {counter.tests} scenarios, with {counter.finished} months that ended with a model: not as the pages say"
    yield what, counter.failed, 0, not counter.failed


def main() -> int:
    """Print the measures; 1: a goal is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.add_argument("--months", action="store_true", help="play the honest months, too")
    rows = [*measures(), *(months() if parser.parse_args().months else ())]
    for what, value, goal, met in rows:
        print(f"{what:<95} {value:>6,}  goal {goal:>6,}  {'met' if met else 'MISSED'}")
    return int(not all(met for *_, met in rows))


if __name__ == "__main__":
    sys.exit(main())
