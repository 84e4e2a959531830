"""A stand-in for W&B's server on the loopback: so much of its GraphQL and its file stream as `wandb sweep`,
`wandb agent`, a run and `wandb sync` need. What it does not know it answers with nothing, and keeps the name of."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY, PROJECT = "somebody", "kgc"


@dataclass
class Run:
    """What a run sent: of its own accord (`UpsertBucket`) and through its file stream."""

    config: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)  # of each streamed file, by place
    exit_code: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        rows = self.lines.get("wandb-history.jsonl", {})
        return [json.loads(rows[place]) for place in sorted(rows)]

    @property
    def summary(self) -> dict[str, Any]:
        rows = self.lines.get("wandb-summary.json", {})
        return json.loads(rows[max(rows)]) if rows else {}


class Server:
    """The state of the stand-in.

    Args:
        choices: the parameters that its sweeps give to one agent after the other.
    """

    def __init__(self, choices: list[dict[str, Any]] | None = None):
        self.choices = list(choices or [])
        self.sweeps: dict[str, str] = {}  # config by id
        self.runs: dict[str, Run] = {}
        self.files: set[str] = set()
        self.unknown: set[str] = set()
        self._given = 0
        self.url = ""

    def answer(self, query: str, values: dict[str, Any]) -> dict[str, Any]:
        """The `data` of a GraphQL operation."""
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        name = found[1] if found else "?"
        method = getattr(self, f"_{name}", None)
        if method is None:
            self.unknown.add(name)
            return {}
        return method(values)

    def stream(self, run: str, content: dict[str, Any]) -> None:
        """Takes what a run's file stream posts."""
        kept = self.runs.setdefault(run, Run())
        for name, part in (content.get("files") or {}).items():
            for place, line in enumerate(part["content"], part["offset"]):
                kept.lines.setdefault(name, {})[place] = line
        if content.get("complete"):
            kept.exit_code = content["exitcode"]

    def _Viewer(self, values: dict) -> dict:
        viewer = {"id": "1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}

    def _ServerFeaturesQuery(self, values: dict) -> dict:
        return {"serverInfo": {"features": []}}

    def _UpsertSweep(self, values: dict) -> dict:
        name = f"sweep{len(self.sweeps)}"
        self.sweeps[name] = values["config"]
        project = {"id": "1", "name": PROJECT, "entity": {"id": "1", "name": ENTITY}}
        return {"upsertSweep": {"sweep": {"name": name, "project": project}, "configValidationWarnings": []}}

    def _SweepWithRuns(self, values: dict) -> dict:
        name = values["sweep"]
        sweep = {"id": name, "name": name, "state": "RUNNING", "config": self.sweeps[name], "runs": {"edges": []}}
        return {"project": {"sweep": sweep}}

    def _CreateAgent(self, values: dict) -> dict:
        return {"createAgent": {"agent": {"id": "agent"}}}

    def _Heartbeat(self, values: dict) -> dict:
        commands: list[dict[str, Any]] = []
        if not json.loads(values["runState"]):
            if self._given < len(self.choices):
                args = {key: {"value": value} for key, value in self.choices[self._given].items()}
                commands = [{"type": "run", "run_id": f"run{self._given}", "program": "train.py", "args": args}]
                self._given += 1
            else:
                commands = [{"type": "exit"}]
        return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(commands)}}

    def _RunResumeStatus(self, values: dict) -> dict:
        return {"model": {"id": "1", "name": PROJECT, "entity": {"id": "1", "name": ENTITY}, "bucket": None}}

    def _UpsertBucket(self, values: dict) -> dict:
        run = self.runs.setdefault(values["name"], Run())
        run.about |= {key: value for key, value in values.items() if value is not None}
        for key, entry in json.loads(values.get("config") or "{}").items():
            run.config[key] = entry["value"] if isinstance(entry, dict) and "value" in entry else entry
        bucket = {
            "id": values["name"],
            "name": values["name"],
            "displayName": values.get("displayName") or values["name"],
            "sweepName": values.get("sweep"),
            "historyLineCount": 0,
            "project": {"id": "1", "name": PROJECT, "entity": {"id": "1", "name": ENTITY}},
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _CreateRunFiles(self, values: dict) -> dict:
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in values["files"]]
        return {"createRunFiles": {"runID": values["run"], "uploadHeaders": [], "files": files}}

    def _ArtifactType(self, values: dict) -> dict:
        return {"project": None}  # no artifact of that name yet

    def _CreateArtifact(self, values: dict) -> dict:
        there = {"id": "1", "state": "COMMITTED", "artifactSequence": {"id": "1", "latestArtifact": None}}
        return {"createArtifact": {"artifact": there}}  # it has it already: nothing is uploaded


@contextmanager
def serving(choices: list[dict[str, Any]] | None = None) -> Iterator[Server]:
    """Runs a stand-in in a thread; its `url` is for `WANDB_BASE_URL`."""
    server = Server(choices)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            with lock:
                if self.path.endswith("/graphql"):
                    asked = json.loads(body)
                    reply: Any = {"data": server.answer(asked["query"], asked.get("variables") or {})}
                elif self.path.endswith("/file_stream"):
                    server.stream(self.path.split("/")[-2], json.loads(body))
                    reply = {"limits": {}}
                else:
                    server.files.add(self.path.removeprefix("/upload/"))
                    reply = {}
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _handle

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Says nothing of clients that are gone."""

    http = Quiet(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
