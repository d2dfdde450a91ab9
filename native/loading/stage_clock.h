// What the pipeline's threads do when: seconds per stage always, single events on request.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace diskgnn {

enum class Stage : std::uint8_t { kWaitForConsumer, kWaitForDisk, kHeader, kGather, kScatter, kRead };
inline constexpr std::size_t kNumStages = 6;

// "wait for disk" and the like.
const char* stage_name(Stage stage);

// CLOCK_MONOTONIC, as Python's time.perf_counter_ns.
inline std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

struct StageEvent {
  Stage stage;
  std::int64_t position;  // of the minibatch in the sequence; of a kRead: of that which its first byte belongs to
  std::int64_t start_ns, end_ns;
};

// Events of several threads, kept from `start` on. When kMaxEvents are kept, later ones are only counted.
class StageTrace {
 public:
  static constexpr std::size_t kMaxEvents = 1 << 20;  // 32 MiB

  void start();
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void add(StageEvent event);

  struct Taken {
    std::vector<StageEvent> events;
    std::size_t lost = 0;
  };
  // What was kept since the last call.
  Taken take();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::int64_t started_ns_ = 0;
  Taken kept_;
};

// One thread's time: in every moment between `begin` and `end` it is in one stage. Totals may be read by others.
class StageClock {
 public:
  explicit StageClock(StageTrace& trace) : trace_(trace) {}

  void begin(std::int64_t position, Stage stage);
  void enter(Stage stage);  // ends the stage before
  void end() { enter(stage_); }

  Stage stage() const { return stage_; }
  double seconds(Stage stage) const { return static_cast<double>(total_ns_[static_cast<std::size_t>(stage)]) * 1e-9; }

 private:
  StageTrace& trace_;
  Stage stage_ = Stage::kWaitForConsumer;
  std::int64_t position_ = 0, start_ns_ = 0;
  std::array<std::atomic<std::int64_t>, kNumStages> total_ns_{};
};

}  // namespace diskgnn
