"""Reports of finished runs: PNG plots and one self-contained HTML page."""
