"""Start of a run: checks, preparation, its engine, the server side, and what a user sees meanwhile."""
