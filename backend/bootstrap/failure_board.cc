#include "backend/bootstrap/failure_board.h"

#include "backend/base/log.h"
#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

constexpr const char* kFailureKey = "shardwire/failed";
constexpr std::size_t kMaxFailureBytes = 8192;

}  // namespace

std::string encodeFailure(const Status& failure) {
  ByteWriter writer;
  statusField(writer, failure, kMaxFailureBytes);
  return writer.bytes();
}

std::optional<Status> decodeFailure(std::string_view bytes) {
  ByteReader reader(bytes);
  Status failure = readStatus(reader, kMaxFailureBytes);
  return reader.isDone() && !failure.isOk() ? std::optional(std::move(failure)) : std::nullopt;
}

FailureBoard::FailureBoard(Store& store) : store_(store), key_(kFailureKey) {}

FailureBoard::FailureBoard(Store& store, const RandomId& process)
    : store_(store), key_(std::string(kFailureKey) + "/" + toString(process)) {}

std::optional<Status> FailureBoard::read() {
  const auto bytes = store_.get(key_, Clock::now());  // with a deadline in the past, get() looks once
  whyUnread_ = bytes.status().code() == StatusCode::kTimeout ? Status::ok() : bytes.status();
  return bytes.isOk() ? decodeFailure(*bytes) : std::nullopt;
}

void FailureBoard::write(const Status& failure) {
  if (const Status stored = store_.set(key_, encodeFailure(failure)); !stored.isOk()) {
    logDebug("the store did not take the failure: {}", stored.message());
  }
}

}  // namespace shardwire::internal
