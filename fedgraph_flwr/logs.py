"""The package's logger, ``fedgraph_flwr``: it writes where Flower's does, at Flower's level unless you set one."""

import logging

from flwr.common.logger import FLOWER_LOGGER
from flwr.supercore.logger import ConsoleHandler

logger = logging.getLogger("fedgraph_flwr")
logger.parent = FLOWER_LOGGER  # whose handler formats the lines; the root logger has none
log = logger.log

for _handler in FLOWER_LOGGER.handlers:
    # Colours only where a terminal shows them: redirected logs would hold escape codes.
    if isinstance(_handler, ConsoleHandler) and not getattr(_handler.stream, "isatty", bool)():
        _handler.colored = False
