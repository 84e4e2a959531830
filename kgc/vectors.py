"""Tables of vectors from files, memory-mapped where the format allows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from kgc.errors import UserError

# Rows that are converted or checked at once.
_ROWS = 1 << 16


def open_vectors(path: str, key: str) -> Tensor:
    """[n, d] float32: a view of the file where it holds just that (`.npy`, `.safetensors`), else a converted copy.

    A `.parquet` file has one column of lists (or arrays) of numbers, beside others that are not read.

    Args:
        path: the file.
        key: the config key, for messages.

    Raises:
        UserError: no such file, another format, not a table of finite numbers.
    """
    file = Path(str(path))
    if not file.is_file():
        raise UserError(f"{key}={path}: no such file")
    readers = {".npy": _map_npy, ".safetensors": _map_safetensors, ".parquet": _read_parquet}
    if file.suffix not in readers:
        raise UserError(f"{key}={path}: the file must end in {', '.join(readers)}")
    table = readers[file.suffix](file, key)
    if table.dim() != 2 or not table.numel():
        raise UserError(f"{key}={path}: a table [rows, dim] is needed, the file has shape {list(table.shape)}")
    if table.is_complex() or table.dtype == torch.bool:
        raise UserError(f"{key}={path}: real numbers are needed, the file holds {table.dtype}")
    if table.dtype != torch.float32:
        converted = torch.empty(table.shape)
        for start in range(0, len(table), _ROWS):
            converted[start : start + _ROWS] = table[start : start + _ROWS]
        table = converted
    for start in range(0, len(table), _ROWS):
        odd = ~table[start : start + _ROWS].isfinite().all(-1)
        if bool(odd.any()):
            row = start + int(odd.nonzero()[0])
            raise UserError(f"{key}={path}: row {row} (from 0) holds NaN or infinity; every number must be finite")
    return table


def unit_length(vectors: Tensor, key: str) -> Tensor:
    """A copy of [n, d] vectors scaled to length 1, in float64, rounded to float32.

    Raises:
        UserError: a vector of zeros has no direction.
    """
    scaled = torch.empty_like(vectors)
    for start in range(0, len(vectors), _ROWS):
        part = vectors[start : start + _ROWS].double()
        norm = part.norm(dim=-1, keepdim=True)
        if bool((norm == 0).any()):
            row = start + int((norm == 0).nonzero()[0, 0])
            raise UserError(f"{key}: row {row} (from 0) is all zeros, its cosine is not defined; use dot or l2")
        scaled[start : start + _ROWS] = part / norm
    return scaled


def _map_npy(file: Path, key: str) -> Tensor:
    try:
        array = np.load(file, mmap_mode="c", allow_pickle=False)  # c: torch wants to be able to write
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{key}={file}: not a readable .npy file of numbers ({error})") from error
    if array.dtype.kind not in "fciub":
        raise UserError(f"{key}={file}: numbers are needed, the file holds {array.dtype}")
    if not array.dtype.isnative or not array.flags.c_contiguous:
        array = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array.view(np.ndarray))


def _map_safetensors(file: Path, key: str) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            names = list(tensors.keys())
            if len(names) != 1:
                raise UserError(
                    f"{key}={file}: one tensor is needed, the file has {len(names)}: {', '.join(sorted(names))}"
                )
            return tensors.get_tensor(names[0])
    except (SafetensorError, OSError) as error:
        raise UserError(f"{key}={file}: not a readable .safetensors file ({error})") from error


def _read_parquet(file: Path, key: str) -> Tensor:
    try:
        schema = pl.read_parquet_schema(file)
        names = [name for name, kind in schema.items() if isinstance(kind, pl.List | pl.Array)]
        if len(names) != 1:
            raise UserError(f"{key}={file}: one column of lists of numbers is needed, the file has {len(names)}")
        column = pl.read_parquet(file, columns=names)[names[0]]
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{key}={file}: cannot be read as parquet ({str(error).splitlines()[0]})") from error
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    width = column.list.len()
    odd = (width != width[0]) | width.is_null() if len(width) else width.is_null()
    if odd.fill_null(True).any():
        row = odd.fill_null(True).arg_max()
        raise UserError(f"{key}={file}: row {row} (from 0) has {width[row]} numbers, the first has {width[0]}")
    try:
        numbers = column.explode().cast(pl.Float32)
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{key}={file}: column {names[0]!r} does not hold numbers") from error
    if numbers.null_count():
        raise UserError(f"{key}={file}: column {names[0]!r} has missing numbers")
    return torch.tensor(numbers.to_numpy()).view(len(column), -1)
