// Checksums and reads.
#include <algorithm>
#include <limits>

#include "bindings/arrays.h"
#include "files/crc32c.h"
#include "files/direct_file.h"
#include "files/page_memory.h"
#include "files/read_ranges.h"
#include "files/read_rate.h"

namespace diskgnn {
namespace {

void read_ranges_into(const std::string& path, const std::string& engine, In<std::int64_t> offsets,
                      In<std::int64_t> lengths, In<std::int64_t> places, Out<std::uint8_t> destination) {
  require(offsets.size() == lengths.size() && offsets.size() == places.size(),
          "offsets, lengths and places differ in length");
  std::vector<ByteRange> ranges(offsets.size());
  std::vector<std::uint64_t> range_places(offsets.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    require(offsets(i) >= 0 && lengths(i) >= 0 && offsets(i) <= std::numeric_limits<std::int64_t>::max() - lengths(i),
            "offsets and lengths are at least 0");
    require(places(i) >= 0, "a range lies before the destination");
    ranges[i] = {static_cast<std::uint64_t>(offsets(i)), static_cast<std::uint64_t>(lengths(i))};
    range_places[i] = static_cast<std::uint64_t>(places(i));
  }
  nb::gil_scoped_release release;
  const DirectFile file(path);
  read_ranges(file, engine_kind(engine), ranges, range_places, std::as_writable_bytes(span_of(destination)));
}

}  // namespace

void bind_reading(nb::module_& m) {
  m.attr("HAVE_IO_URING") = has_io_uring();
  m.attr("DIRECT_ALIGNMENT") = kDirectAlignment;

  m.def(
      "measure_reads",
      [](const std::string& path, In<std::uint64_t> offsets, std::uint64_t bytes_each, unsigned depth,
         double max_seconds, const std::string& engine) {
        ReadRate rate;
        {
          nb::gil_scoped_release release;
          rate = measure_reads(DirectFile(path), engine_kind(engine), span_of(offsets), bytes_each, depth, max_seconds);
        }
        return nb::make_tuple(rate.engine, rate.direct, rate.read_bytes, rate.seconds);
      },
      "path"_a, "offsets"_a.noconvert(), "bytes_each"_a, "depth"_a, "max_seconds"_a, "engine"_a = "auto");

  m.def(
      "crc32c",
      [](Bytes data, std::uint32_t crc) {
        nb::gil_scoped_release release;
        return crc32c(std::as_bytes(std::span(data.data(), data.size())), crc);
      },
      "data"_a, "crc"_a = 0);
  m.def("crc32c_methods", [] {
    nb::list names;
    for (const Crc32cMethod& method : crc32c_methods()) names.append(method.name);
    return names;
  });
  m.def(
      "crc32c_by",
      [](const std::string& name, Bytes data, std::uint32_t crc) {
        const auto method = std::ranges::find(crc32c_methods(), name, &Crc32cMethod::name);
        require(method != crc32c_methods().end(), "method: expected one of crc32c_methods()");
        return ~method->advance(std::as_bytes(span_of(data)).data(), data.size(), ~crc);
      },
      "method"_a, "data"_a, "crc"_a = 0);
  m.def(
      "crc32c_chunks",
      [](Bytes data, std::size_t chunk_bytes, std::uint32_t crc) {
        require(chunk_bytes > 0, "chunk_bytes: expected at least 1");
        std::vector<std::uint32_t> chunks((data.size() + chunk_bytes - 1) / chunk_bytes);
        {
          nb::gil_scoped_release release;
          crc = crc32c_chunks(std::as_bytes(span_of(data)), chunk_bytes, crc, chunks);
        }
        return nb::make_tuple(to_numpy(std::move(chunks)), crc);
      },
      "data"_a, "chunk_bytes"_a, "crc"_a = 0);
  m.def(
      "first_damaged_chunk",
      [](Bytes data, std::size_t chunk_bytes, In<std::int64_t> chunks, In<std::uint32_t> expected) {
        require(chunk_bytes > 0, "chunk_bytes: expected at least 1");
        require(chunks.size() == expected.size(), "chunks and expected differ in length");
        const std::size_t num_chunks = (data.size() + chunk_bytes - 1) / chunk_bytes;
        for (const std::int64_t chunk : span_of(chunks)) {
          require(chunk >= 0 && static_cast<std::size_t>(chunk) < num_chunks, "chunks: not all are in data");
        }
        nb::gil_scoped_release release;
        const std::size_t first =
            first_damaged_chunk(std::as_bytes(span_of(data)), chunk_bytes, span_of(chunks), span_of(expected));
        return first == chunks.size() ? -1 : static_cast<std::int64_t>(first);
      },
      "data"_a, "chunk_bytes"_a, "chunks"_a.noconvert(), "expected"_a.noconvert());
  m.def("crc32c_combine", &crc32c_combine, "crc_a"_a, "crc_b"_a, "bytes_b"_a);
  m.def(
      "crc32c_part",
      [](Bytes data, std::uint64_t bytes_after) { return crc32c_part(std::as_bytes(span_of(data)), bytes_after); },
      "data"_a, "bytes_after"_a);
  m.def("crc32c_of_remainder", &crc32c_of_remainder, "remainder"_a, "total_bytes"_a);
  m.def("io_uring_refusal", &io_uring_refusal);
  m.attr("LEAST_KEPT_BYTES") = kLeastKeptBytes;
  nb::class_<KeptPages>(m, "KeptPages").def(nb::init<std::size_t>(), "most_bytes"_a);
  m.def(
      "page_memory",
      [](std::size_t bytes, bool sparse) {
        auto* const memory = new PageMemory(bytes, sparse ? Content::kSparse : Content::kAny);
        const nb::capsule owner(memory, [](void* pointer) noexcept { delete static_cast<PageMemory*>(pointer); });
        auto* const data = reinterpret_cast<std::uint8_t*>(memory->bytes().data());
        return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {bytes}, owner);
      },
      "bytes"_a, "sparse"_a = false);
  m.def(
      "drop_pages", [](Out<std::uint8_t> memory) { drop_pages(std::as_writable_bytes(span_of(memory))); },
      "memory"_a.noconvert());
  m.def("read_ranges", &read_ranges_into, "path"_a, "engine"_a, "offsets"_a.noconvert(), "lengths"_a.noconvert(),
        "places"_a.noconvert(), "destination"_a.noconvert());
}

}  // namespace diskgnn
