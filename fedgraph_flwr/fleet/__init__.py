"""Fleet operation: wrappers of Flower's programs, keys and certificates, diagnosis, and patches for fast rounds."""
