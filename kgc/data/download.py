"""Files from the network or a mirror into the cache: whole, checked, resumed where they broke off, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn
from urllib.parse import unquote, urlsplit

import pooch

from kgc.data.lines import SAFE_RATIO, SAFE_SIZE
from kgc.errors import UserError

LARGEST = 2**35  # bytes; no file of a data set is larger
TRIES = 3
WAIT = 1.0  # seconds before the second try, twice as many before the third
TIMEOUT = (10, 30)  # seconds until a server answers, and between two pieces
_PIECE = 1 << 16  # what a connection that breaks off may lose of what came
pooch.get_logger().setLevel("WARNING")  # it would print where each file goes


class Broken(Exception):
    """A download that did not come to its end; what came is kept for the next try."""


def fetch_files(
    folder: Path, name: str, files: Sequence[Mapping[str, Any]], archive: Mapping[str, Any] | None = None
) -> Path:
    """Makes the files of a data set be in a folder; a file that is there is complete.

    Args:
        folder: in the cache.
        name: of the data set; a mirror (`$KGC_MIRROR`, an address or a folder) has its files in a folder of this name.
        files: `name` in the cache, and `url` with `sha256` (None: not known), or with an archive `member` in it.
        archive: `url` and `sha256` of a `.zip` or `.tar.*` with all of them; it is removed when they are out.

    Raises:
        UserError: what went wrong, and how to get the files in another way.
    """
    for file in files:
        target = PurePosixPath(file["name"])
        if target.is_absolute() or ".." in target.parts or "\\" in file["name"]:
            raise UserError(f"{name}: the file name {file['name']!r} leads out of the cache")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            missing = {
                file["name"]: file["member"] for file in files if archive and not (folder / file["name"]).is_file()
            }
            if archive is None:
                for file in files:
                    _fetch(name, file["url"], folder, file["name"], file["sha256"])
            elif missing:
                packed = f".{Path(unquote(urlsplit(archive['url']).path)).name}"
                _fetch(name, archive["url"], folder, packed, archive["sha256"])
                unpack(folder / packed, missing, folder)
                (folder / packed).unlink()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(f"{folder}: no space left on the disk for {name}; free some and start again") from error
        raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from error
    return folder


def _fetch(name: str, url: str, folder: Path, file: str, sha256: str | None) -> None:
    """One file into the cache, by pooch: it appears under its name when it is whole and its hash is right."""
    address = _at_mirror(name, url)
    downloader = _Resuming(folder / f".{file.lstrip('.')}.part".replace("/", "_"), resumable=sha256 is not None)
    known = f"sha256:{sha256}" if sha256 else None
    try:
        pooch.retrieve(address, known_hash=known, fname=file, path=folder, downloader=downloader)
    except Broken as error:
        _raise_unavailable(name, address, str(error), error)
    except ValueError as error:  # pooch's word for another file than expected
        downloader.forget()
        _raise_unavailable(name, address, "another file than expected: its SHA-256 differs", error)


def _at_mirror(name: str, url: str) -> str:
    mirror = os.environ.get("KGC_MIRROR")
    if not mirror:
        return url
    file = Path(unquote(urlsplit(url).path)).name
    return f"{mirror.rstrip('/')}/{name}/{file}"


def _raise_unavailable(name: str, url: str, reason: str, cause: Exception) -> NoReturn:
    raise UserError(
        f"cannot download {name} from {without_secrets(url)} ({reason}); put its files in a folder {name} and set "
        "KGC_DATA to the folder above, set KGC_MIRROR to another source, or use dataset=folder dataset.path=DIR"
    ) from cause


def without_secrets(url: str) -> str:
    """An address without what it may carry of passwords and tokens: the user before the host, and the query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class _Resuming:
    """pooch's downloader: keeps what came, asks for the rest, and gives up after some tries.

    Args:
        part: where an unfinished download is kept.
        resumable: the rest may be asked for although the server gives no mark of the file's version: a hash follows.
    """

    def __init__(self, part: Path, resumable: bool):
        self.part = part
        self.mark = part.with_name(part.name + ".version")
        self.resumable = resumable

    def forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self.mark.unlink(missing_ok=True)

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        if urlsplit(url).scheme in ("http", "https"):
            self._download(url)
        else:
            source = Path(url.removeprefix("file://")).expanduser()
            if not source.is_file():
                raise Broken("no such file")
            shutil.copyfile(source, self.part)
        os.replace(self.part, output_file)
        self.forget()

    def _download(self, url: str) -> None:
        import requests

        for tried in range(1, TRIES + 1):
            try:
                return self._once(url)
            except requests.HTTPError as error:
                status = error.response.status_code
                if status < 500 or tried == TRIES:
                    raise Broken(f"the server says {status} {error.response.reason}") from error
            except (requests.RequestException, Broken) as error:
                if tried == TRIES:
                    raise Broken(self._reason(error)) from error
            time.sleep(WAIT * 2 ** (tried - 1))

    def _reason(self, error: Exception) -> str:
        import requests

        if isinstance(error, Broken):
            return str(error)
        if self.part.is_file() and self.part.stat().st_size:
            return f"the connection broke off; {self.part.stat().st_size:,} bytes are kept for the next try"
        return "no answer in time" if isinstance(error, requests.Timeout) else "no connection"

    def _once(self, url: str) -> None:
        """One request: for the rest of the file if some of it is here, else for all."""
        import requests

        have = self.part.stat().st_size if self.part.is_file() else 0
        version = self.mark.read_text() if self.mark.is_file() else ""
        # As it is on the server's disk: a part of what was packed for the way could not be continued.
        headers = {"Accept-Encoding": "identity"}
        if have and (version or self.resumable):
            headers["Range"] = f"bytes={have}-"
            if version:
                headers["If-Range"] = version
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            if answer.status_code == 416:  # nothing after what is here: begin again
                self.forget()
                raise Broken("the file changed on the server")
            answer.raise_for_status()
            rest = answer.status_code == 206 and "Range" in headers
            length = answer.headers.get("Content-Length")
            whole = None if length is None else int(length) + (have if rest else 0)
            if whole is not None and whole > LARGEST:
                raise Broken(f"{whole:,} bytes, more than any data set has")
            version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            answer.raw.enforce_content_length = False  # what came of a piece is kept; the size is compared below
            self.mark.write_text("" if version.startswith("W/") else version)
            size = have if rest else 0
            with self.part.open("ab" if rest else "wb") as file, _progress(url, whole, size) as advance:
                for piece in answer.iter_content(_PIECE):
                    file.write(piece)
                    size += len(piece)
                    advance(len(piece))
                    if size > LARGEST:
                        raise Broken(f"more than {LARGEST:,} bytes, more than any data set has")
        if whole is not None and size != whole:
            raise Broken(f"{size:,} of {whole:,} bytes came; they are kept for the next try")


@contextlib.contextmanager
def _progress(url: str, whole: int | None, done: int) -> Iterator[Any]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"download {Path(urlsplit(url).path).name}", total=whole, completed=done)
        yield lambda size: bar.advance(task, size)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Processes of one run, and runs started together, download one after the other."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpack(archive: Path, members: Mapping[str, str], folder: Path) -> None:
    """Takes single files out of a `.zip` or `.tar.*`; each appears when it is complete.

    Only what is asked for is written, and only under the names given here: a path in the archive leads nowhere.

    Args:
        archive: the file.
        members: the name in the archive of each file wanted.
        folder: where they are wanted.

    Raises:
        UserError: damaged, a member is missing or no plain file, or unpacks to more than any data set.
    """
    limit = max(SAFE_SIZE, SAFE_RATIO * archive.stat().st_size)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                names = {info.filename.removeprefix("./"): info for info in file.infolist() if not info.is_dir()}
                for target, member in members.items():
                    with file.open(_member(archive, names, member)) as source:
                        _take(source, folder / target, limit, archive)
            return
        wanted = {member: target for target, member in members.items()}
        with tarfile.open(archive, "r|*") as file:
            for info in file:
                if info.offset_data > limit:
                    _raise_large(archive, limit)
                target = wanted.pop(info.name.removeprefix("./"), None) if info.isfile() else None
                if target is not None:
                    _take(file.extractfile(info), folder / target, limit, archive)
                if not wanted:
                    break
        if wanted:
            _member(archive, {}, next(iter(wanted)))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{archive}: a damaged archive ({error}); remove it and start again") from error


def _member(archive: Path, names: Mapping[str, Any], member: str) -> Any:
    if member not in names:
        raise UserError(f"{archive}: has no file {member}; remove it and start again, or get the data in another way")
    return names[member]


def _take(source: IO[bytes], target: Path, limit: int, archive: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    size = 0
    with part.open("wb") as file:
        while piece := source.read(_PIECE):
            size += len(piece)
            if size > limit:
                file.close()
                part.unlink()
                _raise_large(archive, limit)
            file.write(piece)
    os.replace(part, target)


def _raise_large(archive: Path, limit: int) -> NoReturn:
    size = archive.stat().st_size
    raise UserError(
        f"{archive}: {size:,} bytes that unpack to more than {limit:,}, which no data set does; if you trust it, "
        "unpack it yourself and use dataset=folder"
    )
