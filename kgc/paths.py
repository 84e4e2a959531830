"""Where the package keeps what is not code."""

from __future__ import annotations

from pathlib import Path


def config_dir() -> Path:
    """The folder of the Hydra groups: `conf/` beside the package in a checkout, `kgc/conf/` in an installed wheel."""
    package = Path(__file__).resolve().parent
    return next(path for path in (package / "conf", package.parent / "conf") if path.is_dir())
