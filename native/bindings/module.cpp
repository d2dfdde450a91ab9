// The extension module: errors, and what the other files of this folder bind.
#include <cerrno>
#include <exception>
#include <system_error>

#include "bindings/arrays.h"

namespace diskgnn {
namespace {

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
  nb::set_leak_warnings(false);  // a Loader that is alive when the interpreter ends is no leak
  bind_reading(m);
  bind_graphs(m);
  bind_sampling(m);
  bind_packing(m);
  bind_pipeline(m);
  bind_rows(m);
}
