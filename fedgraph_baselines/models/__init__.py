"""Networks that baselines train besides the model that a configuration names."""
