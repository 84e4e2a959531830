"""Options of networks so small that tests are quick, for any even `dim`; by the names of `conf/model/`."""

from __future__ import annotations

# Models that have no vectors of entities, which pools and products could compare.
WITHOUT_VECTORS = ("drum", "nbfnet", "rules")

SMALL: dict[str, dict[str, int]] = {
    "conve": {"height": 1, "channels": 3, "kernel": 2},
    "hitter": {"layers": 1, "heads": 2, "width": 6},
    "ermlp": {"hidden": 6},
    "rgcn": {"bases": 2},
    "rules": {"min_support": 1},
    "nbfnet": {"layers": 2},
}
