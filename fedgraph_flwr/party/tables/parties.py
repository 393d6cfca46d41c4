"""Rows of a party's edge table that name accounts of other parties.

    from_account, to_account, from_bank, to_bank, ...     party_columns=from_bank,to_bank --own-party A
    A:17, B:4, ...                                        party_prefix=: --own-party A

A row between two own accounts is an edge. A row with one own end is a foreign record. It stays in the party's file until
`fedgraph-flwr link` has matched it with the other party's record of the same edge. Other rows are counted and dropped.

Parties write ids and columns in different ways, so records are compared in a normal form. Texts become Unicode NFKC without
spaces and case, amounts plain decimals, and dates UTC days. Leading zeros count, unless ``id_form`` is ``number``.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import one_of
from fedgraph_flwr.data.schema import EDGE, split_names
from fedgraph_flwr.data.value_formats import FORMATS, date_format, read_dates
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.tables.columns import Treatment, Written, as_words
from fedgraph_flwr.party.tables.nodes import check_rows, column_of

ID_FORMS = ("text", "number")
KEY_KINDS = ("text", "amount", "date")
BETWEEN = "\x1f"
"""Separator of the values of a key."""


def fold(texts: Any) -> np.ndarray:
    """Return texts in normal form: Unicode NFKC, without spaces and case."""
    return _changed(texts, lambda word: "".join(unicodedata.normalize("NFKC", word).split()).casefold())


def _changed(texts: Any, change: Callable[[str], str]) -> np.ndarray:
    """Return texts after a change, which is computed once for each distinct one."""
    distinct, inverse = np.unique(np.asarray(texts, dtype=str), return_inverse=True)
    return np.array([change(str(word)) for word in distinct], dtype=str)[inverse]


def normal_ids(texts: Any, form: str) -> np.ndarray:
    """Return ids in normal form; numbers without leading zeros where ``form`` is ``number``."""
    folded = fold(texts)
    return _changed(folded, partial(re.sub, r"^0+(?=\d+$)", "")) if form == "number" else folded


def accounts_of(parties: Any, ids: np.ndarray) -> np.ndarray:
    """Return the names of accounts of other parties [K]: party and id, both in normal form."""
    return np.char.add(np.char.add(parties, BETWEEN), ids)


@dataclass(frozen=True)
class PartyRule:
    """Rule that names the party of each end of a row, and the columns that identify a record.

    Attributes:
        own_party: name of the own party.
        columns: columns with the parties of source and target; empty for a rule on ids.
        prefix: text after a party's name at the start of an id; "" for a rule on columns.
        key: columns that identify a record besides its ends, each with its kind.
        id_form: ``text``, or ``number`` to ignore leading zeros.
    """

    own_party: str
    columns: tuple[str, ...] = ()
    prefix: str = ""
    key: tuple[tuple[str, str], ...] = ()
    id_form: str = "text"

    @classmethod
    def parse(cls, party: str, columns: str, prefix: str, match: str, id_form: str) -> "PartyRule | None":
        """Build the rule from options; None without one.

        Raises:
            FedGraphError: an option is missing, or has a wrong form.
        """
        if not (columns or prefix):
            if party:
                raise FedGraphError(f"--own-party {party} needs party_columns=SOURCE,TARGET or party_prefix=SIGN")
            return None
        if not party.strip():
            raise FedGraphError("party_columns and party_prefix need --own-party NAME, as the edge table writes it")
        names = tuple(split_names(columns))
        if names and (len(names) != 2 or prefix):
            two = "expected two columns, the parties of source and target, and no party_prefix"
            alike = (
                f". Parties compare ids as written, so all use one of the two: with the schema's columns, write the text before"
                f" '{prefix}' into two columns, and the ids without it"
            )
            raise FedGraphError(f"party_columns={columns}: {two}{alike if prefix else ''}")
        key = []
        for word in split_names(match):
            name, _, kind = word.rpartition(":") if word.rpartition(":")[2] in KEY_KINDS else (word, "", "text")
            key.append((name, kind))
        one_of(id_form or "text", ID_FORMS, "id_form")
        return cls(party, names, prefix, tuple(key), id_form or "text")

    @property
    def form(self) -> str:
        """Kinds of the compared values, which all parties must use alike."""
        return f"ids {self.id_form}; key {','.join(kind for _, kind in self.key) or 'none'}"

    @property
    def key_columns(self) -> list[str]:
        """Names of the columns that identify a record."""
        return [name for name, _ in self.key]


@dataclass(frozen=True)
class Records:
    """Rows of an edge table, divided by who owns their ends.

    Attributes:
        ends: edges between own nodes, int64 [2, E].
        edge_rows: row of each [E].
        rows: row of each foreign record [R].
        node: own end of each record, int64 [R].
        outgoing: whether the own end is the source, bool [R].
        party: the other end's party as a position in ``parties``, int64 [R].
        ids: the other end's id as written [R].
        keys: values of the columns that identify a record, in normal form [R].
        parties: names of the other parties, in normal form.
    """

    ends: Tensor
    edge_rows: Tensor
    rows: Tensor
    node: Tensor
    outgoing: Tensor
    party: Tensor
    ids: np.ndarray
    keys: np.ndarray
    parties: tuple[str, ...]


def divide(
    links: Any, ends: tuple[str, str], index: Any, rule: PartyRule, where: tuple[str, str], treatment: Treatment
) -> Records:
    """Divide the rows of an edge table into edges between own nodes and records that name other parties.

    Args:
        links: one row per edge.
        ends: columns of source and target.
        index: pandas index of the own ids, by position.
        rule: how the parties of ends are named.
        where: files of edges and of nodes, for errors.
        treatment: options for formats; its ``say`` receives a line per kind of row that is left out or adjusted.

    Raises:
        FedGraphError: no row names the own party, an own account is unknown, or two own ids have one normal form.
    """
    texts = [as_words(column_of(links, name, where[0], "end of edges")) for name in ends]
    named = parties_of(links, texts, rule, where[0])
    own_name, folded = fold([rule.own_party])[0], [fold(names) for names in named]
    _report_spellings(named, folded, where[0], treatment)
    masks = [names == own_name for names in folded]
    if len(links) and not (masks[0] | masks[1]).any():
        names = ", ".join(sorted({*folded[0], *folded[1]} - {""})[:10]) or "its names"
        raise FedGraphError(
            f"no row of {where[0]} names --own-party '{rule.own_party}' as a party: expected one of {names}"
        )
    foreign = masks[0] ^ masks[1]
    known = [(names != "") & (ids != "") for names, ids in zip(folded, texts, strict=True)]
    for mask, what in (
        (~masks[0] & ~masks[1], f"have no end at '{rule.own_party}'"),
        (foreign & ~(known[0] & known[1]), "name no party or no account at their other end"),
    ):
        if count := int(mask.sum()):
            treatment.say(f"{where[0]}: {count} of {len(links)} rows {what}: left out")
    foreign &= known[0] & known[1]
    positions = _own_positions(links, texts, masks, index, rule, ends, where, treatment)
    _report_own_accounts(
        texts, [k & ~mine for k, mine in zip(known, masks, strict=True)], folded, index, rule, treatment
    )
    rows = np.flatnonzero(foreign)
    both = _booked_once(links, np.flatnonzero(masks[0] & masks[1]), positions, rule, where[0], treatment)
    outgoing = masks[0][rows]
    others = np.where(outgoing, folded[1][rows], folded[0][rows])
    ids = np.where(outgoing, texts[1][rows], texts[0][rows])
    parties = tuple(sorted(set(map(str, others))))
    keys = record_values(links, rows, rule, where[0], treatment)
    records = Records(
        ends=torch.from_numpy(np.stack([positions[0][both], positions[1][both]])),
        edge_rows=torch.from_numpy(both),
        rows=torch.from_numpy(rows),
        node=torch.from_numpy(np.where(outgoing, positions[0][rows], positions[1][rows])),
        outgoing=torch.from_numpy(outgoing),
        party=torch.from_numpy(np.searchsorted(np.array(parties, dtype=str), others).astype(np.int64)),
        ids=ids.astype(str),
        keys=keys,
        parties=parties,
    )
    _report(records, index, rule, len(links), where[0], treatment)
    return records


def _booked_once(
    links: Any, rows: np.ndarray, positions: Sequence[np.ndarray], rule: PartyRule, where: str, treatment: Treatment
) -> np.ndarray:
    """Return the rows between own accounts, without those that repeat one: a bank books both sides of a payment.

    Rows are the same if both ends and all match columns are equal and none is missing.
    """
    if not rule.key or not rows.size:
        return rows
    keys = record_values(links, rows, rule, where, treatment)
    first = first_alike(positions[0][rows], positions[1][rows], keys)
    repeated_rows = complete_keys(keys) & (first != np.arange(rows.size))
    if count := int(repeated_rows.sum()):
        equal = f"(equal ends and equal {', '.join(rule.key_columns)})"
        treatment.say(f"{where}: {count} of {rows.size} own rows repeat another one {equal}: counted once")
    return rows[~repeated_rows]


def _report_own_accounts(
    texts: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    folded: Sequence[np.ndarray],
    index: Any,
    rule: PartyRule,
    treatment: Treatment,
) -> None:
    """Warn of other parties whose accounts are all in the own node table: they may be the own party, spelled differently."""
    import pandas as pd

    ends = [pd.DataFrame({"party": folded[end][mask], "id": texts[end][mask]}) for end, mask in enumerate(others)]
    seen = pd.concat(ends).drop_duplicates()
    seen["own"] = np.isin(normal_ids(seen["id"], rule.id_form), normal_ids(index.to_numpy(), rule.id_form))
    for party, rows in seen.groupby("party"):
        if rows["own"].all():
            treatment.warn(
                f"all {len(rows)} accounts of party '{sanitize(party, 40)}' are ids of your node table, such as"
                f" '{sanitize(rows['id'].iloc[0], 40)}': if it is another spelling of --own-party"
                f" '{rule.own_party}', write it the same way, or these rows become no edges of yours"
            )


def repeated(records: Records, form: str, undirected: bool) -> np.ndarray:
    """Return which records repeat an earlier one with the same ends and key, bool [R]."""
    direction = np.zeros(len(records.ids), dtype=bool) if undirected else records.outgoing.numpy()
    ids = normal_ids(records.ids, form)
    first = first_alike(records.node.numpy(), direction, records.party.numpy(), ids, records.keys)
    return first != np.arange(first.size)


def booked_again(records: Records, rule: PartyRule) -> np.ndarray:
    """Return the record that each one repeats, with the same ends and the same reference, else itself, int64 [R].

    A reference is a text among the match columns. Without one, or if a match column is empty, equal records are other payments.
    """
    place = np.arange(len(records.ids))
    if not any(kind == "text" for _, kind in rule.key):
        return place
    ids = normal_ids(records.ids, rule.id_form)
    ends = records.node.numpy(), records.outgoing.numpy(), records.party.numpy()
    return np.where(complete_keys(records.keys), first_alike(*ends, ids, records.keys), place)


def first_alike(*columns: np.ndarray) -> np.ndarray:
    """Return the first row with the same values as each row, int64 [E]."""
    import pandas as pd

    table = pd.DataFrame(dict(enumerate(columns)))
    place = pd.Series(np.arange(len(table)))
    return place.groupby([table[name] for name in table], sort=False).transform("min").to_numpy(dtype=np.int64)


def complete_keys(keys: np.ndarray) -> np.ndarray:
    """Return which keys of records have all of their values, bool [R]."""
    return np.array([all(key.split(BETWEEN)) for key in keys], dtype=bool)


def parties_of(links: Any, texts: Sequence[np.ndarray], rule: PartyRule, where: str) -> list[np.ndarray]:
    """Return the party of each row's source and target, as written [E]; "" where it is missing."""
    if rule.columns:
        return [as_words(column_of(links, name, where, "party")) for name in rule.columns]
    parties = []
    for ids in texts:
        parts = np.char.partition(ids, rule.prefix) if ids.size else np.zeros((0, 3), dtype=str)
        parties.append(np.where(parts[:, 1] == "", "", parts[:, 0]))
    return parties


def _report_spellings(
    named: Sequence[np.ndarray], folded: Sequence[np.ndarray], where: str, treatment: Treatment
) -> None:
    """Report parties that the table writes in several ways."""
    import pandas as pd

    pairs = pd.DataFrame({"form": np.concatenate(folded), "name": np.concatenate(named)})
    for form, names in pairs.groupby("form")["name"]:
        counts = names.value_counts()
        if form and len(counts) > 1:
            listing = ", ".join(f"'{sanitize(name, 40)}' ({count})" for name, count in counts.items())
            treatment.say(f"{where}: a party has several spellings, counted as one: {listing}")


def _own_positions(
    links: Any,
    texts: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    index: Any,
    rule: PartyRule,
    ends: tuple[str, str],
    where: tuple[str, str],
    treatment: Treatment,
) -> list[np.ndarray]:
    """Return the position of each own end [E]; -1 for ends of other parties.

    Raises:
        FedGraphError: two own ids have one normal form, or an own account is unknown.
    """
    import pandas as pd

    forms = pd.Index(normal_ids(index.to_numpy(), rule.id_form))
    if not forms.is_unique:
        second = int(forms.duplicated().argmax())
        first = int((forms == forms[second]).argmax())
        zeros = " and leading zeros" if rule.id_form == "number" else ""
        rows = f"ids '{index[first]}' (row {first + 1}) and '{index[second]}' (row {second + 1})"
        fix = "rename one" + (", or pass id_form=text" if zeros else "")
        raise FedGraphError(f"{where[1]}: {rows} are the same without spaces, case{zeros}, as parties compare: {fix}")
    positions, adjusted, example = [], 0, ""
    for ids, mask, column in zip(texts, masks, ends, strict=True):
        places = np.where(mask, index.get_indexer(ids), -1)
        if (odd := mask & (places < 0)).any():
            places[odd] = forms.get_indexer(normal_ids(ids[odd], rule.id_form))
            if (lost := mask & (places < 0)).any():
                unknown = f"an account of '{rule.own_party}' that is not an id of {where[1]} ({int(lost.sum())} rows)"
                if np.isin(normal_ids(ids[lost][:1], "number"), normal_ids(forms.to_numpy(), "number")).any():
                    unknown += "; it is one without leading zeros: pass id_form=number"
                check_rows(lost, links[column], where[0], unknown)
            row = int(odd.argmax())
            example = example or f"'{ids[row]}' for '{index[places[row]]}'"
            adjusted += int(odd.sum())
        positions.append(places.astype(np.int64))
    if adjusted:
        treatment.say(f"{where[0]}: {adjusted} own accounts have another spelling, such as {example}: matched")
    return positions


def record_values(links: Any, rows: np.ndarray, rule: PartyRule, where: str, treatment: Treatment) -> np.ndarray:
    """Return the values that identify each record, in normal form [R].

    Raises:
        FedGraphError: a column is missing, or a value has no reading of its kind.
    """
    columns = [_normal(column_of(links, name, where, "match"), kind, rows, where, treatment) for name, kind in rule.key]
    return np.array([BETWEEN.join(values) for values in zip(*columns, strict=True)] or [""] * rows.size, dtype=str)


def _normal(column: Any, kind: str, rows: np.ndarray, where: str, treatment: Treatment) -> np.ndarray:
    """Return a column's values of some rows in normal form [R]; "" where missing."""
    import pandas as pd

    written, name = as_words(column)[rows], str(column.name)
    if kind == "text" or not written.size:
        return fold(written)
    known = np.array([word.strip() != "" for word in written], dtype=bool)
    distinct, inverse = np.unique(written[known], return_inverse=True)
    texts = [str(word) for word in distinct]
    if kind == "date":
        dates = treatment.option(treatment.date_formats, EDGE, name) or date_format(texts, name, where)
        read = read_dates(texts, dates)
        normal = [None if pd.isna(moment) else moment.strftime("%Y-%m-%d") for moment in read]
    else:
        form = Written(EDGE, name, pd.Series(texts, dtype=object), where, treatment).number_format()
        numbers = form.read(texts) if form else np.full(len(texts), np.nan)
        normal = [None if np.isnan(number) else _plain(float(number)) for number in numbers]
    wrong = np.array([value is None for value in normal], dtype=bool)
    if wrong.any():
        if kind == "amount":  # name one that no format reads, if there is one
            accepted = treatment.number_formats(EDGE, name) or FORMATS
            unread = np.logical_and.reduce([np.isnan(form.read(texts)) for form in accepted])
            wrong = unread if unread.any() else wrong
        mask = np.zeros(len(column), dtype=bool)
        mask[rows[known][wrong[inverse]]] = True
        check_rows(mask, column, where, f"expected kind {kind}: correct it, or pass --match-columns with {name}:text")
    values = np.full(written.size, "", dtype=object)
    values[known] = np.array(normal, dtype=object)[inverse]
    return values.astype(str)


def _plain(number: float) -> str:
    """Format an amount without exponent and trailing zeros, with all its decimals."""
    return format(Decimal(repr(number)).normalize(), "f") if number else "0"


def _report(records: Records, index: Any, rule: PartyRule, rows: int, where: str, treatment: Treatment) -> None:
    counts = torch.bincount(records.party, minlength=len(records.parties)).tolist()
    listing = ", ".join(f"{name} {count}" for name, count in zip(records.parties, counts, strict=True)) or "none"
    treatment.say(
        f"{where}: {records.edge_rows.numel()} of {rows} rows join two accounts of '{rule.own_party}';"
        f" records with other parties: {listing}"
    )
    if not records.rows.numel():
        return
    if count := int(repeated(records, rule.id_form, False).sum()):
        by = f" and equal {', '.join(rule.key_columns)}" if rule.key else ""
        treatment.say(f"{where}: {count} records repeat another one (equal ends{by}): matched copy by copy")
    if rule.id_form == "text":
        used = np.unique(np.concatenate([index.to_numpy().astype(str), records.ids]))
        zeros = np.array([bool(re.fullmatch(r"0\d+", word.strip())) for word in used], dtype=bool)
        if zeros.any():
            treatment.say(
                f"{int(zeros.sum())} of {used.size} account ids have leading zeros, such as '{used[int(zeros.argmax())]}': all"
                " parties must write them, or pass id_form=number"
            )
