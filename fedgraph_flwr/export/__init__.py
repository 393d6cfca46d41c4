"""A trained network as a folder that plain PyG loads: `writing` makes it, `plain` is what the folder's module is a copy of."""
