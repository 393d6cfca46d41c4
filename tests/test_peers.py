"""What the rows beside other packages count."""

import sys

from benchmarks.peers.__main__ import add, measured, stored, table

BURN = "import time\nwhile time.process_time() < {}: pass"


def test_seconds_of_grandchildren_count(tmp_path):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN.format(1.0)!r}])"
    cpu, megabytes = measured([sys.executable, "-c", code], tmp_path)
    assert 0.7 < cpu < 2.5
    assert 5 < megabytes < 500


def one(method, seed, rounds, cpu, test):
    row = {"data": "Cora, 10 clients", "method": method, "version": "1", "seed": seed, "rounds": rounds}
    return row | {"cpu_seconds": cpu, "megabytes": 100 * (1 + seed), "test": test, "validation": test}


def test_rounds_cost_their_difference_and_rows_are_replaced(tmp_path):
    path = tmp_path / "peers.csv"
    rows = [one("ours", seed, rounds, 2 + 0.1 * rounds, 0.8 + 0.02 * seed) for seed in (0, 1) for rounds in (10, 110)]
    add(path, rows)
    add(path, [rows[0] | {"cpu_seconds": 1.0}])
    assert len(stored(path)) == 4
    # (13 − 1) / 100 and (13 − 3) / 100; 1 and 3 whole; 80 and 82 %
    assert "| ours | 1 | 0.110 | 2.0 | 200 | 81.0 ± 12.7 |" in table(stored(path))


def test_differences_are_paired_by_seed(tmp_path):
    path = tmp_path / "peers.csv"
    scores = {"ours": (0.5, 0.7), "theirs": (0.4, 0.5)}
    for method, tests in scores.items():
        rows = [
            {
                "data": "payments",
                "method": method,
                "version": "1",
                "seed": seed,
                "rounds": 3,
                "test": test,
                "bytes": 1e6,
            }
            for seed, test in enumerate(tests)
        ]
        add(path, rows)
    assert "| theirs | 1 | 45.0 ± 63.5 | 1.0 | +15.0 ± 63.5 |" in table(stored(path))
