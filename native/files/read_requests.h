// Reads that are made outside of this library: others take what is asked for, and say when it is there.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "files/read_engine.h"

namespace diskgnn {

inline constexpr std::size_t kRequestBytes = 4 << 20;  // of one request at most
inline constexpr unsigned kRequestDepth = 8;           // requests in flight

// A read that whoever took it could not make, and knows why.
struct FailedRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Any number of threads `take` and `finish`; one engine at a time asks.
class ReadRequests {
 public:
  // The next request, once there is one; nothing after `close`. What is taken has to be finished.
  std::optional<ReadRequest> take();
  void finish(const ReadRequest& request, bool failed);

  // Wakes whoever waits in `take`.
  void close();

  // Asks for what is submitted. Destroying it waits for what was taken. It must not outlive this.
  std::unique_ptr<ReadEngine> engine();

 private:
  class Engine;
  struct Completion {
    std::uint64_t tag;
    bool failed;
  };

  std::mutex mutex_;
  std::condition_variable asked_, finished_;
  std::deque<ReadRequest> waiting_;
  std::deque<Completion> done_;
  unsigned taken_ = 0;  // and not finished
  bool closed_ = false;
};

}  // namespace diskgnn
