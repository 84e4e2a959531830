"""What `torch.compile` makes faster: counting in one pass, and distances without a temporary of [U, n, D].

`kgc.models.pairs` has the kernels of training.
"""

from __future__ import annotations

import functools
import shutil
import types
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from kgc.engine.counting import Count, Key, RowLayout
from kgc.models.projected import Projected
from kgc.models.similarity import OfDifferences, Similarity

# Cells (for products) and cells times width (for distances) from which on compiling, some seconds, pays.
_CELLS, _TERMS = 4e9, 1e10
# Cells times width that a training compares, from which on compiling for it pays.
_TRAINED_TERMS = {"cpu": 2e10, "cuda": 1e12}


def worth_compiling(
    similarity: Similarity | None, queries: int, entities: int, width: int, device: torch.device
) -> bool:
    """Whether ranking so many queries is large work, on a machine that can compile."""
    if similarity is not None and similarity.fuses:
        large = float(queries) * entities * width > _TERMS
    else:
        large = float(queries) * entities > _CELLS
    return large and can_compile(device)


def can_compile(device: torch.device) -> bool:
    """Whether `torch.compile` works for a device."""
    return compiler_fault(device) is None


def compiler_fault(device: torch.device) -> str | None:
    """Why `torch.compile` does not work for a device: it needs a C++ compiler for the CPU, Triton for CUDA."""
    return _fault_of(device.type)


@functools.cache
def _fault_of(kind: str) -> str | None:
    if kind == "cuda" and find_spec("triton") is None:
        return "torch.compile needs triton, which is not installed"
    if kind != "cuda" and not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        return "torch.compile needs a C++ compiler, and there is none"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler's own making
            torch.compile(lambda x: x + 1)(torch.ones(2, device=kind))
    except Exception as error:  # whatever a compiler may raise
        fault = f"torch.compile fails ({_line(error)})"
        warnings.warn(f"{fault}: large work runs without it", stacklevel=2)
        return fault
    return None


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def compile_training(similarity: Similarity, cells: float, width: int, device: torch.device) -> bool:
    """Compiles what training compares vectors with, where that is large work; returns whether it did.

    A compiler that is there but does not work is found here, with a warning, and training goes on without it.

    Args:
        similarity: of the model; only differences gain from it, products have their own kernels.
        cells: pairs of a query and a candidate that the training compares in all.
        width: D.
        device: of the model.
    """
    inner = similarity.similarity if isinstance(similarity, Projected) else similarity
    least = _TRAINED_TERMS.get(device.type, _TRAINED_TERMS["cuda"])
    if not isinstance(inner, OfDifferences) or cells * width < least or not can_compile(device):
        return False
    inner.compile()
    query, candidate = (torch.ones(2, n, 4, device=device, requires_grad=True) for n in (3, 5))
    try:
        inner.shared(query, candidate).sum().backward()
    except Exception as error:  # whatever a compiler may raise
        warnings.warn(f"torch.compile failed, training runs without it: {_line(error)}", stacklevel=2)
        inner.kernels = None
    return inner.kernels is not None


def compiled_key(similarity: Similarity) -> Key | None:
    """[U, D] and [n, D] to [U, n] keys in one kernel, for elementwise similarities; others have a matrix product."""
    if similarity.fuses and similarity.compiled is None:
        similarity.compiled = _fused(similarity)
    return similarity.compiled


# Numbers of candidates that stay in a CPU's second-level cache while all queries pass.
_CACHED = 1 << 17


def _fused(similarity: Similarity) -> Key:
    def keys(query: Tensor, candidate: Tensor, out: Tensor) -> None:
        """[A, u, F] queries, of which A pass a candidate at a time, and [n, F'] candidates into [A, u, n]."""
        for rows, result in zip(query, out, strict=True):
            result.copy_(similarity.key_distance(rows.unsqueeze(1), candidate.unsqueeze(0)).neg())

    # Code of its own: of one code object torch.compile keeps few versions, and runs further ones eagerly.
    code = types.FunctionType(keys.__code__.replace(), keys.__globals__, closure=keys.__closure__)
    compiled = torch.compile(code, dynamic=True)

    def key(query: Tensor, candidate: Tensor) -> Tensor:
        queries, candidates, cached = len(query), len(candidate), query.device.type == "cpu"
        abreast = similarity.abreast if cached else 1
        query, candidate = similarity.query_form(query), similarity.key_form(candidate)
        query = F.pad(query, (0, 0, 0, -queries % abreast)).unflatten(0, (abreast, -1))
        out = query.new_empty(*query.shape[:2], candidates)
        parts = min(candidates, -(-candidate.numel() // _CACHED)) if cached else 1
        for columns, place in zip(candidate.tensor_split(parts), out.tensor_split(parts, dim=-1), strict=True):
            compiled(query, columns, place)
        return out.flatten(0, 1)[:queries]

    return key


# A row is cut into groups, and their columns dealt to lanes, column c to lane c mod 16: a lane is a place of a vector,
# which sums it up without turning.
_GROUPS, _LANES = 4, 16
# Cells of a lane are summed in one float, where a cell above counts `_UNIT` and one inside 1: exact below 2^24.
_UNIT = 4096
_WIDEST = _GROUPS * _LANES * (_UNIT - 1)


def _counts(scores: Tensor, row: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """[U, G, S, L] scores to [P, G, L] int32 cells above high and cells in [low, high]."""
    cells = scores[row]
    low, high = (bound[:, None, None, None] for bound in (low, high))
    packed = torch.where(cells > high, float(_UNIT), (cells >= low).float()).sum(2).to(torch.int32)
    above = packed >> 12
    return above, packed - _UNIT * above


@functools.cache
def _compiled_counts() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_counts, dynamic=True)


def count_compiled(scores: Tensor, layout: RowLayout, low: Tensor, high: Tensor, listed: int) -> Count:
    """The same integers as `count_eager`, in one pass over the cells, and a second over lanes that have an open one."""
    width = scores.shape[1]
    even = width - width % (_GROUPS * _LANES)
    pieces = [(start, min(start + _WIDEST, even), _GROUPS, _LANES) for start in range(0, even, _WIDEST)]
    if even < width:
        pieces.append((even, width, 1, 1))
    found = []
    above, inside = (torch.zeros_like(layout.row) for _ in range(2))
    for start, stop, groups, lanes in pieces:
        cells = scores[:, start:stop].unflatten(1, (groups, -1, lanes))
        higher, within = _compiled_counts()(cells, layout.row, low, high)
        above += higher.flatten(1).sum(-1)
        inside += within.flatten(1).sum(-1)
        found.append((start, cells, within.nonzero()))
    open_queries, open_columns = [], []
    for start, cells, open_lanes in found:
        query, group, lane = open_lanes[inside[open_lanes[:, 0]] <= listed].unbind(1)
        again = cells[layout.row[query], group, :, lane]  # [m, S]
        at, place = ((again >= low[query, None]) & (again <= high[query, None])).nonzero(as_tuple=True)
        open_queries.append(query[at])
        open_columns.append(start + (group[at] * cells.shape[2] + place) * cells.shape[3] + lane[at])
    return Count(above, inside, torch.cat(open_queries), torch.cat(open_columns))
