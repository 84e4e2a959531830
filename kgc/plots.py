"""The report's pictures: small inline SVGs that take their colours and type from the page around them.

Each function draws one axes and returns an `<svg role="img" aria-label=…>` element, the same bytes for the same input.
Matplotlib is imported inside, because it is slow to load and most callers of the package never draw.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-in colours that matplotlib draws with; `_to_svg` puts the page's own in their place, so that one picture
# serves the light and the dark page.
_INK, _GRID = "#010101", "#020202"
_SERIES = {"tail": "#030303", "head": "#040404"}
_CSS = {_INK: "currentColor", _GRID: "var(--line)", _SERIES["tail"]: "var(--tail)", _SERIES["head"]: "var(--head)"}


def line_chart(x: np.ndarray, y: np.ndarray, *, x_label: str, y_label: str, alt: str, best: int | None = None) -> str:
    """A curve over epochs.

    Args:
        x, y: [n] finite values, n >= 1.
        alt: what a reader who cannot see the picture should know.
        best: index of the point to mark, None for none.
    """
    figure, axes = _new_axes(x_label, y_label)
    axes.plot(x, y, color=_SERIES["tail"], linewidth=1.4, marker="o" if len(x) == 1 else None, markersize=4)
    if best is not None:
        axes.plot(x[best], y[best], color=_SERIES["head"], marker="o", markersize=5, linestyle="none")
    return _to_svg(figure, alt)


def rank_histogram(ranks: dict[str, np.ndarray], *, alt: str) -> str:
    """Share of queries whose rank falls in [1, 2), [2, 4), [4, 8), …, side by side for each series.

    Args:
        ranks: realistic ranks [n] >= 1 by series, named `head` and `tail`.
    """
    return doubling_histogram(ranks, x_label="rank (each bin doubles)", y_label="share of queries", alt=alt)


def doubling_histogram(series: dict[str, np.ndarray], *, x_label: str, y_label: str, alt: str) -> str:
    """Share of values in [1, 2), [2, 4), [4, 8), …, side by side for each series.

    Bins of equal width on the logarithmic axis, and none between two whole numbers: no bin is empty by construction.

    Args:
        series: values [n] >= 1 by series, named `head` and `tail`; n >= 1.
    """
    figure, axes = _new_axes(x_label, y_label)
    bins = 1 + int(np.log2(max(values.max() for values in series.values())))
    edges = 2.0 ** np.arange(bins + 1)
    width = 0.84 / len(series)
    for position, (side, values) in enumerate(series.items()):
        share = np.histogram(values, bins=edges)[0] / len(values)
        left = 2.0 ** (np.arange(bins) + 0.08 + position * width)
        axes.bar(left, share, width=left * (2**width - 1), align="edge", color=_SERIES[side], label=side, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, max(edges[-1], 4))
    _log_ticks(axes, edges[:: 1 + bins // 8])
    return _finish_shares(figure, axes, alt, location="upper right", one_series=len(series) == 1)


def hits_curve(ranks: dict[str, np.ndarray], *, alt: str) -> str:
    """Hits@K for every K: the share of queries whose realistic rank is at most K.

    Args:
        ranks: realistic ranks [n] >= 1 by series, named `head` and `tail`.
    """
    figure, axes = _new_axes("K", "Hits@K")
    last = max(10.0, *(np.ceil(values.max()) for values in ranks.values()))
    # About 160 whole K evenly spread on the logarithmic axis draw the same curve as a million would.
    ks = np.unique(np.rint(np.geomspace(1, last, 160)))
    for side, values in ranks.items():
        hits = np.searchsorted(np.sort(values), ks, side="right") / len(values)
        style = "-" if side == "tail" else (0, (4, 1.5))
        axes.plot(ks, hits, color=_SERIES[side], label=side, linewidth=1.4, linestyle=style, drawstyle="steps-post")
    axes.set_xscale("log")
    axes.set_xlim(1, last)
    decades = int(np.log10(last)) + 1
    steps = (1, 3) if decades <= 4 else (1,)
    _log_ticks(axes, [s * 10.0**d for d in range(decades) for s in steps if s * 10.0**d <= last])
    return _finish_shares(figure, axes, alt, location="lower right", one_series=len(ranks) == 1)


def _new_axes(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    # The object interface: pyplot would hold every figure in global state and pick a screen backend.
    figure = Figure(figsize=(4.4, 2.7), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label, fontsize=9, color=_INK)
    axes.set_ylabel(y_label, fontsize=9, color=_INK)
    axes.tick_params(labelsize=9, labelcolor=_INK, color=_GRID, length=3)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(_GRID)
    axes.locator_params(axis="both", nbins=6)
    return figure, axes


def _log_ticks(axes: Axes, ticks: np.ndarray | list[float]) -> None:
    axes.set_xticks(ticks, [f"{tick:,.0f}" if tick < 10_000 else f"{tick / 1000:,.0f}k" for tick in ticks])
    axes.minorticks_off()


def _finish_shares(figure: Figure, axes: Axes, alt: str, *, location: str, one_series: bool) -> str:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, None if location == "upper right" else 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    if not one_series:
        axes.legend(loc=location, fontsize=9, frameon=False, labelcolor=_INK)
    return _to_svg(figure, alt)


def _to_svg(figure: Figure, alt: str) -> str:
    import matplotlib

    buffer = io.StringIO()
    # The salt makes element ids the same in every run, and different between the pictures of one page.
    with matplotlib.rc_context({"svg.hashsalt": alt, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    box = re.search(r'viewBox="[^"]*"', svg).group()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    # Group ids such as `axes_1` repeat from picture to picture and nothing refers to them.
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for stand_in, colour in _CSS.items():
        body = body.replace(stand_in, colour)
    body = "\n".join(line.strip() for line in body.splitlines() if line.strip())
    return f'<svg {box} role="img" aria-label="{html.escape(alt)}">\n{body}'
