"""Dates that a table writes as numbers: read as dates where only one format fits, else refused; never as seconds in silence."""

import json
import sys
from importlib import util

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.data import preprocess
from fedgraph_flwr.data.hetero import load_graph
from fedgraph_flwr.data.schema import Column
from fedgraph_flwr.data.value_formats import SPREADSHEET, whole_dates
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import Treatment, features, values
from fedgraph_flwr.party.tables.edges import edge_times
from tests.party.two_banks import books, payments

DAYS = pd.date_range("2026-01-01", "2026-06-28", freq="4D")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tables(times, opened=None):
    """Write payments with these times between twelve accounts."""
    ids = [f"a{i}" for i in range(12)]
    accounts = pd.DataFrame({"id": ids, "age": range(12), "label": ["ok", "bad"] * 6})
    (accounts if opened is None else accounts.assign(opened=opened)).to_csv("n.csv", index=False)
    ends = [[ids[(i * step + 1) % 12] for i in range(len(times))] for step in (5, 7)]
    pd.DataFrame({"source": ends[0], "target": ends[1], "booked": times}).to_csv("e.csv", index=False)
    return [
        "import",
        "--nodes",
        "n.csv",
        "--edges",
        "e.csv",
        "columns.time=booked",
        "--name",
        "mine",
        "--overwrite",
    ]


def seconds(dates):
    return ((dates - pd.Timestamp("1970-01-01")) // pd.Timedelta("1s")).tolist()


def imported(args):
    assert main(args) == 0
    graph = load_graph("data/imported/mine.safetensors")
    return sorted(graph.edge_time.tolist())


@pytest.mark.parametrize("form", ["%Y%m%d", "%d%m%Y", "%m%d%Y", "%Y%m", "%Y", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
@pytest.mark.parametrize("zeros", [True, False])
def test_one_format_fits(form, zeros, capsys):
    dates = DAYS.append(pd.DatetimeIndex(["2025-12-31"]))
    texts = dates.strftime(form)
    start = pd.to_datetime(texts, format=form)
    assert imported(tables([text if zeros else int(text) for text in texts])) == sorted(seconds(start))
    assert f"times from {start.min():%Y-%m-%d} to {start.max():%Y-%m-%d}" in capsys.readouterr().out


def test_days_of_a_spreadsheet(capsys):
    days = (DAYS - pd.Timestamp("1899-12-30")).days
    assert days[0] == 46023
    assert imported(tables(days)) == seconds(DAYS)
    assert "times from 2026-01-01 to 2026-06-26" in capsys.readouterr().out
    assert imported(tables(days + 0.5)) == seconds(DAYS + pd.Timedelta("12h"))
    office = np.linspace(33_000, 60_000, 30).astype(int)  # seconds of one day; as days these would be 74 years
    assert imported(tables(office)) == office.tolist()
    assert imported([*tables(days), "date_formats.booked=seconds"]) == days.tolist()


@pytest.mark.parametrize(
    ("form", "dates", "named"),
    [
        ("%y%m%d", DAYS, "booked=%y%m%d or date_formats.booked=%d%m%y"),
        ("%d%m%y", DAYS, "booked=%y%m%d or date_formats.booked=%d%m%y"),
        ("%d%m%Y", DAYS[DAYS.day < 13], "booked=%d%m%Y or date_formats.booked=%m%d%Y"),
    ],
)
def test_two_formats_are_refused(form, dates, named, capsys):
    args = tables(dates.strftime(form).astype(int))
    assert main(args) == 2
    error = capsys.readouterr().err
    assert "e.csv: column 'booked' has numbers such as" in error
    assert f"pass date_formats.{named}" in error
    assert "date_formats.booked=seconds" in error
    assert imported([*args, f"date_formats.booked={form}"]) == seconds(dates)


def test_a_date_that_does_not_exist_is_not_a_number_of_seconds(capsys):
    assert main(tables([*DAYS.strftime("%Y%m%d"), "20260231"])) == 2
    assert "has 20260231, and dates such as 20260101: correct the value, or pass" in capsys.readouterr().err


def test_times_with_a_zone_are_utc_and_said_to_be(capsys):
    """Midnight in Berlin is the day before; half of a column with zones is refused."""
    local = [f"{day:%Y-%m-%dT00:00:00}+01:00" for day in DAYS]
    assert imported(tables(local)) == [second - 3600 for second in seconds(DAYS)]
    said = "e.csv: times of 'booked' are read in UTC, whose days begin at 00:00: 2026-01-01T00:00:00+01:00 is"
    assert f"{said} 2025-12-31T23:00:00Z" in capsys.readouterr().out
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"):
        assert imported(tables(list(DAYS.strftime(form)))) == seconds(DAYS)
        assert "UTC" not in capsys.readouterr().out
    for last in ("2026-06-26T00:00:00", "2026-06-26T00:00:00.12345"):  # shorter than the others, and as long
        assert main(tables([*local[:-1], last])) == 2
        assert f"row {len(DAYS)} has '{last}' in column 'booked', which has no time zone" in capsys.readouterr().err


def test_seconds_stay_seconds(capsys):
    rng = np.random.default_rng(0)
    for times in (
        range(0, 10**7, 10**5),
        1_767_225_600 + 3600 * np.arange(50),
        [1, 2, 3],
        rng.integers(10**8, size=200),
    ):
        assert imported(tables(times)) == sorted(times)
    assert "times from 2026-01-01T00:00:00 to 2026-01-03T01:00:00" in capsys.readouterr().out
    quick = whole_dates(np.arange(0.0, 10**6))
    assert quick == ([], [])


def test_columns_of_accounts_and_payments(capsys):
    def made(values, **options):
        table = pd.DataFrame({"opened": values})
        return features("node", table, ["opened"], "n.csv", Treatment(**options))

    for form in ("%Y%m%d", "%d%m%Y", "%Y%m"):
        for texts in (DAYS.strftime(form), DAYS.strftime(form).astype(int)):
            node_features = made(texts)
            assert (node_features.agreed["opened"].kind, node_features.agreed["opened"].format) == ("date", form)
            days = (pd.to_datetime(DAYS.strftime(form), format=form) - pd.Timestamp("1970-01-01")).days
            expected = (days - days.to_numpy().mean()) / days.to_numpy().std()
            np.testing.assert_allclose(node_features.x[:, 0], expected, atol=1e-4)
    for number in ([2001, 1999, 2020], [46_023, 46_024], [1, 20_260_304, 3], [250_000, 180_500]):
        assert features("node", pd.DataFrame({"v": number}), ["v"], "n.csv", Treatment()).agreed["v"].kind == "number"
    assert made(DAYS.strftime("%Y%m%d").astype(int), kinds={"opened": "number"}).agreed["opened"].kind == "number"
    said: list[str] = []
    assert made(DAYS.strftime("%y%m%d"), warn=said.append).agreed["opened"].kind == "number"
    assert "may be dates" in said[0]
    assert "date_formats.opened=%y%m%d" in said[0]
    with pytest.raises(FedGraphError, match=r"n\.csv: column 'opened' has 99991231, and dates such as 20260101"):
        made([*DAYS.strftime("%Y%m%d"), "99991231"])
    with pytest.raises(FedGraphError, match=r"pass date_formats\.opened=%d%m%Y or date_formats\.opened=%m%d%Y"):
        made(["01022026", "02032026"])


def test_a_day_is_read_as_the_book_that_the_schema_is_of(folder):
    """4 March alone could be 3 April: the schema keeps the format."""
    args = tables(DAYS.strftime("%d%m%Y"))
    assert main([*args[:6], "--schema", "s.yaml", "--out", "a.safetensors"]) == 0
    assert "time_format: '%d%m%Y'" in (folder / "s.yaml").read_text()
    args = tables(["04032026", "05032026"])
    assert main([*args[:6], "--schema", "s.yaml", "--out", "b.safetensors"]) == 0
    assert load_graph("b.safetensors").edge_time.sort().values.tolist() == seconds(
        pd.DatetimeIndex(["2026-03-04", "2026-03-05"])
    )
    args = tables(DAYS.strftime("%Y%m%d"))  # another party's way
    assert main([*args[:6], "--schema", "s.yaml", "--out", "c.safetensors"]) == 0
    assert load_graph("c.safetensors").edge_time.sort().values.tolist() == seconds(DAYS)


def test_a_book_of_numbers_equals_that_of_dates(folder):
    """Recipe, match columns and the split by time read the same days."""
    rows = payments()
    dates = pd.to_datetime(rows["at"], unit="s")
    graphs = []
    for name, form in (("iso", "%Y-%m-%d"), ("numbers", "%Y%m%d")):
        linked = books(
            folder / name,
            rows.assign(at=dates.dt.strftime(form)),
            "features=payments",
            "--match-columns",
            "at:date,amount:amount,ref",
        )
        graphs.append([load_graph(linked / f"client_000{i}.safetensors") for i in range(2)])
    for one, other in zip(*graphs, strict=True):
        for key in ("edge_time", "edge_attr", "edge_index", "edge_split", "x"):
            assert getattr(one, key).equal(getattr(other, key))


def test_init_party_proposes_what_import_reads(capsys):
    tables(DAYS.strftime("%Y%m%d"), opened=DAYS[:12].strftime("%Y%m%d"))
    assert main(["init-party", "n.csv", "e.csv"]) == 0
    assert "columns.time: booked  (holds dates)" in capsys.readouterr().out
    tables(range(0, 4500, 100))
    assert main(["init-party", "n.csv", "e.csv", "--overwrite"]) == 0
    assert "columns.time: booked  (holds numbers, read as seconds since 1970)" in capsys.readouterr().out
    tables(DAYS.strftime("%y%m%d"))
    assert main(["init-party", "n.csv", "e.csv", "--overwrite"]) == 0
    said = capsys.readouterr().out
    assert "question: 'booked' has numbers such as 260101, which may be dates as %y%m%d or %d%m%y" in said
    assert "date_formats: {booked: FORMAT}" in said
    assert main(["init-party", "n.csv", "e.csv", "--overwrite", "date_formats.booked=%y%m%d"]) == 0
    assert main(["import", "party.yaml"]) == 0
    assert "times from 2026-01-01 to 2026-06-26" in capsys.readouterr().out


def test_an_exported_model_reads_them_alike(folder, capsys):
    """Its module needs only pandas and NumPy."""
    spec = util.spec_from_file_location("plain_preprocess", preprocess.__file__)
    module = util.module_from_spec(spec)
    sys.modules["plain_preprocess"] = module
    spec.loader.exec_module(module)
    vars(module)["FOLDER"] = folder
    tables(DAYS.strftime("%d%m%Y").astype(int))
    about = {"tables": {"time": "booked", "time_format": "%d%m%Y"}, "step": 86_400, "undirected": False}
    (folder / "preprocessing.json").write_text(json.dumps(about))
    assert module.steps("e.csv").tolist() == [day // 86_400 for day in seconds(DAYS)]
    (folder / "preprocessing.json").write_text(
        json.dumps(about | {"tables": {"time": "booked"}})
    )  # seconds, or as ISO 8601
    for times in (
        DAYS.strftime("%Y%m%d"),
        seconds(DAYS),
        DAYS.strftime("%Y-%m-%d"),
        (DAYS - pd.Timestamp("1899-12-30")).days,
    ):
        tables(times)
        assert module.steps("e.csv").tolist() == [day // 86_400 for day in seconds(DAYS)]
    pd.read_csv("e.csv").assign(booked=DAYS).to_parquet("e.parquet")
    assert module.steps("e.parquet").tolist() == [day // 86_400 for day in seconds(DAYS)]
    for times in (DAYS.strftime("%y%m%d"), [*DAYS.strftime("%Y%m%d")[1:], "20261301"]):
        tables(times)
        with pytest.raises(ValueError, match=r"e.csv: times such as \d+ may be dates as %.*: pass date_format"):
            module.steps("e.csv")
        assert module.steps("e.csv", date_format="seconds").max() == int(max(times)) // 86_400
    days = module.values(pd.Series(DAYS.strftime("%d%m%Y").astype(int)), {"kind": "date", "format": "%d%m%Y"}, "d")
    assert days.tolist() == [day / 86_400 for day in seconds(DAYS)]
    serial = pd.Series((DAYS - pd.Timestamp("1899-12-30")).days)
    assert module.values(serial, {"kind": "date", "format": SPREADSHEET}, "d").tolist() == days.tolist()


def test_times_of_parquet(folder):
    table = pd.DataFrame({"booked": DAYS.strftime("%Y%m%d").astype(int)})
    assert edge_times(table, "booked", "e", Treatment()).tolist() == seconds(DAYS)
    assert edge_times(pd.DataFrame({"booked": DAYS}), "booked", "e", Treatment()).tolist() == seconds(DAYS)


def test_a_date_that_is_none_names_the_ways_of_import_and_of_predict():
    error = "t.csv: .*'soon' in row 2: pass date_formats.d=FORMAT to `import`, or set it in the party's file"
    with pytest.raises(FedGraphError, match=error):
        values(pd.Series(["2026-01-31", "soon"]), Column("date"), "d", "t.csv")
