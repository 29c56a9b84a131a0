// A message of a queue: the frame, and the head outside of the frame.
#include <algorithm>
#include <cstring>

#include "backend/queues/message.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {

using namespace internal;

void parse(std::string_view input) {
  QueueFrame frame{};
  const std::size_t inFrame = std::min(input.size(), frame.size());
  std::memcpy(frame.data(), input.data(), inFrame);
  std::string rest(input.substr(inFrame));
  const auto outside = headOutside(frame);
  if (!outside.isOk()) {
    return;
  }
  if (rest.size() > *outside) {
    rest.resize(*outside);
  }
  const auto message = decodeMessage(frame, std::move(rest));
  if (!message.isOk() || !message.value().parts.has_value()) {
    return;
  }
  require(message.value().parts->size() == message.value().partSizes.size());
  for (const QueuePart& part : *message.value().parts) {
    require(std::count(part.bytes, part.bytes + part.size, std::byte{}) >= 0);  // reads all bytes
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> made;
  const QueuePart part = newQueuePart(40).value();
  std::memset(part.bytes, 'p', part.size);
  for (const std::string& head : {std::string("head"), std::string(3000, 'h')}) {
    for (const auto& parts : {std::vector<QueuePart>{}, {part}, {part, part, part}}) {
      const auto encoded = encodeMessage({QueueOp::kPut, 1, 3, 7, 1, head, {}, {}}, parts);
      made.emplace_back(reinterpret_cast<const char*>(encoded.frame->data()), encoded.frame->size());
      made.back() += encoded.rest == nullptr ? "" : *encoded.rest;
    }
  }
  return made;
}

}  // namespace shardwire::fuzz
