"""Hooks of mkdocs: generate pages from the tree, resolve links out of `docs/`, inline pictures.

No method, key or table is named here: pages come from ``conf/strategy``, the schema and ``simulations/results``.
"""

import posixpath
import re
import statistics
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import combinations  # noqa: E402
import methods  # noqa: E402
import stored  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402

from fedgraph_flwr.config.key_docs import keys_of, sections  # noqa: E402
from fedgraph_flwr.errors import KEY_ALIASES  # noqa: E402
from simulations import reproduction  # noqa: E402

RESULTS = stored.RESULTS
CARRIED = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    **{f"contributing/{path.name}": path.name for path in (ROOT / "contributing").glob("*.md")},
}
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")


def result_tables() -> dict[str, str]:
    """Return the headings of the stored tables by path of their page."""
    paths = sorted(RESULTS.glob("*.md"), key=lambda path: ("_" in path.stem, path.stem))
    return {f"results/{path.name}": stored.heading(path) for path in paths}


def on_config(config: Any) -> Any:
    """Replace ``methods``, ``results`` and ``others`` (unlisted pages) in the navigation."""
    named = set(re.findall(r"[\w/-]+\.md", str(config.nav))) | set(CARRIED.values())
    filled: dict[str, list[Any]] = {
        "methods": [{title: [{n: f"methods/{n}.md"} for n in names]} for title, names in methods.groups().items()],
        "results": [{heading: place} for place, heading in result_tables().items()],
        "others": sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named),
    }

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: walk(value) for name, value in node.items()}
        if isinstance(node, list):
            return [entry for child in node for entry in (filled[child] if child in list(filled) else [walk(child)])]
        return node

    config.nav = walk(config.nav)
    config.watch += [
        str(ROOT / name)
        for name in ("conf", "fedgraph_flwr", "fedgraph_baselines", "simulations/results", "SECURITY.md")
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, and files outside `docs/` that pages link to."""
    made = {f"methods/{name}.md": methods.page(of) for name, of in methods.methods().items()}
    made |= {place: result_page(RESULTS / Path(place).name) for place in result_tables()}
    made |= {place: (ROOT / name).read_text() for name, place in CARRIED.items()}
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    for path in [*RESULTS.glob("*.csv"), *RESULTS.glob("*.png")]:
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    for page in list(files.documentation_pages()):
        for _, target in LINK.findall(page.content_string):
            linked = pointed(page.src_uri, target)
            place, carried = f"files/{linked}", not linked.startswith("docs/") and (ROOT / linked).parent != RESULTS
            if carried and linked.endswith((".py", ".ipynb", ".yaml")) and files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / linked)))
    return files


def pointed(page: str, target: str) -> str:
    """Return a link's target as a path in the checkout; empty for addresses and links within the page."""
    if re.match(r"[a-z]+:|#", target):
        return ""
    source = next((source for source, place in CARRIED.items() if place == page), f"docs/{page}")
    folder = posixpath.dirname(source)
    return posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))


def result_page(path: Path) -> str:
    """Return the page of a stored table, with its plot and its rows."""
    head, _, rest = path.read_text().partition("\n")
    stem, beside = path.stem, []
    if path.with_suffix(".png").is_file():
        beside.append(f"![{head.lstrip('# ')}]({stem}.png)")
    if path.with_suffix(".csv").is_file():
        beside.append(f"[All runs as CSV]({stem}.csv), one row per run with its overrides.")
    ranked_last = "---\nsearch:\n  boost: 0.1\n---\n"  # tables hold the words of every page
    return ranked_last + "\n\n".join([head, *beside, rest])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Insert generated parts and pictures, and resolve links out of `docs/`."""
    asked = {
        "methods": methods.table,
        "tasks": methods.tasks_table,
        "combinations": combinations.tables,
        "keys": keys,
        "results": results_list,
        "hostile": hostile,
        "tables": reproduction.whole,
    }
    asked |= {paper: partial(reproduction.picture, paper) for paper in reproduction.papers()}
    markdown = re.sub(r"^<!-- made: (\w+) -->$", lambda match: asked[match[1]](), markdown, flags=re.M)
    markdown = re.sub(
        r"^<!-- (not run|checked|words|instead): .*-->\n", "", markdown, flags=re.M
    )  # for tests/test_docs.py
    place = page.file.src_uri

    def turned(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, anchor = pointed(place, target), target.partition("#")[2]
        if not path:
            return match[0]
        if text.startswith("!") and path.endswith(".svg"):
            return f'<div class="picture" data-picture="{path}"></div>'
        if path == "README.md":
            path, anchor = "index.md", ""
        elif path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif (ROOT / path).parent == RESULTS:
            path = f"results/{posixpath.basename(path)}"
        else:
            path = CARRIED.get(path, f"files/{path}")
        return f"{text}({posixpath.relpath(path, posixpath.dirname(place) or '.')}{f'#{anchor}' if anchor else ''})"

    return LINK.sub(turned, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Inline pictures after Markdown, so that they use the page's colours."""
    return re.sub(r'(?<=data-picture=")([^"]+)(">)(?=</div>)', lambda m: m[1] + m[2] + (ROOT / m[1]).read_text(), html)


def keys() -> str:
    """Return tables of all keys of the schema by group."""
    said = []
    for group in sections():
        title = "The run" if group == "run" else f"`{group}`"
        said += [f"## {title} {{ #{group} }}", methods.keys_table(keys_of(group))]
    return "\n\n".join([*said, "## Keys by their names elsewhere", usual_names()])


def usual_names() -> str:
    """Return a list of the keys that have other names elsewhere, by which the site's search finds them."""
    names = defaultdict(list)
    for name, key in KEY_ALIASES.items():
        names[key.split(",")[0].split("=")[0]].append(name.replace("_", " "))
    return "\n\n".join(f"### {', '.join(of)}: `{key}`\n\nSet `{key}`." for key, of in names.items())


def results_list() -> str:
    """Return a list of links to all stored tables."""
    return "\n".join(f"- [{heading}]({place})" for place, heading in result_tables().items())


def hostile() -> str:
    """Return a table of robust rules: mean accuracy, and success rate of backdoors."""
    values, success = defaultdict(list), defaultdict(list)
    rows = stored.tables()["robust"]
    for row in rows:
        values[row["setting"], row["method"]].append(100 * float(row["value"]))
        if row["success"]:
            success[row["setting"], row["method"]].append(100 * float(row["success"]))
    columns = list(dict.fromkeys(row["method"] for row in rows))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        cells = [f"{statistics.mean(scores):.1f}" if (scores := values[setting, column]) else "" for column in columns]
        opened = [
            f"; {statistics.mean(scores):.0f}" if (scores := success[setting, column]) else "" for column in columns
        ]
        lines.append(f"| {setting} | " + " | ".join(map("".join, zip(cells, opened, strict=True))) + " |")
    return "\n".join(lines)
