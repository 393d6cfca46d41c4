"""A run: prepare it, serve it, record it, predict with it."""
