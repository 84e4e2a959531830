"""The report's HTML: escaping, tables, and the page around them. No script, nothing fetched, light and dark."""

from __future__ import annotations

import html

from kgc.text import printable


def document(title: str, parts: list[str]) -> str:
    """A whole page from its plain-text title and the ready HTML of its parts."""
    return _PAGE.format(title=text(title), style=_STYLE, body="\n".join(part for part in parts if part))


def table(header: list[str], rows: list[list[str]], kind: str = "numbers") -> str:
    """A table of ready HTML cells in a box of its own that scrolls; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{cell}</th>' if cell else "<td></td>" for cell in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'
        for first, *cells in rows
    )
    # tabindex lets the keyboard scroll a box that is wider than the screen.
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def figure(svg: str, caption: str) -> str:
    """A picture with its caption, ready HTML both."""
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def figures(parts: list[str]) -> str:
    """Pictures side by side where there is room."""
    return f'<div class="figures">{"".join(parts)}</div>'


def section(heading: str, *parts: str) -> str:
    """A section of ready HTML under a plain-text heading; nothing where all parts are empty."""
    return f"<section><h2>{text(heading)}</h2>{''.join(parts)}</section>" if any(parts) else ""


def note(words: str) -> str:
    """A paragraph of ready HTML in small type; nothing without words."""
    return f'<p class="note">{words}</p>' if words else ""


def items(lines: list[str]) -> str:
    """A list of plain lines; nothing without any."""
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def run_section(facts: dict[str, str], config: str, metrics: dict[str, float] | None = None) -> str:
    """What reproduces a run: facts by name, the resolved config, and every metric in full."""
    rows = [[label(name), text(value)] for name, value in facts.items()]
    folded = [f"<details><summary>Resolved config</summary><pre>{text(config)}</pre></details>"]
    if metrics is not None:
        values = table(["key", "value"], [[label(name), f"{v:.10g}"] for name, v in sorted(metrics.items())])
        folded.append(f"<details><summary>All metrics</summary>{values}</details>")
    return section("Run", table(["fact", "value"], rows, kind="facts"), *folded)


def text(value: object) -> str:
    """Text from outside, fit for an HTML page: escape codes and control characters removed, marks escaped."""
    return html.escape(printable(value))


def label(value: object, longest: int = 200) -> str:
    """A label on one line, cut when very long, and kept from turning the direction of the text around it."""
    whole = str(value)
    shown = text(whole if len(whole) <= longest else whole[: longest - 1] + "…")
    for sign in "/_":  # where paths such as Freebase's relations, and names of several words, may break
        shown = shown.replace(sign, f"{sign}<wbr>")
    return f"<bdi>{shown}</bdi>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root {
  --paper: #fdfdfc; --ink: #1d2126; --soft: #5c6570; --line: #dfe2e6; --tail: #2a66ad; --head: #c2681a;
  --third: #2f7d4f; --fourth: #8a4b9e; --tint: #2a66ad1f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --ink: #e4e7eb; --soft: #9aa4b0; --line: #323841; --tail: #76abe8; --head: #e79a56;
    --third: #6cc08d; --fourth: #c792dc; --tint: #76abe833;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5; -webkit-text-size-adjust: 100%;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; font-weight: 650; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; font-weight: 650; margin: 2.8rem 0 .7rem; padding-bottom: .3rem;
  border-bottom: 1px solid var(--line); }
h3 { font-size: .95rem; font-weight: 650; margin: 1.6rem 0 .4rem; }
.note, figcaption, li { overflow-wrap: anywhere; }
.note, figcaption { color: var(--soft); font-size: .875rem; margin: .5rem 0; max-width: 46rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7rem, 1fr)); gap: 1rem; margin: 1.4rem 0 0; }
.tiles dt { color: var(--soft); font-size: .875rem; }
.tiles dd { margin: 0; font-size: 1.7rem; line-height: 1.25; font-weight: 500; font-variant-numeric: tabular-nums; }
.tiles small { display: block; color: var(--soft); font-size: .8rem; font-weight: 400; }
ul { margin: .5rem 0; padding-left: 1.2rem; max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 400; }
tr > :last-child { padding-right: 0; }
thead th { color: var(--soft); font-size: .825rem; white-space: nowrap; }
.numbers th, .numbers td { white-space: nowrap; }
.numbers td, .numbers thead th:not(:first-child), .relations td, .relations thead th:not(:first-child) {
  text-align: right; padding-left: .9rem; }
.relations { width: 100%; }
.relations tbody th { min-width: 11rem; overflow-wrap: anywhere; }
.relations td { white-space: nowrap; width: 1%; }
.bar { display: inline-block; width: 6rem; height: .5em; margin-right: .8rem; background: linear-gradient(var(--tail),
  var(--tail)) no-repeat left / calc(var(--share) * 100%) 100%, var(--tint); }
.answers tbody th, .answers td:last-child { overflow-wrap: anywhere; min-width: 7rem; }
.answers td { white-space: nowrap; font-variant-numeric: tabular-nums; }
.answers td:last-child { white-space: normal; }
.facts thead { display: none; }
.facts th { color: var(--soft); white-space: nowrap; }
.facts td { overflow-wrap: anywhere; min-width: 14rem; padding-right: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.8rem 2.2rem; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
svg { display: block; width: 100%; height: auto; }
svg path { stroke-linejoin: round; }
svg text { font-family: inherit; }
details { margin-top: 1.2rem; }
summary { cursor: pointer; font-weight: 600; font-size: .95rem; }
pre { overflow-x: auto; font: .8rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  border: 1px solid var(--line); border-radius: 4px; padding: .8rem 1rem; }
@media (max-width: 32rem) {
  main { padding: 1.4rem 1rem 3rem; }
  table { font-size: .825rem; }
  th, td { padding-right: .3rem; }
  .numbers td, .numbers thead th:not(:first-child), .relations td, .relations thead th:not(:first-child) {
    padding-left: .3rem; }
  .relations tbody th { min-width: 8rem; }
  .bar { display: none; }
  .facts th, .facts td { display: block; border: 0; padding-bottom: 0; }
  .facts td { padding-top: 0; }
}
@media print {
  :root { --paper: #fff; --ink: #000; --soft: #444; --line: #ccc; --tail: #2a66ad; --head: #c2681a;
    --third: #2f7d4f; --fourth: #8a4b9e; --tint: #2a66ad1f; }
  main { max-width: none; padding: 0; }
  .figures { grid-template-columns: 1fr 1fr; }
  .scroll { overflow: visible; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
