"""The extent's header: what is encoded is decoded, and where it says that its parts are, they are."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minibatch_arrays import arrays_of

from diskgnn._native import check_block
from diskgnn.formats.extent_headers import ColumnPlaces, EncodedHeader, Span, decode_header, encode_header
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.minibatch_checks import checked_header
from diskgnn.formats.minibatch_columns import MinibatchLayout, RowSetLayout
from diskgnn.formats.sampled_minibatch import PairSample, RowPlaces, SampledBlock, SampledMinibatch


def arrays(dtype, max_size=30):
    limits = np.iinfo(dtype)
    values = st.lists(st.integers(int(limits.min), int(limits.max)), max_size=max_size)
    return values.map(lambda numbers: np.array(numbers, dtype))


@st.composite
def layouts(draw):
    """Of one type and of several; with and without what may be there."""
    num_types = draw(st.integers(1, 3))
    number = st.integers(0, num_types - 1)
    row_set = st.tuples(number, st.booleans(), st.booleans())
    edge_types = draw(st.lists(st.tuples(number, number), min_size=1, max_size=3))
    link = draw(st.booleans())
    return MinibatchLayout(
        num_layers=draw(st.integers(1, 3)),
        num_nodes=(1 << 40,) * num_types,
        edge_types=tuple(edge_types),
        position_dtypes=(None,) * len(edge_types),
        node_dtypes=tuple(draw(st.sampled_from([None, "int32", "int64"])) for _ in range(num_types)),
        row_sets=tuple(RowSetLayout(*each) for each in draw(st.lists(row_set, max_size=3))),
        target=(0, 0) if link else (0,),
        label_dtype=None if link else draw(st.sampled_from(["int64", "uint8", "float32", None])),
        has_pairs=link,
        has_edge_ids=draw(st.booleans()),
        has_trees=draw(st.booleans()),
    )


@settings(max_examples=100)
@given(data=st.data(), layout=layouts())
def test_what_is_encoded_is_decoded(data, layout):
    num_types = len(layout.num_nodes)

    def drawn(dtype, size=None):
        if np.dtype(dtype).kind == "f":
            return drawn(np.int16, size).astype(dtype)
        return data.draw(arrays(dtype) if size is None else arrays(dtype).map(lambda array: np.resize(array, size)))

    header = SampledMinibatch(
        seeds=drawn(np.int64),
        y=None if layout.label_dtype is None else drawn(layout.label_dtype),
        node_counts=drawn(np.int32, (layout.num_layers + 1, num_types)),
        rows=tuple(
            RowPlaces(drawn(np.int32), drawn(np.int32, (3, 2)), drawn(np.int32) if row_set.has_spread else None)
            for row_set in layout.row_sets
        ),
        input_nodes=tuple(np.empty(0, np.int32) if dtype is None else drawn(dtype) for dtype in layout.node_dtypes),
        trees=tuple(drawn(np.int32) for _ in range(num_types)) if layout.has_trees else None,
        pairs=PairSample(drawn(np.int32), drawn(np.int32), drawn(np.float32)) if layout.has_pairs else None,
        blocks=tuple(
            tuple(
                SampledBlock(
                    drawn(np.int32), drawn(np.int32), edge_ids=drawn(np.int64) if layout.has_edge_ids else None
                )
                for _ in layout.edge_types
            )
            for _ in range(layout.num_layers)
        ),
    )
    encoded = encode_header(header, layout)
    message = encoded.message.to_pybytes()
    decoded = decode_header(message, layout)
    for expected, found in zip(arrays_of(header), arrays_of(decoded), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(decoded.node_counts, header.node_counts)
    for number, places in enumerate(header.rows):
        for expected, found in ((places.addresses, encoded.addresses), (places.admissions, encoded.admissions)):
            span = found[number]
            assert span.count == len(expected)
            assert message[span.offset : span.offset + expected.nbytes] == expected.tobytes()
            assert span.offset % 8 == 0
    # Anybody's Arrow can read it, too: a batch of one row of lists.
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), layout.schema)
    assert batch.to_pylist()[0]["seeds"] == header.seeds.tolist()
    bytes_of_it = np.frombuffer(message, np.uint8).copy()
    places = ColumnPlaces.of(bytes_of_it, layout)
    found = places.arrays(bytes_of_it, layout), places.tensors(torch.from_numpy(bytes_of_it), layout)
    for expected, array, tensor in zip(layout.arrays(batch), *found, strict=True):
        for each in (array, tensor.numpy()):
            assert each.dtype == expected.dtype
            np.testing.assert_array_equal(each, expected)


def test_records_say_where_parts_are():
    index = ExtentIndex.empty(3, [33, 4])
    lengths = []
    for number, (header_bytes, *num_rows) in enumerate(((1000, 0, 0), (64, 1, 2), (4000, 100, 1))):
        spans = (Span(8, 7), Span(40, 3)), (Span(16, 2), Span(0, 0))
        encoded = EncodedHeader(pa.py_buffer(bytes(header_bytes)), *spans)
        lengths.append(index.describe(number, sum(lengths), encoded, num_rows))
    assert index.rows["rows_offset"].tolist() == [[1024, 1024], [64, 128], [4032, 7360]]
    assert lengths == index.extent_bytes.tolist() == [4096, 4096, 8192]
    assert index.extents["offset"].tolist() == [0, 4096, 8192]
    assert (index.max_inputs, index.max_header_bytes) == ((7, 3), 4000)
    parts = [[part[:3] for part in parts] for parts in index.parts.by_extent()]
    assert parts[0] == [(0, 1000, 3096), (1024, 0, 0), (1024, 0, 0)]
    assert parts[1] == [(4096, 64, 0), (4160, 33, 31), (4224, 8, 3960)]
    assert parts[2] == [(8192, 4000, 32), (12224, 3300, 28), (15552, 4, 828)]
    assert ExtentIndex.empty(2, []).max_inputs == ()


def simple_header(number=50):
    """Of one type, and its layout; each node is its own neighbour."""
    numbers = np.arange(number, dtype=np.int32)
    places = RowPlaces(numbers, np.empty((0, 2), np.int32))
    block = SampledBlock(np.arange(number + 1, dtype=np.int32), numbers)
    nodes = numbers.astype(np.int64)
    header = SampledMinibatch(
        seeds=nodes, y=nodes, node_counts=np.full((2, 1), number, np.int32), rows=(places,), input_nodes=(numbers,),
        blocks=((block,),),
    )  # fmt: skip
    return header, MinibatchLayout.of_one_type(1, number, None)


@pytest.mark.parametrize("length", [0, 7, 100, -8])
def test_what_was_cut_off_is_no_header(length):
    header, layout = simple_header()
    message = encode_header(header, layout).message.to_pybytes()
    with pytest.raises((pa.ArrowException, EOFError, OSError)):
        decode_header(message[:length], layout)
    with pytest.raises(ValueError, match=r"its header|in its header"):
        ColumnPlaces.of(np.frombuffer(message[:length], np.uint8), layout)


small = st.lists(st.integers(-2, 6), max_size=8)


@settings(max_examples=500)
@given(indptr=st.one_of(small, small.map(lambda counts: [0, *np.cumsum(np.abs(counts))])), indices=small,
       num_src=st.integers(0, 7))  # fmt: skip
def test_blocks_are_sound_or_refused(indptr, indices, num_src):
    """Against the definition, written with lists."""
    sound = (
        indptr[:1] == [0] and indptr == sorted(indptr) and indptr[-1] == len(indices)
        and all(index in range(num_src) for index in indices)
    )  # fmt: skip
    arrays = np.array(indptr, np.int32), np.array(indices, np.int32)
    if sound:
        check_block(*arrays, num_src)
    else:
        with pytest.raises(ValueError, match=r"indptr|source"):
            check_block(*arrays, num_src)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_message_is_refused(codec):
    """Its arrays would not lie in the header, which is what is moved to the device."""
    header, layout = simple_header(400)
    encoded = encode_header(header, layout)
    batch = pa.ipc.read_record_batch(encoded.message, layout.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, layout.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    message = np.frombuffer(reader.read_next_message().serialize(), np.uint8)
    index = ExtentIndex.empty(1, [4])
    index.describe(0, 0, encoded, [0])
    assert decode_header(message, layout).rows[0].addresses.tolist() == list(range(400))
    assert checked_header(np.frombuffer(encoded.message, np.uint8), layout, index.rows[0]).seeds.tolist()
    with pytest.raises(ValueError, match="does not lie in its header"):
        checked_header(message, layout, index.rows[0])
