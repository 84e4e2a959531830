"""N-Triples and Turtle."""

from __future__ import annotations

import builtins
import gzip

import pytest

from kgc.data.catalogue import load_file, load_folder
from kgc.data.rdf import read_statements
from kgc.errors import UserError

pytest.importorskip("pyoxigraph", reason="pyoxigraph is not installed")

# From the W3C's "RDF 1.1 N-Triples", section 2, shortened, and its escapes.
TRIPLES = """\
# a comment
<http://example.org/spiderman> <http://xmlns.com/foaf/0.1/name> "Spiderman" .

<http://example.org/spiderman> <http://example.org/enemyOf> <http://example.org/green-goblin> . # another
_:alice <http://example.org/knows> <http://example.org/caf\\u00E9> .
<http://example.org/s> <http://example.org/p> "two\\nlines"@en .
"""
ROWS = [
    ("http://example.org/spiderman", "http://example.org/enemyOf", "http://example.org/green-goblin"),
    ("_:alice", "http://example.org/knows", "http://example.org/café"),
]
TURTLE = """\
@prefix : <http://e.org/> .
:a :knows :b , [ :knows :c ] ; a :Person .
"""


def message(call, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_n_triples(packed, tmp_path):
    path = tmp_path / f"train.nt{packed}"
    path.write_bytes(gzip.compress(TRIPLES.encode()) if packed else TRIPLES.encode())
    frame, dropped = read_statements(path, "drop")
    assert (frame.rows(), dropped) == (ROWS, 2)
    frame, dropped = read_statements(path, "keep")
    assert dropped == 0
    assert frame["tail"].to_list() == ['"Spiderman"', ROWS[0][2], ROWS[1][2], '"two\\nlines"@en']


def test_turtle_has_the_same_labels_in_every_run(tmp_path):
    path = tmp_path / "train.ttl"
    path.write_text(TURTLE)
    rows = read_statements(path, "drop")[0].rows()
    assert rows == read_statements(path, "drop")[0].rows()
    e = "http://e.org/"
    assert set(rows) == {
        (f"{e}a", f"{e}knows", f"{e}b"),
        (f"{e}a", f"{e}knows", "_:train.0"),
        ("_:train.0", f"{e}knows", f"{e}c"),
        (f"{e}a", "http://www.w3.org/1999/02/22-rdf-syntax-ns#type", f"{e}Person"),
    }


def test_a_graph_says_what_it_left_out(tmp_path):
    (tmp_path / "train.nt").write_text(TRIPLES)
    (tmp_path / "test.ttl").write_text(TURTLE)
    graph = load_folder(tmp_path)
    assert (len(graph.train), len(graph.valid), len(graph.test)) == (2, 0, 4)
    assert graph.report.lines()[1] == "left out: 2 statements with literals"
    assert len(load_folder(tmp_path, literals="keep").train) == 4
    whole = load_file(tmp_path / "train.nt", literals="keep", fractions=[1, 0, 0])
    assert whole.dropped["statements with literals"] == 0
    assert len(whole.train) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<a:a> <a:b> <a:c> .\n<a:a> <a:b> .\n", ":2: not .nt (The object of a triple must be"),
        ("<a:a> <a:b> <a:c>\n", ":2: not .nt (Quads must be followed by a dot)"),
        ('<a:a> "b" <a:c> .\n', ":1: not .nt ("),
        ("a\tb\tc\n", ":1: not .nt ("),
    ],
)
def test_syntax_errors_have_a_line(text, expected, tmp_path):
    path = tmp_path / "train.nt"
    path.write_text(text)
    assert message(load_folder, tmp_path).startswith(f"{path}{expected}")


def test_other_mistakes(tmp_path, monkeypatch):
    path = tmp_path / "train.nt"
    path.write_bytes(b"<a:a> <a:b> <a:\xff> .\n")
    assert message(load_folder, tmp_path).startswith(f"{path}:1: ")
    path.write_text(TRIPLES)
    assert message(load_folder, tmp_path, literals="maybe") == "dataset.literals=maybe: choices are drop, keep"
    named = "RDF has no named columns; leave dataset.columns and the like out"
    assert message(load_folder, tmp_path, columns=["s", "p", "o"]) == f"{path}: {named}"
    (tmp_path / "x.nt.zst").write_bytes(b"")
    expected = f"{tmp_path}/x.nt.zst: RDF is read plain or as .gz; unpack it first"
    assert message(read_statements, tmp_path / "x.nt.zst", "drop") == expected
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pyoxigraph":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert message(load_folder, tmp_path) == f"{path}: reading RDF needs pyoxigraph; pip install 'kgc[rdf]'"
