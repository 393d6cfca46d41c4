"""Count hard-to-read phrasing in the repository's prose: a smoke alarm, reading decides.

    python -m benchmarks.prose                    # one row per folder
    python -m benchmarks.prose --show docs        # every hit and every long sentence in a folder or file
    python -m benchmarks.prose --limit 2.5        # exit code 1 if a users' page folder exceeds 2.5 hits per 1,000 words

Prose is Markdown without code, link targets and comments. In Python it is comments, docstrings without indented blocks
(equations, examples, tables of files) and strings of three or more words. In YAML it is comments. A sentence is long above 25
words. Table rows are split into cells.
"""

import argparse
import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "contributing", "docs"]
FOLDERS = [*PAGES, "conf", "examples", "benchmarks", "simulations", "tests"]
SKIPPED = ("simulations/results/", "/docs/hooks/", "/assets/", "/.venv/", "/.git/", "/build/")
LONGEST = 25
PATTERNS = [
    r"\b(answers?|answered)\b",
    r"\bwords\b",
    r"\b(is|are|was|were) told\b",
    r"\btells?\b(?! apart)",
    r"\b(hears?|heard)\b",
    r"\bgo(es)? on\b",
    r"\b(anew|afresh)\b",
    r"\bbeside\b",
    r"\bstands?\b",
    r"\b(lies|lie)\b(?! in \S*[\[(0-9{])",
    r"\black(s|ing)?\b",
    r"\bat hand\b",
    r"\bin the place of\b",
    r"\bof (its|their|our|your|one's|my) own\b",
    r"\b(a|one|clear) sentence\b",
    r"\bnobody\b",
    r"\b\w+ alone\b",
    r"\bby (it|them)sel(f|ves)\b",
    r"\bfigures?\b(?! \d)",
    r"\b(is|are|was) no (?!longer|more)[a-z]+",
    r'(?im)(^|[.;:] |""")of (the|a|its|each|what|our|all|it)\b',
    r'"""(What|Where|Who|How|Which|Whose)\b',
    r"\b(files?|lines?|rows?|bytes|seconds|steps|messages?|exchanges?|answers?|nodes?|models?|labels?|one)"
    r" an? (client|round|step|node|row|line|party|seed|type|class|machine|phase|second)\b",
    r"\bas (it|they) (is|are|stands?)\b",
    r"\b(begins?|began|begun)\b",
]
ALLOWED = [  # correct uses
    r"\bfigures? (of|in) (the|a|its) paper\b",
    r"\bMatplotlib figure\b",
    r"\bone row per client\b",
]


def markdown(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items, headings and table cells of a Markdown text, without code."""
    text = re.sub(r"^---\n.*?^---$|^( *)```.*?^\1```$|<!--.*?-->|<[^>\n]+>", "", text, flags=re.M | re.S)
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"\]\([^)]*\)|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}|^:::.*$", " ", text, flags=re.M).replace("[", "")
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.|!!!|#|\|) )", text):
        block = block.strip()
        if block.startswith("|"):
            yield from (cell.strip() for row in block.splitlines() for cell in row.strip("|").split(" | "))
        else:
            yield re.sub(r"^[-#>+!\d. ]+", "", block)


def python(text: str) -> Iterator[str]:
    """Yield docstrings (after three quotes), comments and strings of three or more words of a Python source."""
    tree, documented = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented.add(id(first.value))
                blocks = re.split(r"\n\s*\n", inspect.cleandoc(str(first.value.value)))
                written = "\n\n".join(block for block in blocks if re.search(r"^\S", block, re.M) and block[0] != "|")
                paragraphs = re.split(r"\n\s*\n|\n(?=\s+\w+: )|\n(?=[-*] )", written)
                yield from (('"""' if i == 0 else "") + part for i, part in enumerate(paragraphs))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        said = ""
        if isinstance(node, ast.JoinedStr):
            said = "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented | inner:
            said = node.value
        if len(said.split()) > 2 and "=" not in said.split()[0]:
            yield said
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|---|!)", token.string):
            yield token.string.lstrip("# ")


def comments(text: str) -> Iterator[str]:
    """Yield the comments of a YAML text, joined over adjacent lines."""
    yield from (m.replace("\n#", " ") for m in re.findall(r"(?:^|(?<= ))# ?(.*(?:\n# ?.*)*)", text, re.M))


READERS = {".md": markdown, ".py": python, ".yaml": comments, ".yml": comments}


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences."""
    return [part for part in re.split(r"(?<=[.!?])[\s)\"]+(?=[A-Z(\d])", paragraph) if part.strip()]


class Count:
    """Words, pattern hits, long sentences and semicolons of one file or folder."""

    def __init__(self) -> None:
        self.words, self.hits, self.long, self.semicolons = 0, list[str](), list[str](), list[str]()

    def add(self, place: str, paragraph: str) -> None:
        """Count one paragraph."""
        flat = re.sub(r"\s+", " ", paragraph)
        self.words += len(re.findall(r"[^\W\d_][\w'-]*", flat))
        counted = re.sub("|".join(ALLOWED), "", flat)
        for pattern in PATTERNS:
            for match in re.finditer(pattern, counted):
                around = counted[max(0, match.start() - 40) : match.end() + 30]
                self.hits.append(f"{place}: {match[0].strip()!r} in: {around}")
        for sentence in sentences(flat):
            number = len(re.findall(r"[^\W\d_][\w'-]*", sentence))
            if number > LONGEST:
                self.long.append(f"{place}: {number} words: {sentence}")
            if "; " in sentence:
                self.semicolons.append(f"{place}: semicolon: {sentence}")

    @property
    def rate(self) -> float:
        """Hits per 1,000 words."""
        return 1000 * len(self.hits) / max(self.words, 1)


def count(folder: str) -> Count:
    """Count the prose of a file, or of all files below a folder."""
    tally, top = Count(), ROOT / folder
    for path in [top] if top.is_file() else sorted(top.rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in READERS and not any(part in f"/{name}" for part in SKIPPED if part not in f"/{folder}/"):
            for paragraph in READERS[path.suffix](path.read_text()):
                tally.add(name, paragraph)
    return tally


def main() -> int:
    """Print the table; return 1 if users' pages exceed a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="PATH", help="print every hit and every long sentence of a folder or file")
    parser.add_argument("--limit", type=float, help="most hits per 1,000 words of users' pages (default: none)")
    args = parser.parse_args()
    if args.show:
        tally = count(args.show)
        print("\n".join([*tally.hits, *tally.long, *tally.semicolons]))
        return 0
    package = sorted(f"fedgraph_flwr/{path.name}" for path in (ROOT / "fedgraph_flwr").iterdir() if path.is_dir())
    print(f"{'':28}{'words':>8}{'hits':>7}{'per 1,000':>11}{'> 25 words':>12}{'semicolons':>12}")
    total = Count()
    for name in [*PAGES, "", *FOLDERS[len(PAGES) :], "docs/hooks", "fedgraph_baselines", "fedgraph_flwr", *package]:
        tally = total if not name else count(name)
        if name in PAGES:
            for part in ("hits", "long", "semicolons"):
                getattr(total, part).extend(getattr(tally, part))
            total.words += tally.words
        label = name or "users' pages"
        print(
            f"{label:28}{tally.words:8}{len(tally.hits):7}{tally.rate:11.1f}{len(tally.long):12}{len(tally.semicolons):12}"
        )
    print(f"\nusers' pages: {', '.join(PAGES)}")
    if args.limit is not None and total.rate > args.limit:
        print(
            f"users' pages have {total.rate:.1f} hits per 1,000 words, the limit is {args.limit}: see --show",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
