"""Tables as they come: separators, encodings, formats of numbers and dates; nothing is lost or changed without a line."""

import gzip
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.data import preprocess
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.schema import Column, Schema, TableLayout
from fedgraph_flwr.data.value_formats import FORMATS, NumberFormat, readings
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import Treatment, Written, feature_names, features
from fedgraph_flwr.party.tables.reading import _by_arrow, _reader, read_chunks, read_columns, read_table
from fedgraph_flwr.party.tables.statistics import merge, party_sums


def made(columns, **treatment):
    """Unscaled features by name, and what was said and warned."""
    said, warned = [], []
    options = Treatment(floor=1, say=said.append, warn=warned.append, scaling="none", **treatment)
    if treatment.get("schema"):
        options = Treatment(floor=1, say=said.append, warn=warned.append, **treatment)
    node_features = features("node", pd.DataFrame(columns), list(columns), "t.csv", options)
    return (
        dict(zip(feature_names(node_features.agreed), node_features.x.T.tolist(), strict=True)),
        node_features,
        said,
        warned,
    )


@pytest.mark.parametrize("text", ["1,234.5", "1.234,5", "1 234,5", "1'234.5", "1234,5", "1 234.5", "1'234,5", ""])
def test_a_number_format_is_its_example(text):
    form = NumberFormat.parse(text)
    assert str(form) == text
    assert form.read([text or "1234.5"]).tolist() == [1234.5]


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (["2,317.50", "12", "1,000,000"], [2317.5, 12, 1e6]),
        (["2.317,50", "12", "-0,5"], [2317.5, 12, -0.5]),
        (["2 317,5", "2\u00a0317", "2\u202f317,25"], [2317.5, 2317, 2317.25]),
        (["2'317.5", "12\u2019000"], [2317.5, 12000]),
        (["3,5", "1e3", "−2,25"], [3.5, 1000, -2.25]),
        (["1,234,567", "950"], [1234567, 950]),
        (["1.234.567", "950"], [1234567, 950]),
        (["2.317", "1500"], [2.317, 1500]),  # with dots for thousands it would be 1.500
        (["0.317", "2.317"], [0.317, 2.317]),
    ],
)
def test_numbers_that_can_be_read_in_one_way_are_converted_and_said(overrides, values):
    by_name, node_features, said, warned = made({"income": overrides})
    np.testing.assert_allclose(by_name["income"], values, rtol=1e-6)
    form = node_features.fitted["income"].format
    assert (f"income as {form}" in " ".join(said)) == bool(form)
    assert not warned


@pytest.mark.parametrize(("overrides", "others"), [(["2,317", "950"], "0.5"), (["2.317", "950"], "0,5")])
def test_numbers_that_can_be_read_in_two_ways_follow_the_other_columns_or_are_asked_about(overrides, others):
    with pytest.raises(
        FedGraphError, match=r"'2.317', which can mean 2.*--decimal income=[.,].* or 2.*--decimal income="
    ):
        made({"income": overrides})
    by_name, *_ = made({"income": overrides, "rate": [others, others]})
    assert by_name["income"] == [2317, 950]
    assert by_name["rate"] == [0.5, 0.5]
    assert made({"income": overrides}, decimals={"income": others[1]})[0]["income"] == [2317, 950]
    assert made({"income": overrides}, decimals={"": overrides[0][1]})[0]["income"] == pytest.approx([2.317, 950])
    assert made({"income": overrides}, thousands={"": overrides[0][1]})[0]["income"] == [2317, 950]


def test_options_that_do_not_fit_are_one_error():
    with pytest.raises(
        FedGraphError, match=r"has '0.5' in row 2, which is not a number by its --decimal and --thousands"
    ):
        made({"rate": ["0,25", "0.5"]}, decimals={"": ","})
    with pytest.raises(
        FedGraphError, match=r"column 'rate' has '0,25' in row 1, which is not a number like '1234.5'.*--decimal"
    ):
        made({"rate": ["0,25", "0.5", "0.75"]})
    with pytest.raises(FedGraphError, match="--decimal and --thousands of column 'rate' are both ','"):
        made({"rate": ["0,25"]}, decimals={"": ","}, thousands={"rate": ","})
    with pytest.raises(FedGraphError, match=r"date_formats.*did you mean 'day'"):
        Treatment(date_formats={"dya": "%Y"}).check_names({"node": ["day"]})
    with pytest.raises(FedGraphError, match=r"date_formats\.day=%Y conflicts with kinds\.day=number"):
        made({"day": ["2001"]}, date_formats={"day": "%Y"}, kinds={"day": "number"})


def test_two_date_formats_in_one_column_are_read():
    by_name, node_features, said, _ = made({"d": ["1970-01-02", "03.01.1970", "04/01/1970", "31/01/1970"]})
    assert by_name["d"] == [1, 2, 3, 30]
    assert node_features.fitted["d"].format == "ISO8601|%d.%m.%Y|%d/%m/%Y"
    assert "d as ISO8601|%d.%m.%Y|%d/%m/%Y" in " ".join(said)
    for overrides, why in (
        (["01/02/1970", "1970-01-01"], "day and month are ambiguous: pass date_formats.d=%d/%m/%Y or"),
        (["31/01/1970", "01/31/1970"], "some with day first and some with month first: pass date_formats.d="),
        (
            ["1970-01-01", "1970-01-02", "soon"],
            "has 'soon' in row 3, and dates such as '1970-01-01'.*date_formats.d=FORMAT",
        ),
    ):
        with pytest.raises(FedGraphError, match=why):
            made({"d": overrides})
    assert made({"d": ["03 Jan 1970"]}, date_formats={"d": "%d %b %Y"})[0]["d"] == [2]
    assert made({"d": ["19700103", "04/01/1970"]}, date_formats={"d": "%Y%m%d|%d/%m/%Y"})[0]["d"] == [2, 3]
    with pytest.raises(FedGraphError, match="date format '%Q'"):
        made({"d": ["1"]}, date_formats={"d": "%Q"})


@pytest.mark.parametrize(
    ("value", "what", "fix"),
    [("{} EUR", "numbers", "remove units"), ("{:02} Jan 1970", "dates", "pass date_formats.income=FORMAT")],
)
def test_a_column_that_is_ignored_and_looks_like_numbers_or_dates_is_a_warning(value, what, fix):
    overrides = [value.format(i + 1) for i in range(30)]
    _, node_features, _, warned = made({"income": overrides, "x": list(range(30))})
    assert node_features.agreed["income"].kind == "ignored"
    assert f"column 'income' is ignored, but 30 of its 30 different values look like {what}, such as" in warned[0]
    assert fix in warned[0]
    assert "kinds.income=ignored" in warned[0]
    assert not made({"income": overrides, "x": list(range(30))}, kinds={"income": "ignored"})[3]
    some = [*overrides[:8], *(f"unknown {i}" for i in range(22))]
    assert "8 of its 30 different" in made({"income": some, "x": list(range(30))})[3][0]
    names = [f"customer {i}" for i in range(30)]
    assert not made({"income": names, "x": list(range(30))})[3]


def test_a_table_of_another_format_is_read_by_its_own_and_keeps_it():
    schema = Schema(("a", "b"), {"node": {"v": Column(), "d": Column("date", format="ISO8601")}}, scaling="none")
    by_name, node_features, said, _ = made(
        {"v": ["2.317,5", "1"], "d": ["02.01.1970", "03.01.1970"]}, schema=schema, where="s.yaml"
    )
    assert by_name == {"v": [2317.5, 1], "d": [1, 2]}
    assert node_features.agreed == schema.nodes["node"]
    assert (node_features.fitted["v"].format, node_features.fitted["d"].format) == ("1.234,5", "%d.%m.%Y")
    assert "v as 1.234,5" in " ".join(said)
    # A column that fits the schema's format, in a table whose other columns have another decimal sign.
    two = Schema(("a", "b"), {"node": {"v": Column(), "w": Column()}}, scaling="none")
    assert made({"v": ["2.317", "950"], "w": ["0,5", "1"]}, schema=two, where="s.yaml")[0]["v"] == [2317, 950]
    stored = Schema(("a", "b"), {"node": {"v": Column(format="1.234,5")}}, scaling="none")
    assert made({"v": ["2.317"]}, schema=stored, where="s.yaml")[0]["v"] == [2317]
    anyhow = Schema(("a", "b"), {"node": {"v": Column(format="any")}}, scaling="none")
    with pytest.raises(FedGraphError, match="which can mean"):
        made({"v": ["2.317"]}, schema=anyhow, where="s.yaml")
    with pytest.raises(FedGraphError, match=r"number format '1;5' is unknown; expected one of: .*1234,5"):
        Column(format="1;5")


def test_large_plain_columns_are_tried_on_few_values(monkeypatch):
    seen = []
    for form in FORMATS[1:]:
        monkeypatch.setattr(type(form), "read", counting(type(form).read, seen))
        break
    overrides = [f"{i}.25" for i in range(5000)]
    assert readings(overrides) == [NumberFormat()]
    assert sum(seen) < 2 * 5000 + len(FORMATS) * 200


def counting(read, seen):
    def counted(self, overrides):
        seen.append(len(overrides))
        return read(self, overrides)

    return counted


TABLE = "id;name;wert\n1;Käthe;2,5\n2;Jürgen, jun.;3\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TABLE.encode("utf-8-sig"), "separated by semicolon"),
        (TABLE.encode("latin-1"), "read as cp1252 (Latin-1) because it is not UTF-8; pass encoding=NAME"),
        (b"\xfe\xff" + TABLE.encode("utf-16-be"), "separated by semicolon"),
        (TABLE.replace(";", "\t").encode(), "separated by tab"),
        (TABLE.replace(";", "|").encode(), "separated by pipe"),
        (TABLE.replace("Jürgen, jun.", '"Jürgen, jun."').replace("2,5", '"2,5"').replace(";", ",").encode(), ""),
    ],
)
@pytest.mark.parametrize("ending", ["t.csv", "t.csv.gz"])
def test_separators_and_encodings_are_detected(tmp_path, content, said, ending):
    path = tmp_path / ending
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    lines = []
    for table in (read_table(path, say=lines.append), preprocess.table_of(path)):
        assert table.to_dict("list") == {"id": ["1", "2"], "name": ["Käthe", "Jürgen, jun."], "wert": ["2,5", "3"]}
    assert said in " ".join(lines)
    assert bool(lines) == bool(said)


def test_a_separator_cuts_every_row_alike(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b,c\n1;2,5\n3;4\n")
    assert list(read_table(path).columns) == list(preprocess.table_of(path).columns) == ["a", "b,c"]
    path.write_text("only\n1\n2\n")
    assert read_table(path).to_dict("list") == {"only": ["1", "2"]}


def test_separator_and_encoding_can_be_given(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("a#b\nä#1\n".encode("cp437"))
    table = read_table(path, TableLayout(separator="#", encoding="cp437"))
    assert table.to_dict("list") == {"a": ["ä"], "b": ["1"]}
    with pytest.raises(FedGraphError, match=r"t\.txt is not utf-8 \(.*byte 0x84.*\): pass encoding=NAME"):
        read_table(path, TableLayout(encoding="utf-8"))
    with pytest.raises(FedGraphError, match="separator '##' must be one character, or one of: comma"):
        TableLayout(separator="##")
    with pytest.raises(FedGraphError, match="encoding 'utf8000' is unknown"):
        TableLayout(encoding="utf8000")
    assert TableLayout(separator="tab").separator == "\t"


def test_values_that_become_other_are_counted_and_named():
    long = "x" * 200 + "\x1b[31m"
    overrides = ["DE"] * 20 + ["FR"] * 20 + ["Germany"] * 7 + [long] * 2 + ["IT"]
    options = Treatment(floor=5, say=(said := []).append, warn=(warned := []).append)
    node_features = features("node", pd.DataFrame({"country": overrides}), ["country"], "a.csv", options)
    assert node_features.agreed["country"].categories == ("DE", "FR", "Germany")
    assert "a.csv: 3 of 50 rows have a rare value of 'country' (fewer than 5 rows) and become 'other': 'xxx" in said[0]
    assert not warned
    schema = Schema(("a", "b"), {"node": {"country": Column("category", categories=("DE", "FR"))}})
    options = Treatment(schema=schema, where="s.yaml", warn=warned.append)
    features("node", pd.DataFrame({"country": overrides}), ["country"], "b.csv", options)
    assert warned[0].startswith(
        "b.csv: 10 of 50 rows have a value of 'country' that s.yaml does not list and become 'other': 'Germany' 7, 'xxx"
    )
    assert "it lists DE, FR" in warned[0]
    assert "\x1b" not in warned[0]
    assert len(warned[0]) < 250


@pytest.fixture
def bank(tmp_path, monkeypatch):
    """A bank's tables with names, signs and formats of their own."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    rows = "".join(
        f"k{i};{i % 7 + 1}.{i:03},5;{['DE', 'FR'][i % 2]};{['ok', 'fraud'][i % 3 == 0]}\n" for i in range(40)
    )
    (tmp_path / "kunden.csv").write_bytes(("kunde;umsatz;land;status\n" + rows).encode("latin-1"))
    edges = "".join(f"k{i};k{(i * 7 + 1) % 40}\n" for i in range(40)) + "k0;k1\nk1;k0\n"
    (tmp_path / "zahlungen.csv").write_text("von;an\n" + edges)
    return tmp_path


NAMES = ["columns.id=kunde", "columns.label=status", "columns.source=von", "columns.target=an"]
FILES = ["--nodes", "kunden.csv", "--edges", "zahlungen.csv"]
CLIENT = ["--num-clients", "2", "--schema", "s.yaml", "--client"]


def run(*args):
    return cli.main(["import", *FILES, *args])


def test_the_schema_keeps_names_separator_and_formats(bank, capsys):
    first = [*NAMES, "separator=semicolon", "encoding=latin-1", "--undirected", "--classes", "ok,fraud"]
    assert run(*first, *CLIENT, "0", "--out", "parts/client_0000.safetensors") == 0
    output = capsys.readouterr().out
    assert (
        "zahlungen.csv: 6 of 42 rows repeat an edge of another row, in either direction; each edge counts once"
        in output
    )
    assert "umsatz as 1.234,5" in output
    schema = Schema.load(bank / "s.yaml")
    assert schema.tables == TableLayout(
        id="kunde", label="status", source="von", target="an", separator=";", encoding="latin-1"
    )
    assert schema.undirected
    assert schema.nodes["node"]["umsatz"].format == "1.234,5"
    assert run(*CLIENT, "1", "--out", "parts/client_0001.safetensors") == 0
    a, b = (ClientGraph.load(f"parts/client_000{i}.safetensors") for i in range(2))
    assert a.x.equal(b.x)
    assert a.edge_index.equal(b.edge_index)
    assert cli.main(["schema", "show", "parts/client_0001.safetensors"]) == 0
    assert "tables id kunde, label status, source von" in capsys.readouterr().out


def test_options_go_before_the_schema_and_a_conflict_is_an_error(bank, capsys):
    assert run(*NAMES, "--classes", "ok,fraud", *CLIENT, "0", "--out", "a.safetensors") == 0
    other = (bank / "kunden.csv").read_text().replace("kunde;", "client;", 1)
    (bank / "kunden.csv").write_text(other)
    capsys.readouterr()
    assert run(*CLIENT, "1", "--out", "b.safetensors") == 2
    assert "id column 'kunde' is unknown" in capsys.readouterr().err
    assert run(*CLIENT, "1", "--out", "b.safetensors", "columns.id=client") == 0
    assert "columns.id='client' overrides 'kunde' of s.yaml" in capsys.readouterr().out
    graph = ClientGraph.load("b.safetensors")
    assert graph.schema["agreed"]["tables"]["id"] == "kunde"
    assert graph.schema["fitted"]["tables"]["id"] == "client"
    assert run(*CLIENT, "1", "--out", "b.safetensors", "columns.id=umsatz") == 2
    assert "columns.id=umsatz conflicts with its feature 'umsatz' (number) in s.yaml" in capsys.readouterr().err
    assert run(*CLIENT, "1", "--out", "b.safetensors", "columns.id=client", "date_formats.umsatz=%Y") == 2
    assert "date_formats.umsatz=%Y conflicts with kind number in s.yaml" in capsys.readouterr().err
    for args, message in (
        (["--decimal", "x"], "--decimal x: expected SIGN or COLUMN=SIGN"),
        (["date_formats=%Y"], "date_formats=%Y: expected KEY=VALUE, or KEY.NAME=VALUE"),
        (["--decimal", "umsazt=,"], "did you mean 'umsatz'"),
    ):
        assert run(*CLIENT, "1", "--out", "b.safetensors", "columns.id=client", *args) == 2
        assert message in capsys.readouterr().err


def test_old_schema_files_are_read_and_new_keys_are_checked(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "scaling: local\nclasses: [a, b]\nnodes:\n  node:\n    d: {kind: date, format: '%d.%m.%Y'}\nedges: []\n"
    )
    schema = Schema.load(path)
    assert (schema.tables, schema.undirected) == (TableLayout(), False)
    schema.save(path)
    assert "\ntables" not in path.read_text()
    path.write_text("nodes: {}\ntables: {ids: x}\n")
    with pytest.raises(FedGraphError, match=r"key of tables 'ids' is unknown.*did you mean 'id'"):
        Schema.load(path)
    path.write_text("nodes: {}\ntables: x\n")
    with pytest.raises(FedGraphError, match="tables: expected a mapping"):
        Schema.load(path)


def test_the_exported_preprocessing_reads_the_same_values():
    table = pd.DataFrame(
        {
            "a": ["2.317,50", "12", None, "-0,5"],
            "b": ["2\u202f317", "12 000", "7", ""],
            "c": ["1'234.5", "2", "3", "4"],
            "d": ["1970-01-02", "03.01.1970", "04/01/1970", "31/01/1970"],
            "e": ["x" * 300, "y", "x" * 300, "y"],
        }
    )
    node_features = features("node", table, list(table), "t.csv", Treatment(floor=1))
    columns = {name: column.to_dict() for name, column in node_features.fitted.items()}
    np.testing.assert_allclose(preprocess.features(table, columns), node_features.x, rtol=1e-6, atol=1e-6)
    words = preprocess.as_words(pd.Series(["x" * 300, "x" * 299 + "y", "y" * 256]))
    assert len({*words.tolist()}) == 3
    assert max(map(len, words)) == preprocess.MAX_TEXT, "of one long text, all rows would take the memory"
    with pytest.raises(ValueError, match=r"column 'a' has '2317.5', expected a number"):
        preprocess.features(table.assign(a="2317.5"), columns)
    with pytest.warns(UserWarning, match=r"2 rows have values of 'e' that training did not have: \['z'\]"):
        preprocess.features(table.assign(e=["y", "z", "z", "y"]), columns)


def sums(name, column, overrides, **schema):
    """What a party tells of one column."""
    party = Schema(("a", "b"), {"node": {"v": column}}, **schema)
    return name, party_sums(party, {"node": (pd.DataFrame({"v": overrides}), name)}, 5) | {"schema": party}


def test_a_merge_names_the_values_that_only_one_party_has():
    category = Column("category")
    said, warned = [], []
    parties = [
        sums("a.json", category, ["DE"] * 20 + ["FR"] * 10 + ["IT", "ES", "PT"] * 2),
        sums("b.json", category, ["DE"] * 5 + ["de"] * 6 + ["FR"] * 5),
        sums("c.json", category, ["Germany"] * 9 + ["France"] * 8),
    ]
    merged = merge(parties, said.append, warned.append)
    assert set(merged.nodes["node"]["v"].categories) == {"DE", "de", "FR", "Germany", "France"}
    assert said == [
        "column 'v': 6 of 69 rows become 'other'; their values have too few rows to be shared",
        "column 'v': only b.json has 'de' 6",
    ]
    assert warned == [
        "column 'v': only c.json has 'Germany' 9, 'France' 8, and no value of the other parties ('DE' 25, 'FR' 15, 'de' 6):"
        " use the same spelling",
        "column 'v': 'DE' and 'de' are two values: use the same spelling",
    ]
    many = [f"w{i:02}" for i in range(60) for _ in range(5 + (i < 50))]
    merge([sums("a.json", category, many)], (said := []).append, warned.append)
    assert said == ["column 'v': 50 of 350 rows become 'other': 'w50' 5, 'w51' 5, 'w52' 5, 'w53' 5, 'w54' 5 and 5 more"]


def test_a_merge_keeps_what_parties_have_in_common():
    one, other = TableLayout(id="k", separator=";", split="part"), TableLayout(id="n", split="part")
    values = [str(i) for i in range(9)]
    said = []
    parties = [
        sums("a.json", Column(format="1,234.5"), values, tables=one, undirected=True),
        sums("b.json", Column(), values, tables=other, undirected=True),
    ]
    merged = merge(parties, said.append)
    assert merged.tables == TableLayout(id="k", split="part")
    assert (merged.undirected, merged.nodes["node"]["v"].format) == (True, "any")
    assert (
        "id of the tables is 'k' in a.json, 'n' in b.json: the schema keeps 'k', so the other parties must pass their own"
        in said
    )
    assert "formats of column 'v' differ between a.json and b.json: each party's is detected" in said
    with pytest.raises(
        FedGraphError, match=r"a\.json was written with --undirected and b\.json without: use the same option for both"
    ):
        merge([parties[0], sums("b.json", Column(), values)])


def test_formats_of_numbers_and_names_of_columns_may_differ_between_parties():
    one = Schema(("a", "b"), {"node": {"v": Column(format="1.234,5")}}, tables=TableLayout(id="k"))
    other = Schema(("a", "b"), {"node": {"v": Column()}})
    assert one.difference(other) == ""
    assert "format" in Schema(("a", "b"), {"node": {"v": Column("date", format="%Y")}}).difference(
        Schema(("a", "b"), {"node": {"v": Column("date")}})
    )


CELLS = [
    "",
    "a",
    " b",
    "c ",
    '"d"',
    '"e,f"',
    '""',
    "NA",
    "nan",
    "1e5",
    "\u00e4",
    "g\th",
    "x;y",
    '"g\nh"',
    "\x0b",
    "#",
    "\\",
    "'",
    '"',
]


@pytest.mark.parametrize("seed", range(60))
def test_both_readers_of_csv_give_the_same_table(tmp_path, seed):
    """Pyarrow reads a table only if pandas reads the same one; a table that pandas refuses is refused."""
    rng = np.random.default_rng(seed)
    cells = CELLS if seed % 2 else [cell for cell in CELLS if '"' not in cell and not cell.startswith(" ")]
    columns, separator, end = int(rng.integers(1, 5)), ",;\t|"[seed % 4], ("\n", "\r\n")[seed % 3 == 0]
    rows = [[str(rng.choice(cells)) for _ in range(columns)] for _ in range(int(rng.integers(0, 8)))]
    if rows and seed % 5 == 0:
        rows[-1] = rows[-1][: max(columns - 1, 1)] if seed % 10 else [*rows[-1], "more"]
    names = [str(rng.choice(["n", "m", "", " k"])) + (str(i) if seed % 7 else "") for i in range(columns)]
    text = end.join(separator.join(row) for row in [names, *rows]) + (end if seed % 4 else "")
    (path := tmp_path / "t.csv").write_bytes(text.encode())
    fast = _by_arrow(path, separator, "utf-8")
    try:
        table = _reader(path, separator, "utf-8")
    except (ValueError, pd.errors.ParserError):
        assert fast is None
        return
    if fast is not None:
        pd.testing.assert_frame_equal(fast, table)


def test_a_plain_table_is_read_by_the_fast_reader(tmp_path):
    (path := tmp_path / "t.csv").write_text("a,b\n1,\n,x y\n")
    pd.testing.assert_frame_equal(_by_arrow(path, ",", "utf-8"), _reader(path, ",", "utf-8"))


@pytest.mark.parametrize("quote", ['"', ""], ids=["pandas", "pyarrow"])
@pytest.mark.parametrize(
    ("rows", "line", "fields", "less"),
    [
        (["n0,1,ok,", "n1,2,ok,"], 2, 4, "more"),  # pandas would take the first column as an index and shift the names
        (["n0,1,ok,9", "n1,2,ok,9"], 2, 4, "more"),
        (["n0,1,ok", "", "n1,2,ok,9"], 4, 4, "more"),
        (["n0,1,ok", " ", "n1,2", "n2,3,ok"], 4, 2, "fewer"),  # pandas would add empty cells
        (["n0,1,", "n1,,"], 0, 3, ""),
    ],
)
def test_rows_have_as_many_fields_as_the_header(tmp_path, quote, rows, line, fields, less):
    path = tmp_path / "a.csv"
    path.write_text("\n".join([f"{quote}id{quote},age,label", *rows]))
    readers = [lambda: read_table(path), lambda: pd.concat(read_chunks(path, TableLayout(), ["id"], 1))]
    if not line:
        assert [len(read()) for read in readers] == [len(preprocess.table_of(path))] * 2 == [2, 2]
        return
    for read in readers:
        with pytest.raises(
            FedGraphError, match=rf"a\.csv, line {line}: {fields} fields, {less} than the 3 of the header: give"
        ):
            read()
    with pytest.raises(ValueError, match=rf"a\.csv, line {line}: {fields} fields, but the header has 3"):
        preprocess.table_of(path)


def test_a_short_row_does_not_hide_the_separator(tmp_path):
    (path := tmp_path / "t.csv").write_text("a;b;c\n1;2,5;3\n4;5\n")
    with pytest.raises(FedGraphError, match=r"t\.csv, line 3: 2 fields, fewer than the 3 of the header"):
        read_table(path)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("line", ["sep=;", '"sep=;"'])
def test_a_first_line_that_declares_the_separator_is_no_row(tmp_path, suffix, encoding, line):
    """Spreadsheets write it; the header has more commas than semicolons."""
    path, text = tmp_path / f"t{suffix}", "id;a,b,c\r\n1;x\r\n2;\u00e4\r\n"
    content = f"{line}\r\n{text}".encode(encoding)
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    for table in (
        read_table(path),
        next(read_chunks(path, TableLayout(), ["id", "a,b,c"], 10)),
        preprocess.table_of(path),
    ):
        assert table.to_dict("list") == {"id": ["1", "2"], "a,b,c": ["x", "\u00e4"]}
    assert list(read_columns(path, TableLayout()).columns) == ["id", "a,b,c"]
    path.write_bytes(gzip.compress(content + b"3;4;5\n") if suffix.endswith("gz") else content + b"3;4;5\n")
    if encoding != "utf-16":
        with pytest.raises(FedGraphError, match="line 5: 3 fields"):
            read_table(path)


@pytest.mark.parametrize("order", ["le", "be"])
def test_utf_16_without_a_mark_is_told_its_order(tmp_path, order):
    path = tmp_path / "t.csv"
    path.write_bytes("id,a\n1,2\n".encode(f"utf-16-{order}"))
    with pytest.raises(FedGraphError, match=f"pass encoding=utf-16-{order}"):
        read_table(path)
    assert read_table(path, TableLayout(encoding=f"utf-16-{order}")).to_dict("list") == {"id": ["1"], "a": ["2"]}


def test_a_usual_column_of_numbers_is_read_as_by_its_texts():
    """Its quick test gives what all formats give."""
    columns = [["1.5", "2.25"], ["1.234", "5.678"], ["1.234", "5.67"], ["12", None, "-3e2"], ["0", "1"], ["1.0", "0"]]
    columns += [["1,5", "2"], ["nan", "1.5"], ["inf", "1"], [" 1.5", "2"], ["20260304", "20260305"], ["1.234", "1234"]]
    for values in columns:
        quick = Written("node", "v", pd.Series(values, dtype=object), "t.csv", Treatment(floor=1))
        slow = Written("node", "v", pd.Series(values, dtype=object), "t.csv", Treatment(floor=1))
        slow.__dict__["plain"] = None
        assert outcome(quick) == outcome(slow)


def outcome(column):
    """What a column is read as, or the error."""
    try:
        return column.detected({column.decimal} - {""})
    except FedGraphError as error:
        return str(error)


def test_a_usual_column_is_not_tried_in_all_formats(monkeypatch):
    """Thirteen formats, each in a loop over texts, took 3 ms a column."""
    tried: list[str] = []
    parsed: list[int] = []
    read, to_numeric = NumberFormat.read, pd.to_numeric
    monkeypatch.setattr(pd, "to_numeric", lambda cells, **how: parsed.append(len(cells)) or to_numeric(cells, **how))
    monkeypatch.setattr(NumberFormat, "read", lambda form, texts: tried.append(str(form)) or read(form, texts))
    rng = np.random.default_rng(0)
    table = pd.DataFrame({f"c{i}": rng.normal(size=60).round(4).astype(str) for i in range(20)} | {"g": ["1,5"] * 60})
    assert {c.kind for c in features("node", table, list(table.columns), "t.csv", Treatment()).agreed.values()} == {
        "number"
    }
    assert len(tried) <= 20 + 20  # the plain format for each, and all formats for one
    assert parsed.count(60) == 21  # once per column


def test_decimals_of_parquet_are_numbers(tmp_path):
    table = pd.DataFrame({"id": ["a", "b", "c"], "paid": [Decimal("1.50"), None, Decimal("2.25")]})
    table.to_parquet(path := tmp_path / "t.parquet")
    made = features("node", read_table(path), ["paid"], "t.parquet", Treatment(scaling="none"))
    assert made.x.tolist() == [[1.5, 0], [1.875, 1], [2.25, 0]]
