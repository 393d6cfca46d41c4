"""The papers' tables and figures as YAML, and the script that runs them."""
