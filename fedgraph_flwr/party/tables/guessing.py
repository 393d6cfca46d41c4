"""Guess the roles of the columns of a party's two tables, from their values first and their names second.

Each guess has a reason, which `fedgraph-flwr init-party` prints and writes beside it. No guess is used without the file.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgraph_flwr.data.features import DAY
from fedgraph_flwr.data.schema import NODE
from fedgraph_flwr.data.value_formats import date_like, distinct_numbers, number_like, whole_dates
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.tables import leaks
from fedgraph_flwr.party.tables.columns import AS_FOUND, Treatment, as_words, features
from fedgraph_flwr.party.tables.edges import edge_times
from fedgraph_flwr.party.tables.parties import fold

NAMES = {
    "id": ["id", "account", "customer", "iban", "konto", "kunde", "node"],
    "label": ["label", "class", "fraud", "is_fraud", "status", "outcome", "suspicious", "laundering", "is_laundering"],
    "time": ["time", "timestamp", "booked", "booked_at", "date", "datetime", "value_date", "zeit", "datum", "step"],
    "amount": ["amount", "value", "sum", "betrag", "amount_paid", "montant", "importe", "monto", "importo"],
    "edge_id": ["edge_id", "payment_id", "transaction_id", "tx_id", "txid", "id"],
    "reference": [
        "reference",
        "ref",
        "e2e",
        "end_to_end_id",
        "uetr",
        "message_id",
        "referenz",
        "referencia",
        "riferimento",
    ],
}
"""Names that a column of a role often has, the most frequent first; compared without case and accents."""


def _word_set(*languages: str) -> frozenset[str]:
    """Return the words of a list for each language."""
    return frozenset(" ".join(languages).split())


ENDINGS = {"amount": ("betrag",), "reference": ("referenz",), "label": ("verdacht",)}
"""Ends of compound words, such as Zahlungsbetrag."""

PAYING = _word_set(
    "from source src sender debtor debit debited payer paying payor originator origin remitter ordering orderer",
    "von absender zahler auftraggeber schuldner zahlungspflichtiger",  # German
    "emetteur debiteur payeur expediteur donneur",  # French
    "desde origen ordenante emisor deudor pagador remitente",  # Spanish
    "mittente ordinante debitore pagatore origine",  # Italian
)
"""Words in names of the column with the accounts that pay, in five languages, without accents."""

PAID = _word_set(
    "to target dst dest destination receiver recipient receiving creditor credit credited payee beneficiary",
    "an nach empfaenger empfanger glaubiger glaeubiger begunstigter beguenstigter",  # German
    "zahlungsempfanger zahlungsempfaenger",
    "vers destinataire beneficiaire creancier",  # French
    "hacia destino destinatario beneficiario receptor acreedor",  # Spanish
    "verso creditore destinazione ricevente",  # Italian
)
"""Words in names of the column with the accounts that are paid."""

PAIRS = {("de", "a"), ("de", "para"), ("da", "a"), ("du", "au"), ("od", "do")}
"""Words for "from" and "to" that mean this only as a pair, when all other words of the two names are equal."""

SUSPECTED = _word_set(
    "label class fraud fraudulent target mule chargeback laundering suspicious outcome",
    "betrug verdacht verdaechtig verdachtig geldwasche geldwaesche",  # German
    "fraude frauduleux suspect blanchiment",  # French
    "fraudulento sospechoso sospechosa blanqueo",  # Spanish
    "frode fraudolento sospetto sospetta riciclaggio",  # Italian
)
"""Words in names of columns that often follow from the label."""

SPLIT = {"train", "val", "test", ""}

PREFIXES = (":", "/", "|", "#", "-", "_")
"""Signs that may end a party's name at the start of an id."""

OF_NODES = ("id", "label", "split", "graph")
"""Roles of columns of the node table; the other roles are those of the edge table."""

FEW = 0.95
"""Share of rows that must agree with a guess about parties."""


@dataclass
class Guess:
    """Keys of a party's file, each with the reason for its value."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)

    def add(self, key: str, value: Any, reason: str) -> None:
        """Set a key, unless it is given already; ``columns.ROLE`` sets one column."""
        section, _, role = key.partition(".")
        held = self.values.setdefault(section, {}) if role else self.values
        if value and (role or section) not in held:
            held[role or section] = value
            self.reasons[key] = reason


def guess(tables: Mapping[str, Any], given: Mapping[str, Any]) -> Guess:
    """Guess the keys of a party's file.

    Args:
        tables: the two tables, by file; text cells as `read_table` returns them.
        given: keys that the user sets, which are not guessed; ``columns`` by role.

    Raises:
        FedGraphError: a table has no rows, or no column of one holds the ids of the other's rows.
    """
    if empty := [name for name, table in tables.items() if not len(table)]:
        raise FedGraphError(f"{empty[0]} has no rows to guess from: pass a table with some")
    made = Guess({key: dict(value) if isinstance(value, Mapping) else value for key, value in given.items()})
    nodes, edges = _roles(tables, made)
    made.values |= {"nodes": nodes, "edges": edges}
    people, payments, roles = tables[nodes], tables[edges], made.values["columns"]
    ids = _ids(people[roles["id"]])
    _labels(people, made, "columns.label")
    for name in people.columns:
        words = {*np.char.lower(as_words(people[name])).tolist()}
        if "train" in words and words <= SPLIT:
            made.add("columns.split", name, "holds train, val and test; for edges, replace it by `split: temporal`")
    ends = [_normal(payments[roles[end]]) for end in ("source", "target")]
    _parties(payments, made, ends, ids)
    _questions(people, made)
    of_parties = made.values.get("party_columns", ())
    used = {*(name for role, name in roles.items() if role != "edge_label"), *of_parties}
    _facts(payments.drop(columns=[*used], errors="ignore"), made)
    if of_parties or made.values.get("party_prefix"):
        used = {*of_parties, *(roles[role] for role in ("source", "target", "edge_label") if role in roles)}
        _match(payments.drop(columns=[*used], errors="ignore"), made)
    _leaks(people, payments, nodes, made)
    if roles.get("time") and roles.get("amount"):
        made.add("features", "payments", "there are times and amounts; `payments` adds columns of own records")
        _ask_when(payments, edges, made)
    return made


def _ask_when(payments: Any, where: str, made: Guess) -> None:
    """Ask when the party scores, if times have hours: at night it knows a payment's whole day."""
    if made.values.get("day"):
        return
    treatment = Treatment(date_formats=made.values.get("date_formats", {}))
    try:
        time = edge_times(payments, made.values["columns"]["time"], where, treatment)
    except FedGraphError:  # the import refuses it, or asks for its format
        return
    if bool((time % DAY).any()):
        made.questions.append(
            "When do you score? If each payment as it comes, nothing is to be done. If once a day, at night, add `day:"
            " whole` (init-party day=whole): columns of own records then also read the later payments of the same day"
        )


def _facts(payments: Any, made: Guess) -> None:
    """Set the columns that say what an edge is: label, time, amount and id, and those that identify a record."""
    rest = list(payments.columns)
    kinds = {name: _kind(payments[name]) for name in rest}
    _labels(payments, made, "columns.edge_label")
    for role, kind, others in (("time", "date", ("date", "number")), ("amount", "number", ("number",))):
        best = _first([name for name in rest if kinds[name] == kind], role)
        best = best or _first([name for name in rest if kinds[name] in others], role)
        best = best or next((name for name in rest if kinds[name] == kind and role == "time"), "")
        read = "" if kinds.get(best) == "date" or role == "amount" else ", read as seconds since 1970"
        made.add(f"columns.{role}", best, f"holds {'dates' if kinds.get(best) == 'date' else 'numbers'}{read}")
    if (time := made.values["columns"].get("time")) in rest and time not in made.values.get("date_formats", ()):
        _ask_for_format(payments[time], made)
    number = next((n for n in rest if n.lower() in NAMES["edge_id"] and payments[n].is_unique), "")
    made.add("columns.edge_id", number, "differs in each row")


def _ask_for_format(column: Any, made: Guess) -> None:
    """Ask for the format of times that are dates without separators, if several fit."""
    numbers = distinct_numbers(column)
    whole = whole_dates(numbers)[0] if np.isfinite(numbers).all() else []
    if len(whole) > 1:
        made.questions.append(
            f"'{column.name}' has numbers such as {numbers[0]:.15g}, which may be dates as {' or '.join(whole)}. Add the right"
            f" one: `date_formats: {{{column.name}: FORMAT}}`"
        )


def _normal(column: Any) -> np.ndarray:
    """Return ids in normal form."""
    return fold(as_words(column))


def _ids(column: Any) -> np.ndarray:
    return np.unique(_normal(column))


def _roles(tables: Mapping[str, Any], made: Guess) -> tuple[str, str]:
    """Return the files of nodes and edges; set the columns of ids and of both ends."""
    roles = made.values.setdefault("columns", {})
    best: tuple[float, str, str, str, list[str]] = (0.0, "", "", "", [])
    for nodes, edges in ((a, b) for a in tables for b in tables if a != b):
        people = tables[nodes]
        for name in {roles["id"]} & {*people.columns} if "id" in roles else people.columns:
            if people[name].is_unique and not people[name].isna().any():
                score, ends = _ends_of(people[name], tables[edges], made.values)
                score += (str(name).lower() in NAMES["id"]) / 10 * bool(score)
                best = max(best, (score, nodes, edges, name, ends), key=lambda candidate: candidate[0])
    if not best[1]:
        fix = "pass columns.id=, columns.source= and columns.target="
        raise FedGraphError(f"no column of {' or '.join(tables)} lists ids that two columns of the other name: {fix}")
    _, nodes, edges, name, ends = best
    made.add("columns.id", name, "differs in each row, and the other table names its values")
    _direct(ends, edges, made)
    return nodes, edges


def words_of(column: str) -> list[str]:
    """Return the words of a column's name, in lower case and without accents: "fromIBAN_2" gives from, iban, 2."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", _without_accents(column))]


def _without_accents(text: str) -> str:
    return unicodedata.normalize("NFKD", str(text)).encode("ascii", "ignore").decode()


def _direct(ends: Sequence[str], file: str, made: Guess) -> None:
    """Set the column of the accounts that pay and that of the accounts that are paid, by their names.

    Raises:
        FedGraphError: the names do not say which is which.
    """
    roles = made.values["columns"]
    if given := {"source", "target"} & {*roles}:
        other = next((end for end in ends if end not in roles.values()), "")
        for end in {"source", "target"} - given:
            made.add(f"columns.{end}", other, "the other column with ids of the node table")
        return
    direction = payment_direction(*ends)
    if direction is None:
        raise FedGraphError(
            f"{file}: the columns '{ends[0]}' and '{ends[1]}' hold accounts, but their names do not say which account pays: pass"
            f" columns.source={ends[0]} columns.target={ends[1]}, or the reverse"
        )
    for end, column in zip(("source", "target"), direction, strict=True):
        made.add(f"columns.{end}", column, f"holds ids of the node table ({end} by its name)")


def payment_direction(a: str, b: str) -> tuple[str, str] | None:
    """Return two columns as (pays, is paid) by the words of their names; None if these do not say it, or contradict."""
    words = words_of(a), words_of(b)
    for first, second, result in ((0, 1, (a, b)), (1, 0, (b, a))):
        odd = [word for word in words[first] if word not in words[second]]
        others = [word for word in words[second] if word not in words[first]]
        if len(odd) == len(others) == 1 and (odd[0], others[0]) in PAIRS:
            return result
    votes = [len(PAYING & {*names}) - len(PAID & {*names}) for names in words]
    if votes[0] == votes[1] or votes[0] * votes[1] > 0:
        return None
    return (a, b) if votes[0] > votes[1] else (b, a)


def _ends_of(names: Any, payments: Any, values: Mapping[str, Any]) -> tuple[float, list[str]]:
    """Return the two columns that name most of the ids, and the sum of their shares of rows; 0 without two."""
    ids, roles = _ids(names), values["columns"]
    share = {c: float(np.isin(_normal(payments[c]), ids).mean()) for c in payments.columns}
    ends = [roles[end] for end in ("source", "target") if end in roles]
    named = {c: bool((PAYING | PAID) & {*words_of(c)}) for c in share}
    others = [c for c in share if c not in ends]
    ends += sorted(others, key=lambda c: (-share[c] - named[c], others.index(c)))[: 2 - len(ends)]
    shares = [share.get(end, 0.0) for end in ends]
    return (sum(shares) if len(ends) == 2 and all(shares) else 0.0), ends


def without_role(table: Any, values: Mapping[str, Any], roles: Sequence[str]) -> list[str]:
    """Return the columns of a table that have none of the roles and no other use, each with up to four of its values."""
    used = {name for role, name in values["columns"].items() if role in roles}
    used |= {*values.get("party_columns", ()), *values.get("match", ())}
    texts = []
    for name in (name for name in table.columns if name not in used):
        words = np.unique(as_words(table[name]))
        shown = ", ".join(sanitize(str(word), 30) for word in words[:4] if word)
        texts.append(f"{sanitize(str(name), 60)} ({shown}{', ...' if len(words) > 4 else ''})")
    return texts


def suspected(column: str) -> bool:
    """Return whether a column has a name that labels often have, such as is_mule."""
    words = words_of(column)
    return bool(SUSPECTED & {*words}) or words[:1] == ["is"]


def _questions(people: Any, made: Guess) -> None:
    """Ask about columns of accounts that have the name of a label and would be inputs."""
    known = {*made.values["columns"].values(), *made.values.get("kinds", ())}
    for name in people.columns:
        if name not in known and suspected(name):
            made.questions.append(
                f"'{name}' has the name of a label. Is its value known when you predict? If not, add `kinds: {{{name}: ignored}}`"
            )


def _leaks(people: Any, payments: Any, where: str, made: Guess) -> None:
    """Ask about columns of accounts whose values give a label away, instead of by their names."""
    roles = made.values["columns"]
    ignored = [name for name, kind in made.values.get("kinds", {}).items() if kind == "ignored"]
    values: dict[str, leaks.Values] = {}
    inputs: dict[str, Any] = {}
    for name in (name for name in people.columns if name not in {*roles.values(), *ignored}):
        try:
            read = features(NODE, people, [name], where, AS_FOUND)
        except FedGraphError:  # the import refuses its values
            continue
        one, block = leaks.encoded(read.agreed, read.x.numpy())
        values, inputs = values | one, inputs | block
    ids, first = np.unique(_normal(people[roles["id"]]), return_index=True)
    ends = [_normal(payments[roles[end]]) for end in ("source", "target")]
    places = [np.searchsorted(ids, end).clip(max=len(ids) - 1) for end in ends]
    ends = [np.where(ids[place] == end, first[place], -1) for place, end in zip(places, ends, strict=True)]
    for what, table, role, places in (
        ("accounts", people, "label", [np.arange(len(people))]),
        ("payments", payments, "edge_label", ends),
    ):
        if roles.get(role) not in table.columns:
            continue
        words, y = np.unique(as_words(table[roles[role]]), return_inverse=True)
        rows = (words != "")[y] & np.all([place >= 0 for place in places], axis=0)
        if role == "label" and roles.get("split") in table.columns:
            rows &= np.char.lower(as_words(table[roles["split"]])) == "train"
        chosen = [place[rows] for place in places]
        items = leaks.Items(
            what,
            y[rows],
            {name: [entry.at(place) for place in chosen] for name, entry in values.items()},
            {name: [block[place] for place in chosen] for name, block in inputs.items()},
        )
        for leak in leaks.leaks(items):
            made.questions = [entry for entry in made.questions if not entry.startswith(f"'{leak.name}'")]
            made.questions.append(
                f"'{leak.name}' {leak.reason}. Is its value known when you predict? If so, add `inputs: [{leak.name}]`; if not,"
                f" `kinds: {{{leak.name}: ignored}}`"
            )


def first_edge(payments: Any, columns: Mapping[str, str]) -> str:
    """Return the first row of the edges as a sentence, so that a reader sees which end pays."""
    row = {
        role: sanitize(str(payments[name].iloc[0]), 60) for role, name in columns.items() if name in payments.columns
    }
    amount = f" {row['amount']}" if "amount" in row else ""
    return f"{row['source']} pays {row['target']}{amount}" + (f" on {row['time']}" if "time" in row else "")


def _first(columns: Sequence[str], role: str) -> str:
    """Return the column with the most frequent name of a role, else one with such a word in its name; "" without one."""
    names = NAMES[role]
    plain = {name: _without_accents(name).lower() for name in columns}
    if whole := [name for name in columns if plain[name] in names]:
        return min(whole, key=lambda name: names.index(plain[name]))
    accepted = {"label": SUSPECTED - {"target"}, "amount": {*names} - {"value", "sum"}, "reference": {*names}}.get(
        role, set()
    )
    ends = ENDINGS.get(role, ())
    return next((c for c in columns if any(word in accepted or word.endswith(ends) for word in words_of(c))), "")


def _labels(table: Any, made: Guess, key: str) -> None:
    """Set a column of labels and its classes, the rarer of two second."""
    made.add(key, _first(list(table.columns), "label"), "has the name of a label; check that no input follows from it")
    name = made.values["columns"].get(key.partition(".")[2])
    if name in table.columns:
        words, counts = np.unique(as_words(table[name]), return_counts=True)
        order = np.argsort(-counts, kind="stable") if (words != "").sum() == 2 else np.arange(len(words))
        classes = [sanitize(words[place], 60) for place in order if words[place]]
        about = "the values of the label; the rarer second" if len(classes) == 2 else "the values of the label, sorted"
        # a party without a positive leaves the classes to the schema of the others
        fits = 2 <= len(classes) <= 20
        made.add("classes" if key == "columns.label" else "edge_classes", classes if fits else [], about)


def _parties(table: Any, made: Guess, ends: Sequence[np.ndarray], ids: np.ndarray) -> None:
    """Set how the table names the party of each end, by two columns or by the start of ids, and the own name.

    Args:
        table: one row per edge.
        made: the guess.
        ends: ids of sources and targets in normal form, two arrays [E].
        ids: those of the node table [N].
    """
    masks = [np.isin(end, ids) for end in ends]
    given, sign = made.values.get("party_columns"), made.values.get("party_prefix", "")
    if not (given or sign) and all(mask.all() for mask in masks):
        return
    if sign or (not given and not _party_columns(table, made, masks)):
        for prefix in [sign] if sign else PREFIXES:
            starts = np.char.partition(ids, prefix)
            others = np.char.partition(np.concatenate(ends)[~np.concatenate(masks)], prefix)
            named = (starts[:, 1] != "").all() and len({*starts[:, 0]}) == 1
            if named and (sign or ((others[:, 1] != "") & (others[:, 0] != starts[0, 0])).mean() >= FEW):
                made.add(
                    "party_prefix", prefix, "ends a name at the start of ids: one for own accounts, others for the rest"
                )
                made.add("party", str(starts[0, 0]), "the name at the start of own ids")
                return
        if not sign:
            share = 100 * float(np.mean([~(masks[0] & masks[1])]))
            made.questions.append(
                f"{share:.0f} % of the payments name an account that is not in the node table. Which party has it? Pass"
                " party_columns=SOURCE,TARGET or party_prefix=SIGN, and party=NAME; `import` refuses these rows otherwise"
            )
    elif given:
        _party_columns(table, made, masks)


def _party_columns(table: Any, made: Guess, masks: Sequence[np.ndarray]) -> bool:
    """Set the two columns that hold one name exactly where the end is an own id, and that name; return whether there are two."""
    given = made.values.get("party_columns")
    by_end: list[dict[str, str]] = []
    for place, mask in enumerate(masks):
        held: dict[str, str] = {}
        for name in [given[place]] if given else table.columns:
            words = _normal(table[name]) if name in table.columns else np.full(len(table), "")
            names, counts = np.unique(words[mask], return_counts=True)
            word = str(names[counts.argmax()]) if names.size else ""
            if word and ((words == word) == mask).mean() >= FEW:
                held[name] = word
        by_end.append(held)
    pairs = [(a, b) for a, word in by_end[0].items() for b, other in by_end[1].items() if a != b and word == other]
    if pairs:
        made.add("party_columns", list(pairs[0]), "hold one name where the account is in the node table, else others")
        made.add("party", by_end[0][pairs[0][0]], "the name beside own accounts")
    return bool(pairs)


def _match(payments: Any, made: Guess) -> None:
    """Set the columns that identify a record in both books, which may have another role, too: a reference is often the id."""
    dates = [name for name in payments.columns if _kind(payments[name]) == "date"]
    day = next((name for name in dates if "value" in name.lower()), dates[0] if dates else "")
    key = {day: "date"} if day else {}
    if amount := made.values["columns"].get("amount"):
        key[amount] = "amount"
    if reference := _first(list(payments.columns), "reference"):
        key[reference] = "text"
    made.add("match", key, "date, amount and reference, which both banks of a payment should have alike: check it")


def _kind(column: Any) -> str:
    """Return number, date or text."""
    numbers = distinct_numbers(column)
    if numbers.size and np.isfinite(numbers).all():
        whole = whole_dates(numbers, times=False)[0]
        return "date" if whole and (numbers[-1] >= 10**6 or whole == ["%Y%m"]) else "number"
    texts = [word for word in np.unique(as_words(column)).tolist() if word][:2000]
    tests: dict[str, Callable[[Sequence[str]], Any]] = {"number": number_like, "date": date_like}
    return next((kind for kind, test in tests.items() if texts and bool(np.all(test(texts)))), "text")
