"""Where clients run: in this process, or in Flower's."""
