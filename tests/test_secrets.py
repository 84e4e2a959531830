"""No key in what a run writes or says."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs

from kgc.data import download
from kgc.errors import UserError

KEY = "5ec4e7" + "0123456789abcdef" * 2 + "9f"
assert len(KEY) == 40


def files_with(folder: Path, secret: str) -> list[str]:
    """Files whose bytes have a text as UTF-8, UTF-16 or in hexadecimal, or whose name has it."""
    forms = [secret.encode(), secret.encode("utf-16-le"), secret.encode().hex().encode()]
    found = []
    for path in folder.rglob("*"):
        held = path.is_file() and any(form in path.read_bytes() for form in forms)
        if held or secret in path.name:
            found.append(str(path.relative_to(folder)))
    return found


def test_the_search_finds_one(tmp_path):
    (tmp_path / "a").write_text(f"x{KEY}x")
    (tmp_path / "b").write_bytes(KEY.encode("utf-16-le"))
    (tmp_path / "c").write_text("nothing")
    assert sorted(files_with(tmp_path, KEY)) == ["a", "b"]


def test_a_run_with_wandb_writes_no_key(tmp_path, monkeypatch):
    """Every file of the run's folder, of W&B's own and of the home directory; what it says; the checkpoint unpacked."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = [word for word in runs.TINY if not word.startswith("logger")]
    done = runs.process(tmp_path, runs.script("train"), *words, "logger=wandb", "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert KEY not in done.out + done.err
    assert files_with(tmp_path, KEY) == []
    for name in ("best.ckpt", "last.ckpt"):
        assert KEY not in str(runs.content(tmp_path / "run" / "checkpoints" / name))


@pytest.mark.parametrize(
    "word",
    [
        f"+logger.api_key={KEY}",
        f"hydra.job.env_set.WANDB_API_KEY={KEY}",
        f"++hub_token={KEY}",
        f"password={KEY}",
        f"+logger.access_key={KEY}",
        f"logger.tracking_uri=mysql://me:{KEY}@machine/runs",
    ],
)
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_key_on_the_command_line_is_refused(name, word, tmp_path, capsys):
    said = runs.command(capsys, tmp_path, name, *runs.TINY, word).mistake()
    assert said == (
        f"{word.split('=')[0].lstrip('+')}: a key on the command line stands in the shell's history, the list of "
        "processes and the run's report; set it in the environment (WANDB_API_KEY), or use `wandb login`"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://me:hush@127.0.0.1:9/d?token=hush#hush", "http://hush@127.0.0.1:9/d"])
def test_a_mirrors_password_is_not_said(url, tmp_path, monkeypatch):
    monkeypatch.setenv("KGC_MIRROR", url)
    monkeypatch.setattr(download, "WAIT", 0.0)
    with pytest.raises(UserError) as caught:
        download.fetch_files(tmp_path, "x", [{"name": "a.txt", "url": "http://host/a.txt", "sha256": None}])
    assert "http://127.0.0.1:9/d" in str(caught.value)
    assert "hush" not in str(caught.value)
