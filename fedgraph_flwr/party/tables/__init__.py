"""A party's tables: import to a graph, columns as features, statistics for a shared schema."""
