"""Reports of finished runs: PNG plots and one self-contained HTML page."""

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
"""Folder of a page's style and scripts."""
