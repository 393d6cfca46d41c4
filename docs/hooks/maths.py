"""The docstrings' notation of mathematics as MathML, which browsers draw without a script.

    Σ_{i∈C} p_i Δ_i / Σ_j N_j,   θ^{t+1},   ‖x_u − x_v‖²,   √(a + b),   ā_vu,   Ā^[i],   (1/N)

`_` and `^` take what is in braces or brackets, or the letters and digits behind them (a comma with a letter at once
behind it too: θ_φ,i). Two or more ASCII letters are a word, upright; a subscript of two letters is two indices. A
spaced slash is a fraction of the products beside it, so is a tight one between parentheses or alone within them.
Greek with a digit has it as an index.
"""

import re
import unicodedata
from dataclasses import dataclass
from html import escape

ACCENTS = {"\u0304": "¯", "\u0302": "^", "\u0303": "~", "\u030a": "˚", "\u0307": "˙", "\u0306": "˘", "\u0301": "´"}
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ", "0123456789+−T", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
RELATIONS = set("=≠<>≤≥≈~←→∈∉⊂∪∩:;…+−-·×⊙±") | {":=", "<=", ">=", ".."}
SUM = "∑"
BIG = set("ΣΠ") | {"min", "max", "argmin", "argmax"}
CLOSING = {"(": ")", "[": "]", "{": "}", "⟨": "⟩"}
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<code>``.+?``|`.+?`|[a-z]{2,}(?:_[a-z]{2,})+)|(?P<word>[A-Za-z]{2,}(?:[-’'][A-Za-z]+)*(?:\.(?=\s))?|(?<=[A-Za-z])'s\b)"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?(?:e[-−]?[0-9]+)?)|(?P<above>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ]+)|(?P<below>[₀₁₂₃₄₅₆₇₈₉]+)"
    r"|(?P<letter>[^\W\d_][\u0300-\u036f]*~?(?:'(?!s\b))*)|(?P<script>[_^])|(?P<sign>:=|<=|>=|\.\.+|.)",
    re.DOTALL,
)


@dataclass
class Piece:
    """Part of an expression: its kind, its text, and whether a space precedes it."""

    kind: str
    text: str
    spaced: bool = False


def mathml(text: str, display: bool = False) -> str:
    """Return an expression as a ``math`` element."""
    inner = Parser(text, display).row()
    style = ' display="block"' if display else ""
    return f"<math{style}>{inner}</math>"


def pieces(text: str) -> list[Piece]:
    """An expression in parts. Letters with accents are taken apart, so that the accent can be drawn over the letter."""
    parts, spaced = [], False
    apart = "".join(unicodedata.normalize("NFD", sign) if sign.isalpha() else sign for sign in text)
    for match in TOKEN.finditer(apart):
        if match.lastgroup == "space":
            spaced = True
            continue
        parts.append(Piece(str(match.lastgroup), match.group(), spaced))
        spaced = False
    return parts


class Parser:
    """Parser of an expression, from left to right, as rows of scripted atoms."""

    def __init__(self, text: str, display: bool):
        self.pieces, self.at, self.display = pieces(text), 0, display

    def peek(self) -> Piece | None:
        """Return the next part."""
        return self.pieces[self.at] if self.at < len(self.pieces) else None

    def row(self, until: str = "") -> str:
        """Read up to and including ``until``; products above and below a slash become fractions."""
        done: list[str] = []  # finished terms
        product: list[str] = []  # the current product
        above: list[str] | None = None  # the numerator of the current fraction

        def flush() -> None:
            nonlocal product, above
            if above is not None:
                sums = [
                    i for i, term in enumerate(above) if SUM in term[:200] and term.startswith(("<mo", "<mu", "<ms"))
                ]
                if sums and not any(SUM in term for term in product):  # the sum is over the fraction
                    done.extend(above[: sums[-1] + 1])
                    above = above[sums[-1] + 1 :]
                parts = (f"<mrow>{''.join(unwrapped(part))}</mrow>" for part in (above, product))
                done.append(f"<mfrac>{''.join(parts)}</mfrac>")
            else:
                done.extend(product)
            product, above = [], None

        while (piece := self.peek()) is not None and piece.text != until:
            following = self.pieces[self.at + 1] if self.at + 1 < len(self.pieces) else None
            tight = bool(product) and product[-1].startswith(PAREN) and following and following.text == "("
            if piece.text == "/" and product and (piece.spaced or tight) and above is None:
                self.at += 1
                above, product = product, []
            elif piece.kind == "sign" and (piece.text in RELATIONS or (piece.text in ",|‖" and not self.opens(piece))):
                flush()
                done.append(self.sign(leading=not done))
            elif piece.kind == "word" and (not following or following.text not in "(_^" or following.spaced):
                if not product or piece.text not in {"log", "exp", "min", "max", "cos", "sign", "Var"}:
                    flush()
                product.append(self.words())
            else:
                if product and piece.spaced:
                    product.append('<mspace width="0.17em"/>')
                product.append(self.scripted())
        if self.peek() is not None:
            self.at += 1
        flush()
        return f"<mrow>{''.join(done)}</mrow>" if len(done) != 1 else done[0]

    def opens(self, piece: Piece) -> bool:
        """Return whether a bar opens a pair of bars."""
        if piece.text not in "|‖":
            return False
        return piece.text in [later.text for later in self.pieces[self.at + 1 :]]

    def sign(self, leading: bool) -> str:
        """Return an operator; at the start of a row, or after another operator, it is a sign."""
        piece = self.pieces[self.at]
        before = self.pieces[self.at - 1] if self.at else None
        self.at += 1
        text = {"~": "∼", "..": "…", "...": "…", "<=": "≤", ">=": "≥"}.get(piece.text, piece.text)
        prefix = leading or (before is not None and before.kind == "sign" and before.text not in ")]}|‖⟩'")
        form = ' form="prefix"' if piece.text in "+−" and prefix else ""
        gap = (
            '<mspace width="0.3em"/>' if piece.text in ",;" and (following := self.peek()) and following.spaced else ""
        )
        return f"<mo{form}>{escape(text)}</mo>{gap}"

    def words(self) -> str:
        """Return adjacent words with their spaces."""
        said: list[str] = []
        first = self.pieces[self.at].spaced and self.at > 0
        while (piece := self.peek()) is not None and piece.kind == "word":
            if said and self.glued(piece):
                said[-1] += piece.text
            else:
                said.append(piece.text)
            self.at += 1
            ahead = self.pieces[self.at + 1] if self.at + 1 < len(self.pieces) else None
            nearest = self.peek()
            if ahead and nearest and nearest.kind == "word" and ahead.text in "(_^" and not ahead.spaced:
                break
        after = self.peek()
        space = "\u00a0"
        behind = space if after is not None and after.spaced and after.text not in ",)" else ""
        return f"<mtext>{space if first else ''}{escape(space.join(said))}{behind}</mtext>"

    @staticmethod
    def glued(piece: Piece) -> bool:
        """Return whether a part of a word belongs to the previous word."""
        return not piece.spaced

    def scripted(self) -> str:
        """Return an atom with its subscript and superscript."""
        name = self.pieces[self.at].text
        base, greek = self.atom(), re.fullmatch(r"[Α-Ωα-ω]", name)
        below = above = ""
        while (piece := self.peek()) is not None and not piece.spaced:
            if piece.kind == "script":
                self.at += 1
                inner = self.script()
                below, above = (inner, above) if piece.text == "_" else (below, inner)
            elif piece.kind == "above":
                self.at += 1
                above = f"<mn>{''.join(SUPERSCRIPTS[sign] for sign in piece.text)}</mn>"
            elif piece.kind == "below" or (piece.kind == "number" and greek and not below):
                self.at += 1
                below = f"<mn>{''.join(SUBSCRIPTS.get(sign, sign) for sign in piece.text)}</mn>"
            else:
                break
        if not below and not above:
            return base
        stacked = self.display and name in BIG
        if below and above:
            tag = "munderover" if stacked else "msubsup"
            return f"<{tag}>{base}{below}{above}</{tag}>"
        tag = {True: "munder" if stacked else "msub", False: "mover" if stacked else "msup"}[bool(below)]
        return f"<{tag}>{base}{below or above}</{tag}>"

    def script(self) -> str:
        """Return the operand of `_` or `^`."""
        piece = self.peek()
        if piece is None:
            return "<mrow></mrow>"
        if piece.text == "{":
            self.at += 1
            return self.plain(self.row("}"))
        if piece.text in "([":
            return self.plain(self.atom())
        inner: list[str] = []
        while (piece := self.peek()) is not None and not (inner and piece.spaced):
            if piece.kind == "word" and len(piece.text) == 2 and piece.text.islower():
                inner += [f"<mi>{letter}</mi>" for letter in piece.text]
            elif piece.kind in ("word", "letter", "number"):
                inner.append(self.leaf(piece))
            elif piece.text in "−+" and not inner:
                inner.append(f'<mo form="prefix">{piece.text}</mo>')
            elif piece.text == "," and self.joins():
                inner.append("<mo>,</mo>")
            else:
                break
            self.at += 1
        return f"<mrow>{''.join(inner)}</mrow>" if len(inner) != 1 else inner[0]

    @staticmethod
    def plain(inner: str) -> str:
        """Return one element that groups several."""
        return inner if inner.startswith("<mrow") else f"<mrow>{inner}</mrow>"

    def joins(self) -> bool:
        """Return whether a comma separates two indices: w_i,k."""
        following = self.pieces[self.at + 1] if self.at + 1 < len(self.pieces) else None
        return following is not None and not following.spaced and following.kind in ("letter", "number")

    def leaf(self, piece: Piece) -> str:
        """Return a letter, word or number."""
        if piece.kind == "number":
            return f"<mn>{piece.text}</mn>"
        if piece.kind == "word":
            return f'<mi mathvariant="normal">{escape(piece.text)}</mi>'
        primes = len(piece.text) - len(piece.text.rstrip("'"))
        letter, *marks = list(piece.text.rstrip("'").replace("~", "\u0303"))
        drawn = f"<mi>{escape(unicodedata.normalize('NFC', letter))}</mi>"
        if letter == "Σ" and not marks:
            big = ' class="big"' if self.display else ""
            drawn = f'<mo{big} movablelimits="false">{SUM}</mo>'
        for mark in marks:
            drawn = f'<mover accent="true">{drawn}<mo stretchy="false">{ACCENTS.get(mark, mark)}</mo></mover>'
        return f"<msup>{drawn}<mo>{'′' * primes}</mo></msup>" if primes else drawn

    def atom(self) -> str:
        """Return the next part, including everything in its parentheses."""
        piece = self.pieces[self.at]
        self.at += 1
        if piece.text == "√":
            following = self.peek()
            if following is not None and following.text == "(":
                self.at += 1
                return f"<msqrt>{self.row(')')}</msqrt>"
            return f"<msqrt>{self.scripted() if following else ''}</msqrt>"
        if piece.text in CLOSING:
            start = self.at
            inner, closing = self.row(CLOSING[piece.text]), CLOSING[piece.text]
            share = self.pieces[start : self.at - 1]
            if piece.text == "(" and [p.text for p in share].count("/") == 1 and not any(p.spaced for p in share):
                cut = [p.text for p in share].index("/")
                return f"<mfrac>{self.part(share[:cut])}{self.part(share[cut + 1 :])}</mfrac>"
            if piece.text == "[" and closing != "]":
                closing = "]"
            called = start > 1 and not piece.spaced and self.pieces[start - 2].kind in ("word", "letter")
            if inner.startswith("<mfrac") and piece.text == "(" and not called and not self.scripts():
                return inner
            tall = "true" if "<mfrac" in inner and self.display else "false"
            return f'{PAREN}<mo stretchy="{tall}">{piece.text}</mo>{inner}<mo stretchy="{tall}">{closing}</mo></mrow>'
        if piece.text in "|‖" and piece.text in [later.text for later in self.pieces[self.at :]]:
            inner = self.row(piece.text)
            tall = "true" if "<mfrac" in inner and self.display else "false"
            bar = f'<mo stretchy="{tall}" form="{{}}">{piece.text}</mo>'
            return f"<mrow>{bar.format('prefix')}{inner}{bar.format('postfix')}</mrow>"
        if piece.kind == "code":
            return f'<mtext class="code">{escape(piece.text.strip("`"))}</mtext>'
        if piece.kind in ("letter", "number", "word"):
            return self.leaf(piece)
        return f'<mo stretchy="false">{escape(piece.text)}</mo>'

    def scripts(self) -> bool:
        """Return whether an index or exponent follows directly."""
        piece = self.peek()
        return piece is not None and not piece.spaced and piece.kind in ("script", "above", "below")

    def part(self, share: list[Piece]) -> str:
        """Return one part of the expression."""
        inner = Parser("", False)
        inner.pieces = share
        return inner.plain(inner.row())


PAREN = '<mrow class="paren">'
BARE = re.compile(rf'{PAREN}<mo stretchy="\w+">\(</mo>(.*)<mo stretchy="\w+">\)</mo></mrow>', re.DOTALL)


def unwrapped(product: list[str]) -> list[str]:
    """Return a product without its outer parentheses, which the fraction bar replaces."""
    if len(product) == 1 and (match := BARE.fullmatch(product[0])):
        return [match.group(1)]
    return product
