#include "files/read_requests.h"

namespace diskgnn {

class ReadRequests::Engine final : public ReadEngine {
 public:
  explicit Engine(ReadRequests& requests) : requests_(requests) {}

  ~Engine() override {
    std::unique_lock lock(requests_.mutex_);
    requests_.waiting_.clear();
    requests_.finished_.wait(lock, [this] { return requests_.taken_ == 0; });
    requests_.done_.clear();
  }

  void submit(const ReadRequest& request) override {
    {
      std::lock_guard lock(requests_.mutex_);
      requests_.waiting_.push_back(request);
    }
    requests_.asked_.notify_one();
  }

  std::uint64_t wait() override {
    std::unique_lock lock(requests_.mutex_);
    requests_.finished_.wait(lock, [this] { return !requests_.done_.empty() || requests_.closed_; });
    if (requests_.done_.empty()) throw FailedRequest("nobody makes reads any more");
    const Completion completion = requests_.done_.front();
    requests_.done_.pop_front();
    if (completion.failed) throw FailedRequest("a read was not made");
    return completion.tag;
  }

  const char* name() const override { return "requests"; }

 private:
  ReadRequests& requests_;
};

std::optional<ReadRequest> ReadRequests::take() {
  std::unique_lock lock(mutex_);
  asked_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
  if (closed_) return std::nullopt;
  const ReadRequest request = waiting_.front();
  waiting_.pop_front();
  ++taken_;
  return request;
}

void ReadRequests::finish(const ReadRequest& request, bool failed) {
  {
    std::lock_guard lock(mutex_);
    --taken_;
    done_.push_back({request.tag, failed});
  }
  finished_.notify_all();
}

void ReadRequests::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  asked_.notify_all();
  finished_.notify_all();
}

std::unique_ptr<ReadEngine> ReadRequests::engine() { return std::make_unique<Engine>(*this); }

}  // namespace diskgnn
