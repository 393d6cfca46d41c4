"""Variates that clients keep between rounds: the names on the wire."""

VARIATES = "variates"
"""Group: the server's variate on the way down, the change of a client's on the way up, by the parameters' names."""

HEARD = "heard"
"""Group that goes down with the model: the last round in which this client's answer arrived, [1]; 0: none."""
