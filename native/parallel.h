// Runs one function on several threads and waits; the first exception is thrown here.
#pragma once

#include <exception>
#include <mutex>
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
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < num_threads; ++i) threads.emplace_back(guarded);
  guarded();
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace diskgnn
