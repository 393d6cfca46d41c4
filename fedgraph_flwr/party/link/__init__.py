"""Links between parties: matching of records that two parties share, and edges between their nodes."""
