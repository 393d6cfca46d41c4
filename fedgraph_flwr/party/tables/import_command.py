r"""Command ``import``: import a user's graph and print a summary of it.

tables: .csv, .tsv, .txt (or with .gz) or .parquet, with a header. Ids and labels may have any type; an empty label is unknown.

KEY=VALUE, as in a party's file (default: the schema's, else what is in brackets):
  columns.ROLE=NAME          column of a role: id, label, source, target, amount (of these names), split, time, edge_label,
                             edge_id, graph
  feature_columns, edge_columns   names or patterns (x_*) of columns that become features (all other columns; none of edges)
  kinds.COLUMN=KIND          number, category, date, flag, ignored; also kinds.edges.COLUMN, kinds.TYPE.COLUMN (detected)
  scales.COLUMN=SCALE        standard, robust, log, none, of a number or date
  inputs=NAME                column that may give the label away, since its value is known when you predict
  edge_classes=A,B,C         class names of edges (sorted)
  features=RECIPE            columns of the party's own records: payments; payments,-flow_* leaves some out; needs columns.time
  windows=DAYS               features that count earlier edges within DAYS, such as 2,0.5; needs columns.time
  day=whole|before           with features: a record reads the other records of its day (default without hours), or only earlier
                             ones (default with hours)
  party=NAME                 this party's name in the edge table, as --own-party
  match.COLUMN=KIND          columns that identify a record at both parties: text, amount, date; as --match-columns
  party_columns=SOURCE,TARGET   columns with the parties of source and target; or party_prefix=SIGN after the party in an id
  id_form=text|number        number: parties compare ids without leading zeros
  edge_ids=unique            ids alone name edges, so that a row with other accounts replaces one with its id
  separator, encoding        of CSV files, such as tab and cp1252 (detected)
  date_formats.COLUMN=FORMAT such as %d.%m.%Y, several separated by |; of numbers also seconds or spreadsheet (detected)
  rates.CODE=VALUE           value of one unit of a currency in that of the amounts; currency=NAME: unit in reasons, such as €
  share, agreement           only in a party's file: `link` and `node` read them

Examples:
  fedgraph-flwr import --nodes people.csv --edges calls.csv --undirected --name calls
  fedgraph-flwr import bank_a.yaml                     # a party's file, written by `fedgraph-flwr init-party`
  fedgraph-flwr import --data graph.pt --name mine
  fedgraph-flwr import --nodes paper=p.csv --nodes author=a.csv --edges author:writes:paper=w.csv \
      --target paper --name papers
  fedgraph-flwr import --nodes a.parquet --edges ab.parquet --classes no,yes --schema schema.yaml --client 0 --num-clients 3 \
      --out a.safetensors
  fedgraph-flwr import --nodes people.csv --edges calls.csv kinds.postcode=category scales.income=log --name calls
"""

import argparse
from typing import Any

from fedgraph_flwr.party.options import add_options
from fedgraph_flwr.party.tables.options import RATIO, add_tables


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``import``."""
    about = "a party's file (`init-party`), and keys of it, such as columns.label=fraud"
    parser.add_argument("words", nargs="*", metavar="PARTY.YAML or KEY=VALUE", help=about)
    given = parser.add_argument_group("input")
    add_tables(given, _TABLES)
    add_options(given, _INPUT)
    formats = parser.add_argument_group("columns and formats of the tables (stored in the schema)")
    add_options(formats, _FORMATS)
    treated = parser.add_argument_group("features (default: from the schema, else detected)")
    add_options(treated, _TREATED, scaling={"choices": ("", "none", "local", "federated")}, min_count={"default": 5})
    output: dict[str, Any] = {"split": {"choices": ("ratio", "temporal")}, "seed": {"default": 0}}
    add_options(parser.add_argument_group("output"), _OUTPUT, ratio={"default": RATIO}, **output)


_TABLES = """
--nodes FILE  node table; of a heterogeneous graph TYPE=FILE for each type, or TYPE= for one without data
--edges FILE  edge table; can be repeated: the files of several days are one table; of a heterogeneous graph A:RELATION:B=FILE for
    each type; reverse types are added later
"""

_INPUT = """
--book DIR  the party's book, instead of --nodes, --edges and a party's file: all that it knows, each payment once
--graph-table FILE  many graphs: table with one row per graph, its label or numbers to predict, split and client; needs
    columns.graph
--data FILE  PyG Data or HeteroData saved by torch.save, instead of tables
--target TYPE  heterogeneous graph: the labelled node type
--outcomes FILE  decisions about alerts (id or edge, outcome: true, false or open), which become labels; undecided items have none
--client-column NAME  column with each node's client, or such an attribute of a PyG Data (partition=planted)
--classes A,B,C  class names in label order (default: sorted)
--role NAME  role of this party, such as network or bank, if parties have different tables: each role has its own columns, and may
    have no node table, no edge table or no labels
--own-party NAME  this party's name in the edge table, if edges name accounts of other parties
--secret-seed N  with --own-party: derive the party's secret from N, for simulations (default: .link_secret next to --out)
--undirected  each row of the edge table represents both directions
"""

_FORMATS = """
--predict-columns NAMES  columns of the node table with numbers to predict, or 0 and 1 (default: the schema's, else none)
--decimal [COLUMN=]SIGN...  decimal separator of numbers, such as ',', for one column or all (default: detected per column)
--thousands [COLUMN=]SIGN...  thousands separator of numbers, such as '.', for one column or all (default: detected per column)
--match-columns NAME:KIND,NAME  columns of the edge table that identify a record at both parties:
    value_date:date,amount:amount,reference
"""

_TREATED = """
--schema FILE  schema file shared by all parties; created if missing
--unit COLUMN=UNIT...  unit of a number, for display
--scaling none|local|federated  scale by this table's statistics (local) or the schema's (federated) (default: the schema's, else
    local for tables, none for --data)
--min-count N  minimum rows of a category; rarer values become 'other' (default: 5)
"""

_OUTPUT = """
--statistics FILE  write this party's sums for `schema merge`; no other output is required
--name NAME  store as a dataset, for dataset=NAME
--overwrite  replace an existing dataset
--out FILE  output file: a dataset for dataset=file dataset.path=FILE, or with --client a client file
--client I  write the file of client I (0..M-1) for one SuperNode; requires --classes or --schema
--num-clients M  check that the client is one of M; a run counts the clients that take part (default: not checked)
--ratio T,V,T  train, validation and test shares of a client without split column (default: 0.6,0.2,0.2)
--split ratio|temporal  split of a client without split column: at random, or edges by their times (default: ratio)
--until T,T  --split temporal: last times of training and validation, seconds, dates (until the end of that day) or
    '2026-02-15 12:00', the same for all parties (default: by --ratio of this party's edges)
--seed N  seed of the split (default: 0)
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``import``."""
    from fedgraph_flwr.party.tables.import_work import run

    return run(args)
