"""Graph methods that the five papers compare with, as a plug-in package.

`fedgraph_flwr` finds its ``conf/`` as it finds that of a user's package, and imports nothing of it. The networks that a
configuration can name (``model=fedlit``) are in `fedgraph_flwr.models`.
"""
