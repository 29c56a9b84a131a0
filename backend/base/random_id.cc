#include "backend/base/random_id.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/random.h>

#include "backend/base/per_process.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {

Result<RandomId> makeRandomId() {
  RandomId id;
  // Requests of up to 256 bytes are never cut short once the pool is ready.
  const ssize_t size = ::getrandom(id.words.data(), sizeof(id.words), 0);
  if (size != static_cast<ssize_t>(sizeof(id.words))) {
    return systemError("getrandom", size < 0 ? errno : EIO);
  }
  return id;
}

std::string toString(const RandomId& id) {
  return fmt::format("{:016x}{:016x}", id.words[0], id.words[1]);
}

Result<RandomId> processId() {
  struct Made {
    const Result<RandomId> id = makeRandomId();
  };
  return PerProcess<Made>::get().id;
}

}  // namespace shardwire::internal
