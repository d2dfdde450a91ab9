"""Headers that fit their checksums, and say what no packer would: refused before a model computes with them."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_directories import forge, key

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.extent_headers import decode_header, encode_header
from diskgnn.formats.extents import ExtentIndex, align
from diskgnn.formats.manifest_document import content_digest
from diskgnn.formats.packed import Packed
from diskgnn.formats.sampled_minibatch import SampledBlock
from diskgnn.loading.loader import Loader
from diskgnn.nn.block_models import make_model

NUMBER = 2  # of the extent that is forged


def set_value(array, at, value):
    changed = array.copy()
    changed[at] = value
    return changed


def in_block(header, number, indptr=lambda a: a, indices=lambda a: a):
    blocks, (block,) = list(header.blocks), header.blocks[number]
    blocks[number] = (SampledBlock(indptr(block.indptr), indices(block.indices)),)
    return replace(header, blocks=tuple(blocks))


def with_addresses(header, addresses):
    return replace(header, rows=(replace(header.rows[0], addresses=addresses),))


FORGERIES = {
    "indptr starts late": lambda h: in_block(h, 0, lambda a: set_value(a, 0, 1)),
    "indptr starts below 0": lambda h: in_block(h, 1, lambda a: set_value(a, 0, -5)),
    "indptr decreases": lambda h: in_block(h, 0, lambda a: set_value(a, len(a) // 2, a[-1] + 1)),
    "indptr leads far away": lambda h: in_block(h, 1, lambda a: set_value(a, 1, 1 << 30)),
    "indptr is negative": lambda h: in_block(h, 0, lambda a: set_value(a, 3, -(1 << 31))),
    "indptr ends early": lambda h: in_block(h, 1, lambda a: set_value(a, -1, a[-1] - 1)),
    "indptr ends late": lambda h: in_block(h, 1, lambda a: set_value(a, -1, a[-1] + 1)),
    "indptr is empty": lambda h: in_block(h, 0, lambda a: a[:0]),
    "edges are missing": lambda h: in_block(h, 0, indices=lambda a: a[:-1]),
    "an edge from nowhere": lambda h: in_block(h, 0, indices=lambda a: set_value(a, 0, h.node_counts[0, 0])),
    "an edge from far away": lambda h: in_block(h, 1, indices=lambda a: set_value(a, -1, (1 << 31) - 1)),
    "a negative edge": lambda h: in_block(h, 1, indices=lambda a: set_value(a, len(a) // 2, -1)),
    "one destination less": lambda h: in_block(h, 0, lambda a: np.append(a[:-2], a[-1]).astype(np.int32)),
    "one destination more": lambda h: in_block(h, 1, lambda a: np.append(a, a[-1]).astype(np.int32)),
    "one seed less": lambda h: replace(h, seeds=h.seeds[:-1], y=h.y[:-1]),
    "one seed more": lambda h: replace(h, seeds=np.append(h.seeds, 0), y=np.append(h.y, 0)),
    "one label less": lambda h: replace(h, y=h.y[:-1]),
    "no labels": lambda h: replace(h, y=h.y[:0]),
    "a seed that is no node": lambda h: replace(h, seeds=set_value(h.seeds, 0, 10**12)),
    "a negative seed": lambda h: replace(h, seeds=set_value(h.seeds, 0, -1)),
    "input nodes are missing": lambda h: replace(h, input_nodes=(h.input_nodes[0][:-1],)),
    "an input node that is none": lambda h: replace(h, input_nodes=(set_value(h.input_nodes[0], 1, -2),)),
    "a node count that is negative": lambda h: replace(h, node_counts=set_value(h.node_counts, (2, 0), -1)),
    "a node count that is larger": lambda h: replace(h, node_counts=set_value(h.node_counts, (1, 0), 1 << 30)),
    "a node count less": lambda h: replace(h, node_counts=h.node_counts[:2]),
    "an address less": lambda h: with_addresses(h, h.rows[0].addresses[:-1]),
    "fewer blocks, as the seeds have": lambda h: replace(h, blocks=(h.blocks[1], h.blocks[1])),
}


@pytest.fixture(scope="module")
def opened(packed):
    """(Packed, index, the bytes of extents): to forge from."""
    found = Packed.open(packed)
    return found, found.index("train"), (packed / "train.bin").read_bytes()


def with_message(opened, tmp_path, message, **fields):
    """A packed directory whose extent `NUMBER` has `message` (bytes) for a header, and its checksum."""
    found, index, data = opened
    index = ExtentIndex(index.extents.copy(), index.rows.copy(), index.row_bytes)
    starts, sizes = index.extents["offset"], index.extent_bytes
    parts = [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    extent, record = index.extents[NUMBER], index.rows[NUMBER, 0]
    rows_bytes = int(record["num_rows"]) * index.row_bytes[0]
    rows = parts[NUMBER][int(record["rows_offset"]) :][:rows_bytes]
    extent["header_bytes"], record["rows_offset"] = len(message), align(len(message), 64)
    extent["header_crc32c"] = crc32c(message)
    for name, value in fields.items():
        record[name] = value
    forged = message.ljust(int(record["rows_offset"]), b"\0") + rows
    parts[NUMBER] = forged.ljust(align(len(forged), 4096), b"\0")
    index.extents["offset"] = np.cumsum([0, *map(len, parts[:-1])])
    splits = json.loads(json.dumps(found.manifest.config["splits"]))
    splits["train"]["max_header_bytes"] = index.max_header_bytes
    splits["train"]["row_sets"][0]["max_inputs"] = index.max_inputs[0]
    copy = shutil.copytree(found.path, tmp_path / "packed")
    return forge(copy, {"splits": splits}, train_index=index.extents, train_rows=index.rows, train=b"".join(parts))


def header_of(opened):
    found, index, data = opened
    extent = index.extents[NUMBER]
    message = data[int(extent["offset"]) :][: int(extent["header_bytes"])]
    return decode_header(message, found.config.header_layout())


def with_header(opened, tmp_path, header):
    encoded = encode_header(header, opened[0].config.header_layout())
    (addresses,), (admissions,) = encoded.addresses, encoded.admissions
    return with_message(
        opened, tmp_path, encoded.message.to_pybytes(), addresses_offset=addresses.offset, num_inputs=addresses.count,
        admissions_offset=admissions.offset, num_admissions=admissions.count,
    )  # fmt: skip


def test_what_is_forged_without_a_change_is_as_before(opened, tmp_path, whole):
    with Loader(with_header(opened, tmp_path, header_of(opened))) as loader:
        assert [key(batch) for epoch in (0, 1) for batch in loader.epoch(epoch)] == whole[: 2 * len(loader)]


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_headers_are_refused(opened, tmp_path, name):
    with Loader(with_header(opened, tmp_path, FORGERIES[name](header_of(opened)))) as loader:
        batches = loader.epoch(0)
        for _ in range(NUMBER):
            next(batches)
        with pytest.raises(ArtifactError, match=rf"extent {NUMBER} of .*train\.bin is damaged"):
            next(batches)


def test_the_largest_minibatch_is_checked_too(opened, tmp_path):
    header = header_of(opened)
    long = np.zeros(100_000, np.int32)  # so that it is the largest
    forged = in_block(header, 0, lambda a: set_value(a, -1, -1), lambda a: np.append(a, long).astype(np.int32))
    with (
        Loader(with_header(opened, tmp_path, forged)) as loader,
        pytest.raises(ArtifactError, match=rf"extent {NUMBER}"),
    ):
        loader.sequence.largest_minibatch()


def test_addresses_elsewhere_than_the_index_says_are_refused(opened, tmp_path):
    """Native code checks those that the index leads to; the GPU would gather by those that the message leads to."""
    header = header_of(opened)
    addresses = header.rows[0].addresses
    encoded = encode_header(with_addresses(header, np.full_like(addresses, 1 << 30)), opened[0].config.header_layout())
    message = encoded.message.to_pybytes()
    forged = message + bytes(-len(message) % 8) + addresses.tobytes()
    path = with_message(
        opened, tmp_path, forged, addresses_offset=len(forged) - addresses.nbytes,
        admissions_offset=encoded.admissions[0].offset,
    )  # fmt: skip
    with Loader(path) as loader, pytest.raises(ArtifactError, match="addresses are not where"):
        list(loader.epoch(0))


@pytest.mark.parametrize("seed", range(4))
def test_models_never_see_what_leads_outside(opened, tmp_path, seed):
    """Words anywhere in a header are replaced and its checksum is made anew: it is refused, or models can use it."""
    _, index, data = opened
    extent, random = index.extents[NUMBER], np.random.default_rng(seed)
    whole = data[int(extent["offset"]) :][: int(extent["header_bytes"])]
    refused = 0
    for trial in range(12):
        words = np.frombuffer(whole, np.int32).copy()
        for at in random.integers(0, len(words), 1 + trial % 3):
            words[at] = random.choice([-1, 1 << 30, (1 << 31) - 1, 1, 0, 5, 1000, words[at] + 1, words[at] ^ 256])
        path = with_message(opened, tmp_path / str(trial), words.tobytes())
        with Loader(path) as loader:
            batches = loader.epoch(0)
            for _ in range(NUMBER):
                next(batches)
            try:
                batch = next(batches)
            except ArtifactError:
                refused += 1
                continue
            for model in ("gcn", "gat", "sage"):
                make_model(model, loader.num_features, 4, loader.num_classes, 2)(batch.blocks, batch.x)
            for block in batch.blocks:
                assert block.by_source.indptr[-1] == block.num_edges
    assert refused > 4


NUMBERS = st.one_of(
    st.integers(-2, 400), st.sampled_from([-(1 << 63), 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 62, 1 << 64, 10**30])
)
ANYTHING = st.one_of(NUMBERS, st.none(), st.booleans(), st.floats(), st.text(max_size=8), st.lists(NUMBERS, max_size=4),
                     st.dictionaries(st.text(max_size=3), NUMBERS, max_size=2))  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_config_is_refused_or_read_as_it_was(packed, whole, tmp_path_factory, draw):
    """One or two values of the config are replaced and the digest is made anew."""
    path = shutil.copytree(packed, tmp_path_factory.mktemp("forged") / "packed")
    document = json.loads((path / MANIFEST).read_text())
    for _ in range(draw.draw(st.integers(1, 2))):
        place = document["config"]
        while True:
            name = draw.draw(st.sampled_from(sorted(place)))
            if not (isinstance(place[name], dict) and place[name] and draw.draw(st.integers(0, 9))):
                break
            place = place[name]
        place[name] = draw.draw(ANYTHING if draw.draw(st.booleans()) else NUMBERS)
    document["digest"] = content_digest(
        {name: document[name] for name in document if name not in ("external", "digest")}
    )
    (path / MANIFEST).write_text(json.dumps(document))
    try:
        with Loader(path) as loader:
            found = [key(batch) for epoch in (0, 1) for batch in loader.epoch(epoch)]
            assert loader.sequence.largest_minibatch().x.dtype
    except ArtifactError:
        pass
    else:
        assert [batch[2:] for batch in found] == [batch[2:] for batch in whole[: len(found)]]
    finally:
        shutil.rmtree(path)
