"""Every command of the pages runs, or says why not; the site is built of them without a warning and without a network."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.config.composition import group_path
from fedgraph_flwr.config.key_docs import keys_of, own_keys_of, sections
from fedgraph_flwr.methods.declarations import PURPOSES, declaration
from tests.support import PATIENCE

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedgraph_flwr", "fedgraph_baselines")
ELSEWHERE = {  # pages whose blocks another test runs, which knows what they need
    "docs/fleet.md": "tests/engine/test_how_to.py",
    "docs/sweeps.md": "tests/sweeps/test_docs.py",
}
PAGES = [path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]]


@dataclass
class Block:
    """A fenced block of a page, with the mark that stands before it."""

    language: str
    text: str
    mark: str = ""

    @property
    def reason(self) -> str:
        """Why it is not run; empty: it is."""
        return self.mark.removeprefix("not run:").strip() if self.mark.startswith("not run:") else ""

    @property
    def checked(self) -> bool:
        """Whether its runs are composed and not trained."""
        return self.mark.startswith("checked:")

    @property
    def words(self) -> list[str]:
        """What its runs and sweeps are given beside their own words, to be short; a run without ``rounds`` has three."""
        return shlex.split(self.mark.removeprefix("words:")) if self.mark.startswith("words:") else []

    @property
    def code(self) -> str:
        """Its text, with another word in the place of one that takes long."""
        if not self.mark.startswith("instead:"):
            return self.text
        old, new = self.mark.removeprefix("instead:").split(" => ")
        assert old.strip() in self.text, (old, self.text)
        return self.text.replace(old.strip(), new.strip())


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    matches = re.findall(
        r"(?:^<!-- ((?:not run|checked|words|instead):.*?) -->\n)?^```(\w*)\n(.*?)^```$",
        (ROOT / page).read_text(),
        re.M | re.S,
    )
    return [Block(language, text, mark) for mark, language, text in matches]


def commands(script: str) -> list[str]:
    """A script's commands, each with its continued lines and its here-document."""
    statements, lines = [], iter(script.splitlines())
    for line in lines:
        while line.endswith("\\"):
            line = line[:-1] + next(lines)
        if heredoc := re.search(r"<<(\w+)$", line):
            body = [line]
            while (part := next(lines)) != heredoc[1]:
                body.append(part)
            line = "\n".join([*body, heredoc[1]])
        if line.strip() and not line.lstrip().startswith("#"):
            statements.append(line)
    return statements


class Shell:
    """Runs the commands of a page in one folder; ours in this process, which spares importing torch for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.patch, self.capsys = monkeypatch, capsys

    def run(self, command: str, block: Block) -> None:
        """Run one command."""
        words = [] if "<<" in command else shlex.split(command, comments=True)
        if words[:1] == ["export"]:
            for name, _, value in (word.partition("=") for word in words[1:]):
                self.patch.setenv(name, value)
                if name == "PYTHONPATH":
                    self.patch.syspath_prepend(str(Path(value).resolve()))
        elif words[:1] == ["cd"]:
            self.patch.chdir(words[1])
        elif words[:1] == ["fedgraph-flwr"]:
            more = block.words if words[1] in ("run", "sweep") else []
            if words[1] == "run" and not any(word.startswith("resume=") for word in words):
                short = [] if any(arg.startswith("rounds=") for arg in words) else ["rounds=3"]
                more = [*(["--dry-run"] if block.checked else []), *short, *more]
            elif words[1] == "alerts" and "--out" in words:
                more = ["--explained", "2"]  # the others have reasons for the same reason
            assert cli.main([*words[1:], *more]) == 0, (command, self.capsys.readouterr().err)
        else:
            assert not block.checked or words[:1] != ["fedgraph-flwr"]
            subprocess.run(
                ["bash", "-e", "-c", command], check=True, capture_output=True, env=os.environ | {"PATH": path()}
            )


def path() -> str:
    """Where commands are found: beside this Python first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_the_blocks_of_a_page_run_in_their_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell, names = Shell(monkeypatch, capsys), {}
    known = set(sys.modules)
    for block in blocks(page):
        if block.language == "bash" and not block.reason:
            for command in commands(block.code):
                shell.run(command, block)
        elif block.language == "python" and not block.reason:
            exec(block.code, names)
    for name in set(sys.modules) - known:  # code of the page's own, which another test may write anew
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
    printed = capsys.readouterr().out
    for said in AFTERWARDS.get(page, ()):
        assert said in printed or any(tmp_path.rglob(said)), said


AFTERWARDS = {  # what a page's commands tell, or the files that they leave
    "docs/start.md": ["fedavg on demo", "report.html", "sweeps"],
    "docs/own-data.md": ["fedprox on bank_a, seed 1", "test_average_precision at best_val", "scored.csv"],
    "docs/parties-tables.md": ["parts", "a_scored.csv"],
    "docs/predict.md": ["again.csv", "new_again.csv", "own.parquet"],
    "docs/between-parties.md": ["one-sided (drop)", "wrote 3 files to linked", "fedgcn on linked"],
    "docs/python.md": ["p_keeps", "local-and-fedavg.png", "MODEL_CARD.md"],
    "docs/extend.md": [
        "near_mean on demo",
        "Damped on demo",
        "test worst class",
        "damped on csbm",
    ],
    "docs/privacy.md": ["ε"],
}


def test_no_page_is_long():
    """Except for those that `simulations/board.py` writes; the attacks are one page."""
    pages = [ROOT / page for page in PAGES if not Path(page).name.startswith("board")]
    pages += (ROOT / "contributing").glob("*.md")
    words = {
        page.name: len(page.read_text().split()) for page in [*pages, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
    }
    assert {name: count for name, count in words.items() if count > (3000 if name == "attacks.md" else 2500)} == {}


def test_what_is_not_run_says_why():
    for page in PAGES:
        for block in blocks(page):
            assert not block.mark.startswith("not run:") or len(block.reason) > 10, (page, block.text)
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), f"{test} does not name {page}"


class Links(HTMLParser):
    """What a page of the site refers to, and the anchors that it has."""

    def __init__(self, page: Path):
        super().__init__()
        self.links, self.loads, self.ids, self.tags = set[str](), set[str](), set[str](), dict[str, int]()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.ids |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        if tag == "a" and attributes.get("href"):
            self.links.add(attributes["href"])
        elif attributes.get("src") or (tag == "link" and attributes.get("href")):
            self.loads.add(attributes.get("src") or attributes["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `mkdocs build --strict` does; a warning ends it."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    return {path.relative_to(folder).as_posix(): Links(path) for path in folder.rglob("*.html")}, folder


@pytest.mark.slow
def test_no_link_of_the_site_is_broken_and_nothing_comes_from_elsewhere(site):
    pages, folder = site
    for place, page in pages.items():
        assert not [load for load in page.loads if re.match(r"(https?:)?//", load)], place
        for link in page.links | page.loads if place != "404.html" else ():
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            at = (folder / place).parent.joinpath(target).resolve() if target else folder / place
            assert at.exists(), (place, link)
            if anchor and at.suffix == ".html":
                assert anchor in pages[at.relative_to(folder.resolve()).as_posix()].ids, (place, link)
    for style in folder.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(https?:)?//", style.read_text()), style.name


@pytest.mark.slow
def test_search_works_from_a_folder(site):
    """Its index is a script, and what stands in for a worker, which browsers give no file, is the site's own."""
    pages, folder = site
    index = (folder / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = {")
    assert "fedstruct" in index
    for place in ("index.html", "methods/fedavg.html"):
        (shim,) = (load for load in pages[place].loads if "iframe-worker" in load)
        assert (folder / place).parent.joinpath(shim).is_file()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not chromium:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-sync"],
            timeout=1000 * PATIENCE,
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(1000 * PATIENCE)
        page.goto((folder / "index.html").as_uri())
        page.get_by_placeholder("Search").first.fill("average precision")
        page.wait_for_selector(".md-search-result__item")
        assert "matching document" in page.inner_text(".md-search-result__meta")
        searched = {
            "learning rate": "train.lr",
            "early stopping": "evaluation.patience",
            "which method": "Choose a method",
            "own model": "Models",
            "callback": "Questions",
        }
        for words, expected in searched.items():
            page.goto((folder / "index.html").as_uri())
            page.get_by_placeholder("Search").first.fill(words)
            page.wait_for_selector(".md-search-result__item")
            items = page.locator(".md-search-result__item")
            assert any(expected in items.nth(place).inner_text() for place in range(min(3, items.count()))), words
        phone = browser.new_page(viewport={"width": 390, "height": 844})
        phone.set_default_timeout(1000 * PATIENCE)
        for name in ("keys.html", "compare.html", "results/robust.html"):  # their wide tables scroll, not the page
            phone.goto((folder / name).as_uri())
            phone.wait_for_selector(".md-typeset__scrollwrap")
            assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        browser.close()


def index_of(folder: Path) -> str:
    """Return the tables of methods by purpose, without the table of what goes with what."""
    text, separator, _ = (folder / "methods.html").read_text().partition('id="what-goes-with-what"')
    assert separator
    return text


@pytest.mark.slow
def test_the_index_of_methods_says_nothing_twice(site):
    _, folder = site
    rows = re.findall(r"<tr>\s*<td>(.*?)</td>\s*<td>(.*?)</td>\s*<td>(.*?)</td>", index_of(folder), re.S)
    rows = [row for row in rows if 'href="methods/' in row[0]]  # another table names the parts that combine
    assert len(rows) == len(group_names("strategy"))
    said = [sentence for *_, helps in rows for sentence in re.split(r"(?<=[.;]) ", helps)]
    said += [clause for _, about, _ in rows for clause in about.split("; ")[1:]]
    assert [sentence for sentence in said if said.count(sentence) > 1] == []


@pytest.mark.slow
def test_every_method_has_a_page_with_its_equations_and_every_key_a_row(site):
    pages, folder = site
    for name in group_names("strategy"):
        page = pages[f"methods/{name}.html"]
        assert "when-it-helps-and-when-not" in page.ids, (
            f"conf/strategy/{name}.yaml says not when it helps (# Helps: ... Not ...)"
        )
        assert {"the-method", "what-leaves-a-client", "compatible-protections", "our-results"} <= page.ids, name
        text = (folder / f"methods/{name}.html").read_text()
        keys = [key.name for key in own_keys_of("strategy", group_path("strategy", name))]
        assert not [key for key in keys if f"<code>{key}</code>" not in text], name
        places = [ROOT / package / side / f"{name}.py" for package in PACKAGES for side in ("strategies", "clients")]
        docstrings = [path.read_text().split('"""')[1] for path in places if path.is_file()]
        written = any(re.search(r"^    \S.*=", text, re.M) for text in docstrings)
        assert page.tags.get("math", 0) > 0 or not written, name
        assert not re.search(r">[^<]*\w_\{[^<]*<", text), f"{name}: a formula that was not drawn"
    keys = (folder / "keys.html").read_text()
    assert not [key.name for group in sections() for key in keys_of(group) if f"<code>{key.name}</code>" not in keys]


@pytest.mark.slow
def test_the_index_lists_every_method_once_under_the_purpose_that_it_declares(site):
    text = index_of(site[1])
    for name in group_names("strategy"):
        title = PURPOSES[declaration(name).purpose]
        assert title != PURPOSES[""], f"conf/strategy/{name}.yaml declares no purpose (declares: {{purpose: ...}})"
        assert text.count(f'methods/{name}.html"><code>') == 1, name
        (above,) = re.findall(rf"<h2 [^>]*>([^<]*)(?:(?!<h2 ).)*?methods/{name}\.html\"><code>", text, re.S)
        assert above == title, name


def test_a_formula_is_what_it_says():
    from mkdocs.config import load_config  # noqa: F401 (the extra is there)

    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        from maths import mathml
    finally:
        sys.path.pop(0)

    def plain(text: str) -> str:
        return re.sub(
            r"</?(math|mrow)[^>]*>|<mspace[^>]*>| (stretchy|form|class|movablelimits)=\"\w+\"", "", mathml(text)
        )

    theta, total = "<mi>θ</mi>", "<msub><mo>∑</mo><mi>i</mi></msub>"
    assert plain("θ^{t+1}") == f"<msup>{theta}<mi>t</mi><mo>+</mo><mn>1</mn></msup>"
    assert plain("Σ_i n_i / Σ_i N_i") == (
        f"<mfrac>{total}<msub><mi>n</mi><mi>i</mi></msub>{total}<msub><mi>N</mi><mi>i</mi></msub></mfrac>"
    )
    # The sum is over the fraction where nothing is summed below.
    assert plain("Σ_i a / (b + c)") == f"{total}<mfrac><mi>a</mi><mi>b</mi><mo>+</mo><mi>c</mi></mfrac>"
    assert plain("‖θ‖²") == f"<msup><mo>‖</mo>{theta}<mo>‖</mo><mn>2</mn></msup>"
    assert plain("w_i,k") == "<msub><mi>w</mi><mi>i</mi><mo>,</mo><mi>k</mi></msub>"
    assert plain("x_hom") == '<msub><mi>x</mi><mi mathvariant="normal">hom</mi></msub>'
    assert plain("S_ij") == "<msub><mi>S</mi><mi>i</mi><mi>j</mi></msub>"
    assert plain("ȳ") == '<mover accent="true"><mi>y</mi><mo>¯</mo></mover>'
    assert plain("(1/N)") == "<mfrac><mn>1</mn><mi>N</mi></mfrac>"
    assert plain("√(a + b)") == "<msqrt><mi>a</mi><mo>+</mo><mi>b</mi></msqrt>"


def test_the_reference_has_every_public_name():
    """And so all that the page on Python teaches."""
    import fedgraph_flwr

    text = (ROOT / "docs" / "api.md").read_text()
    named = set(re.findall(r"^::: fedgraph_flwr\.(?:api|errors)\.(\w+)$", text, re.M))
    assert set(fedgraph_flwr.__all__) - named == {"datasets", "load"}, (
        "a module of its own, and another name of load_run"
    )
    assert "::: fedgraph_flwr.partition.api" in text
    taught = set(re.findall(r"\bfg\.(\w+)", (ROOT / "docs" / "python.md").read_text()))
    assert taught <= set(fedgraph_flwr.__all__)
    shown = set(re.findall(r"\brun\.(\w+)", (ROOT / "docs" / "python.md").read_text()))
    assert [name for name in shown if not (getattr(fedgraph_flwr.Run, name, None) or name == "path").__doc__] == []


def test_the_page_of_models_lists_all_and_says_what_they_read():
    from fedgraph_flwr import models

    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w+) \| (\w+) \|$", (ROOT / "docs/models.md").read_text(), re.M)
    answer = {False: "no", True: "yes"}
    assert {name: tuple(said) for name, *said in rows} == {
        name: (answer[kind.capabilities.reads_edges], answer[models.probe(cfg.model).sampled_hops is not None])
        for name in group_names("model")
        if (cfg := compose([f"model={name}"])) and (kind := models.network(cfg.model))
    }


def test_the_security_policy_is_short_and_leads_to_the_attacks():
    text = (ROOT / "SECURITY.md").read_text()
    assert len(text.split()) < 1000
    links = re.findall(r"docs/([a-z-]+\.md)#([\w-]+)", text)
    assert {anchor for page, anchor in links if page == "attacks.md"} == {
        "the-coordinator",
        "a-member",
        "an-outsider",
        "a-damaged-or-forged-file",
    }
    for page, anchor in links:
        headings = re.findall(r"^##+ (.+)$", (ROOT / "docs" / page).read_text(), re.M)
        assert anchor in {re.sub(r"[^a-z0-9-]", "", heading.lower().replace(" ", "-")) for heading in headings}, page


def test_every_attack_names_what_shows_it():
    """What it gets, what bounds it, and a test or stored result that exists."""
    files = [
        path.relative_to(ROOT).as_posix() for folder in ("tests", "simulations") for path in (ROOT / folder).rglob("*")
    ]
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    lines = (ROOT / "docs" / "attacks.md").read_text().splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("| ")]
    assert len(rows) > 100
    for row in rows:
        assert len(row) == 4, row
        assert all(row), row
        if row[-1] == "shown by":
            continue
        shown = re.findall(r"`([^`]+)`|\(\.\./([^)]+)\)", row[-1])
        assert shown, row
        for name in (code or link for code, link in shown):
            assert f"def {name}(" in tests or any(f"/{file}".endswith(f"/{name}") for file in files), name


def test_the_architecture_is_one_page_and_names_files_that_exist():
    text = (ROOT / "contributing" / "architecture.md").read_text()
    assert len(text.split()) < 900
    named = [name for name in re.findall(r"`([\w/]+(?:/|\.py))`", text) if "NAME" not in name]
    assert len(named) > 30
    assert not [
        name
        for name in named
        if not any((folder / name).exists() for folder in (ROOT, *(ROOT / package for package in PACKAGES)))
    ]
    rooms = {path.name for path in (ROOT / "fedgraph_flwr").iterdir() if (path / "__init__.py").is_file()}
    picture = (ROOT / "docs" / "pictures" / "rooms.svg").read_text()
    assert not {room for room in rooms if f"{room}/" not in picture}
