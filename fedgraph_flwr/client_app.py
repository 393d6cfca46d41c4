"""Flower's entry point on a client; thin, and quick to import."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

app = ClientApp()


def _respond(message: Message, context: Context) -> Message:
    from fedgraph_flwr.clients.session import (
        respond,  # torch and the method are imported with the first message, not before
    )

    return respond(message, context)


def _clipped(message: Message, context: Context, respond: ClientAppCallable) -> Message:
    """Flower's clipping of the update, where the server asks for it (``privacy.dp=client_fixed``)."""
    if "clipping_norm" not in message.content["config"]:
        return respond(message, context)
    from flwr.clientapp.mod import fixedclipping_mod

    return fixedclipping_mod(message, context, respond)


app.train(mods=[_clipped])(_respond)
app.evaluate()(_respond)
app.query()(_respond)
