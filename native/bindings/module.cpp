// The extension module: errors, and what the other files of this folder bind.
#include <cerrno>
#include <exception>
#include <system_error>

#include "bindings/arrays.h"
#include "files/read_engine.h"
#include "files/write_failed.h"

namespace diskgnn {
namespace {

// nanobind turns std::system_error into RuntimeError and drops errno. Raise what Python code raises, where it reads
// itself: ArtifactError for a file that is too short, ReadError for a disk that failed, otherwise, and for all that is
// written, the OSError that Python has for it.
void translate_errors(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const TruncatedFile& error) {
    PyErr_SetString(nb::module_::import_("diskgnn.errors").attr("ArtifactError").ptr(), error.what());
  } catch (const WriteFailed& error) {
    const nb::object raised = nb::borrow(PyExc_OSError)(error.code().value(), error.what());
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
  } catch (const std::system_error& error) {
    const nb::object args = nb::make_tuple(error.code().value(), error.what());
    const bool disk_failed = error.code().value() == EIO || error.code().value() == ETIMEDOUT;
    const nb::object kind =
        disk_failed ? nb::module_::import_("diskgnn.errors").attr("ReadError") : nb::borrow(PyExc_OSError);
    // An instance, whose class errno chooses: Python 3.10 compares `except FileNotFoundError` with the class given
    // here.
    const nb::object raised = kind(*args);
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
  }
}

}  // namespace
}  // namespace diskgnn

NB_MODULE(_native, m) {
  using namespace diskgnn;
  nb::register_exception_translator(translate_errors);
  nb::set_leak_warnings(false);  // a Loader that is alive when the interpreter ends is no leak
  bind_reading(m);
  bind_graphs(m);
  bind_sampling(m);
  bind_sweeping(m);
  bind_packing(m);
  bind_pipeline(m);
  bind_rows(m);
  bind_propagation(m);
}
