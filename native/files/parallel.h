// Runs one function on several threads (fewer, where the system gives no more) and waits; the first exception is thrown
// here.
#pragma once

#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace diskgnn {

template <typename Work>
void run_on_threads(unsigned num_threads, const Work& work) {
  std::exception_ptr failure;
  std::mutex mutex;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;  // joined at the end of the block, whatever happens in it
    threads.reserve(num_threads);
    try {
      for (unsigned i = 1; i < num_threads; ++i) threads.emplace_back(guarded);
    } catch (const std::system_error&) {
      // The system gives no more threads: those that started, and this one, do the work.
    }
    guarded();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace diskgnn
