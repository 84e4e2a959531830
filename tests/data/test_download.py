"""Downloads from a server on this machine that redirects, lies, stops half way and hangs; and archives of strangers.

The files are those of the bundled data sets, and of `$KGC_DATA` where it is set.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest
import runs

from kgc.data import download, lines
from kgc.data.catalogue import described, load_dataset
from kgc.data.download import unpack
from kgc.errors import UserError

SPLITS = ("train", "valid", "test")


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` by path; `faults` maps a path to what happens once or always."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str | None]] = []  # path and range
        self.hung = threading.Event()
        self.ranges = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args) -> None:
        pass

    def do_GET(self) -> None:
        server, path = self.server, self.path
        server.asked.append((path, self.headers.get("Range")))
        faults = server.faults.get(path, [])
        fault = faults.pop(0) if faults else ""
        if fault == "redirect":
            self.send_response(302)
            self.send_header("Location", f"/moved{path}")
            self.end_headers()
            return
        body = server.files.get(path.removeprefix("/moved"))
        if body is None or fault == "404" or fault == "500":
            self.send_error(500 if fault == "500" else 404)
            return
        mark = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and server.ranges and self.headers.get("If-Range", mark) == mark:
            start = int(asked[1])
        if start >= len(body) > 0:
            self.send_error(416)
            return
        part = body[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", mark)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if fault in ("cut", "hang"):
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            if fault == "hang":
                server.hung.wait(20)
            self.close_connection = True
            return
        self.wfile.write(part)


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Server]:
    """A mirror with the real files of a data set under the names of their source."""
    monkeypatch.delenv("KGC_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(download, "WAIT", 0.01)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("KGC_MIRROR", server.address)
    yield server
    server.hung.set()
    server.shutdown()
    thread.join()
    server.server_close()


def text(name: str) -> dict[str, bytes]:
    """The splits of a bundled data set as their source would have them."""
    return {
        split: "".join("\t".join(triple) + "\n" for triple in triples).encode()
        for split, triples in runs.bundled(name).items()
    }


def source(files: dict[str, bytes]) -> dict:
    """What the catalogue would say of a data set that is not bundled."""
    return {
        "files": [
            {
                "name": f"{split}.txt",
                "url": f"https://example.org/data/{split}.txt",
                "sha256": hashlib.sha256(data).hexdigest(),
            }
            for split, data in files.items()
        ]
    }


@pytest.fixture
def umls(server) -> dict:
    """UMLS on the mirror; the arguments of `load_dataset` besides the name."""
    files = text("umls")
    server.files |= {f"/umls/{split}.txt": data for split, data in files.items()}
    return {"source": source(files)}


def message(call, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def failed(server: Server, reason: str) -> str:
    return (
        f"cannot download umls from {server.address}/umls/train.txt ({reason}); put its files in a folder umls and set "
        "KGC_DATA to the folder above, set KGC_MIRROR to another source, or use dataset=folder dataset.path=DIR"
    )


def left(tmp_path: Path) -> list[str]:
    """What stands in the cache under names that count."""
    folder = tmp_path / "cache" / "kgc" / "umls"
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_download_once(server, umls, tmp_path):
    digest = described("umls")["expected"]["digest"]
    assert load_dataset("umls", **umls).digest == digest
    assert [path for path, _ in server.asked] == [f"/umls/{split}.txt" for split in SPLITS]
    assert load_dataset("umls", **umls).digest == digest
    assert len(server.asked) == 3
    assert left(tmp_path) == ["test.txt", "train.txt", "valid.txt"]
    assert not list((tmp_path / "cache").rglob("*.part*"))


@pytest.mark.skipif(not os.environ.get("KGC_DATA"), reason="needs $KGC_DATA/fb15k237 and the like")
@pytest.mark.parametrize("name", ["codex_s", "wn18rr", "fb15k237"])
def test_real_files_have_the_hashes_and_digests_of_the_catalogue(name, request):
    ready = Path(os.environ["KGC_DATA"]) / name
    server = request.getfixturevalue("server")
    for split in SPLITS:
        packed = ready / f"{split}.txt.gz"
        data = gzip.decompress(packed.read_bytes()) if packed.exists() else (ready / f"{split}.txt").read_bytes()
        server.files[f"/{name}/{split}.txt"] = data
    graph = load_dataset(name)
    assert graph.digest == described(name)["expected"]["digest"]
    assert len(server.asked) == 3


@pytest.mark.parametrize("faults", [["redirect"], ["500"], ["cut"], ["cut", "cut"], ["redirect", "cut"]])
def test_what_passes(faults, server, umls):
    server.faults["/umls/train.txt"] = faults
    assert load_dataset("umls", **umls).num_entities == 135


def test_a_download_goes_on_where_it_broke_off(server, umls, tmp_path):
    size = len(server.files["/umls/train.txt"])
    server.faults["/umls/train.txt"] = ["cut", "404"]
    assert message(load_dataset, "umls", **umls) == failed(server, "the server says 404 Not Found")
    assert server.asked == [("/umls/train.txt", None), ("/umls/train.txt", f"bytes={size // 2}-")]
    assert left(tmp_path) == []
    load_dataset("umls", **umls)
    assert server.asked[2] == ("/umls/train.txt", f"bytes={size // 2}-")


def test_a_server_without_ranges(server, umls):
    server.ranges = False
    server.faults["/umls/train.txt"] = ["cut"]
    assert load_dataset("umls", **umls).digest == described("umls")["expected"]["digest"]


def test_a_file_that_changed_meanwhile(server, umls, tmp_path):
    server.faults["/umls/train.txt"] = ["cut", "404"]
    good = server.files["/umls/train.txt"]
    server.files["/umls/train.txt"] = good[::-1]
    message(load_dataset, "umls", **umls)
    server.files["/umls/train.txt"] = good
    assert load_dataset("umls", **umls).digest == described("umls")["expected"]["digest"]


def test_404(server, umls, tmp_path):
    server.faults["/umls/train.txt"] = ["404"]
    assert message(load_dataset, "umls", **umls) == failed(server, "the server says 404 Not Found")
    assert len(server.asked) == 1
    assert left(tmp_path) == []


def test_truncated_for_ever(server, umls, tmp_path):
    size = len(server.files["/umls/train.txt"])
    server.faults["/umls/train.txt"] = ["cut"] * 3
    reason = f"{size - _rest(size, 3):,} of {size:,} bytes came; they are kept for the next try"
    assert message(load_dataset, "umls", **umls) == failed(server, reason)
    assert left(tmp_path) == []
    load_dataset("umls", **umls)


def _rest(size: int, times: int) -> int:
    """What is missing when the first half of the rest came so many times."""
    for _ in range(times):
        size -= size // 2
    return size


def test_a_server_that_hangs(server, umls, monkeypatch, tmp_path):
    monkeypatch.setattr(download, "TIMEOUT", (5, 0.3))
    server.faults["/umls/train.txt"] = ["hang"] * 3
    assert "the connection broke off; " in message(load_dataset, "umls", **umls)
    assert left(tmp_path) == []
    assert load_dataset("umls", **umls).num_entities == 135


def test_wrong_hash(server, umls, tmp_path):
    server.files["/umls/train.txt"] = server.files["/umls/train.txt"].replace(b"a", b"b")
    reason = "another file than expected: its SHA-256 differs"
    assert message(load_dataset, "umls", **umls) == failed(server, reason)
    assert left(tmp_path) == []
    assert not list((tmp_path / "cache").rglob("*.part*"))


def test_without_hashes_the_counts_are_checked(server, umls):
    for file in umls["source"]["files"]:
        file["sha256"] = None
    server.files["/umls/train.txt"] = server.files["/umls/train.txt"].removesuffix(b"\n").rpartition(b"\n")[0]
    assert ": 5,215 train triples, but umls has 5,216; get a complete copy" in message(load_dataset, "umls", **umls)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_no_space_left(server, umls, tmp_path):
    folder = tmp_path / "cache" / "kgc" / "umls"
    folder.mkdir(parents=True)
    (folder / ".train.txt.part").symlink_to("/dev/full")
    expected = f"{folder}: no space left on the disk for umls; free some and start again"
    assert message(load_dataset, "umls", **umls) == expected
    assert left(tmp_path) == []
    (folder / ".train.txt.part").unlink()
    load_dataset("umls", **umls)


def test_a_cache_that_cannot_be_written(server, umls, tmp_path):
    (tmp_path / "cache" / "kgc").mkdir(parents=True)
    (tmp_path / "cache" / "kgc" / "umls").write_text("in the way")
    assert message(load_dataset, "umls", **umls) == f"{tmp_path}/cache/kgc/umls: cannot be written (File exists)"


def test_too_large(server, umls, monkeypatch):
    monkeypatch.setattr(download, "LARGEST", 1000)
    size = len(server.files["/umls/train.txt"])
    assert message(load_dataset, "umls", **umls) == failed(server, f"{size:,} bytes, more than any data set has")


def test_a_folder_as_mirror(server, umls, monkeypatch, tmp_path):
    monkeypatch.setenv("KGC_MIRROR", str(tmp_path / "mirror"))
    where = f"from {tmp_path}/mirror/umls/train.txt (no such file)"
    assert where in message(load_dataset, "umls", **umls)
    (tmp_path / "mirror" / "umls").mkdir(parents=True)
    for split, data in text("umls").items():
        (tmp_path / "mirror" / "umls" / f"{split}.txt").write_bytes(data)
    assert load_dataset("umls", **umls).num_entities == 135
    assert server.asked == []


def test_no_network(umls, monkeypatch):
    monkeypatch.setenv("KGC_MIRROR", "http://127.0.0.1:9")
    said = message(load_dataset, "umls", **umls)
    assert said.startswith("cannot download umls from http://127.0.0.1:9/umls/train.txt (no connection); ")


# Archives.


def archive(path: Path, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if path.suffix == ".zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in members.items():
                file.writestr(name, data)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as file:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_an_archive_is_unpacked_and_removed(ending, server, tmp_path):
    members = {f"./top/{split}.data": data for split, data in text("umls").items()}
    data = archive(tmp_path / f"umls{ending}", members)
    server.files[f"/umls/umls{ending}"] = data
    server.faults[f"/umls/umls{ending}"] = ["cut"]
    files = [{"name": f"{split}.txt", "member": f"top/{split}.data"} for split in SPLITS]
    for sha256 in (None, hashlib.sha256(data).hexdigest()):
        source = {"archive": {"url": f"https://example.org/umls{ending}", "sha256": sha256}, "files": files}
        graph = load_dataset("umls", source=source)
        assert graph.digest == described("umls")["expected"]["digest"]
    assert left(tmp_path) == ["test.txt", "train.txt", "valid.txt"]
    assert [asked for asked, _ in server.asked] == [f"/umls/umls{ending}"] * 2


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_paths_in_an_archive_lead_nowhere(ending, tmp_path):
    """Nothing is written but what was asked for, wherever the others would go."""
    path = tmp_path / f"slip{ending}"
    archive(path, {"../evil.txt": b"x", "/tmp/kgc-evil.txt": b"x", "a/../../evil.txt": b"x", "good.txt": b"good"})
    folder = tmp_path / "deep" / "folder"
    unpack(path, {"train.txt": "good.txt"}, folder)
    assert [p.relative_to(tmp_path) for p in sorted(tmp_path.rglob("*.txt"))] == [Path("deep/folder/train.txt")]
    assert not Path("/tmp/kgc-evil.txt").exists()
    unpack(path, {"train.txt": "../evil.txt"}, folder)  # even if asked for: under our name
    assert (folder / "train.txt").read_bytes() == b"x"
    assert not (tmp_path / "deep" / "evil.txt").exists()


@pytest.mark.parametrize("target", ["../x.txt", "/x.txt", "a/../../x.txt", "..\\x.txt"])
def test_names_of_targets_stay_in_the_cache(target, server, umls):
    umls["source"]["files"] = [{"name": target, "url": "https://example.org/x.txt", "sha256": None}]
    assert message(load_dataset, "umls", **umls) == f"umls: the file name {target!r} leads out of the cache"


def test_links_in_an_archive_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text("secret")
    with tarfile.open(tmp_path / "links.tar", "w") as file:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo("train.txt")
            info.type, info.linkname = kind, str(tmp_path / "secret")
            file.addfile(info)
    said = message(unpack, tmp_path / "links.tar", {"train.txt": "train.txt"}, tmp_path / "out")
    assert said.startswith(f"{tmp_path}/links.tar: has no file train.txt; ")


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_bombs(ending, tmp_path, monkeypatch):
    """The limits are lowered, so that the bomb need not be a gibibyte."""
    monkeypatch.setattr(download, "SAFE_SIZE", 1 << 16)
    path = tmp_path / f"bomb{ending}"
    archive(path, {"train.txt": bytes(1 << 23)})
    limit = max(1 << 16, 100 * path.stat().st_size)
    said = message(unpack, path, {"train.txt": "train.txt"}, tmp_path / "out")
    size = path.stat().st_size
    assert said.startswith(f"{path}: {size:,} bytes that unpack to more than {limit:,}, which no data set does")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_damaged_archives(ending, tmp_path):
    path = tmp_path / f"a{ending}"
    data = archive(path, {"train.txt": os.urandom(5000), "other.txt": b"x"})
    expected = f"{path}: has no file valid.txt; remove it and start again, or get the data in another way"
    assert message(unpack, path, {"valid.txt": "valid.txt"}, tmp_path / "out") == expected
    path.write_bytes(data[:2000])
    assert message(unpack, path, {"train.txt": "train.txt"}, tmp_path / "out").startswith(
        f"{path}: a damaged archive ("
    )
    path.write_bytes(b"<html>not found</html>")
    assert message(unpack, path, {"train.txt": "train.txt"}, tmp_path / "out").startswith(
        f"{path}: a damaged archive ("
    )
    assert not list((tmp_path / "out").glob("*.txt"))


def test_limits_are_those_of_the_reader():
    assert (download.SAFE_SIZE, download.SAFE_RATIO) == (lines.SAFE_SIZE, lines.SAFE_RATIO) == (2**30, 100)
