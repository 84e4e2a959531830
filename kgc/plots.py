"""The reports' pictures: small inline SVGs that take their colours and type from the page around them.

Each function draws one pair of axes and returns an `<svg role="img" aria-label=…>` element, the same bytes for the same
input. A drawing library would take a second to load, more than all else that a report costs.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

_WIDTH, _HEIGHT = 440, 280  # units of the viewBox; about pixels on a desktop, four fifths of them on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 20, 18, 46  # margins around the axes
_TEXT = 13  # height of letters
# Of a series without a colour of its own, by its place. Dashes tell series apart where colours do not.
_COLOURS = ("var(--tail)", "var(--head)", "var(--third)", "var(--fourth)")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_OWN = {"tail": 0, "head": 1}
_LONGEST = 28  # letters of a name in a legend


def line_chart(x: np.ndarray, y: np.ndarray, *, x_label: str, y_label: str, alt: str, best: int | None = None) -> str:
    """A curve over epochs.

    Args:
        x, y: [n] finite values, n >= 1.
        alt: what a reader who cannot see the picture should know.
        best: index of the point to mark, None for none.
    """
    whole = bool((x == np.rint(x)).all())
    axes = _Axes(_linear(x.min(), x.max(), whole=whole), _linear(y.min(), y.max()), x_label, y_label)
    axes.line(x, y, 0)
    if len(x) == 1:
        axes.dot(x[0], y[0], 0)
    if best is not None:
        axes.dot(x[best], y[best], 1)
    return axes.svg(alt)


def rank_histogram(ranks: Mapping[str, np.ndarray], *, alt: str) -> str:
    """Share of queries whose rank falls in [1, 2), [2, 4), [4, 8), …, side by side for each series.

    Args:
        ranks: realistic ranks [n] >= 1 by series, such as `head` and `tail`.
    """
    return doubling_histogram(ranks, x_label="rank (each bin doubles)", y_label="share of queries", alt=alt)


def doubling_histogram(series: Mapping[str, np.ndarray], *, x_label: str, y_label: str, alt: str) -> str:
    """Share of values in [1, 2), [2, 4), [4, 8), …, side by side for each series.

    Bins of equal width on the logarithmic axis, and none between two whole numbers: no bin is empty by construction.

    Args:
        series: values [n] >= 1 by series; n >= 1.
    """
    bins = 1 + int(np.log2(max(values.max() for values in series.values())))
    edges = 2.0 ** np.arange(bins + 1)
    shares = {name: np.histogram(values, bins=edges)[0] / len(values) for name, values in series.items()}
    ticks = {math.log2(edge): _count(edge) for edge in edges[:: 1 + bins // 8]}
    top = max(float(share.max()) for share in shares.values())
    axes = _Axes(_Scale(0, max(bins, 2), ticks), _linear(0, top, percent=True), x_label, y_label)
    width = 0.84 / len(series)
    for place, (name, share) in enumerate(shares.items()):
        left = np.arange(bins) + 0.08 + place * width
        axes.bars(left, left + width, share, _style(name, place))
    return axes.svg(alt, list(series), "right", bars=True)


def hits_curve(ranks: Mapping[str, np.ndarray], *, alt: str) -> str:
    """Hits@K for every K: the share of queries whose realistic rank is at most K.

    Args:
        ranks: realistic ranks [n] >= 1 by series, such as `head` and `tail`.
    """
    last = max(10.0, *(np.ceil(values.max()) for values in ranks.values()))
    decades = int(math.log10(last)) + 1
    marks = [s * 10**d for d in range(0, decades, 1 + decades // 9) for s in ((1, 3) if decades <= 4 else (1,))]
    marks = [mark for mark in marks if mark <= last]
    across = _Scale(0, math.log10(last), {math.log10(mark): _count(mark) for mark in marks})
    axes = _Axes(across, _linear(0, 1, percent=True), "K", "Hits@K")
    for place, (name, values) in enumerate(ranks.items()):
        ks, hits = hits_at_all(values, last)
        axes.line(np.log10(ks), hits, _style(name, place), steps=True)
    return axes.svg(alt, list(ranks), "low")


def hits_at_all(ranks: np.ndarray, last: float) -> tuple[np.ndarray, np.ndarray]:
    """Hits@K at about 160 whole K from 1 to `last`, evenly spread on the logarithmic axis: the same curve as all K.

    Returns:
        [n] K and [n] shares.
    """
    ks = np.unique(np.rint(np.geomspace(1, max(1.0, last), 160)))
    return ks, np.searchsorted(np.sort(ranks), ks, side="right") / len(ranks)


def grouped_bars(
    values: Mapping[str, Mapping[str, float]], *, y_label: str, alt: str, notes: Mapping[str, str] | None = None
) -> str:
    """Bars in groups, each with its number above it; values from 0 to 1.

    Args:
        values: by group, then by series; a missing one leaves its place empty.
        notes: a second line under the name of a group.
    """
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    ticks = {i + 0.5: group for i, group in enumerate(values)}
    axes = _Axes(_Scale(0, len(values), ticks), _linear(0, 1), "", y_label, notes, top=40)
    width = 0.8 / max(1, len(series))
    for place, name in enumerate(series):
        groups = [i for i, group in enumerate(values.values()) if name in group]
        heights = np.array([group[name] for group in values.values() if name in group])
        left = np.array(groups) + 0.1 + place * width
        axes.bars(left, left + width * 0.94, heights, _style(name, place), [f"{value:.2f}" for value in heights])
    return axes.svg(alt, series, "top", bars=True)


class _Scale:
    """An axis from `low` to `high` with labels by position."""

    def __init__(self, low: float, high: float, ticks: Mapping[float, str]):
        self.low, self.high, self.ticks = float(low), float(high), ticks

    def place(self, values: np.ndarray | float, start: float, end: float) -> np.ndarray:
        return start + (np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low) * (end - start)


def _linear(low: float, high: float, percent: bool = False, whole: bool = False) -> _Scale:
    """Some round numbers that hold the range from `low` to `high`, `whole` ones or shares as percentages."""
    low, high = float(low), float(high)
    if high <= low:
        margin = 1 if whole else max(abs(low), 1) / 10
        low, high = low - margin, low + margin
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999) * power
    step = max(1.0, np.ceil(step)) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 0 if whole else max(0, -math.floor(math.log10(step)) + (step / power == 2.5))
    ticks = {}
    for number in range(first, last + 1):
        value = number * step
        if percent:
            ticks[value] = f"{100 * value:.{max(0, digits - 2)}f}%"
        else:
            ticks[value] = _short(value, digits) if value else "0"
    return _Scale(first * step, last * step, ticks)


class _Axes:
    """One picture: axes, their labels, and what is drawn between them."""

    def __init__(
        self,
        across: _Scale,
        up: _Scale,
        x_label: str,
        y_label: str,
        notes: Mapping[str, str] | None = None,
        top: int = _TOP,
    ) -> None:
        self.across, self.up, self.top = across, up, top
        self.parts: list[str] = []
        bottom, notes = _HEIGHT - _BOTTOM, notes or {}
        for value, label in up.ticks.items():
            y = float(self._y(value))
            self.parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" style="stroke:var(--line)"/>')
            self._text(_LEFT - 6, y + 4, label, "end")
        for value, label in across.ticks.items():
            x = float(self._x(value))
            self._text(x, bottom + 18, label, "middle")
            if label in notes:
                self._text(x, bottom + 34, notes[label], "middle", soft=True)
        self._text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x_label, "middle", soft=True)
        middle = (top + bottom) / 2
        self._text(13, middle, y_label, "middle", soft=True, turn=f' transform="rotate(-90 13 {middle:.1f})"')

    def line(self, x: np.ndarray, y: np.ndarray, style: int, steps: bool = False) -> None:
        xs, ys = self._x(x), self._y(y)
        path = f"M{xs[0]:.1f} {ys[0]:.1f}" + "".join(
            f"H{a:.1f}V{b:.1f}" if steps else f"L{a:.1f} {b:.1f}" for a, b in zip(xs[1:], ys[1:], strict=True)
        )
        dash = f";stroke-dasharray:{_DASHES[style]}" if _DASHES[style] else ""
        self.parts.append(f'<path d="{path}" style="fill:none;stroke-width:1.8;stroke:{_COLOURS[style]}{dash}"/>')

    def dot(self, x: float, y: float, style: int) -> None:
        self.parts.append(
            f'<circle cx="{float(self._x(x)):.1f}" cy="{float(self._y(y)):.1f}" r="4" style="fill:{_COLOURS[style]}"/>'
        )

    def bars(
        self, left: np.ndarray, right: np.ndarray, heights: np.ndarray, style: int, labels: Sequence[str] = ()
    ) -> None:
        bottom = _HEIGHT - _BOTTOM
        for index, (a, b, top) in enumerate(zip(self._x(left), self._x(right), self._y(heights), strict=True)):
            self.parts.append(
                f'<path d="M{a:.1f} {bottom}V{top:.1f}H{b:.1f}V{bottom}Z" style="fill:{_COLOURS[style]}"/>'
            )
            if labels:
                self._text((a + b) / 2, top - 4, labels[index], "middle")

    def svg(self, alt: str, series: Sequence[str] = (), legend: str = "right", bars: bool = False) -> str:
        """The element, with a legend if there are several series, of lines or of bars."""
        if len(series) > 1:
            self._legend(series, legend, bars)
        body = "\n".join(self.parts)
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(alt)}">\n{body}\n</svg>'

    def _legend(self, series: Sequence[str], where: str, bars: bool) -> None:
        if where == "top":  # in one line above the axes
            x = float(_LEFT)
            for place, name in enumerate(series):
                self._key(x, 6.0, name, _style(name, place), bars)
                x += 34 + 7.5 * len(name)
            return
        longest = max(min(len(name), _LONGEST) for name in series)
        x = _WIDTH - _RIGHT - 28 - 7.2 * longest
        y = self.top + 4 if where == "right" else _HEIGHT - _BOTTOM - 10 - 18 * len(series)
        for place, name in enumerate(series):
            self._key(x, y + 18 * place, name, _style(name, place), bars)

    def _key(self, x: float, y: float, name: str, style: int, bars: bool) -> None:
        dash = f";stroke-dasharray:{_DASHES[style]}" if _DASHES[style] and not bars else ""
        colour = f"stroke-width:{9 if bars else 2};stroke:{_COLOURS[style]}{dash}"
        self.parts.append(f'<path d="M{x:.1f} {y + 5:.1f}h20" style="{colour}"/>')
        self._text(x + 26, y + 9, name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}", "start")

    def _text(self, x: float, y: float, words: str, anchor: str, soft: bool = False, turn: str = "") -> None:
        if words:
            colour = "var(--soft)" if soft else "currentColor"
            self.parts.append(
                f'<text x="{x:.1f}" y="{y:.1f}" font-size="{_TEXT}" text-anchor="{anchor}" style="fill:{colour}"'
                f"{turn}>{html.escape(words)}</text>"
            )

    def _x(self, values: np.ndarray | float) -> np.ndarray:
        return self.across.place(values, _LEFT, _WIDTH - _RIGHT)

    def _y(self, values: np.ndarray | float) -> np.ndarray:
        return self.up.place(values, _HEIGHT - _BOTTOM, self.top)


def _style(name: str, place: int) -> int:
    return _OWN.get(name, place) % len(_COLOURS)


def _count(value: float) -> str:
    """A whole number in four letters."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):,.0f}{letter}"
    return f"{value:,.0f}"


def _short(value: float, digits: int) -> str:
    """A number with so many decimals, or with an exponent where that needs more than six letters."""
    label = f"{value:.{digits}f}"
    if len(label) <= 6:
        return label
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
