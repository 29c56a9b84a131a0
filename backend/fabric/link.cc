#include "backend/fabric/link.h"

#include <fmt/format.h>
#include <poll.h>

#include "backend/fabric/link_message.h"

namespace shardwire::internal {

Status Link::send(std::string_view message, const WaitLimit& limit) {
  if (message.size() > kMaxMessageBytes) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a link takes messages of {} bytes, not of {}", kMaxMessageBytes, message.size())};
  }
  const std::string bytes = framed(message);
  for (std::size_t sent = 0; sent < bytes.size();) {
    const auto some = sendSome(socket_, std::string_view(bytes).substr(sent));
    SW_RETURN_IF_ERROR(some.status());
    sent += *some;
    if (sent < bytes.size()) {
      SW_RETURN_IF_ERROR(limit.waitFor(socket_, POLLOUT, "sending to a peer"));
    }
  }
  return Status::ok();
}

Result<std::string> Link::receive(const WaitLimit& limit) {
  MessageReader reader(kMaxMessageBytes);
  while (true) {
    const auto whole = reader.readOn(socket_);
    SW_RETURN_IF_ERROR(whole.status());
    if (*whole) {
      return reader.take();
    }
    SW_RETURN_IF_ERROR(limit.waitFor(socket_, POLLIN, "receiving from a peer"));
  }
}

}  // namespace shardwire::internal
