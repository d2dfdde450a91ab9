// The only file that knows Python: it checks shapes, releases the GIL and translates errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <span>
#include <system_error>

#include "crc32c.h"

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
}
