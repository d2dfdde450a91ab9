#include "loading/stage_clock.h"

#include <algorithm>
#include <utility>

namespace diskgnn {

const char* stage_name(Stage stage) {
  static constexpr std::array<const char*, kNumStages> kNames{"wait for consumer", "wait for disk", "header", "gather",
                                                              "scatter",           "read"};
  return kNames[static_cast<std::size_t>(stage)];
}

void StageTrace::start() {
  std::lock_guard lock(mutex_);
  kept_ = {};
  started_ns_ = now_ns();
  on_ = true;
}

void StageTrace::add(StageEvent event) {
  std::lock_guard lock(mutex_);
  if (event.end_ns <= started_ns_) return;
  event.start_ns = std::max(event.start_ns, started_ns_);
  if (kept_.events.size() < kMaxEvents) {
    kept_.events.push_back(event);
  } else {
    ++kept_.lost;
  }
}

StageTrace::Taken StageTrace::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(kept_, {});
}

void StageClock::begin(std::int64_t position, Stage stage) {
  position_ = position;
  stage_ = stage;
  start_ns_ = now_ns();
}

void StageClock::enter(Stage stage) {
  const std::int64_t now = now_ns();
  total_ns_[static_cast<std::size_t>(stage_)] += now - start_ns_;
  if (trace_.is_on()) trace_.add({stage_, position_, start_ns_, now});
  stage_ = stage;
  start_ns_ = now;
}

}  // namespace diskgnn
