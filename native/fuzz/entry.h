// What libFuzzer calls, once for each input. A target includes this, and defines `execute`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fuzz/input.h"

namespace diskgnn {

// Ends the process where a promise is broken.
void execute(Input& input);

// Calls, and takes the errors that refuse what a stranger made. Any other one ends the process.
template <typename Refusal, typename... Others, typename Call>
void unless_refused(const Call& call) {
  try {
    if constexpr (sizeof...(Others) > 0) {
      unless_refused<Others...>(call);
    } else {
      call();
    }
  } catch (const Refusal&) {
  }
}

}  // namespace diskgnn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  diskgnn::Input input(data, size);
  diskgnn::execute(input);
  return 0;
}

// Most of an execution is allocating. What was freed is poisoned for a while, in less memory than is usual, so that it
// is in the cache; threads have no shadow stacks.
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=4:malloc_context_size=4:detect_stack_use_after_return=0";
}
