"""One party: its own tables, links to other parties, and use of a trained model. Nothing below `api` and `cli` imports it."""
