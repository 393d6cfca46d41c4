"""Where clients run: in this process, in Ray actors, in Flower's simulation, on a fleet."""
