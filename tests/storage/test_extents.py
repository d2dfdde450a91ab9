"""The extent's header: what is encoded is decoded, and where it says that its parts are, they are."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn._native import check_block
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


small = st.lists(st.integers(-2, 6), max_size=8)


@settings(max_examples=500)
@given(indptr=st.one_of(small, small.map(lambda counts: [0, *np.cumsum(np.abs(counts))])), indices=small,
       num_src=st.integers(0, 7))  # fmt: skip
def test_blocks_are_sound_or_refused(indptr, indices, num_src):
    """Against the definition, written with lists."""
    sound = (
        indptr[:1] == [0] and indptr == sorted(indptr) and indptr[-1] == len(indices) and len(indptr) - 1 <= num_src
        and all(index in range(num_src) for index in indices)
    )  # fmt: skip
    arrays = np.array(indptr, np.int32), np.array(indices, np.int32)
    if sound:
        check_block(*arrays, num_src)
    else:
        with pytest.raises(ValueError, match=r"indptr|destinations|source"):
            check_block(*arrays, num_src)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_message_is_refused(codec):
    """Its arrays would not lie in the header, which is what is moved to the device."""
    schema, nodes = extents.header_schema(1, None), np.arange(400)
    indptr, indices = np.arange(401, dtype=np.int32), np.arange(400, dtype=np.int32)
    header = extents.Header(nodes, nodes, ((indptr, indices),), indices, np.empty((0, 2), np.int32))
    batch = pa.ipc.read_record_batch(extents.encode_header(header, schema).message, schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    message = np.frombuffer(reader.read_next_message().serialize(), np.uint8)
    record = {"num_inputs": 400, "num_admissions": 0, "addresses_offset": 0}
    assert extents.decode_header(message, schema).addresses.tolist() == indices.tolist()
    with pytest.raises(ValueError, match="does not lie in its header"):
        extents.checked_header(message, schema, record, 400)
