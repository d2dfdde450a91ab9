"""The extent's header: what is encoded is decoded, and where it says that its parts are, they are."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn.storage import extents


def arrays(dtype, max_size=30):
    limits = np.iinfo(dtype)
    values = st.lists(st.integers(int(limits.min), int(limits.max)), max_size=max_size)
    return values.map(lambda numbers: np.array(numbers, dtype))


@settings(max_examples=100)
@given(data=st.data(), num_layers=st.integers(1, 3), node_dtype=st.sampled_from([None, np.int32, np.int64]))
def test_what_is_encoded_is_decoded(data, num_layers, node_dtype):
    header = extents.Header(
        seeds=data.draw(arrays(np.int64)),
        labels=data.draw(arrays(np.int64)),
        blocks=tuple((data.draw(arrays(np.int32)), data.draw(arrays(np.int32))) for _ in range(num_layers)),
        addresses=data.draw(arrays(np.int32)),
        admissions=data.draw(arrays(np.int32).map(lambda array: array[: len(array) // 2 * 2].reshape(-1, 2))),
        input_nodes=None if node_dtype is None else data.draw(arrays(node_dtype)),
    )
    schema = extents.header_schema(num_layers, None if node_dtype is None else pa.from_numpy_dtype(node_dtype))
    encoded = extents.encode_header(header, schema)
    message = encoded.message.to_pybytes()
    decoded = extents.decode_header(message, schema)
    pairs = [
        (header.seeds, decoded.seeds), (header.labels, decoded.labels), (header.addresses, decoded.addresses),
        (header.admissions, decoded.admissions),
        *((left, right) for ours, theirs in zip(header.blocks, decoded.blocks, strict=True)
          for left, right in zip(ours, theirs, strict=True)),
    ]  # fmt: skip
    if node_dtype is None:
        assert decoded.input_nodes is None
    else:
        pairs.append((header.input_nodes, decoded.input_nodes))
    for expected, found in pairs:
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    for name, expected in (("addresses", header.addresses), ("admissions", header.admissions)):
        start = getattr(encoded, f"{name}_offset")
        assert message[start : start + expected.nbytes] == expected.tobytes()
        assert start % 8 == 0
    # Anybody's Arrow can read it, too: a batch of one row of lists.
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    assert batch.to_pylist()[0]["seeds"] == header.seeds.tolist()


def test_records_say_where_parts_are():
    index = np.zeros(3, extents.INDEX_DTYPE)
    lengths = []
    for record, (header_bytes, num_rows) in zip(index, ((1000, 0), (64, 1), (4000, 100)), strict=True):
        encoded = extents.EncodedHeader(pa.py_buffer(bytes(header_bytes)), 8, 16)
        lengths.append(extents.fill_record(record, encoded, 7, num_rows, 2, 33))
    assert index["rows_offset"].tolist() == [1024, 64, 4032]
    assert lengths == extents.extent_bytes(index, 33).tolist() == [4096, 4096, 8192]
    assert index["num_inputs"].tolist() == [7] * 3
    assert index.dtype.itemsize == 80


@pytest.mark.parametrize("length", [0, 7, 100, -8])
def test_what_was_cut_off_is_no_header(length):
    schema = extents.header_schema(1, None)
    empty = np.arange(50, dtype=np.int32)
    header = extents.Header(
        empty.astype(np.int64), empty.astype(np.int64), ((empty, empty),), empty, empty.reshape(-1, 2)
    )
    message = extents.encode_header(header, schema).message.to_pybytes()
    with pytest.raises((pa.ArrowException, EOFError, OSError)):
        extents.decode_header(message[:length], schema)
