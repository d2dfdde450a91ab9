// Reads that are made at once by whoever asks for them: no threads, no rings.
#pragma once

#include <cstdint>
#include <deque>

#include "files/read_engine.h"
#include "fuzz/input.h"

namespace diskgnn {

// `read` fills a request's destination, and throws TruncatedFile where there are not as many bytes as it requires.
template <typename Read>
class ImmediateEngine final : public ReadEngine {
 public:
  explicit ImmediateEngine(const Read& read) : read_(read) {}

  void submit(const ReadRequest& request) override {
    read_(request);
    done_.push_back(request.tag);
  }
  std::uint64_t wait() override {
    must(!done_.empty());
    const std::uint64_t tag = done_.front();
    done_.pop_front();
    return tag;
  }
  const char* name() const override { return "immediate"; }

 private:
  const Read read_;
  std::deque<std::uint64_t> done_;
};

}  // namespace diskgnn
