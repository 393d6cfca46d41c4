"""Lines of a log as text and as JSON."""

import json
import subprocess
import sys
import time

import pytest

from fedgraph_flwr.fleet import processes
from fedgraph_flwr.fleet.log_lines import LogLines
from tests.support import wait_for

GREEN, END = "\x1b[92m", "\x1b[0m"


def test_text_has_colours_in_a_terminal_only():
    line = f"{GREEN}INFO {END}:      Sent successfully"
    assert LogLines(colours=True)(line) == line
    assert LogLines()(line) == "INFO :      Sent successfully"


def test_a_check_that_succeeds_is_no_error_in_the_log_of_the_server():
    """The SuperLink logs its rejection of the check's heartbeat interval as an error, with the key. Other errors stay."""
    key = "Attempted to register SuperNode with public key: b'-----BEGIN', exception: Heartbeat interval 1.0"
    line = f"\x1b[91mERROR {END}:     [/v1/fleet/activate-node][ApiError:2003] {key}"
    assert (
        LogLines()(line) == LogLines(colours=True)(line) == "INFO :      a node with an admitted key ran `fleet check`"
    )
    assert json.loads(LogLines("json")(line))["level"] == "INFO"
    for other in (line.replace("2003", "2004"), line.replace("activate-node", "heartbeat")):
        assert LogLines(colours=True)(other) == other


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{GREEN}INFO {END}:      SuperNode ID: 5", {"level": "INFO", "message": "SuperNode ID: 5"}),
        (
            "WARNING :  round 3, train: client 2 (bank_c) failed: no reply within 30 s",
            {"level": "WARNING", "round": 3, "party": "bank_c", "reason": "no reply within 30 s"},
        ),
        (
            "2026-11-28T07:45:49.361Z INFO [uvicorn.access] 127.0.0.1:1 - POST",
            {"level": "INFO", "message": "[uvicorn.access] 127.0.0.1:1 - POST"},
        ),
        ("fedgraph-flwr: warning: disk full", {"level": "WARNING", "message": "disk full"}),
        ("fedgraph-flwr: ready on 127.0.0.1:9090", {"level": "INFO", "message": "ready on 127.0.0.1:9090"}),
        (
            "fedgraph-flwr: no connection to the server h:9090: nothing listens; retrying in 1 s",
            {"reason": "nothing listens; retrying in 1 s"},
        ),
        ("INFO :      Starting run 12468768658496790875", {"run": "12468768658496790875"}),
    ],
)
def test_json_has_what_a_line_says(line, expected):
    lines = LogLines("json")
    entry = json.loads(lines(line))
    assert list(entry) == ["time", "level", "run", "round", "party", "reason", "message"]
    assert expected.items() <= entry.items()
    assert all(entry[key] is None for key in ("run", "round", "party", "reason") if key not in expected)


def test_a_message_of_a_run_names_it_for_the_lines_that_follow():
    lines = LogLines("json", party="bank_a")
    entries = [
        json.loads(text)
        for line in (
            "INFO :      [RUN 77, ROUND 4]",
            "INFO :      Receiving: train message",
            "",
            "INFO :      ",
            "  continued",
        )
        if (text := lines(line))
    ]
    assert [(line["run"], line["round"], line["party"]) for line in entries] == [("77", 4, "bank_a")] * 3
    assert entries[-1]["level"] == "INFO"


def test_a_process_prints_its_lines_and_those_of_its_children_in_one_format(capfd, monkeypatch):
    monkeypatch.setattr(processes, "LINES", LogLines())
    processes.log_as("json", "bank_a")
    code = "print('\\x1b[91mERROR \\x1b[0m:     refused: no key'); print()"
    process = processes.Process([sys.executable, "-c", code], on_line=(heard := []).append)
    process.popen.wait()
    process.end()
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["level"] for line in printed] == ["INFO", "ERROR"]
    assert printed[0]["message"].startswith("starting: ")
    assert (printed[1]["party"], printed[1]["reason"]) == ("bank_a", "no key")
    assert heard[0].startswith("\x1b[91mERROR")


def test_a_process_is_asked_once_to_end():
    """A second SIGTERM would kill a SuperNode before its server knows, which then refuses its key for a minute."""
    code = """import signal, sys, time
def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Flower does
    time.sleep(0.3)
    print("told the server")
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)"""
    process = processes.Process([sys.executable, "-c", code], on_line=(heard := []).append)
    wait_for(lambda: heard, "the process to start")
    process.terminate()
    time.sleep(0.1)
    process.end()
    assert heard == ["ready", "told the server"]


def test_a_number_that_a_server_made_long_ends_no_log():
    """The thread that prints lines would end, and the SuperNode would wait for it."""
    lines, digits = LogLines("json", party="bank_a"), "9" * 5000
    for text in (f"INFO : [RUN 12, ROUND {digits}]", f"INFO : round {digits}", f"INFO : client {digits} failed: x"):
        assert json.loads(lines(text))["round"] is None


def test_a_traceback_is_one_line_and_those_of_nginx_stay():
    lines = LogLines("json")
    whole = [
        "Traceback (most recent call last):",
        '  File "mine.py", line 3, in f',
        "    1 / 0",
        "ZeroDivisionError: by 0",
    ]
    *none, last = [lines(line) for line in whole]
    assert none == ["", "", ""]
    entry = json.loads(last)
    assert (entry["level"], entry["message"]) == ("ERROR", "ZeroDivisionError: by 0")
    assert entry["traceback"] == "\n".join(whole)
    assert json.loads(lines("INFO :      next"))["level"] == "INFO"
    assert lines("ERROR :    Traceback (most recent call last):") == ""
    assert json.loads(lines.end())["level"] == "ERROR"
    nginx_line = '{"time": "2026-11-28T08:01:40+00:00", "level": "INFO", "operator": "CN=bob"}'
    assert lines(nginx_line) == nginx_line
    entry = json.loads(lines("2026/11/29 05:44:27 [warn] 12#12: *1 a buffered file"))
    assert (entry["level"], entry["message"]) == ("WARNING", "*1 a buffered file")
    assert json.loads(lines("2026/11/29 05:44:27 [emerg] bind() failed"))["level"] == "CRITICAL"
    text = LogLines()
    assert [text(line) for line in whole] == whole


@pytest.mark.parametrize(
    "code",
    [
        "main(['node', '--log-format', 'json', '--server', 'x', '--key', 'no', '--graph', 'no'])",
        "main(['server', 'nowhere', '--log-format', 'json'])",
        "processes.log_as('json'); raise ValueError('odd')",
        "processes.log_as('json'); import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
        "processes.log_as('json'); p = processes.Process([sys.executable, '-c', '1 / 0']); p.popen.wait(); p.end()",
    ],
)
def test_a_start_that_fails_is_a_log_of_json_alone(code, tmp_path):
    code = f"import sys; from fedgraph_flwr.cli import main; from fedgraph_flwr.fleet import processes; {code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert entries[-1]["level"] == "ERROR"
    assert ("traceback" in entries[-1]) == ("log_as" in code)
