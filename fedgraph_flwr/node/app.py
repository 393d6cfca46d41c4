"""The app that Flower and the engines call with each message to a node; thin, and quick to import."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


def _respond(message: Message, context: Context) -> Message:
    # torch and the method are imported with the first message, not before
    from fedgraph_flwr.fleet.packing import PACKED, reply_packed
    from fedgraph_flwr.node.respond import respond

    if PACKED in message.content:
        return reply_packed(respond, message, context)
    return respond(message, context)


app.train()(_respond)
app.evaluate()(_respond)
app.query()(_respond)
