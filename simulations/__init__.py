"""The papers' tables and plots as YAML, and scripts that summarise the results."""
