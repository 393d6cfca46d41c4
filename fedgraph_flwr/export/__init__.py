"""Export of a trained model to a folder that plain PyG loads: `writing` creates it, `plain` has the source of its module."""
