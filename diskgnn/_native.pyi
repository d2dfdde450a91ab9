"""The native core (native/bindings/). Arrays are C-contiguous; the GIL is released while they are worked on."""

import enum
from collections.abc import Buffer, Sequence  # type: ignore[attr-defined,unused-ignore]
from typing import Any, ClassVar, overload

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

READ_ALONG_BYTES: int  # of a gap between rows that are read by number, at most
DIRECT_ALIGNMENT: int  # bytes: what offsets, lengths and memory of direct reads are multiples of; extents, too
HAVE_IO_URING: bool  # this was built on Linux
READ_AHEAD_BYTES: int  # that a Pipeline has in flight or waiting to be assembled

def measure_reads(
    path: str,
    offsets: npt.NDArray[np.uint64],
    bytes_each: int,
    depth: int,
    max_seconds: float,
    engine: str = "auto",
) -> tuple[str, bool, int, float]:
    """(engine, whether it was O_DIRECT, bytes read, seconds) of reads of `bytes_each`, `depth` at a time, in order.

    Offsets and `bytes_each` are multiples of 4096.

    Raises:
        OSError: a read failed or was short, or 'io_uring' was asked for and is refused.
    """

def crc32c(data: Buffer, crc: int = 0) -> int:
    """Returns the CRC-32C of `data`, continuing `crc`."""

def crc32c_methods() -> list[str]:
    """Returns the ways in which this processor can compute it; `crc32c` takes the first, which is the fastest."""

def crc32c_by(method: str, data: Buffer, crc: int = 0) -> int:
    """`crc32c`, by one of `crc32c_methods`.

    Raises:
        ValueError: not one of them.
    """

def check_block(indptr: Int32, indices: Int32, num_src: int) -> None:
    """Look through the edges of a block, grouped by destination, that came from disk.

    Raises:
        ValueError: they are no such edges; the message says why.
    """

MOST_LABEL_NEIGHBORS: int  # in-neighbours that `propagate_labels` looks at

def propagate_labels(
    labels: npt.NDArray[Any],
    sizes: Int32,
    most_nodes: int,
    first: int,
    offsets: Int64,
    neighbors: npt.NDArray[Any],
) -> None:
    """Give nodes `first` and later the label that most of their in-neighbours have.

    Labels that `most_nodes` have already are left out, and of several as frequent, the one of least hash is taken. A
    node's first MOST_LABEL_NEIGHBORS in-neighbours stand for all.

    Args:
        labels: [N] int32 or int64, changed; at first each node's own number.
        sizes: [N] nodes that have each label, changed; at first 1.
        offsets: [n + 1] node first + i has the in-neighbours neighbors[offsets[i]:offsets[i + 1]].
        neighbors: of the dtype of `labels`.

    Raises:
        IndexError: offsets or neighbours out of range.
    """

RANKED_BLOCK_NODES: int  # nodes of a block of a set of rows: its bits are whole blocks of uint64 words
RANKED_BLOCK_COUNTS: int  # int64 numbers that say how many members are before the words of a block
RankedArrays = tuple[npt.NDArray[np.uint64], Int64, int]  # bits, counts of members, nodes

def count_members(words: npt.NDArray[np.uint64], counts: Int64) -> None:
    """Fill `counts` [RANKED_BLOCK_COUNTS * blocks + 1] with the members of a set before each block, those before each
    of its words but the first (in 9 bits each), and at the end all of them."""

def row_ranks(members: RankedArrays, nodes: Int64, ranks: Int64) -> None:
    """Fill `ranks` [n] with how many members are before each of `nodes`.

    Raises:
        IndexError: a node out of range.
    """

def mark_sources(
    first_node: int,
    offsets: Int64,
    begin: int,
    sources: npt.NDArray[Any],
    wanted: RankedArrays,
    marked: npt.NDArray[np.uint64],
    num_sources: int,
) -> int:
    """Add the sources of edges into `wanted` nodes to the bits `marked`; return how many edges these are.

    Args:
        first_node, offsets: lists of nodes from `first_node` on, as parts of the CSC.
        begin, sources: the edges from number `begin` on. The first list may have begun before, the last one may go on.
        wanted: some destinations.
        marked: bits of sources.
        num_sources: there are.

    Raises:
        IndexError, ValueError: the topology leads outside of itself.
    """

def prune_edges(
    first_node: int,
    offsets: Int64,
    begin: int,
    sources: npt.NDArray[Any],
    weights: npt.NDArray[np.float32],
    wanted: RankedArrays,
    sources_set: RankedArrays,
    add_own: bool,
) -> tuple[Int64, npt.NDArray[Any], npt.NDArray[np.float32], bool, bool]:
    """The lists of `wanted` nodes, with sources as ranks in `sources_set`; see `mark_sources`.

    Returns:
        (offsets [rows + 1]; sources; weights; whether the first list is the rest of one; whether the last one goes on).
    """

def cut_stripes(
    data: npt.NDArray[np.uint8],
    wanted: npt.NDArray[np.bool_],
    *,
    row_bytes: int,
    stripe_bytes: int,
    value_bytes: int,
    exponent_bits: int,
    stripes: npt.NDArray[np.uint8],
) -> tuple[int, int]:
    """Copy the `wanted` [rows] rows of `data` to `stripes`: all of the first stripe, then all of the second one, ...

    Args:
        exponent_bits: of a value, which all are set in NaN and infinite ones; 0 if there are none.

    Returns:
        (how many of these rows have NaN or infinite values; the first of them, or -1).
    """

def scale_rows(rows: npt.NDArray[np.float32], width: int, scales: npt.NDArray[np.float32]) -> None:
    """Multiply each row of `rows` [n * width] by its scale, of `scales` [n]."""

def place_columns(
    values: npt.NDArray[np.float32],
    width: int,
    first: int,
    count: int,
    target: npt.NDArray[np.float32],
    target_width: int,
    target_first: int,
) -> None:
    """Copy `count` columns of `values` [n * width] from `first` on to `target` [n * target_width], from another on."""

def mean_rows(
    offsets: Int64,
    sources: npt.NDArray[Any],
    weights: npt.NDArray[np.float32],
    *,
    continues: bool,
    goes_on: bool,
    skips_own: bool,
    carry: npt.NDArray[np.float64],
    rows: npt.NDArray[np.float32],
    width: int,
    target: npt.NDArray[np.float32],
    threads: int,
) -> None:
    """Fill `target` [lists * width] with the weighted means of sources' `rows`, summed in order in float64.

    Args:
        skips_own: the last edge of a list does not count.
        carry: [width + 1] sums of a list that goes on, and its weight.

    Raises:
        ValueError: arrays that do not fit each other.
    """

def add_weights(offsets: Int64, begin: int, weights: npt.NDArray[np.float32], sums: npt.NDArray[np.float64]) -> None:
    """Add to sums[i] the weights of edges into node i, in their order: those of edges from number `begin` on."""

class Relation:
    """The edges of one type in memory, or mapped: a CSC from nodes of type number `source` to those of `destination`.

    Raises:
        ValueError: arrays that do not fit each other.
    """

    def __init__(
        self,
        source: int,
        destination: int,
        indptr: Int64,
        indices: npt.NDArray[Any],
        weights: npt.NDArray[np.float32] | None = None,
        times: Int64 | None = None,
        by_time: bool = False,
    ) -> None: ...

class ExcludedEdges:
    """Edges of one type that are not drawn, all those between two nodes; a set. Thread-safe, and picklable.

    Args:
        sources, destinations: [n] of them; what is given twice counts once.

    Raises:
        ValueError: a destination below 0.
    """

    MOST_BYTES: ClassVar[int]  # that an edge takes

    def __init__(self, sources: Int64, destinations: Int64) -> None: ...
    def __len__(self) -> int:
        """Distinct ones."""

    def edges(self) -> tuple[Int64, Int64]:
        """(sources, destinations), ascending by destination and then by source."""

    def contains(self, sources: Int64, destinations: Int64) -> npt.NDArray[np.uint8]:
        """[n] 1 for each of these edges that is in the set, 0 for others."""

class DrawRequest:
    """All that one minibatch depends on, beside the topology (native/sampling/draw_request.h).

    Args:
        seeds: of each node type.
        fanouts: [layers * edge types], from the seeds outwards; -1 takes all, 0 none.
        slice_start: 64 bits; then draws are coordinated, and the in-neighbours of each node are expected in the order
            of graphs (docs/FORMAT.md). In another order, other ones are drawn.
        seed_times: of each node type: nothing later is drawn for a seed, and each seed has a tree of its own.
        seed_starts: of each node type, with `seed_times`: of edge types with a window, only what is later is drawn.
        excluded: by edge type, (sources, destinations) of edges that are not drawn; or empty.
        held_out: by edge type, others that are not drawn, which many requests share; or empty.
        weighted: draw in proportion to weights, where an edge type has them.
        latest: with `seed_times`, take the latest edges instead of drawing.
        positions: by edge type, whether blocks say where their edges lie; or empty.
        expand_once: a node draws in the layer after the one that found it, and in no other.
        windows: by edge type, with `seed_times`, only edges later than the time of a seed minus this are drawn; or
            empty.
    """

    def __init__(
        self,
        seeds: Sequence[Int64],
        fanouts: Int32,
        key: int,
        minibatch: int,
        *,
        slice_start: int | None = None,
        seed_times: Sequence[Int64] | None = None,
        seed_starts: Sequence[Int64] | None = None,
        excluded: Sequence[tuple[Int64, Int64] | None] = ...,
        held_out: Sequence[ExcludedEdges | None] = ...,
        weighted: bool = False,
        latest: bool = False,
        positions: Sequence[bool] = ...,
        expand_once: bool = False,
        windows: Sequence[int | None] = ...,
    ) -> None: ...

# Input nodes of each node type, trees of each, (indptr, indices, positions) by edge type of each block, outermost
# first, and [(layers + 1) * node types] counts of nodes: the sources of each block, then the seeds.
Drawn = tuple[
    list[npt.NDArray[Any]],
    list[Int32] | None,
    list[list[tuple[Int32, Int32, npt.NDArray[Any] | None]]],
    Int32,
]

class NeighborSampler:
    """Neighbour sampling without replacement over topologies that it keeps alive. Thread-safe."""

    @overload
    def __init__(self, indptr: Int64, indices: npt.NDArray[Any]) -> None:
        """Samples a graph of one type."""

    @overload
    def __init__(
        self, *, num_nodes: Sequence[int], relations: Sequence[Relation], node_times: Sequence[Int64 | None]
    ) -> None:
        """Samples a graph of types: nodes of each node type, each edge type, times of the nodes of each node type."""

    def cache_neighbors(self, starts: Int64, neighbors: npt.NDArray[Any]) -> None:
        """Look node v's in-neighbours up in neighbors[starts[v]:] from now on, unless starts[v] is -1; draws stay.

        Of the first edge type. Call it before any thread samples.
        """

    def draw(self, request: DrawRequest) -> Drawn:
        """Draws a minibatch. Its ids are int64 if the indices of some edge type are, otherwise int32.

        Raises:
            ValueError: a seed out of range, or repeated where seeds have no times; or a block of more than 2^31 - 1
                edges.
            IndexError: the topology leads outside of itself.
        """

def count_nodes(counts: Int32, nodes: npt.NDArray[Any]) -> None:
    """counts[nodes] += 1, also where a node is repeated.

    Raises:
        IndexError: a node out of range; nothing was counted.
    """

def mark_nodes(flags: npt.NDArray[np.bool_], nodes: npt.NDArray[Any]) -> None:
    """flags[nodes] = True.

    Raises:
        IndexError: a node out of range; nothing was set.
    """

def sort_nodes(nodes: npt.NDArray[Any], num_nodes: int) -> tuple[npt.NDArray[Any], Int32]:
    """(the nodes ascending, where each was); stable.

    Raises:
        IndexError: a node that is not in [0, num_nodes).
    """

def exchange_next_uses(next_use: Int32, nodes: npt.NDArray[Any], batch: int, first_node: int = 0) -> Int32:
    """next_use[nodes - first_node], which is then set to `batch` where it was not negative.

    One step of the backward pass that finds next uses.

    Raises:
        IndexError: a node out of range.
    """

def count_next_uses(next_uses: Int32, num_batches: int) -> Int32:
    """[M * 2] a next use, how many accesses have it; ascending. -1, which stands for a static row, is left out.

    Raises:
        IndexError: a next use that is not in [-1, 2 * num_batches).
    """

def belady_misses(bounds: Int64, pairs: Int32, capacity: int, from_empty: bool = False) -> Int32:
    """The rows that each minibatch reads when a cache of `capacity` rows follows Belady's MIN with bypass: [B].

    Pairs [bounds[t], bounds[t + 1]) are what `count_next_uses` said of minibatch t (native/packing/belady.h).
    `from_empty`: once, with a cache that is empty at the start, instead of for ever.
    """

class BeladyPlanner:
    """Gives slots to the rows that Belady's MIN keeps over a cyclic sequence (native/packing/belady.h).

    `find_initial` for every minibatch from the last one backwards, until it returns True; then `place` for every
    minibatch. Not thread-safe.
    """

    def __init__(self, location: Int32, num_static: int, capacity: int, misses: Int32, first_uses: Int32) -> None:
        """`location` [N] is worked in: on entry 0, or 1 + the rank of a static row.

        `misses` [B]: see `belady_misses`; `first_uses` [B]: how many rows each minibatch is the first to need.
        """

    def find_initial(self, nodes: npt.NDArray[Any], next_uses: Int32) -> bool:
        """True when the remaining minibatches need not be looked at; `nodes` are ascending.

        Raises:
            IndexError: a node that is not in [0, N), a next use that is not in [-1, 2 B).
        """

    def place(self, nodes: npt.NDArray[Any], order: Int32, next_uses: Int32) -> tuple[Int32, npt.NDArray[Any], Int32]:
        """(addresses [U], disk_nodes [R] ascending, admissions [A * 2] as extent row, slot).

        `nodes` are ascending and `order` says where each was; addresses are in the order of the minibatch.

        Raises:
            IndexError: as `find_initial`, or an `order` that is not in [0, U).
        """

    def initial_cpu_nodes(self) -> Int64:
        """Nodes resident when a cycle starts, by slot, ascending."""

    def next_cycle_slots(self) -> Int32:
        """[C]: the next cycle's slot i takes the row in this cycle's slot [i]."""

def crc32c_chunks(data: Buffer, chunk_bytes: int, crc: int = 0) -> tuple[npt.NDArray[np.uint32], int]:
    """(the checksum of each `chunk_bytes` of `data` by itself, `crc` continued over all of it)."""

def first_damaged_chunk(
    data: Buffer, chunk_bytes: int, chunks: npt.NDArray[np.int64], expected: npt.NDArray[np.uint32]
) -> int:
    """Returns the first i for which chunk number chunks[i] of `data` has another checksum than expected[i], or -1."""

def crc32c_combine(crc_a: int, crc_b: int, bytes_b: int) -> int:
    """Returns the CRC-32C of A followed by B, from those of A and B and the length of B."""

def crc32c_part(data: Buffer, bytes_after: int) -> int:
    """Returns what `data`, with `bytes_after` more behind it, adds (by exclusive or) to the remainder of zeros."""

def crc32c_of_remainder(remainder: int, total_bytes: int) -> int:
    """Returns the CRC-32C of a file, from the remainder that all its parts add up to, in any order."""

def io_uring_refusal() -> str:
    """Says why io_uring cannot be used here; empty when it can."""

LEAST_KEPT_BYTES: int  # of memory that `KeptPages` keeps

class KeptPages:
    """While one is alive, memory of `page_memory`, of loaders, of packing and of the arrays that functions of this
    module return is kept when it is given back, up to `most_bytes`, for what takes as much next. The system takes it if
    it lacks memory.
    """

    def __init__(self, most_bytes: int) -> None: ...

def page_memory(bytes: int, sparse: bool = False) -> npt.NDArray[np.uint8]:  # noqa: A002
    """[bytes] that direct reads can go to: page-aligned, in huge pages where there are any. It may hold anything.

    What is `sparse` holds zeros, most of which may stay untouched: the system counts none of it in advance, so there
    may be more of it than memory, and a process that has it can fork.
    """

def drop_pages(memory: npt.NDArray[np.uint8]) -> None:
    """Free the pages that lie in `memory`, of `page_memory`, as a whole: they hold zeros until they are written."""

def read_ranges(
    path: str, engine: str, offsets: Int64, lengths: Int64, places: Int64, destination: npt.NDArray[np.uint8]
) -> None:
    """Read byte ranges of a file past the page cache; what is at offsets[i] lands at destination[places[i]].

    Ranges are widened to 4096 bytes: `destination`'s memory is aligned to that and covers the widened ranges, and each
    place is as far from a multiple of that as its offset. `engine` is 'auto', 'io_uring' or 'threads'.

    Raises:
        OSError: the file cannot be opened or read, or ends before a range does.
    """

class RowCache:
    """Which rows an online eviction policy keeps (native/baselines/row_cache.h). Not thread-safe.

    Raises:
        ValueError: a policy other than 'lru', 's3-fifo' and 'sieve', or a capacity below 1.
    """

    def __init__(self, policy: str, num_nodes: int, capacity: int) -> None: ...
    def lookup(self, nodes: npt.NDArray[Any]) -> tuple[Int32, Int32]:
        """(slots [U], -1 where the row has to be read; admissions [A * 2] as position in `nodes`, slot, in order).

        Raises:
            IndexError: a node out of range.
        """

class RowReader:
    """Rows of a file, row i at data_offset + i * row_bytes, read at random (native/baselines/row_reader.h).

    Not thread-safe.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is too short.
    """

    def __init__(self, path: str, data_offset: int, row_bytes: int, num_rows: int, engine: str = "auto") -> None: ...
    def gather(
        self,
        nodes: npt.NDArray[Any],
        slots: Int32,
        admissions: Int32,
        cache: npt.NDArray[np.uint8],
        x: npt.NDArray[np.uint8],
    ) -> tuple[int, int]:
        """Fill x [U * row_bytes] from `cache` and the file, then admit rows into `cache`: (requests, bytes read).

        Raises:
            OSError: a read failed; the reader cannot be used any more.
            IndexError: a node, slot or position out of range.
        """

    @property
    def engine(self) -> str: ...

def fill_record_features(
    records: npt.NDArray[np.uint8],
    row_bytes: int,
    columns: npt.NDArray[np.int64],
    scales: npt.NDArray[np.float64],
    code_scale: npt.NDArray[np.float32],
    code_zero_point: npt.NDArray[np.float32],
    places: npt.NDArray[np.int32] | None,
    out: npt.NDArray[np.float32],
    threads: int,
) -> None:
    """Fill out [U * D] with the features of records (native/files/record_features.h).

    Args:
        records: [R * row_bytes].
        columns: [6 * C], what `FeatureColumn` there has.
        scales: [2 * C] means and deviations.
        code_scale, code_zero_point: of quantised codes.
        places: [U] of the record of each row; None: U is R, and each record is a row.

    Raises:
        IndexError: a place outside.
        ValueError: lengths that do not fit each other, or a column that does not lie in its record.
    """

def dequantise_rows(
    codes: npt.NDArray[np.uint8],
    bits: int,
    scale: npt.NDArray[np.float32],
    zero_point: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    threads: int,
) -> None:
    """Fill out [n * D] with (code - zero_point) * scale (native/files/row_widening.h).

    Args:
        codes: [n * D] signed bytes, or with `bits` 4 [n * ceil(D / 2)] of two codes a byte, the low half first.

    Raises:
        ValueError: lengths that do not fit each other.
    """

def gather_rows(
    source: npt.NDArray[np.uint8], row_bytes: int, nodes: npt.NDArray[Any], x: npt.NDArray[np.uint8], threads: int
) -> None:
    """x [U * row_bytes] = rows `nodes` of `source`, by several threads.

    Raises:
        IndexError: a node out of range.
    """

def copy_rows_at(
    source: npt.NDArray[np.uint8], row_bytes: int, places: npt.NDArray[np.int64], x: npt.NDArray[np.uint8]
) -> None:
    """x [n * row_bytes] = the rows that begin at `places` [n] of `source`, in bytes (native/files/row_copy.h).

    Raises:
        IndexError: a place where no row begins.
    """

def copy_rows_to(
    rows: npt.NDArray[np.uint8],
    row_bytes: int,
    places: npt.NDArray[np.int64],
    segments: list[npt.NDArray[np.uint8]],
    segment_bytes: int,
) -> None:
    """Row i of `rows` [n * row_bytes] goes to places[i] of `segments`, or nowhere if that is negative
    (native/files/row_copy.h).

    Place p is byte p % segment_bytes of segment p // segment_bytes; each has at most `segment_bytes`.

    Raises:
        IndexError: a place where no row fits.
    """

def read_file_rows(descriptor: int, row_bytes: int, rows: npt.NDArray[np.int64], x: npt.NDArray[np.uint8]) -> None:
    """x [U * row_bytes] = rows of a file, asked for all at once, best in ascending order (native/files/row_io.h).

    Raises:
        OSError: the disk failed, or the file ends before a row does.
    """

def write_file_rows(descriptor: int, row_bytes: int, rows: npt.NDArray[np.int64], x: npt.NDArray[np.uint8]) -> None:
    """Rows of a file = x [U * row_bytes]; see `read_file_rows`.

    Raises:
        OSError: the disk failed or is full.
    """

class PageWriter:
    """Writes blocks in the background, from 16 MiB of its own (native/packing/page_writer.h)."""

    def __init__(self) -> None: ...
    def finish(self) -> None:
        """Wait until everything queued is written.

        Raises:
            OSError: something could not be.
        """

    def close(self) -> None:
        """Wait for what was queued, and join the threads."""

def start_extent(
    writer: PageWriter,
    path: str,
    offset: int,
    header: npt.NDArray[np.uint8],
    padding_bytes: int,
    tail: npt.NDArray[np.uint8],
) -> int:
    """Write what comes before an extent's rows; the header's CRC-32C (native/packing/extent_packer.h).

    The page that is not full is written, too, up to its end: `PageWriter.finish` before it is appended to.
    """

class ExtentRows:
    """The extents of one file, as far as their rows are concerned (native/packing/extent_packer.h).

    T extents, no two of which share a page. Keeps the arrays alive; the file is opened for each window.

    Raises:
        ValueError: the arrays do not describe the same extents.
    """

    def __init__(
        self,
        *,
        path: str,
        nodes: npt.NDArray[Any],
        bounds: Int64,
        offsets: Int64,
        cursors: Int64,
        checksums: npt.NDArray[np.uint32],
        tails: npt.NDArray[np.uint8],
        padding_bytes: Int64,
        row_bytes: int,
    ) -> None:
        """`nodes`: of all extents, int32 or int64, ascending in each; `bounds` [T+1]: extent t's are [bounds[t],
        bounds[t+1]); `offsets` [T]: of its row 0 in the file; `cursors` [T]: its next node in `nodes`; `checksums` [T]:
        of its rows written so far; `tails` [T * 4096]: of each, the page that is not full yet; `padding_bytes` [T]: of
        zeros behind its last row, less than a page.
        """

def pack_window(
    writer: PageWriter,
    extents: ExtentRows,
    rows: npt.NDArray[np.uint8],
    run_nodes: Int64,
    run_places: Int64,
    last_node: int,
    threads: int,
) -> None:
    """Append the rows of nodes before `last_node` to every extent that needs them.

    `rows` has runs of neighbouring nodes: the row of run_nodes[i] begins at run_places[i]. Both ascend. Advances
    `cursors` and `checksums`; windows come in ascending order.

    Raises:
        IndexError: an extent needs a row that the window does not have.
        OSError: the file cannot be opened, or a write failed.
    """

def flush_tails(writer: PageWriter, extents: ExtentRows) -> None:
    """Write the page of each extent that its rows have begun and not filled: `PageWriter.finish` before the next
    window.

    Raises:
        OSError: the file cannot be opened, or a write failed.
    """

def scatter_rows(
    descriptor: int,
    offset: int,
    num_rows: int,
    places: Int64,
    sources: Int64,
    window: npt.NDArray[np.uint8],
    row_bytes: int,
    threads: int,
) -> int:
    """Write the row at window[sources[i]] as row places[i] of the `num_rows` rows at `offset`; places ascend.

    Returns what they add to the file's remainder, see `crc32c_of_remainder`.
    """

class DamagedExtentError(RuntimeError):
    """An extent that is not what was packed."""

EXTENT_FIELDS: dict[str, int]  # where each field of an extent's index record lies, in bytes
ROWS_FIELDS: dict[str, int]  # and of the record of a row set's rows in an extent

class DamagedFileError(RuntimeError):
    """A file whose bytes do not have their checksums."""

class RowFile:
    """Row i starts at data_offset + i * row_bytes; a checksum of each DIRECT_ALIGNMENT bytes of the file. Keeps them.

    Example:
        RowFile(path="features.npy", data_offset=128, row_bytes=512, num_rows=1000, checksums=chunks)
    """

    def __init__(
        self, *, path: str, data_offset: int, row_bytes: int, num_rows: int, checksums: npt.NDArray[np.uint32]
    ) -> None: ...

class Tiers:
    """Says where rows are in memory (native/loading/extent_pipeline.h). Keeps the arrays."""

    def __init__(
        self,
        *,
        row_bytes: int,
        num_device: int,  # rows that the device reads by itself: they are not staged
        num_static: int,
        pinned: npt.NDArray[np.uint8],
        cpu: npt.NDArray[np.uint8],
        next_cycle_slots: Int32,
        file: RowFile | None = None,  # that rows lie in whose numbers the extents have in their place
    ) -> None: ...

REQUEST_BYTES: int  # of a request at most
REQUEST_DEPTH: int  # requests that wait, or are taken and not finished

class FailedRequestError(RuntimeError):
    """A request that whoever took it could not bring."""

class ReadRequest:
    """Bytes that are wanted."""

    @property
    def offset(self) -> int:
        """The first of them."""

    @property
    def destination(self) -> npt.NDArray[np.uint8]:
        """Returns the memory for them, which is valid until the request is finished."""

class ReadRequests:
    """Has others read what a `Pipeline` asks for: any number of threads `take` and `finish`."""

    def __init__(self) -> None: ...
    def take(self) -> ReadRequest | None:
        """Returns the next request, once there is one; None after `close`. What is taken has to be finished."""

    def finish(self, request: ReadRequest, failed: bool) -> None:
        """Says that its bytes are there, or will not be."""

    def close(self) -> None:
        """Has whoever waits in `take` get None."""

class PipelineOptions:
    """Says how a `Pipeline` reads.

    Raises:
        ValueError: `prefetch` or `threads` is 0.
    """

    def __init__(self, *, prefetch: int = 2, threads: int = 1, verify: bool = True) -> None: ...

class Pipeline:
    """Reads extents ahead, assembles minibatches from the tiers, hands them out (native/loading/extent_pipeline.h).

    `extents` is [T, 3], the fields of `formats.extents.EXTENT_DTYPE`, and `rows` [T, K, 7], those of `ROWS_DTYPE`.
    `tiers` are those of the K row sets. `engine` reads the file `path`; or, with `requests`, somebody else does, and it
    has `num_bytes`.

    Raises:
        ValueError: the index does not fit the file, or the tiers do not fit each other; or there is no such engine.
    """

    def __init__(
        self,
        path: str,
        extents: Int64,
        rows: Int64,
        tiers: Sequence[Tiers],
        options: PipelineOptions,
        *,
        engine: str = "auto",
        requests: ReadRequests | None = None,
        num_bytes: int = 0,
    ) -> None: ...
    def set_order(self, order: Int64) -> None:
        """From now on, position i of the sequence is extent order[i].

        Raises:
            ValueError: no permutation, there is a cpu tier, or minibatches in another order are still to come.
        """

    def start(self, position: int, count: int) -> None:
        """Start at `position` of the sequence, to assemble `count`; `cpu` holds what the schedule says for it."""

    def extend(self, count: int) -> None:
        """Go on for `count` more minibatches."""

    def pause(self) -> None:
        """Join the threads and free all memory but the tiers', until `extend`.

        Raises:
            ValueError: minibatches are still to come.
        """

    def release_idle_buffers(self) -> None:
        """Let the system take the memory of free buffers, until the next minibatch is assembled."""

    def stop(self) -> None:
        """Join the threads; `cpu` is undefined afterwards. Idempotent."""

    def next(self) -> tuple[int, int, npt.NDArray[np.uint8], list[npt.NDArray[np.uint8]]]:
        """(position, number of its extent, header bytes, staged rows of each row set as bytes).

        All arrays hold the lease of one buffer.

        Raises:
            OSError: a read failed.
            RuntimeError: an extent is damaged, or the pipeline was stopped.
        """

    def stats(self) -> dict[str, Any]:
        """Counters, named as in `batch_source.LoadStats`."""

    def start_tracing(self) -> None:
        """Keep events from now on, at most 2^20 between two calls of `take_trace`."""

    def take_trace(self) -> tuple[list[tuple[str, int, int, int]], int]:
        """((stage, position of the minibatch, start, end in ns) since the last call, how many did not fit)."""

    def allocate_locked(self) -> list[tuple[int, int]]:
        """(address, bytes) of all kept buffers, allocated now to be page-locked; before `start`."""

# csc_builder: node ids (src, dst, edges, indices) are int32 or int64

def count_edges(
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    num_sources: int,
    num_nodes: int,
    shift: int,
    bin_edges: npt.NDArray[np.int64],
) -> int:
    """Add 1 to bin_edges[dst >> shift] per edge; how many edges precede the first with an id out of range."""

class EdgeBuffers:
    """Gathers the edges of each bucket in [cursors[b], ends[b]) of buffer [edges, 2], which it keeps alive.

    Raises:
        ValueError: cursors and ends differ in length.
    """

    def __init__(
        self,
        *,
        num_sources: int,
        num_nodes: int,
        shift: int,
        bucket_of_bin: Int32,
        buffer: npt.NDArray[Any],
        cursors: Int64,
        ends: Int64,
    ) -> None: ...
    def scatter(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], first: int, reverse: bool = False) -> int:
        """Append edges from number `first` on, moving the cursors; the number of the first without room. With `reverse`
        edge i is number 2 i, and number 2 i + 1 its reverse.

        Raises:
            IndexError: an id outside [0, num_nodes), or a bin without a bucket.
            ValueError: a bucket outside the buffer.
        """

def sort_bucket(
    edges: npt.NDArray[Any],
    first_node: int,
    self_loops: bool,
    drop_duplicates: bool,
    degrees: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
) -> int:
    """Sort edges [n, 2] into columns, each in the order of its sources' hashes (docs/FORMAT.md).

    Fills degrees and indices, returns the number of indices.
    """

def sort_bucket_with_order(
    edges: npt.NDArray[Any],
    first_node: int,
    degrees: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    order: npt.NDArray[np.int64],
    times: Int64 | None = None,
) -> None:
    """As `sort_bucket` with all edges kept; order [n] gets the number that each index has in `edges`.

    Equal edges keep their order. With `times` [n] of the edges, in-neighbours are sorted by these first.

    Raises:
        IndexError: a destination is in another bucket.
        ValueError: arrays differ in length.
    """

# id_ranges

def find_ranges(
    offsets: Int64,
    content: npt.NDArray[np.uint8],
    bound_offsets: Int64,
    bound_content: npt.NDArray[np.uint8],
    ranges: npt.NDArray[np.uint16],
) -> None:
    """For each of n strings, content[offsets[i]:offsets[i + 1]], how many of the ascending bounds are not above it.

    Raises:
        ValueError: offsets [n + 1] decrease or lead out of the content, or ranges is not [n].
    """

def hash_texts(offsets: Int64, content: npt.NDArray[np.uint8], codes: npt.NDArray[np.int8]) -> None:
    """Fills codes [n, width] with the vectors of n texts in UTF-8, content[offsets[i]:offsets[i + 1]], in steps of
    1/127; see docs/FORMAT.md. Codes may be a column of records: the numbers of a row lie side by side.

    Raises:
        ValueError: offsets [n + 1] decrease or lead out of the content, or codes are not as many.
    """

class FeatureType(enum.Enum):
    """The names are the keys of `row_format.FEATURE_STORAGE`, but int4."""

    float32 = 0
    float16 = 1
    bfloat16 = 2
    int8 = 3

class GraphGenerator:
    """A synthetic labelled graph; every item is a pure function of (seed, its number). Thread-safe.

    Methods fill their output arrays with consecutive items from number `first` on.

    Raises:
        ValueError: fewer than two nodes per class, or outputs of unequal or wrong shape.
    """

    def __init__(
        self,
        *,
        num_nodes: int,
        num_classes: int,
        homophily: float,
        num_features: int,
        feature_signal: float,
        seed: int,
    ) -> None: ...
    def edges(self, first: int, src: npt.NDArray[Any], dst: npt.NDArray[Any]) -> None:
        """Both int32 or both int64, of equal length; pairs may repeat, src and dst of an edge differ."""

    def edges_from(
        self,
        sources: GraphGenerator,
        key: int,
        homophily: float,
        first: int,
        src: npt.NDArray[Any],
        dst: npt.NDArray[Any],
    ) -> None:
        """Edges from nodes of `sources` to nodes of this one, drawn by `key`; otherwise as `edges`.

        Raises:
            ValueError: the numbers of classes differ.
        """

    def labels(self, first: int, out: Int64) -> None:
        """Classes of nodes."""

    def shuffled_nodes(self, first: int, out: Int64) -> None:
        """Part of an order of all nodes that has nothing to do with their class or degree."""

    def features(self, first: int, type: FeatureType, out: npt.NDArray[np.uint8]) -> None:  # noqa: A002
        """`out` [rows, row bytes]."""

class Expansion32:
    """A minibatch that is sampled layer by layer, its nodes int32 (native/sampling/expansion.h).

    For each layer: `TopologySweep.count`, `TopologySweep.draw`, `relabel`; after the last one, `take`. Those of one
    call have as many finished layers, and are of the same class.

    Raises:
        ValueError: a seed out of range or repeated.
    """

    def __init__(self, request: DrawRequest, files: GraphFiles) -> None: ...
    def relabel(self) -> None: ...
    def take(self) -> Drawn:
        """Returns what `NeighborSampler.draw` does; nothing is left here."""

    @property
    def layer(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """Returns what is held now."""

    @property
    def drawn_bytes(self) -> int:
        """Returns what `draw` will add; at most, where not all edges may be drawn."""

    @property
    def relabel_bytes(self) -> int:
        """Returns what `relabel` needs in passing, its result included; at most."""

    @property
    def next_layer_bytes(self) -> int:
        """Returns what will be held when the next layer is counted; at most."""

class Expansion64(Expansion32):
    """The same with int64 nodes."""

class TreeExpansion32(Expansion32):
    """The same with a tree for each seed, for requests with `seed_times`."""

class TreeExpansion64(Expansion32):
    """The same with int64 nodes."""

Column = tuple[str, int, int]  # path, where the data begin in the file in bytes, bytes of an item

class GraphFiles:
    """A topology on disk: nodes of each node type, the times of some, which it keeps alive, and the edge types.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, num_nodes: Sequence[int], node_times: Sequence[Int64 | None]) -> None: ...
    def add_relation(
        self,
        source: int,
        destination: int,
        *,
        num_edges: int,
        indptr: Column,
        indices: Column,
        weights: Column | None = None,
        times: Column | None = None,
        by_time: bool = False,
    ) -> None:
        """The next edge type: from nodes of type number `source` to those of `destination`."""

class TopologySweep:
    """Sweeps over a topology on disk, front to back, past the page cache.

    `threads` times READERS_PER_THREAD readers hold `window_bytes` of edges (a multiple of 4096) and half as much of
    indptr.
    """

    READERS_PER_THREAD: int

    def __init__(self, files: GraphFiles, *, engine: str, window_bytes: int, threads: int) -> None: ...
    def count(self, group: Sequence[Expansion32]) -> None:
        """Find out how many edges each minibatch will draw in its next layer: sweeps indptr.

        Raises:
            IndexError: the topology leads outside of itself.
            ValueError: a block of more than 2^31 - 1 edges.
            OSError: a read failed.
        """

    def draw(self, group: Sequence[Expansion32]) -> None:
        """Draw the neighbours of minibatches that were counted: sweeps indptr and indices. Raises what `count` does."""

    def stop(self) -> None:
        """Make `count` and `draw` raise RuntimeError soon, now and from now on. Callable from any thread."""

    @property
    def read_bytes(self) -> int:
        """By all sweeps so far."""
