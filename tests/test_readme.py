"""What the README and the pages beside it say is so: commands, methods, keys, figures."""

import csv
import os
import re
import shlex
import statistics
import subprocess
import tomllib
from pathlib import Path

import hypothesis
import pytest
import yaml
from scipy import stats

from benchmarks import payments_worth
from benchmarks.cost import baselines, scale
from fedgraph_flwr.cli.app import COMMANDS
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.rows import identity, read
from fedgraph_flwr.sweeps.spec import load
from simulations import reproduction

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
START = (ROOT / "docs" / "start.md").read_text()


def test_flowers_own_command_composes():
    lines = re.findall(r"--run-config '(.*)'", START)
    assert lines
    for line in lines:
        compose(shlex.split(re.fullmatch(r'overrides="(.*)"', line).group(1)))


def test_all_commands_are_told_and_every_method_that_is_named_is_one():
    assert not [name for name in COMMANDS if f"fedgraph-flwr {name}" not in START]
    assert f" {len(group_names('strategy'))} [methods](docs/methods.md)" in TEXT
    page = (ROOT / "docs" / "methods.md").read_text()
    (table,) = re.findall(r"^## Where to start\n(.*?)^<!-- made: methods -->", page, re.M | re.S)
    named = re.findall(r"`(\w+)`", table)
    assert len(named) > 10
    assert not set(named) - set(group_names("strategy"))


def test_it_is_read_in_a_minute_or_two_and_the_documentation_in_a_day():
    assert len(TEXT.split()) <= 800
    assert sum(len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md")) <= 45_000


def test_all_keys_of_the_summary_are_named():
    documented = set(re.findall(r"``(\w+)``", Recorder.finish.__doc__))
    page = (ROOT / "docs" / "run-folder.md").read_text()
    assert not [key for key in documented if f"`{key}`" not in page]


QUICK = "pytest -n 2"
SETUP = (
    "\npython3.11 -m venv .venv && . .venv/bin/activate && pip install torch==2.13.0 -e . && fedgraph-flwr run ",
    f'\npip install -e ".[dev]" && {QUICK}\n',
)
SLOW = 'pytest -n 4 --dist loadgroup -m "slow and not faults"'


def test_the_test_commands_are_what_ci_calls():
    """The README's, then the slow ones of CONTRIBUTING.md, with the same examples drawn each time."""
    assert f"`{SLOW}`" in (ROOT / "CONTRIBUTING.md").read_text()
    first, then = SETUP
    assert TEXT.index(first) < TEXT.index(then) < 2500, "both are on the first screen"
    script = (ROOT / ".ci" / "run").read_text()
    called = [line.partition("   #")[0] for line in script.splitlines() if "bin/pytest" in line]
    assert [line.replace('"$work/venv/bin/pytest"', "pytest") for line in called] == [QUICK, SLOW]
    assert "export CI=true" in script.partition("bin/pytest")[0]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    steps = {name: [step.get("run", "") for step in job["steps"]] for name, job in jobs.items()}
    called = {name: [run for run in runs if run.startswith("pytest")] for name, runs in steps.items()}
    slow = SLOW.removesuffix(' -m "slow and not faults"')
    assert called == {
        "test": [QUICK],
        "slow": [f'{slow} -m "slow and not faults and not fleet"'],
        "fleet": [f'{slow} -m "slow and fleet and not faults"'],
        "package": [],
    }
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "-m 'not slow and not faults'" in settings["addopts"]


def test_the_paths_whose_changes_start_fleets_in_ci_are_there():
    (paths,) = re.findall(r'paths="(.*)"', (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert "fedgraph_flwr/party" in paths.split()
    assert [path for path in paths.split() if not (ROOT / path).exists()] == []


def test_hypothesis_draws_the_same_examples_in_ci():
    assert hypothesis.settings.default.derandomize == (os.environ.get("CI") == "true")


def unspaced(code: str) -> str:
    """Without what the length of lines decides: blanks, and commas before a closing bracket."""
    return re.sub(r",(?=[)\]}])", "", re.sub(r"\s+", "", code))


def test_the_worked_example_of_contributing_is_the_code():
    blocks = dict(re.findall(r"^```(python|yaml)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S))
    code = re.sub(r'^ *""".*?"""\n+', "", (ROOT / "fedgraph_flwr/strategies/fedavgm.py").read_text(), flags=re.M | re.S)
    assert unspaced(blocks["python"]) in unspaced(code)
    assert blocks["yaml"].partition("\n")[2] in (ROOT / "conf/strategy/fedavgm.yaml").read_text()


# --- figures ----------------------------------------------------------------------------------------------------------

RESULTS = ROOT / "simulations" / "results"
PAGE = ROOT / "docs" / "results.md"
TABLES = [path for path in sorted((ROOT / "simulations").glob("*.yaml")) if (RESULTS / f"{path.stem}.csv").is_file()]


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown text's tables, the rows of all of them in their order."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.replace("| |", "|  |").splitlines()
        if line.startswith("|") and not line.startswith("|--")
    ]


def mean(table: str, setting: str, column: str) -> float:
    """Of a table's runs in percent, from their CSV."""
    with (RESULTS / f"{table}.csv").open(newline="") as file:
        values = [r["value"] for r in csv.DictReader(file) if (r["setting"], r["method"]) == (setting, column)]
    return 100 * statistics.mean(map(float, filter(None, values)))


def ours(table: str, setting: str, column: str) -> str:
    """The same to one decimal."""
    return f"{mean(table, setting, column):.1f}"


@pytest.mark.slow
def test_results_at_a_glance_are_those_that_the_rule_chooses():
    """`python -m simulations.reproduction --write` writes them anew."""
    for page in reproduction.PAGES:
        assert reproduction.written(page.read_text()) == page.read_text()
    text = (RESULTS / "reproduction-papers.md").read_text()
    assert text.count("<!-- glance:") == 1
    listed = [row for row in rows(text) if row[0].startswith("FedStruct")]
    main = reproduction.main_table("fedstruct").sweep
    method = reproduction.column(reproduction.main_table("fedstruct"), ("fedstruct",))
    gaps = {
        setting: mean(main.name, setting, method) - float(re.match(r"[\d.]+", str(cells[method])).group())
        for setting, cells in main.paper.items()
        if by_seed(main.name, setting, method)
    }
    for row, setting in zip(listed, (min(gaps, key=gaps.get), max(gaps, key=gaps.get)), strict=True):
        assert row[0] == f"{method}, {setting}"
        means = [re.match(r"(?:\*\*)?([\d.]+)", cell)[1] for cell in row[1:4]]
        assert means == [ours(main.name, setting, column) for column in ("Local-GNN", "FL-GNN", method)]
        assert [cell.startswith("**") for cell in row[1:4]] == [False, False, True]


def by_seed(table: str, setting: str, column: str) -> dict[str, float]:
    """A column's scores in percent by seed, from their CSV."""
    return {
        row["seed"]: 100 * float(row["value"])
        for row in read(RESULTS / f"{table}.csv")
        if (row["setting"], row["method"]) == (setting, column) and row["value"]
    }


def gain(table: str, setting: str, column: str, other: str) -> tuple[float, float]:
    """The mean difference of two columns over seeds, and the half-width of its 95 % interval by scipy."""
    scores, others = by_seed(table, setting, column), by_seed(table, setting, other)
    comparison = stats.ttest_rel([scores[seed] for seed in sorted(scores)], [others[seed] for seed in sorted(scores)])
    low, high = comparison.confidence_interval(0.95)
    return (low + high) / 2, (high - low) / 2


COUNTED = {"fedhgn_table3": "FedHGN", "fedspa_table1": "FedSPA"}
STORY = {  # table, method, its FedAvg
    "fedomd_table4": ("FedOMD", "FedAvg-GCN"),
    "fedspa_table1": ("FedSPA", "FedAvg"),
    "fedhgn_table3": ("FedHGN", "FedAvg"),
    "fedhero_table3": ("FedHERO", "FedAvg"),
    "fedstruct_table1": ("FedStruct-H2V", "FL-GNN"),
}


def test_the_story_of_the_results_is_in_their_tables():
    text = " ".join(TEXT.split())
    gains = {
        table: [
            gain(table, setting, *pair)
            for setting in dict.fromkeys(r["setting"] for r in read(RESULTS / f"{table}.csv"))
        ]
        for table, pair in STORY.items()
    }
    ahead = {
        table: (sum(mean > half for mean, half in differences), len(differences))
        for table, differences in gains.items()
    }
    assert ahead["fedomd_table4"][0] == 0
    wins, of = ahead["fedstruct_table1"]
    told = f"FedStruct is ahead of FedAvg in {wins} of {of} settings"
    told += "".join(f", {name} in {{}} of {{}}".format(*ahead[table]) for table, name in COUNTED.items())
    assert f"{told}, and FedOMD in none; FedHERO's gain holds for one edge direction" in text
    assert ahead["fedhero_table3"][0] == ahead["fedhero_table3"][1]
    worth = payments_worth.stored(RESULTS / "payments_worth.csv")
    for columns, method, other, words in (
        ("counts", "FedAvg", "Local", "points more average precision"),
        ("counts", "Blend, trees on the recipe", "FedAvg", "more"),
    ):
        scores = [
            [100 * float(worth["payments", columns, name, seed]["test"]) for seed in range(10)]
            for name in (method, other)
        ]
        low, high = stats.ttest_rel(*scores).confidence_interval(0.95)
        assert f"{(low + high) / 2:.1f} ± {(high - low) / 2:.1f} {words}" in text
    with (RESULTS / "scale.csv").open(newline="") as file:
        seconds = {row["row"]: float(row["seconds"]) for row in csv.DictReader(file)}
    assert f"with 10 clients takes {seconds['10 of Cora, inline']:.3f} s on two cores" in text
    assert f"with 1,000 clients on Ray {seconds['1000, ray, stack=auto']:.2f} s" in text
    flower = seconds["1000, Flower's simulation"]
    assert f"(Flower's simulation: {flower:.1f} s)" in text


def test_the_first_comparison_is_as_it_is_stored():
    """`python -m simulations.reproduction --write` writes it; the first row gains, and many labels make it vanish."""
    assert START.count("<!-- demo:") == 1
    shown = {
        row[0]: [cell.partition(" ± ")[0] for cell in row[1:]] for row in rows(START.partition("<!-- demo:")[2])[:4]
    }
    columns = ["Majority", "Local", "FedAvg", "FedProx", "Central"]
    assert shown.pop("") == columns
    assert shown == {setting: [ours("demo", setting, column) for column in columns] for setting in shown}
    few, many, _ = (gain("demo", setting, "FedAvg", "Local") for setting in shown)
    assert few[0] - few[1] > 2
    assert many[0] < 0.5
    assert f"better than training alone by {few[0]:.1f} ± {few[1]:.1f} points" in TEXT, "the picture's text"


def test_the_page_of_results_tells_the_first_table_as_it_is_stored():
    shown, stored = ({row[0]: row[1:] for row in rows(text.read_text())[::-1]} for text in (PAGE, RESULTS / "cora.md"))
    assert shown["Cora"] == stored["Cora"]


def test_what_a_round_costs_is_as_it_was_measured():
    """`python -m benchmarks.cost scale --write` writes it anew."""
    text = scale.TEXT.read_text()
    assert text.count("<!-- cost:") == 1
    assert scale.written(text) == text
    with (RESULTS / "scale.csv").open(newline="") as file:
        assert {row["row"]: row["words"] for row in csv.DictReader(file)} == {
            r: " ".join(w) for r, w in scale.TABLE.items()
        }


def test_what_graph_baselines_cost_is_as_it_was_measured():
    """`python -m benchmarks.cost baselines --write` writes it anew."""
    text = baselines.TEXT.read_text()
    assert text.count("<!-- baselines:") == 1
    assert baselines.written(text) == text
    assert {name: row["words"] for name, row in baselines.stored().items()} == {
        name: " ".join([*baselines.CORA, *words]) for name, words in baselines.ROWS.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_stored_row_is_a_run_that_its_table_asks_for(path):
    """A row under a table's names with other words would stand beside figures of another run."""
    index = ResultsIndex(load(path))
    index.missing()
    asked = {(cell.setting, cell.method, str(cell.seed)): cell.identity for cell in index.sweep.cells(index.finished)}
    for row in read(index.sweep.results):
        at = row["setting"], row["method"], row["seed"]
        assert asked.get(at, identity(row["method"], row["words"])) == identity(row["method"], row["words"]), at
        assert not row.get("missed") or "adversary." in row["words"], f"clients failed in {at}: {row['missed']}"


def older_than(commit: str, change: str) -> bool:
    """Whether a commit lies before a change, as far as the history at hand knows both."""

    def git(*words: str) -> int:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True).returncode

    known = all(git("cat-file", "-e", f"{revision}^{{commit}}") == 0 for revision in (commit, change))
    return known and git("merge-base", "--is-ancestor", change, commit) == 1


def test_rows_older_than_a_change_that_moves_them_are_repeated_or_noted():
    """`simulations/base/moved.yaml` names the changes, the words of the runs that they move, and what notes say of older rows."""
    stored = {
        path.stem: [(r["commit"], set(r["words"].split())) for r in read(RESULTS / f"{path.stem}.csv")]
        for path in TABLES
    }
    notes = {path.stem: " ".join(str(yaml.safe_load(path.read_text()).get("notes")).split()) for path in TABLES}
    for change in yaml.safe_load((ROOT / "simulations" / "base" / "moved.yaml").read_text()):
        moved, kept = set(change["words"]), set(change.get("without", []))
        made = {
            table: {commit for commit, words in rows if commit and moved <= words and not kept & words}
            for table, rows in stored.items()
        }
        older = {commit for commit in set().union(*made.values()) if older_than(commit, change["commit"])}
        stale = {table for table, commits in made.items() if commits & older}
        noted = {name for name, text in notes.items() if re.search(change.get("noted", "(?!)"), text)}
        assert stale == noted, change["what"]


NUMBERED = {"FedStruct": (7, 4), "FedSPA": (3, 6), "FedOMD": (7, 7), "FedHERO": (9, 9), "FedHGN": (4, 4)}


@pytest.mark.parametrize(("paper", "counts"), NUMBERED.items())
def test_every_table_and_figure_of_a_paper_has_a_row(paper, counts):
    """It links its rows, or says why there are none; a stored table that the paper numbers is linked."""
    body = (RESULTS / "paper-tables.md").read_text().partition(f"| {paper} | |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines()[2:]]
    expected = [f"{kind} {i}" for kind, n in zip(("Table", "Figure"), counts, strict=True) for i in range(1, n + 1)]
    assert sorted(row[0] for row in rows) == sorted(expected)
    for row in rows:
        linked = re.findall(r"\((\w+)\.md", row[2])
        assert linked or row[3], row[0]
        name = f"{paper}_{row[0]}".lower().replace(" ", "")
        assert {path.stem for path in TABLES if path.stem == name} <= set(linked), row[0]


PROSE = {path.stem for path in RESULTS.glob("*-*.md")}  # pages about several tables
PAGES_WITH_SCORES = (PAGE, RESULTS / "reproduction-papers.md", RESULTS / "reproduction-baselines.md")


def told_by(table: str) -> set[str]:
    """Every figure of a stored table, to one decimal."""
    numbers = re.findall(r"\d+\.\d+", (RESULTS / f"{table}.md").read_text())
    return {f"{float(number) + nudge:.1f}" for number in numbers for nudge in (1e-9, -1e-9)}


@pytest.mark.parametrize("path", PAGES_WITH_SCORES, ids=lambda path: path.stem)
def test_the_figures_of_a_paragraph_stand_in_the_tables_that_it_links(path):
    """In those alone: nearly every number below 100 stands in some table."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", path.read_text(), flags=re.S)
    checked = 0
    for paragraph in re.split(r"\n\s*\n", text):
        linked = {path.stem for path in RESULTS.glob("*.md") if re.search(rf"\b{path.stem}\b", paragraph)} - PROSE
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)|^\|.*$", "", paragraph, flags=re.M)
        numbers = set(re.findall(r"(?<![\d.])\d\d\.\d(?![\d.]| (?:MB|kB|GB|s\b))", prose))
        assert not numbers - set().union(*map(told_by, linked)), paragraph
        checked += len(numbers)
    assert checked > 5


def test_the_three_figures_of_hostile_clients():
    nobody = ours("robust", "CSBM, no attack", "mean")
    liars, median = (ours("robust", "CSBM, sign flip, 3", rule) for rule in ("mean", "median"))
    assert f"from {nobody} % to {liars} %. `strategy.aggregator=median` keeps {median} %." in " ".join(TEXT.split())


def test_versions_that_the_page_of_support_names_are_those_of_ci():
    """And what a release needs: links, and a citation whose version is the package's."""
    page = (ROOT / "docs" / "support.md").read_text()
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    matrix = jobs["test"]["strategy"]["matrix"]["include"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"| Python | {', '.join(entry['python'] for entry in matrix)} |" in page
    assert project["requires-python"] == ">=3.11,<3.14"
    flower = next(entry for entry in project["dependencies"] if entry.startswith("flwr"))
    oldest, below = re.fullmatch(r"flwr\[simulation\]>=([\d.]+),<([\d.]+)", flower).groups()
    assert f"| Flower | {oldest}, and the newest below {below} |" in page
    assert f"flwr[simulation]=={oldest}" in matrix[0]["versions"]
    assert re.search(r"torch==([\d.]+)\.\*", matrix[0]["versions"])[1] == "2.9"
    assert "| PyTorch | 2.9 with Python 3.11, 2.13.0 with 3.12, the newest below 2.16 with 3.13 |" in page
    assert "torch>=2.9,<2.16" in project["dependencies"]
    assert {job["runs-on"] for job in jobs.values()} == {"ubuntu-latest"}
    assert project["urls"]
    assert all(url.startswith("https://") for url in project["urls"].values())
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (project["version"], "Apache-2.0")
    assert cited["keywords"] == project["keywords"]
    assert all(entry["url"].startswith("https://arxiv.org/abs/") for entry in cited["references"])
