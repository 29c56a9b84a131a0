// The first failure of any rank while a group is made, written to the store, so that all ranks end at once and with the
// same words. One thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "shardwire/status.h"
#include "shardwire/store.h"

namespace shardwire::internal {

class FailureBoard {
 public:
  explicit FailureBoard(Store& store);
  // The board for one process alone. No earlier attempt of the job used it (store_attempts.h).
  FailureBoard(Store& store, const RandomId& process);
  // The failure in the store now, without waiting; nothing also when the store does not answer.
  std::optional<Status> read();
  // Why the latest read() found nothing; ok: the store has no failure.
  const Status& whyUnread() const { return whyUnread_; }
  void write(const Status& failure);

 private:
  Store& store_;
  const std::string key_;
  Status whyUnread_;
};

std::string encodeFailure(const Status& failure);
std::optional<Status> decodeFailure(std::string_view bytes);

}  // namespace shardwire::internal
