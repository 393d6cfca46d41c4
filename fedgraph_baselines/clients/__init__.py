"""Client side: one file a method."""
