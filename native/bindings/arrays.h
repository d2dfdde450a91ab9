// What all bindings share: how arrays come from Python and go back. Only this folder knows nanobind.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "files/read_engine.h"

namespace diskgnn {

namespace nb = nanobind;
using namespace nb::literals;

// One-dimensional arrays that Python owns, to read and to write.
template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A buffer of bytes; read-only ones are welcome.
using Bytes = In<std::uint8_t>;

template <typename T, typename... Options>
std::span<T> span_of(const nb::ndarray<T, Options...>& array) {
  return {array.data(), array.size()};
}

// A NumPy array that owns what was a vector, without copying it.
template <typename T, typename Allocator>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T, Allocator>&& values) {
  using Values = std::vector<T, Allocator>;
  auto* owned = new Values(std::move(values));
  nb::capsule owner(owned, [](void* pointer) noexcept { delete static_cast<Values*>(pointer); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

inline EngineKind engine_kind(const std::string& name) {
  if (name == "auto") return EngineKind::kAuto;
  if (name == "io_uring") return EngineKind::kIoUring;
  if (name == "threads") return EngineKind::kThreads;
  throw std::invalid_argument("engine: expected auto, io_uring or threads, found " + name);
}

// One function per file of this folder.
void bind_reading(nb::module_& m);
void bind_graphs(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_sweeping(nb::module_& m);
void bind_packing(nb::module_& m);
void bind_pipeline(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_propagation(nb::module_& m);

}  // namespace diskgnn
