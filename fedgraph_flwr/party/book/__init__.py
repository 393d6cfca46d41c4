"""A party's book: the folder of its own exports, read as one table of what was known by a day."""
