"""Models that need only torch and PyG: ``model.py`` in an exported folder is a copy of one of these files."""
