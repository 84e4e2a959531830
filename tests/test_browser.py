"""The pages in a real browser, at the width of a phone and of a desktop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import browser
import numpy as np
import polars as pl
import pytest
import test_report

from kgc import page, sections
from kgc.report import replace_page

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="there is no Chromium here: apt-get install chromium")

LONG = "http_www_example_org_a_label_that_never_ends_and_has_no_place_to_break_it_anywhere"
LOOK = """(() => {
  const all = [...document.querySelectorAll('main *')];
  const box = e => e.getBoundingClientRect();
  const name = e => e.tagName + ': ' + (e.textContent || '').slice(0, 40);
  const overlaps = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  const texts = [...document.querySelectorAll('svg')].map(s => [s, [...s.querySelectorAll('text')]]);
  return {
    sideways: document.documentElement.scrollWidth - innerWidth,
    outside: all.filter(e => !e.closest('.scroll, pre, svg') && box(e).right > innerWidth + 0.5).map(name),
    cut: texts.flatMap(([s, ts]) => ts.filter(t => box(t).left < box(s).left - 1 || box(t).right > box(s).right + 1
      || box(t).top < box(s).top - 1 || box(t).bottom > box(s).bottom + 1).map(name)),
    colliding: texts.flatMap(([s, ts]) => ts.flatMap((a, i) => ts.slice(i + 1).filter(b => overlaps(box(a), box(b)))
      .map(b => name(a) + ' / ' + name(b)))),
    silent: [...document.querySelectorAll('svg, img')].filter(e =>
      !(e.getAttribute('aria-label') || e.getAttribute('alt') || '').trim()).map(name),
    pictures: document.querySelectorAll('svg').length,
    scrolling: [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).map(name),
    smallest: Math.min(...all.filter(e => e.textContent.trim() && box(e).height).map(e =>
      parseFloat(getComputedStyle(e).fontSize) * (e.closest('svg') ? box(e.closest('svg')).width / 440 : 1))),
    paper: getComputedStyle(document.body).backgroundColor,
  };
})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.opened(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report with everything in it, long labels included, and one with the pictures of several runs."""
    folder = tmp_path_factory.mktemp("pages")
    generator = np.random.default_rng(0)
    rows = [
        (f"{LONG}_{i % 50}" if i % 2 else f"/short/{i % 50}", ("head", "tail")[i % 2], float(rank))
        for i, rank in enumerate(np.floor(np.exp(generator.exponential(2.0, 2000))))
    ]
    worst = test_report.worst(LONG).vstack(test_report.worst("isa"))
    history = [
        {"epoch": i + 1, "train/loss": 3 / (i + 1), "valid/mrr": 1 - 1 / (i + 1), "train/lr": 1e-3 / (i + 1)}
        for i in range(137)
    ]
    (folder / "run").mkdir()
    test_report.report(
        folder / "run",
        title=f"{LONG} on umls",
        ranks=test_report.frame(rows),
        history=history,
        metrics=test_report.METRICS
        | test_report.CATEGORIES
        | {"test/mrr_low": 0.1, "test/mrr_high": 0.9, "test/tail/hits@10": 0.5},
        facts={"command": f"python train.py {LONG}={LONG}", "data": "a" * 64},
        notes=[f"triples in two splits: {LONG}"],
        worst=worst,
    )
    several = {f"{LONG}_{i}": np.floor(np.exp(generator.exponential(1.0 + i, 500))) for i in range(4)}
    parts = [page.section("Ranks", page.figures(sections.rank_figures(several)))]
    replace_page(folder / "several.html", "Several", parts)
    test_report.report(folder, ranks=pl.concat([test_report.RANKS] * 2), history=test_report.HISTORY[:1])
    return {"run": folder / "run" / "report.html", "several": folder / "several.html", "small": folder / "report.html"}


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("name", ["run", "several", "small"])
def test_a_page_fits_its_screen(name: str, width: int, tab: browser.Browser, pages: dict[str, Path]) -> None:
    tab.open(pages[name], width)
    seen = tab.evaluate(LOOK)
    assert tab.complaints() == []
    assert tab.requests() == [pages[name].as_uri()]  # nothing is fetched
    assert seen["sideways"] <= 0
    assert {what: seen[what] for what in ("outside", "cut", "colliding", "silent")} == {
        "outside": [],
        "cut": [],
        "colliding": [],
        "silent": [],
    }
    assert seen["pictures"] == {"run": 6, "several": 2, "small": 4}[name]
    assert seen["smallest"] >= 9  # CSS pixels
    if width == 1280:
        assert seen["scrolling"] == []


def test_the_page_follows_the_readers_colours(tab: browser.Browser, pages: dict[str, Path]) -> None:
    shades = []
    for dark in (False, True):
        tab.open(pages["small"], 1280, dark=dark)
        shades.append(tab.evaluate(LOOK)["paper"])
    light, dark = (sum(map(int, shade[4:-1].split(","))) for shade in shades)
    assert light > 700
    assert dark < 120


def test_the_look_finds_what_it_is_for(tab: browser.Browser, tmp_path: Path) -> None:
    """Each fault is planted once."""
    (tmp_path / "bad.html").write_text(
        "<main><p style='width:2000px'>wide</p><svg viewBox='0 0 440 100' width='300'><text x='10' y='20'>one</text>"
        "<text x='12' y='20'>two</text><text x='400' y='60'>over the edge</text></svg></main>"
        "<script>console.error('no'); fetch('file:///nothing').catch(() => 0)</script>"
    )
    tab.open(tmp_path / "bad.html", 390)
    seen = tab.evaluate(LOOK)
    assert seen["sideways"] > 0
    assert [len(seen[what]) for what in ("outside", "cut", "colliding", "silent")] == [1, 1, 1, 1]
    assert any("no" in said for said in tab.complaints())
