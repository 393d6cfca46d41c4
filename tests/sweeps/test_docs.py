"""The commands of `docs/sweeps.md` run as they stand, with figures in the place of training."""

import re
import shlex
from pathlib import Path

import pytest

from fedgraph_flwr import cli
from tests.sweeps.conftest import sweep

DOCS = Path(__file__).parents[2] / "docs" / "sweeps.md"


@pytest.mark.slow
def test_the_commands_run_in_their_order(place, ran, capsys):
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", DOCS.read_text(), re.DOTALL))
    for name, content in re.findall(r"cat > (\S+) <<END\n(.*?)\nEND", blocks, re.DOTALL):
        (place / name).write_text(content)
    commands = [shlex.split(line)[1:] for line in blocks.splitlines() if line.startswith("fedgraph-flwr ")]
    counts = []
    for overrides in commands:
        before = len(ran)
        assert cli.main([*overrides, "--jobs", "0"]) == 0, (overrides, capsys.readouterr().err)
        counts.append(len(ran) - before)
    assert counts == [
        2 * 4 * 5,  # rows, columns, seeds
        0,
        (1 + 1 + 1 + 5)
        * 5,  # Majority; lr 0.1 of Local and of FedAvg, which have no mu; all of FedProx: but what the first made
        3 * 20 * 3,  # columns but for Majority, which is at hand; trials; seeds
        2 * (1 + 4 * 2) * 5,  # rows; Majority, and columns with choices; seeds
        2 * (1 + 4 * 2),
    ]
    assert {path.name for path in place.iterdir()} >= {"banks.csv", "banks.md", "banks.html", "sweeps", "quick"}
    text = (place / "banks.md").read_text()
    assert "| | Majority | Local | FedAvg | FedProx | FedSPA |" in text
    assert "of the difference to FedAvg, paired by seed (t, n = 5 seeds)" in text


def test_a_report_of_a_folder_of_sweeps_is_one_page(toy, ran, capsys):
    sweep(toy)
    (toy.parent / "people.csv").write_text("age,income\n1,2\n")
    toy.with_suffix(".json").unlink()  # as of a sweep of 0.2.0
    assert cli.main(["report", str(toy.parent)]) == 2
    assert cli.main(["sweep", str(toy), "--table-only"]) == 0
    assert cli.main(["report", str(toy.parent)]) == 0
    page = (toy.parent / "report.html").read_text()
    assert page.count('<table class="sortable') == 1
    assert "<td>few</td>" in page
    assert cli.main(["report", str(toy.parent / "data")]) == 2
    assert "holds no run" in capsys.readouterr().err
