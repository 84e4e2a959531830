"""Reads the file that W&B's client writes for a run, `run-ID.wandb`.

A LevelDB log (https://github.com/google/leveldb/blob/main/doc/log_format.md) of `wandb.proto` records, behind seven
bytes of W&B's own that count as part of the first block: `:W&B`, a magic number and a version.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def chunks(data: bytes) -> Iterator[bytes]:
    """The log's records, put together from their pieces; each piece's checksum is verified. A last record that is not
    complete, because its writer was killed, is left out."""
    ident, magic, version = struct.unpack_from("<4sHB", data)
    assert (ident, magic, version) == (b":W&B", 0xBEE1, 0), "not a file of W&B's client"
    place, whole = 7, b""
    while place + 7 <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < 7:  # a header never crosses a block's end
            place += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, place)
        piece = data[place + 7 : place + 7 + length]
        if len(piece) < length or kind == 0:
            return
        assert crc == zlib.crc32(piece, zlib.crc32(bytes([kind]))), f"damaged at byte {place}"
        place += 7 + length
        whole = piece if kind in (_FULL, _FIRST) else whole + piece
        if kind in (_FULL, _LAST):
            yield whole


@dataclass
class WandbRun:
    """What a run's file holds.

    Args:
        id, name, group, project, tags: of the run.
        config: the last value of each key.
        history: one dict a row, in order.
        summary: the last value of each key.
        axes: the step metric that each defined metric (a name, or a glob) is drawn over.
        artifacts: name, type, metadata and paths of the files of each artifact that was logged.
        exit_code: None where the run was not closed.
        kinds: how often each kind of record occurs.
    """

    id: str = ""
    name: str = ""
    group: str = ""
    project: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    kinds: dict[str, int] = field(default_factory=dict)

    def curve(self, name: str) -> dict[float, float]:
        """The values of a metric by its own x axis; no x may have two."""
        axis = self.axis(name)
        points = [(row[axis], row[name]) for row in self.history if name in row]
        assert len(points) == len({x for x, _ in points}), f"{name} has two values at one {axis}"
        return dict(points)

    def axis(self, name: str) -> str:
        """The step metric of a metric: its own, or that of the longest glob that fits."""
        fits = [k for k in self.axes if k == name or (k.endswith("*") and name.startswith(k[:-1]))]
        return self.axes[max(fits, key=len)]


def read(path: Path) -> WandbRun:
    """Reads a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2

    run = WandbRun()
    for chunk in chunks(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(chunk)
        kind = record.WhichOneof("record_type")
        run.kinds[kind] = run.kinds.get(kind, 0) + 1
        if kind == "run":
            run.id, run.name, run.group = record.run.run_id, record.run.display_name, record.run.run_group
            run.project, run.tags = record.run.project, list(record.run.tags)
            _update(run.config, record.run.config.update)
        elif kind == "config":
            _update(run.config, record.config.update)
        elif kind == "history":
            row: dict[str, Any] = {}
            _update(row, record.history.item)
            run.history.append(row)
        elif kind == "summary":
            _update(run.summary, record.summary.update)
        elif kind == "metric":
            run.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "artifact":
            artifact = record.artifact
            run.artifacts.append(
                {
                    "name": artifact.name,
                    "type": artifact.type,
                    "metadata": json.loads(artifact.metadata or "{}"),
                    "paths": [entry.path for entry in artifact.manifest.contents],
                }
            )
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def run_in(folder: Path, timeout: float = 30) -> WandbRun:
    """The only run in `folder/wandb`, once the client's background process has closed its file."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + timeout
    while True:
        run = read(path)
        if run.exit_code is not None:
            return run
        assert time.monotonic() < deadline, f"{path} was not closed"
        time.sleep(0.1)


def _update(target: dict[str, Any], items: Any) -> None:
    """Sets the keys of items, `nested_key` a path of names."""
    for item in items:
        *parents, name = list(item.nested_key) or [item.key]
        node = target
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = json.loads(item.value_json)
