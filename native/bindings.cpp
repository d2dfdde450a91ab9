// The only file that knows Python: it checks shapes, releases the GIL and translates errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <span>
#include <stdexcept>
#include <system_error>

#include "crc32c.h"
#include "csc_builder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace diskgnn {
namespace {

// A buffer of bytes that Python owns; read-only ones are welcome.
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// nanobind turns std::system_error into RuntimeError and drops errno: raise the OSError that Python has for it.
void translate_system_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const std::system_error& error) {
    nb::object args = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, args.ptr());
  }
}

// csc_builder
template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class Index>
using EdgeArray = nb::ndarray<Index, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> as_span(const Array<T>& array) {
  return {array.data(), array.size()};
}

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

template <class Id>
void bind_count_edges(nb::module_& m) {
  m.def(
      "count_edges",
      [](Array<const Id> src, Array<const Id> dst, std::int64_t num_nodes, int shift,
         Array<std::int64_t> bin_edges) {
        require(src.size() == dst.size(), "src and dst differ in length");
        require(num_nodes == 0 || static_cast<std::uint64_t>(num_nodes - 1) >> shift < bin_edges.size(),
                "fewer bins than the nodes need");
        nb::gil_scoped_release release;
        return count_edges<Id>(as_span(src), as_span(dst), num_nodes, shift, as_span(bin_edges));
      },
      "src"_a.noconvert(), "dst"_a.noconvert(), "num_nodes"_a, "shift"_a, "bin_edges"_a.noconvert());
}

template <class Id, class Index>
void bind_scatter_edges(nb::module_& m) {
  m.def(
      "scatter_edges",
      [](Array<const Id> src, Array<const Id> dst, std::int64_t first, int shift,
         Array<const std::int32_t> bucket_of_bin, EdgeArray<Index> buffer, Array<std::int64_t> cursors,
         Array<const std::int64_t> ends) {
        require(src.size() == dst.size(), "src and dst differ in length");
        require(first >= 0, "first is negative");
        require(cursors.size() == ends.size(), "cursors and ends differ in length");
        nb::gil_scoped_release release;
        const auto limit = static_cast<std::int64_t>(buffer.shape(0));
        for (std::size_t i = 0; i < ends.size(); ++i) {
          require(0 <= cursors.data()[i] && cursors.data()[i] <= ends.data()[i] && ends.data()[i] <= limit,
                  "a bucket lies outside the buffer");
        }
        std::span edges(reinterpret_cast<Edge<Index>*>(buffer.data()), buffer.shape(0));
        return scatter_edges<Id, Index>(as_span(src), as_span(dst), first, shift, as_span(bucket_of_bin), edges,
                                        as_span(cursors), as_span(ends));
      },
      "src"_a.noconvert(), "dst"_a.noconvert(), "first"_a, "shift"_a, "bucket_of_bin"_a.noconvert(),
      "buffer"_a.noconvert(), "cursors"_a.noconvert(), "ends"_a.noconvert());
}

template <class Index>
void bind_sort_bucket(nb::module_& m) {
  m.def(
      "sort_bucket",
      [](EdgeArray<const Index> edges, std::int64_t first_node, bool self_loops, bool drop_duplicates,
         Array<std::int64_t> degrees, Array<Index> indices) {
        const std::size_t room = edges.shape(0) + (self_loops ? degrees.size() : 0);
        require(indices.size() >= room, "indices is too short");
        nb::gil_scoped_release release;
        std::span bucket(reinterpret_cast<const Edge<Index>*>(edges.data()), edges.shape(0));
        return sort_bucket<Index>(bucket, first_node, self_loops, drop_duplicates, as_span(degrees),
                                  as_span(indices));
      },
      "edges"_a.noconvert(), "first_node"_a, "self_loops"_a, "drop_duplicates"_a, "degrees"_a.noconvert(),
      "indices"_a.noconvert());
}

void bind_csc_builder(nb::module_& m) {
  bind_count_edges<std::int32_t>(m);
  bind_count_edges<std::int64_t>(m);
  bind_scatter_edges<std::int32_t, std::int32_t>(m);
  bind_scatter_edges<std::int32_t, std::int64_t>(m);
  bind_scatter_edges<std::int64_t, std::int32_t>(m);
  bind_scatter_edges<std::int64_t, std::int64_t>(m);
  bind_sort_bucket<std::int32_t>(m);
  bind_sort_bucket<std::int64_t>(m);
}

}  // namespace
}  // namespace diskgnn

NB_MODULE(_native, m) {
  using namespace diskgnn;
  nb::register_exception_translator(translate_system_error);

  m.def(
      "crc32c",
      [](Bytes data, std::uint32_t crc) {
        nb::gil_scoped_release release;
        return crc32c(std::as_bytes(std::span(data.data(), data.size())), crc);
      },
      "data"_a, "crc"_a = 0);

  bind_csc_builder(m);
}
