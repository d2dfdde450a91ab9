"""The extent: all that one minibatch needs from disk, contiguous. Its format, written and read here.

An extent starts on a multiple of DIRECT_ALIGNMENT in <split>.bin. It is an encapsulated Arrow record batch message with
one row (the header), zeros up to a multiple of 64, then the rows that only disk has, sorted by node, row_bytes each,
back to back. <split>-index.npy says where each extent's parts are.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import DIRECT_ALIGNMENT, check_block
from diskgnn.storage.samples import one_row

ROW_ALIGNMENT = 64

# One record per extent; native/loading/extent_pipeline.h has the same fields in the same order.
INDEX_DTYPE = np.dtype(
    [
        ("offset", "<i8"),  # of the extent in the file, bytes
        ("header_bytes", "<i8"),
        ("rows_offset", "<i8"),  # of row 0, from the extent's start, bytes
        ("num_rows", "<i8"),  # R
        ("num_inputs", "<i8"),  # U
        ("addresses_offset", "<i8"),  # of the int32 [U] addresses, from the extent's start, bytes
        ("num_admissions", "<i8"),  # A
        ("admissions_offset", "<i8"),  # of the int32 [A, 2] admissions, from the extent's start, bytes
        ("header_crc32c", "<i8"),
        ("rows_crc32c", "<i8"),
    ]
)


@dataclass(frozen=True)
class Header:
    """What an extent says about its minibatch."""

    seeds: npt.NDArray[np.int64]  # [B]
    labels: npt.NDArray[np.int64]  # [B]
    blocks: tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]], ...]  # (indptr, indices), outermost first
    addresses: npt.NDArray[np.int32]  # [U]
    admissions: npt.NDArray[np.int32]  # [A, 2]: extent row, cpu slot
    input_nodes: npt.NDArray[Any] | None = None  # [U], when the artifact was packed with keep_input_nodes


@dataclass(frozen=True)
class EncodedHeader:
    """A header as bytes, and where the native reader finds what it needs in them."""

    message: pa.Buffer
    addresses_offset: int
    admissions_offset: int


def header_schema(num_layers: int, node_type: pa.DataType | None) -> pa.Schema:
    """Columns of a header; `node_type` is that of input_nodes, None when they are not kept."""
    fields = [("seeds", pa.int64()), ("labels", pa.int64()), ("addresses", pa.int32()), ("admissions", pa.int32())]
    if node_type is not None:
        fields.append(("input_nodes", node_type))
    for layer in range(num_layers):
        fields += [(f"indptr_{layer}", pa.int32()), (f"indices_{layer}", pa.int32())]
    return pa.schema([(name, pa.list_(value_type)) for name, value_type in fields])


def encode_header(header: Header, schema: pa.Schema) -> EncodedHeader:
    """The bytes of `header`."""
    columns: list[npt.NDArray[Any]] = [header.seeds, header.labels, header.addresses, header.admissions.reshape(-1)]
    if header.input_nodes is not None:
        columns.append(header.input_nodes)
    columns += [array for block in header.blocks for array in block]
    message = one_row(schema, columns).serialize()
    batch = pa.ipc.read_record_batch(message, schema)
    return EncodedHeader(message, _offset_of(batch, "addresses", message), _offset_of(batch, "admissions", message))


def _offset_of(batch: pa.RecordBatch, name: str, message: pa.Buffer) -> int:
    values = batch.column(name).values
    return 0 if len(values) == 0 else int(values.buffers()[1].address - message.address)


def decode_header(data: Any, schema: pa.Schema) -> Header:
    """The header in `data` (bytes-like), sharing its memory.

    Raises:
        pyarrow.ArrowException, EOFError, OSError: not such a header.
    """
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    batch.validate()  # Arrow believes what a message says about its buffers' lengths
    if batch.num_rows != 1:
        raise pa.ArrowInvalid(f"it has {batch.num_rows} rows, expected 1")
    columns = {field.name: batch.column(i).values.to_numpy() for i, field in enumerate(schema)}
    num_layers = sum(name.startswith("indptr_") for name in columns)
    return Header(
        columns["seeds"],
        columns["labels"],
        tuple((columns[f"indptr_{layer}"], columns[f"indices_{layer}"]) for layer in range(num_layers)),
        columns["addresses"],
        columns["admissions"].reshape(-1, 2),
        columns.get("input_nodes"),
    )


def checked_header(data: npt.NDArray[np.uint8], schema: pa.Schema, record: Any, num_nodes: int) -> Header:
    """The header in `data`, sharing its memory, once its parts have proved to fit each other, the index and the graph.

    Models, and kernels on a GPU, compute with it without looking. So whatever it says leads to a place that is there.

    Args:
        data: [header_bytes] uint8.
        schema: of it.
        record: of its extent in the index, of `INDEX_DTYPE`.
        num_nodes: of the graph.

    Raises:
        ValueError: it is no header, or not a sound one; says why.
    """
    try:
        header = decode_header(data, schema)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise ValueError(f"its header cannot be decoded: {error}") from error
    arrays: list[npt.NDArray[Any]] = [header.seeds, header.labels, header.addresses, *itertools.chain(*header.blocks)]
    for array in arrays:
        _check_place(array, data)
    if header.input_nodes is not None:
        _check_place(header.input_nodes, data)
        _check_nodes("input nodes", header.input_nodes, len(header.addresses), num_nodes)
    if (len(header.addresses), len(header.admissions)) != (record["num_inputs"], record["num_admissions"]):
        raise ValueError("it has another number of inputs or admissions than the index says")
    if len(header.addresses) and header.addresses.ctypes.data - data.ctypes.data != record["addresses_offset"]:
        raise ValueError("its addresses are not where the index says")  # those there have been checked
    _check_nodes("seeds", header.seeds, len(header.labels), num_nodes)
    num_src = len(header.addresses)
    for number, (indptr, indices) in enumerate(header.blocks):
        try:
            check_block(indptr, indices, num_src)
        except ValueError as error:
            raise ValueError(f"block {number}: {error}") from error
        num_src = len(indptr) - 1
    if num_src != len(header.seeds):
        raise ValueError(f"its last block has {num_src} destinations, expected its {len(header.seeds)} seeds")
    return header


def _check_place(array: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> None:
    """Its bytes lie in `data`, aligned: those of a compressed message would not."""
    start = array.ctypes.data - data.ctypes.data
    if len(array) and not (0 <= start <= len(data) - array.nbytes and start % array.itemsize == 0):
        raise ValueError("a column does not lie in its header")


def _check_nodes(name: str, nodes: npt.NDArray[Any], expected: int, num_nodes: int) -> None:
    if len(nodes) != expected:
        raise ValueError(f"it has {len(nodes)} {name}, expected {expected}")
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
        raise ValueError(f"its {name} are not all nodes of the graph")


def align(num_bytes: int, alignment: int) -> int:
    """`num_bytes` rounded up to a multiple of `alignment`."""
    return -(-num_bytes // alignment) * alignment


def fill_record(
    record: Any, header: EncodedHeader, num_inputs: int, num_rows: int, num_admissions: int, row_bytes: int
) -> int:
    """Set all of an index record but `offset` and the checksums; returns the extent's bytes."""
    record["header_bytes"] = header.message.size
    record["rows_offset"] = align(header.message.size, ROW_ALIGNMENT)
    record["num_rows"], record["num_inputs"], record["num_admissions"] = num_rows, num_inputs, num_admissions
    record["addresses_offset"] = header.addresses_offset
    record["admissions_offset"] = header.admissions_offset
    return align(int(record["rows_offset"]) + num_rows * row_bytes, DIRECT_ALIGNMENT)


def extent_bytes(index: npt.NDArray[Any], row_bytes: int) -> npt.NDArray[np.int64]:
    """[T] bytes of each extent, its padding included."""
    used = index["rows_offset"] + index["num_rows"] * row_bytes
    return -(-used // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT  # type: ignore[no-any-return]
