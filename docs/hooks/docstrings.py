"""Convert a module's docstring to Markdown: prose with rendered formulas, indented blocks as equations, and separate parts."""

import re
from html import escape

from maths import mathml

# Lines that open a separate part, by topic.
PARTS = {
    "leaves": r"Leaves (?:the|a) client\b|Never leaves it\b|No model travels\b",
    "cost": r"Cost\b[^.:]*:",
    "helps": r"Helps\b[^.:]*:",
}
OPENING = re.compile("|".join(f"(?P<{name}>^(?:{pattern}))" for name, pattern in PARTS.items()))
# A word of prose that is mathematics: a letter with an index or exponent, a Greek letter or sign, a letter under an accent.
LETTER = r"[A-Za-zΑ-Ωα-ωℓāĀȳŷẑŝÂÃÑñ][\u0300-\u036f]?[~']*"
STRONG = re.compile(
    rf"(?<![\w./])(?:{LETTER})[_^]|[Α-Ωα-ω∇∂√‖⟨∈²₂⊙]|^\(?(?:[A-Za-z][\u0300-\u036f~]|[āĀȳŷẑŝÂÃ])[.,;:)]*$"
)
NAME = re.compile(r"^\W*[a-z]{2,}_[a-z]|://")  # of code, or an address
SIGNS = {"=", "≠", "<", ">", "≥", "≤", "≈", "+", "−", "/", "·", "×", "←", "→", "∈", "⊙", ">=", "<="}
OPERAND = re.compile(r"\(?[−-]?(?:[A-Za-z]|[0-9.]+)[),.;:]*")


def markdown(text: str) -> tuple[str, dict[str, list[str]]]:
    """Return the body of a docstring and the paragraphs of its parts (`PARTS`), as Markdown with HTML for formulas."""
    body: list[str] = []
    parts: dict[str, list[str]] = {name: [] for name in PARTS}
    for kind, lines in blocks(text):
        if kind == "equations":
            body.append(equations(lines))
        elif kind == "table":
            body.append("\n".join(prose(line.replace(r"\|", "∣")) for line in lines))
        else:
            where, said = body, list[str]()
            for line in lines:
                opening = OPENING.match(line)
                if opening:
                    _keep(where, said)
                    where, said = parts[str(opening.lastgroup)], []
                said.append(line)
            _keep(where, said)
    if not parts["helps"]:
        parts["helps"] = [
            prose(f"Helps: {said}") for said in re.findall(r"\bIt helps,?\s(.*?\.)(?=\s|$)", text, re.S)[:1]
        ]
    parts["leaves"] = [said for said in parts["leaves"] if not re.match(r"Leaves (the|a) client: see `", said)]
    return "\n\n".join(body), parts


def _keep(where: list[str], said: list[str]) -> None:
    if said:
        where.append(prose("\n".join(said)))


def blocks(text: str) -> list[tuple[str, list[str]]]:
    """Return paragraphs, tables and indented blocks in order."""
    parts: list[tuple[str, list[str]]] = []
    for chunk in re.split(r"\n\s*\n", text.strip("\n")):
        for line in chunk.splitlines():
            listed = parts and parts[-1][0] == "prose" and re.match(r"\s*[-*] ", parts[-1][1][-1])
            kind = "table" if line.startswith("|") else "prose"
            kind = "equations" if line.startswith("    ") and not listed else kind
            if not parts or parts[-1][0] != kind:
                parts.append((kind, []))
            parts[-1][1].append(line)
        parts.append(("end", []))
    return [(kind, lines) for kind, lines in parts if lines]


def prose(text: str) -> str:
    """Convert a paragraph: literals become code, formulas are rendered, the rest is unchanged."""
    halves = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(code(half) if half.startswith("`") else formulas(half) for half in halves)


def code(literal: str) -> str:
    """Return a literal as inline code."""
    return "`" + literal.strip("`").replace("\n", " ") + "`"


def formulas(text: str) -> str:
    """Render the formulas in prose: words with an index, Greek letters, and operands that operators join to them."""
    tokens = re.findall(r"((?:\([^()\n]{1,30}\)(?=[_^²])|\{[^{}]*\}|\S)*)(\s*)", text)
    words, gaps = [word for word, _ in tokens], [gap for _, gap in tokens]
    formula = [bool(STRONG.search(word)) and not NAME.search(word) for word in words]
    sign = [word in SIGNS for word in words]
    operand = [bool(OPERAND.fullmatch(word)) for word in words]
    said, at = "", 0
    while at < len(words):
        end = at
        begins = formula[at] or (operand[at] and at + 1 < len(words) and sign[at + 1])
        while begins and end + 1 < len(words) and not words[end].endswith((".", ";", ":", "),")):
            if not (formula[end + 1] or sign[end + 1] or (sign[end] and operand[end + 1])):
                break
            end += 1
        while end > at and sign[end]:
            end -= 1
        stretch = "".join(
            word + gap for word, gap in zip(words[at : end + 1], gaps[at : end + 1], strict=True)
        ).rstrip()
        said += (drawn(stretch) if formula[at] or end > at else escape(stretch, quote=False)) + gaps[end]
        at = end + 1
    return said


def drawn(stretch: str) -> str:
    """Render a stretch of prose as a formula, without surrounding brackets and punctuation."""
    core = stretch.rstrip(".,;:")
    tail = stretch[len(core) :]
    if core.startswith("(") and core.count("(") > core.count(")"):
        return "(" + drawn(core[1:] + tail)
    while core.endswith(")") and core.count(")") > core.count("("):
        core, tail = core[:-1], ")" + tail
    return f'<span class="formula">{mathml(core)}</span>{tail}'  # a span: Markdown treats a line that starts with math as a block


def equations(lines: list[str]) -> str:
    """Convert an indented block to a grid: label, formula, and number or note per line."""
    rows = [re.findall(r"(?P<cell>\S+(?: \S+)*)(?P<gap> {2,}|$)", line.strip()) for line in lines]
    cells = [[cell for cell, _ in row] for row in rows]
    if (
        len(rows) > 2
        and len(cells[0]) > 2
        and all(len(cell.split()) < 3 and not mathematical(cell) for cell in cells[0])
    ):
        return table(cells)
    grid = []
    for row in rows:
        texts = [cell for cell, _ in row]
        lead = texts.pop(0) if len(texts) > 1 and not mathematical(texts[0]) else ""
        wide = len(row) > 1 and len(row[-2][1]) > 3
        note = texts.pop() if len(texts) > 1 and (wide or not mathematical(texts[-1])) else ""
        body = "".join(f'<span class="eq-one">{drawing(text, display=True)}</span>' for text in texts)
        grid.append((drawing(lead), body, drawing(note)))
    parts = ("lead", "body", "note") if any(lead for lead, _, _ in grid) else ("body", "note")
    inner = "".join(
        f'<div class="eq-{part}">{row[("lead", "body", "note").index(part)]}</div>' for row in grid for part in parts
    )
    return f'<div class="eq eq-{len(parts)}">{inner}</div>'


def table(cells: list[list[str]]) -> str:
    """Return a table of rows with equally many cells; the first row is the head."""
    width = len(cells[0])
    head = "".join(f"<th>{drawing(cell)}</th>" for cell in cells[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{drawing(cell)}</td>" for cell in [*row, *[""] * width][:width]) + "</tr>"
        for row in cells[1:]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def mathematical(cell: str) -> bool:
    """Return whether a cell contains a formula."""
    bare = re.sub(r"`[^`]+`", "", cell)
    return bool(re.search(r"[=←≥≤]", bare)) or any(
        STRONG.search(word) and not NAME.search(word) for word in bare.split()
    )


def drawing(cell: str, display: bool = False) -> str:
    """Return a cell as HTML: one formula, or wrapping text with formulas."""
    if mathematical(cell) and len(re.findall(r"(?<![\w^_{])[a-z]{2,}(?![\w(_^])", cell)) < 4:
        return mathml(cell, display)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", prose(cell))
