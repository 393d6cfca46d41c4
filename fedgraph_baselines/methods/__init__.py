"""What both sides of a method share: its keys, its names on the wire, and its mathematics."""
