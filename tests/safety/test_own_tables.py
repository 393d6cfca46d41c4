"""Tables and models of a party's own that are odd or forged: one error message each, no lost file, no endless run."""

import time

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.data.hetero import load_graph

EDGES = "source,target\n" + "".join(f"{i},{(i + 1) % 40}\n" for i in range(40))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Write two tables, the nodes with a further column, and return the arguments of an import."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))

    def write(values=None, header="extra", out="x.safetensors", name="n.csv"):
        values = values or [""] * 40
        rows = "".join(f'{i},{i % 7},{"ab"[i % 2]},"{values[i % len(values)]}"\n' for i in range(40))
        (tmp_path / name).write_text(f"id,age,label,{header}\n{rows}")
        (tmp_path / "e.csv").write_text(EDGES)
        args = ["--nodes", str(tmp_path / name), "--edges", str(tmp_path / "e.csv")]
        return ["import", *args, "--out", str(tmp_path / out)]

    return write


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train two rounds on an imported table, and return its folder."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(folder / "data"))
        rows = "".join(f"{i},{i % 7},{'ab'[i % 2]},2024-01-{i % 28 + 1:02d}\n" for i in range(40))
        (folder / "n.csv").write_text(f"id,age,label,opened\n{rows}")
        (folder / "e.csv").write_text(EDGES)
        common = ["--nodes", str(folder / "n.csv"), "--edges", str(folder / "e.csv"), "--name", "mine"]
        assert main(["import", *common]) == 0
        args = ["dataset=mine", "num_clients=2", "rounds=2", "model.hidden=4", f"out={folder / 'run'}", "--quiet"]
        assert main(["run", *args, "--no-report"]) == 0
        yield folder


def predict(run, folder, rows, *more, header="id,age,opened"):
    (folder / "new.csv").write_text(f"{header}\n{rows}")
    (folder / "none.csv").write_text("source,target\n")
    args = ["--nodes", str(folder / "new.csv"), "--edges", str(folder / "none.csv"), *more]
    return main(["predict", str(run / "run"), *args])


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["2020-01-01", "9999-12-31", "2021-05-06"], []),
        (["31.12.2020", "31.12.9999", "01.02.0001"], []),
        (["2020", "9999", "1500"], ["date_formats.extra=%Y"]),
    ],
)
def test_dates_far_from_today_are_dates(tables, tmp_path, values, options):
    """Days by the calendar of Python, which reaches from year 1 to 9999."""
    assert main([*tables(values), *options, "scales.extra=none"]) == 0
    written = load_graph(tmp_path / "x.safetensors").x[:, 1].tolist()
    forms = {4: "%Y", 10: "%Y-%m-%d" if "-" in values[0] else "%d.%m.%Y"}
    from datetime import datetime

    parse = [datetime.strptime(value, forms[len(value)]) for value in values]
    days = [(moment - datetime(1970, 1, 1)).days for moment in parse]
    assert written == [float(days[i % 3]) for i in range(40)]


def test_new_rows_may_have_dates_far_from_today(run, tmp_path, capsys):
    assert predict(run, tmp_path, "n1,3,9999-12-31\nn2,4,1066-10-14\n") == 0
    assert capsys.readouterr().out.count("\nn") == 2


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("option", ["--out", "--schema", "--statistics"])
@pytest.mark.parametrize("target", ["n.csv", "e.csv"])
def test_an_output_never_replaces_a_table(tables, tmp_path, capsys, option, target, link):
    args, path = tables(), tmp_path / target
    before = path.read_bytes()
    if link:
        (tmp_path / "same.csv").symlink_to(path)
        path = tmp_path / "same.csv"
    given = [*args[:-2], *(args[-2:] if option != "--out" else []), option, str(path)]
    assert main(given) == 2
    assert f"{option} {path} is " in (error := capsys.readouterr().err), error
    assert (tmp_path / target).read_bytes() == before


def test_predictions_never_replace_their_input(run, tmp_path, capsys):
    for name in ("new.csv", "none.csv"):
        assert predict(run, tmp_path, "n1,3,2024-01-01\n", "--out", str(tmp_path / name)) == 2
        assert (
            f"--out {tmp_path / name} is the file of --{'nodes' if name == 'new.csv' else 'edges'}"
            in capsys.readouterr().err
        )
    assert (tmp_path / "new.csv").read_text().startswith("id,age,opened\n")


@pytest.mark.parametrize(
    ("values", "header", "options", "message"),
    [
        (None, "age ", [], "has two columns 'age'"),
        (["1.5", "123456789012345678901234567890", "1.234,5"], "extra", [], "column 'extra' has"),
        (["1", "1" * 30, "1,5"], "extra", [], None),
        (["1", "1" * 30, "1.234,5"], "extra", [], "which is not a number like '1.234,5'"),
        (["2020"], "extra", ["date_formats.extra=%Y%Y"], "date format '%Y%Y'"),
        (["2020"], "extra", ["date_formats.extra=%(d"], "date format '%(d'"),
        (["x" * 300 + "\x00"], "extra", [], None),
    ],
)
def test_odd_columns_are_read_or_one_error(tables, capsys, values, header, options, message):
    args = [*tables(values, header), *options]
    code, shown = main(args), capsys.readouterr()
    assert code == (2 if message else 0), shown.err
    assert (message or "") in shown.err
    assert "Traceback" not in shown.err


LONG = "x" * 2_000_000


@pytest.mark.parametrize("where", ["extra", "label", "id"])
def test_one_long_cell_takes_no_time(tables, tmp_path, where, capsys):
    """Texts of fixed width would take rows times the longest cell: 2 MB times 20,000 rows."""
    args = tables()
    frame = pd.DataFrame(
        {"id": np.arange(20_000).astype(str), "age": np.arange(20_000) % 7, "label": "a", "extra": "b"}
    )
    frame.loc[::2, "label"] = "c"
    frame.loc[7, where] = LONG
    frame.to_csv(tmp_path / "n.csv", index=False)
    begun = time.process_time()
    code = main(args)
    assert time.process_time() - begun < 30
    assert code == (2 if where == "id" else 0)
    assert len(capsys.readouterr().err) < 1000


def test_one_long_cell_in_new_rows_takes_no_time(run, tmp_path, capsys):
    rows = "".join(f"n{i},3,2024-01-01,{LONG if i == 5 else ''}\n" for i in range(20_000))
    begun = time.process_time()
    assert predict(run, tmp_path, rows, header="id,age,opened,note") == 0
    assert time.process_time() - begun < 30


FORMULAS = ["=HYPERLINK(1)", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\tx", "\uff1d1"]


def test_predictions_hold_no_formula(run, tmp_path, capsys):
    """A spreadsheet runs a cell that starts with one of these; plain numbers, also of phones, stay as they are."""
    plain = ["+49170", "-5", "n-1"]
    rows = "".join(f'"{name}",3,2024-01-01\n' for name in [*FORMULAS, *plain])
    assert predict(run, tmp_path, rows, "--out", str(tmp_path / "p.csv")) == 0
    ids = pd.read_csv(tmp_path / "p.csv", dtype=str)["id"].tolist()
    assert ids == [*(f"'{name}" for name in FORMULAS), *plain]
    assert f"cells like formulas: {len(FORMULAS)}" in capsys.readouterr().out
    assert predict(run, tmp_path, rows) == 0
    assert "\n'=HYPERLINK" in capsys.readouterr().out
    assert predict(run, tmp_path, rows, "--out", str(tmp_path / "p.parquet")) == 0
    assert pd.read_parquet(tmp_path / "p.parquet")["id"].tolist() == [*FORMULAS, *plain]


@pytest.mark.parametrize(
    "spec",
    [
        "[]",
        "7",
        '{"classes": 5}',
        '{"classes": ["a", "b"], "schema": []}',
        '{"classes": ["a", "b"], "schema": {"agreed": 3}, "num_features": "x"}',
        '{"classes": ["a", "b"], "num_features": [[1]], "undirected": {}}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_a_forged_input_spec_is_one_error(run, tmp_path, capsys, spec):
    import shutil

    shutil.copytree(run / "run", tmp_path / "run")
    (path := tmp_path / "run" / "input_spec.json").write_text(spec, encoding="latin-1")
    code = predict(tmp_path, tmp_path, "n1,3,2024-01-01\n")
    error = capsys.readouterr().err
    assert code in (1, 2), error
    assert error.startswith("error: "), error
    assert str(path) in error


# --- files of other forms ---------------------------------------------------------------------------------------------

DIGITS = "1" * 100_000
DEEP = "[" * 20_000 + "]" * 20_000

TEXTS = {
    "a deep party.yaml": ("import", f"party: {DEEP}"),
    "mappings in a party.yaml": ("import", "party: " + "{a: " * 5_000 + "1" + "}" * 5_000),
    "a client of many digits": ("import", f"party: a\nclient: {DIGITS}\nnodes: n.csv\nedges: e.csv"),
    "a seed of many digits": ("sweep", f"seeds: [{DIGITS}]"),
    "a seed of many hexadecimal digits": ("sweep", f"seeds: [0x{DIGITS}]"),
    "a range of seeds to many digits": ("sweep", f"seeds: 0..{DIGITS}"),
    "an override of many digits": ("sweep", f"common: {{rounds: 0x{DIGITS}}}"),
    "a deep sweep": ("sweep", f"common: {DEEP}"),
    "a month 99": ("sweep", "seeds: [0]\ntitle: 2020-99-99"),
    "a search over many digits": ("sweep", f"search: {{trials: 3, train.lr: 'int(1,{DIGITS})'}}"),
    "rounds of many digits": ("run", f"rounds: 0x{DIGITS}"),
    "deep rounds": ("run", f"rounds: {DEEP}"),
}


@pytest.mark.parametrize("form", TEXTS)
def test_yaml_of_odd_forms_is_one_error_message(form, tmp_path, capsys):
    command, text = TEXTS[form]
    (tmp_path / "x.yaml").write_text(text)
    argument = f"{'config=' if command == 'run' else ''}{tmp_path / 'x.yaml'}"
    assert main([command, argument]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1


def parquet(folder, column="", change=None):
    """Write accounts and payments as Parquet, one column changed, and return the arguments of an import."""
    nodes = pd.DataFrame(
        {"id": [f"a{i}" for i in range(40)], "age": np.arange(40.0), "more": 1.0, "label": list("ab") * 20}
    )
    ends = {"source": nodes["id"], "target": nodes["id"].to_numpy()[::-1]}
    edges = pd.DataFrame({**ends, "time": pd.date_range("2024-01-01", periods=40, freq="90min"), "amount": 1.5})
    for name, table in (("n", nodes), ("e", edges)):
        if column in table:
            table[column] = [change(str(value)) for value in table[column]]
        table.to_parquet(folder / f"{name}.parquet")
    tables = ["--nodes", str(folder / "n.parquet"), "--edges", str(folder / "e.parquet"), "columns.time=time"]
    return ["import", *tables, "--out", str(folder / "x.safetensors")]


NESTED = {"list": lambda text: [text], "record": lambda text: {"a": text}}


@pytest.mark.parametrize("column", ["id", "label", "source", "time"])
@pytest.mark.parametrize("kind", NESTED)
def test_lists_as_ids_or_times_are_named(kind, column, tmp_path, capsys):
    """They were not hashable."""
    assert main(parquet(tmp_path, column, NESTED[kind])) == 2
    error = capsys.readouterr().err
    assert f"column '{column}' has lists in its cells, expected one " in error
    assert "Traceback" not in error


def test_other_columns_of_lists_are_left_out_aloud(tmp_path, capsys):
    assert main(parquet(tmp_path, "more", NESTED["list"])) == 0
    assert "left out, because their cells are lists and not single values: more" in capsys.readouterr().out
    assert load_graph(tmp_path / "x.safetensors").num_features == 1


def test_moments_and_bytes_of_parquet_are_times_and_texts(tmp_path):
    """A column of moments was read as microseconds, which no year before 10000 has."""
    assert main(parquet(tmp_path)) == 0
    expected = 1704067200 + 5400 * np.arange(40)  # 1 January 2024
    np.testing.assert_array_equal(np.sort(load_graph(tmp_path / "x.safetensors").edge_time), expected)
    whole = load_graph(tmp_path / "x.safetensors")
    for column in ("id", "source", "time"):
        assert main(parquet(tmp_path, column, str.encode)) == 0
        graph = load_graph(tmp_path / "x.safetensors")
        for name in ("edge_time", "edge_index", "x"):
            np.testing.assert_array_equal(getattr(graph, name), getattr(whole, name))


@pytest.mark.parametrize(
    "values",
    [
        ["2024-01-01", "10000-01-01"],
        ["10000-01-01"],
        ["99999-12-31", "10000-01-01 00:00"],
        ["2024-01-01", "2024-13-01", "31/31/2024", ""],
    ],
)
def test_dates_that_no_library_reads_make_no_categories(values, tables, capsys):
    """With at most as many other dates, they were a category in silence."""
    assert main(tables(values)) == 2
    error = capsys.readouterr().err
    assert "column 'extra' has '" in error
    assert "and dates such as '" in error
    assert main([*tables(values), "kinds.extra=ignored"]) == 0


@pytest.mark.parametrize("values", [["01.11.1", "01.13.2", "46.90.0"], ["2024-A", "2024-B"], ["1-2-3", "a", "b"]])
def test_codes_that_look_like_dates_stay_categories(values, tables, capsys):
    assert main([*tables(values), "inputs=extra"]) == 0  # two of them make the label
    assert "category extra" in capsys.readouterr().out
