"""From one graph to the private graphs of M clients."""
