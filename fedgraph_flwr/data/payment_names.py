"""Names of the classes and columns of built-in payments, for tables, reasons and pages; nothing is computed from them."""

from dataclasses import dataclass

from fedgraph_flwr.config import DatasetConfig
from fedgraph_flwr.data.edge_columns import COUNTS
from fedgraph_flwr.data.features import Column, Form, window_label
from fedgraph_flwr.data.payment_files import AmlSpec, GentexSpec, spec_of
from fedgraph_flwr.data.payments import ColumnKeys, PaymentsSpec

_COUNT, _PLAIN = Form(True, 0.0, 1.0), Form(False, 0.0, 1.0)
_SPECS: dict[str, type[ColumnKeys]] = {
    "payments": PaymentsSpec,
    "aml": AmlSpec,
    "amlgentex": GentexSpec,
}


@dataclass(frozen=True)
class Names:
    """Names of a dataset.

    Attributes:
        classes: of items, in label order.
        nodes: the first columns of nodes, with their transforms.
        edges: the first columns of edges; those of a recipe follow, and have their names from it.
    """

    classes: tuple[str, ...] = ()
    nodes: tuple[Column, ...] = ()
    edges: tuple[Column, ...] = ()


def payment_names(dataset: DatasetConfig) -> Names:
    """Return the names of a dataset; none for data other than payments."""
    collection = str(dataset.params.get("collection") or dataset.name)
    if dataset.source or (kind := _SPECS.get(collection)) is None:
        return Names()
    spec = spec_of(kind, dataset.params, collection)
    amount = "log amount" if spec.recipe else "amount"  # a recipe has an amount, too
    edges = [Column(amount, Form(True, 0.0, 10.0))]
    if isinstance(spec, PaymentsSpec):
        edges = [Column(amount, Form(True, 5.0, 1.2, 1.0)), *(Column(f"format={code}", _PLAIN) for code in range(4))]
        edges += _counted(spec)
    classes = ("clean", "laundering")
    if dataset.reversed or dataset.undirected or dataset.normalize_features:  # columns mean something else
        return Names(classes)
    return Names(classes, tuple(_of_nodes(spec)), tuple(edges))


def _counted(spec: ColumnKeys) -> list[Column]:
    """Return the columns of `payments.computed`."""
    times = ("", *(() if spec.causal or spec.counts != "all" else ("next_",)))
    ends = [f"{way}_{end}" for end, _, way in (name.partition("_") for name in COUNTS)]
    named = [f"n_{end}_{ahead}{window_label(days)}" for days in spec.counted for ahead in times for end in ends]
    named += ["port_in", "port_out"] if spec.ports else []
    return [Column(name, _COUNT) for name in named]


def _of_nodes(spec: ColumnKeys) -> list[Column]:
    """Return the columns of `payments.activity`, or the constant one; none next to a recipe, whose columns have these names."""
    if spec.features != "activity":
        return [Column("constant", _PLAIN)]
    if spec.recipe:
        return []
    named = ["n_out", "n_in", "partners_out", "partners_in"]
    for days in spec.activity_windows:
        named += [f"{what}_{window_label(days)}" for what in ("n_out", "n_in", "n_before")]
    return [Column(name, _COUNT) for name in named]
