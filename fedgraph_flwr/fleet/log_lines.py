"""Lines of Flower's programs and of this package's commands as they arrive: plain text, or one JSON object per line.

Text keeps its colours only in a terminal. A JSON line has ``time``, ``level``, ``run`` (Flower's number), ``round``, ``party``,
``reason`` and ``message``; what a line does not say is null. A traceback is one line, whose message is its last line. Lines that
are JSON objects already, those of nginx, stay as they are.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any

LOG_FORMAT = {"choices": ("text", "json"), "default": "text"}
"""Values of ``--log-format``."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LEVEL = re.compile(r"(?:\S+Z )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b ?[: ]*(.*)")
_OWN = re.compile(r"fedgraph-flwr: (?:(warning|error): )?(.*)")
_MESSAGE = re.compile(r"\[RUN (\d{1,20})(?:, ROUND (\d{1,9}))?\]")  # a server chooses the text of a round
_RUN = re.compile(r"\brun (\d{8,20})\b")
_ROUND = re.compile(r"\bround (\d{1,9})\b")
_CLIENT = re.compile(r"\bclient \d{1,9} \(([^()]*)\)")
_CHECK = re.compile(r"(?:\S+Z )?ERROR ?[: ]*\[\S*/activate-node\]\[ApiError:2003\] .*")
"""Error of Flower's server for the request of `fleet check`, which is invalid on purpose (`checking.admission`)."""

_NGINX = re.compile(r"\d{4}/\d\d/\d\d [\d:]{8} \[(debug|info|notice|warn|error|crit|alert|emerg)\] (?:\d+#\d+: )?(.*)")
_LEVELS = {"notice": "INFO", "warn": "WARNING", "crit": "CRITICAL", "alert": "CRITICAL", "emerg": "CRITICAL"}
_TRACEBACK = "Traceback (most recent call last):"

_REASON = re.compile(r"\b(?:failed|refused|refuses|was late|no connection to the server [^:]*:\d+): (.*)")


class LogLines:
    """Format of lines.

    Args:
        form: ``text`` or ``json``.
        colours: whether text keeps its colours.
        party: name of the party whose node writes the lines; empty on a server.
    """

    def __init__(self, form: str = "text", colours: bool = False, party: str = ""):
        self.form, self.colours, self.party = form, colours, party
        self.level, self.run, self.round = "INFO", "", ""
        self.traceback: list[str] = []

    def new(self) -> "LogLines":
        """Return the same format for lines of another process."""
        return LogLines(self.form, self.colours, self.party)

    def __call__(self, line: str) -> str:
        """Return a line to print, without its end; "" for one without content in JSON."""
        plain = _COLOURS.sub("", line)
        if _CHECK.fullmatch(plain):
            line = plain = "INFO :      a node with an admitted key ran `fleet check`"
        if self.form == "text":
            return line if self.colours else plain
        if self.traceback or plain.endswith(_TRACEBACK):
            self.traceback.append(plain)
            return self.end() if len(self.traceback) > 1 and not plain.startswith(" ") else ""
        return self._as_json(plain.strip())

    def end(self) -> str:
        """Return an unfinished traceback as a line."""
        lines, self.traceback = self.traceback, []
        if not lines or self.form == "text":
            return ""
        self.level = "ERROR"
        return self._as_json(f"ERROR: {lines[-1].strip()}", traceback="\n".join(lines))

    def _as_json(self, line: str, **more: str) -> str:
        if not line or (line.startswith('{"time"') and line.endswith("}")):
            return line
        message = line
        if nginx := _NGINX.fullmatch(line):
            self.level, message = _LEVELS.get(nginx[1], nginx[1].upper()), nginx[2]
        elif program_line := _OWN.fullmatch(line):
            self.level, message = (program_line[1] or "info").upper(), program_line[2]
        elif level_line := _LEVEL.fullmatch(line):
            self.level, message = level_line[1], level_line[2].strip()
        if not message:
            return ""
        if place := _MESSAGE.search(message):  # holds for the lines that follow
            self.run, self.round = place[1], place[2] or ""
        run, number, client, reason = (kind.search(message) for kind in (_RUN, _ROUND, _CLIENT, _REASON))
        party = self.party or (client[1] if client else "")
        values: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": self.level,
            "run": (run[1] if run else self.run) or None,
            "round": int(text) if (text := number[1] if number else self.round) else None,
            "party": party or None,
            "reason": reason[1] if reason else None,
            "message": message,
            **more,
        }
        return json.dumps(values, ensure_ascii=False)
