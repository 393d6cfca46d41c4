"""FedDEP as its authors implemented it, a method for fedgraph-flwr that sends single embeddings."""
