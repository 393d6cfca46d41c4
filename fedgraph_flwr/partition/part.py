"""A client's graph as a PyG ``Data`` with a short repr."""

from torch_geometric.data import Data


class Part(Data):
    """One client's part of a graph, as `fedgraph_flwr.datasets.partition` returns it: a ``Data`` that prints on one line."""

    def __repr__(self) -> str:
        if "client" not in self or "train_mask" not in self:  # after a transform that drops what a client has
            return str(super().__repr__())
        split = "/".join(str(int(self[f"{name}_mask"].sum())) for name in ("train", "val", "test"))
        cut = self["cut_out"].size(1) if "cut_out" in self else 0
        return (
            f"Part(client {self['client']} of {self['num_clients']}: {self.num_nodes} nodes, {self.num_edges} edges"
            f"{f' and {cut} to other clients' if cut else ''}, {self.num_features} features, {self['num_classes']} classes,"
            f" {split} nodes for training/validation/test)"
        )
