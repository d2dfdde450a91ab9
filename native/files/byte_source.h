// Where a stream of bytes is read from, and what makes the reads: a file of this machine, or ranges that others bring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "files/direct_file.h"
#include "files/read_engine.h"
#include "files/read_requests.h"

namespace diskgnn {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  virtual std::uint64_t size_bytes() const = 0;
  virtual const std::string& path() const = 0;  // for messages

  // What is worth one read, and how many of them in flight.
  virtual std::size_t chunk_bytes() const = 0;
  virtual unsigned depth() const = 0;

  // Makes the reads. One at a time is in use.
  virtual std::unique_ptr<ReadEngine> engine(std::span<std::byte> registered) const = 0;
};

class FileSource final : public ByteSource {
 public:
  FileSource(const std::string& path, EngineKind kind) : file_(path), kind_(kind) {}

  std::uint64_t size_bytes() const override { return file_.size_bytes(); }
  const std::string& path() const override { return file_.path(); }
  std::size_t chunk_bytes() const override { return 512 << 10; }
  unsigned depth() const override { return 16; }
  std::unique_ptr<ReadEngine> engine(std::span<std::byte> registered) const override {
    return make_read_engine(kind_, file_, depth(), registered);
  }

 private:
  const DirectFile file_;
  const EngineKind kind_;
};

// An object of a store: a request takes 20 ms and more whatever it brings, so that it has to bring much.
class RequestedSource final : public ByteSource {
 public:
  RequestedSource(std::string path, std::uint64_t size_bytes, std::shared_ptr<ReadRequests> requests)
      : path_(std::move(path)), size_bytes_(size_bytes), requests_(std::move(requests)) {}

  std::uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& path() const override { return path_; }
  std::size_t chunk_bytes() const override { return kRequestBytes; }
  unsigned depth() const override { return kRequestDepth; }
  std::unique_ptr<ReadEngine> engine(std::span<std::byte> /*registered*/) const override { return requests_->engine(); }

 private:
  const std::string path_;
  const std::uint64_t size_bytes_;
  const std::shared_ptr<ReadRequests> requests_;
};

}  // namespace diskgnn
