"""GNN modules and layers; no federation in them."""
