"""Networks on torch and PyG alone: an exported folder's ``model.py`` is a copy of one of these files."""
