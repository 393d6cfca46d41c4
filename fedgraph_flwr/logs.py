"""The package's logger, ``fedgraph_flwr``: it writes where Flower's does, at Flower's level unless you set one."""

import logging

from flwr.common.logger import FLOWER_LOGGER

logger = logging.getLogger("fedgraph_flwr")
logger.parent = FLOWER_LOGGER  # whose handler formats the lines; the root logger has none
log = logger.log
