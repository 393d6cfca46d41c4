"""Client side: one file a method, plus what all share in `base`."""
