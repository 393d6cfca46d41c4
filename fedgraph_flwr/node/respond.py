"""From a Flower message to a client's reply, in the order in which a node does it."""

from functools import partial
from logging import ERROR, INFO

from flwr.app import ConfigRecord, Context, Error, Message

from fedgraph_flwr.errors import FedGraphError, Refusal, sanitize
from fedgraph_flwr.logs import log
from fedgraph_flwr.node import audit_entry
from fedgraph_flwr.node.clients import NodeClient, begun, client_at, packed
from fedgraph_flwr.node.node import node_of
from fedgraph_flwr.node.request import Request
from fedgraph_flwr.secure.beginning import BEGINNING
from fedgraph_flwr.version import installed
from fedgraph_flwr.wire.messages import ASKS_VERSIONS, DECLINED, FAILED, STARTED_BY, VERSIONS

LONGEST = 2000
"""Most characters of a refusal, which may quote the server's lists."""


def respond(message: Message, context: Context) -> Message:
    """Reply to one message; an exception becomes an error reply, whose reason is for the user.

    For an exception in a method's code, the reason contains its file and line. A party's own node
    writes the exception's message, its traceback and all folders only to its own log. A node with
    a state folder writes request and reply to its audit log before the reply leaves.
    """
    node = node_of(context)
    trace: Exception | None = None
    held: NodeClient | None = None
    code = FAILED
    try:
        request = Request.read(message)
        if who := request.scalars.get(STARTED_BY):
            name = sanitize(who, 200)
            log(INFO, "run %s: started by %s, as the server says", context.run_id, name)
        if request.phase in BEGINNING:
            reply = begun(node, message, request)
            return node.logged(
                message, reply, partial(audit_entry.began, message, context.run_id, reply)
            )
        held = client_at(node)
        with held.alone():
            start = held.start_of(request)
            held.permit(request)
            request.check(held.client)
            held.resume(request)
            held.check_parameters(request, start)
            held.take_earlier_model(request, start)
            held.seed(request)
            groups, numbers = held.reply(request)
            held.remember(request)
            content = packed(groups, {"client": held.client.graph.client, **numbers})
            if request.scalars.get(ASKS_VERSIONS):
                content[VERSIONS] = ConfigRecord(dict(installed("fedgraph-flwr", "flwr")))
            reply = Message(content, reply_to=message)
            strategy = held.client.cfg.strategy.name
            entry = partial(
                audit_entry.answered, message, context.run_id, reply, held.booked, strategy
            )
            return node.logged(message, reply, entry)
    except FedGraphError as error:
        reason, code = str(error), DECLINED if isinstance(error, Refusal) else FAILED
    except MemoryError:
        raise
    except Exception as error:
        reason, trace = node.failure(error), error
    reason = reason[:LONGEST]
    if not node.live:
        log(ERROR, reason, exc_info=trace)
    reply = Message(Error(code, node.without_paths(reason)), reply_to=message)
    noise = held.booked if held else {}
    entry = partial(audit_entry.refused, message, context.run_id, reply, noise)
    return node.logged(message, reply, entry)
