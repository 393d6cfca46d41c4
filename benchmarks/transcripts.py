"""Record what nodes reply in the cases of the tests, and compare two recordings.

    TRANSCRIPTS=before.jsonl python -m pytest -p benchmarks.transcripts tests/safety      # in the checkout before
    TRANSCRIPTS=now.jsonl    python -m pytest -p benchmarks.transcripts tests/safety      # in the checkout now
    python -m benchmarks.transcripts before.jsonl now.jsonl [again.jsonl]

A line is one message to a node: what came in, the reply or its refusal, and the files and audit lines of its state folder. With a
second recording of the checkout before, values that differ between its two recordings, such as keys and noise, are not compared;
their names, types and shapes are.
"""

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = re.compile(r"(/[\w.+-]+)+/(pytest-of-[\w-]+|tmp\w*|[\w.-]*pytest[\w.-]*)(/[\w.\[\]+=-]+)*")
HERE = str(Path(__file__).parents[1])
RUN = re.compile(r"-([0-9]+|[0-9a-f]{16})/")
NUMBERED = ("last.", "asked.", "round_", "model_")
"""Files that hold the number of their run, which differs with the tests that ran before."""

VALUE, FORM = "value", "form"


def digest(content: bytes) -> str:
    """Return a short digest."""
    return hashlib.sha256(content).hexdigest()[:16]


def described(content: Any) -> dict[str, dict[str, str]]:
    """Return form and value of each array and number of a message's content."""
    forms = {}
    for group, record in content.items():
        for key, item in record.items():
            data = getattr(item, "data", None)
            form = f"{item.dtype}{list(item.shape)}" if data is not None else type(item).__name__
            forms[f"{group}/{key}"] = {FORM: form, VALUE: digest(data if data is not None else repr(item).encode())}
    return forms


def files(root: str) -> dict[str, dict[str, str]]:
    """Return the files of a state folder; of the audit log, each line without its time and its hashes."""
    entries = {}
    for path in sorted(Path(root).rglob("*")) if root else ():
        if not path.is_file() or path.suffix in (".lock", ".tmp"):
            continue
        name, text = RUN.sub("-<run>/", str(path.relative_to(root))), path.read_bytes()
        if path.name.startswith(NUMBERED):
            entries[name] = {FORM: "file", VALUE: ""}
            continue
        if "audit" in path.name:
            whole = [line for line in text.decode().splitlines() if line.startswith("{") and line.endswith("}")]
            lines = [json.loads(line) for line in whole]
            for number, line in enumerate(lines):
                kept = {key: value for key, value in line.items() if key not in ("at", "before", "run")}
                entries[f"{name}:{number}"] = {
                    FORM: ",".join(sorted(line)),
                    VALUE: plain(json.dumps(kept, sort_keys=True)),
                }
        else:
            entries[name] = {FORM: "file", VALUE: digest(text)}
    return entries


def plain(text: str) -> str:
    """Return a text without folders of this machine and this test run."""
    return FOLDER.sub("<folder>", text.replace(HERE, "<repository>"))


def pytest_configure(config: Any) -> None:
    """Record every message to a node in this process."""
    from flwr.clientapp import ClientApp

    out, call = os.environ["TRANSCRIPTS"], ClientApp.__call__

    def recorded(self: Any, message: Any, context: Any) -> Any:
        root = str(context.node_config.get("state", ""))
        received = described(message.content)
        reply = call(self, message, context)
        refused = plain(str(reply.error.reason)) if reply.has_error() else ""
        line = {
            "test": os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0],
            "node": int(context.node_id),
            "party": "partition-id" not in context.node_config,
            "in": received,
            "refused": refused,
            "out": {} if reply.has_error() else described(reply.content),
            "state": described(context.state) if hasattr(context.state, "items") else {},
            "files": files(root),
        }
        with open(out, "a") as stream:
            stream.write(json.dumps(line) + "\n")
        return reply

    ClientApp.__call__ = recorded  # type: ignore[method-assign]


def read(path: str) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of a recording by test."""
    recording: dict[str, list[dict[str, Any]]] = {}
    for text in Path(path).read_text().splitlines():
        line = json.loads(text)
        recording.setdefault(line["test"], []).append(line)
    return recording


def differences(before: dict[str, Any], now: dict[str, Any], again: dict[str, Any]) -> Iterator[str]:
    """Yield what differs between two lines, other than values that differ between two recordings of the same code."""
    if before["refused"] == again["refused"] and before["refused"] != now["refused"]:
        yield f"refused: {before['refused'][:160]!r} -> {now['refused'][:160]!r}"
    for part in ("in", "out", "state", "files"):
        for name in sorted({*before[part], *now[part]}):
            old, new, second = (line[part].get(name) for line in (before, now, again))
            if old is None or new is None:
                if (old is None) == (second is None):
                    yield f"{part} {name}: {'missing before' if old is None else 'missing now'}"
            elif old[FORM] != new[FORM] and old[FORM] == (second or old)[FORM]:
                yield f"{part} {name}: {old[FORM]} -> {new[FORM]}"
            elif old[VALUE] != new[VALUE] and second == old:
                yield f"{part} {name}: other value {old[VALUE][:200]} -> {new[VALUE][:200]}"


def main() -> int:
    """Compare recordings."""
    before, now, again = (read(path) for path in (sys.argv[1], sys.argv[2], sys.argv[-1 if len(sys.argv) > 3 else 1]))
    counts: Counter[str] = Counter()
    same = 0
    for test in sorted({*before, *now}):
        lines = [recording.get(test, []) for recording in (before, now, again)]
        if len(lines[0]) != len(lines[1]):
            print(f"{test}: {len(lines[0])} messages before, {len(lines[1])} now")
            counts["messages"] += 1
        seconds = lines[2] if len(lines[2]) == len(lines[0]) else lines[0]
        for number, triple in enumerate(zip(lines[0], lines[1], seconds, strict=False)):
            shown = list(differences(*triple))
            same += not shown
            counts["lines"] += bool(shown)
            for text in shown:
                print(f"{test} message {number}: {text}")
    print(
        f"{same} messages are the same, {counts['lines']} differ, {counts['messages']} tests have other numbers of messages"
    )
    return int(sum(counts.values()) > 0)


if __name__ == "__main__":
    sys.exit(main())
