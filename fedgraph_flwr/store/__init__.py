"""What a run leaves in its folder: records, models, checkpoints, and the digest of its code."""
