"""TensorBoard's event files: in ``tensorboard/`` of the run folder; for a sweep, in ``NAME-tensorboard/`` next to its results."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedgraph_flwr.config import RunConfig, to_yaml
from fedgraph_flwr.tracking import Tracker, label


class TensorBoard(Tracker):
    """Logs scalars by round, the configuration as text, and the final values at the last round."""

    def __init__(self, cfg: RunConfig, name: str):
        group = cfg.tracking_group
        folder = Path(f"{group}-tensorboard", label(cfg, name)) if group else Path(cfg.out, "tensorboard")
        self.place = f"{folder}; show it with: tensorboard --logdir {folder}"
        self.writer = SummaryWriter(str(folder))
        self.writer.add_text("config", f"```\n{to_yaml(cfg)}\n```")
        self.last = 0

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the scalars of a round."""
        self.last = step
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)

    def finish(self, values: Mapping[str, float], files: list[Path]) -> None:
        """Log final values; the files are already next to the events."""
        self.scalars(values, self.last)

    def close(self, failed: bool) -> None:
        """Flush and close."""
        self.writer.close()
