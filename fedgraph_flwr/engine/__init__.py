"""Engines: clients run in this process, in Ray actors, in Flower's simulation, or on a fleet."""
