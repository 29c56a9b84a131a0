#include "backend/bootstrap/failure_board.h"

#include "backend/base/interruptible_wait.h"
#include "backend/base/log.h"
#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

constexpr const char* kFailureKey = "shardwire/failed";
constexpr std::size_t kMaxFailureBytes = 8192;

}  // namespace

std::string encodeFailure(const Status& failure) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(codeForPeers(failure.code())));
  writer.text(std::string_view(failure.message()).substr(0, kMaxFailureBytes));
  return writer.bytes();
}

std::optional<Status> decodeFailure(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto code = static_cast<StatusCode>(reader.u8());
  std::string text = reader.text(kMaxFailureBytes);
  if (!reader.isDone() || code == StatusCode::kOk || code > StatusCode::kInternal) {
    return std::nullopt;
  }
  return Status{code, std::move(text)};
}

std::optional<Status> FailureBoard::read() {
  const auto bytes = store_.get(kFailureKey, Clock::now());  // with a deadline in the past, get() looks once
  return bytes.isOk() ? decodeFailure(*bytes) : std::nullopt;
}

void FailureBoard::write(const Status& failure) {
  if (const Status stored = store_.set(kFailureKey, encodeFailure(failure)); !stored.isOk()) {
    logDebug("the store did not take the failure: {}", stored.message());
  }
}

}  // namespace shardwire::internal
