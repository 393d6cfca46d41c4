"""The notebooks of `examples/` run from top to bottom in a kernel, and show what they should."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import PATIENCE

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(ROOT / "examples" / "federated.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
    for cell in book.cells:
        cell.source = cell.source.replace('"rounds": 20', '"rounds": 2').replace("rounds=20", "rounds=2")
    NotebookClient(book, timeout=int(PATIENCE), resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", ()) if "data" in output]
    bars = [output.data["text/html"] for output in shown if "<progress" in output.data.get("text/html", "")]
    assert len(bars) == 8
    assert all(('value="2" max="2"' in bar and "fed" in bar) or "local" in bar for bar in bars)
    assert sum("image/png" in output.data for output in shown) == 2
    assert sum("test_majority" in output.data.get("text/html", "") for output in shown) == 3
    assert book.cells[-1].outputs[0].text.endswith("of 80\n")


@pytest.mark.slow
def test_three_months_at_three_banks(tmp_path, monkeypatch):
    """All commands of the story exit without an error, its drift is noticed, and each day's alerts have reasons."""
    banks = ROOT / "examples" / "banks"
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{banks}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(banks / "three_months.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
    sizes = "ACCOUNTS, ROUNDS, DAYS = 150, 10, 3"
    assert sizes in book.cells[1].source
    book.cells[1].source = book.cells[1].source.replace(sizes, "ACCOUNTS, ROUNDS, DAYS = 150, 4, 2")
    named = r"(?:payment \w+ → \w+, |the payer |the receiver ).+ \(\+"
    book.cells.append(nbformat.v4.new_code_cell(f"bool(alerts['reasons'].str.match({named!r}).all())"))
    NotebookClient(book, timeout=int(PATIENCE), resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        [output.data["text/plain"] for output in cell.outputs if "data" in output]
        for cell in book.cells
        if cell.cell_type == "code"
    ]
    _, worth, _, second, third, reasons = (texts[-1] for texts in shown)
    assert "Local" in worth
    assert "FedAvg" in worth
    assert reasons == "True"
    assert "True" in second
    assert "forgotten" in third
