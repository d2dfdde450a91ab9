#include "files/read_rate.h"

#include <chrono>
#include <memory>

#include "files/page_memory.h"

namespace diskgnn {

ReadRate measure_reads(const DirectFile& file, EngineKind kind, std::span<const std::uint64_t> offsets,
                       std::uint64_t bytes_each, unsigned depth, double max_seconds) {
  const PageMemory memory(bytes_each * depth);
  const std::span<std::byte> buffers = memory.bytes();
  // Declared after the buffers: it waits for what is in flight before they are freed.
  const std::unique_ptr<ReadEngine> engine = make_read_engine(kind, file, depth, buffers);

  const auto started = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  std::uint64_t next = 0, done = 0;
  const auto submit = [&](std::uint64_t buffer) {
    engine->submit({offsets[next++], buffers.subspan(buffer * bytes_each, bytes_each), bytes_each, buffer});
  };
  while (next < depth && next < offsets.size()) submit(next);
  while (done < next) {
    const std::uint64_t buffer = engine->wait();
    ++done;
    if (next < offsets.size() && seconds() < max_seconds) submit(buffer);
  }
  return {engine->name(), file.is_direct(), done * bytes_each, seconds()};
}

}  // namespace diskgnn
