"""N-Triples and Turtle, parsed by Oxigraph (the extra `rdf`).

The label of an entity or relation is its IRI. A blank node of N-Triples keeps its name, `_:b0`; those of Turtle are
numbered as they come, behind the file's name, because they have none or one that the parser makes up.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

from kgc.data.lines import unpack_gzip
from kgc.errors import UserError

FORMATS = {".nt": "N_TRIPLES", ".ttl": "TURTLE"}  # ending: pyoxigraph.RdfFormat
LITERALS = ("drop", "keep")
_SCHEMA = dict.fromkeys(("head", "relation", "tail"), pl.String)
_BLOCK = 1 << 16


def read_statements(path: Path, literals: str) -> tuple[pl.DataFrame, int]:
    """The statements of a file in their order, and how many were left out.

    Args:
        path: `.nt` or `.ttl`, plain or `.gz`.
        literals: `drop` leaves out statements whose object is a literal; with `keep` its N-Triples form is the label.

    Returns:
        String columns head, relation, tail, and the number of statements dropped.

    Raises:
        UserError: pyoxigraph is not installed, no such file, or a syntax error, with its line.
    """
    try:
        import pyoxigraph
    except ImportError:
        raise UserError(f"{path}: reading RDF needs pyoxigraph; pip install 'kgc[rdf]'") from None
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1] == ".gz"
    ending = suffixes[-2] if packed else suffixes[-1]
    if ending not in FORMATS:
        raise UserError(f"{path}: RDF is read plain or as .gz; unpack it first")
    numbered: dict[str, str] = {}
    columns: tuple[list[str], list[str], list[str]] = ([], [], [])
    blocks: list[pl.DataFrame] = []
    dropped = 0

    def label(term: Any) -> str:
        if isinstance(term, pyoxigraph.NamedNode):
            return term.value
        if isinstance(term, pyoxigraph.BlankNode) and ending == ".ttl":
            return numbered.setdefault(term.value, f"_:{path.name.split('.')[0]}.{len(numbered)}")
        return str(term)

    def close_block() -> None:
        blocks.append(pl.DataFrame(dict(zip(_SCHEMA, columns, strict=True)), schema=_SCHEMA))
        for column in columns:
            column.clear()

    with ExitStack() as stack:
        if packed:
            source: dict[str, Any] = {"input": unpack_gzip(path)}
        else:
            source = {"input": stack.enter_context(path.open("rb"))}
        try:
            for statement in pyoxigraph.parse(**source, format=getattr(pyoxigraph.RdfFormat, FORMATS[ending])):
                if isinstance(statement.object, pyoxigraph.Literal) and literals == "drop":
                    dropped += 1
                    continue
                columns[0].append(label(statement.subject))
                columns[1].append(label(statement.predicate))
                columns[2].append(label(statement.object))
                if len(columns[0]) == _BLOCK:
                    close_block()
        except (SyntaxError, ValueError, UnicodeError) as error:
            line = getattr(error, "lineno", None)
            where = f"{path}:{line}" if line else f"{path}"
            reason = re.sub(r"^Parser error [^:]*: ", "", str(getattr(error, "msg", error)))
            raise UserError(f"{where}: not {ending} ({' '.join(reason.split())})") from error
    close_block()
    return pl.concat(blocks), dropped
