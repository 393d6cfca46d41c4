"""Server side: one file a method."""
