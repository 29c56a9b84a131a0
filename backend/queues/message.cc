// A frame begins with the fields of Fields. Then come the sizes of the parts and the head, together "the head" in the
// frame's fields, and then the parts if all of them fit, each aligned for any element. A longer head follows as a
// separate message, and so does each part that is not in the frame.
#include "backend/queues/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/base/page_size.h"
#include "backend/exec/activity.h"
#include "backend/memory/shared_heap.h"

namespace shardwire::internal {

namespace {

constexpr std::uint32_t kMagic = 0x46515753;  // "SWQF"
constexpr std::uint8_t kVersion = 3;
constexpr std::uint16_t kPartsWithin = 128;
constexpr std::size_t kAligned = 16;  // size of the widest element
constexpr std::uint64_t kTags = std::uint64_t{1} << 30;
// Shorter parts travel within a frame, in any memory.
constexpr std::size_t kHeapFrom = 8192;

struct Fields {
  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  QueueOp op = QueueOp::kOk;
  std::uint16_t flags = 0;
  std::uint32_t queue = 0;
  std::uint32_t headBytes = 0;
  std::uint64_t request = 0;
  std::int64_t value = 0;
  std::uint32_t numParts = 0;
  std::uint32_t unused = 0;
};
constexpr std::size_t kRoom = kQueueFrameBytes - sizeof(Fields);

Fields fieldsOf(const QueueFrame& frame) {
  Fields fields;
  std::memcpy(&fields, frame.data(), sizeof fields);
  return fields;
}

Status wrong(std::string why) {
  return {StatusCode::kInternal, std::move(why)};
}

// Copies of the parts in the frame, in one piece of memory.
Result<std::vector<QueuePart>> partsWithin(const QueueFrame& frame, std::size_t begin,
                                           const std::vector<std::uint64_t>& sizes) {
  std::vector<QueuePart> parts;
  std::size_t end = begin = roundUp(begin, kAligned);
  for (const std::uint64_t size : sizes) {
    end = roundUp(end, kAligned);
    if (end > frame.size() || size > frame.size() - end) {
      return wrong(fmt::format("a message of a queue says a part of {} bytes at byte {} of a frame", size, end));
    }
    parts.push_back({nullptr, nullptr, size});
    end += size;
  }
  if (sizes.empty()) {
    return parts;
  }
  const std::shared_ptr<std::byte[]> whole(new std::byte[std::max<std::size_t>(end - begin, 1)]);
  std::copy(frame.begin() + static_cast<std::ptrdiff_t>(begin), frame.begin() + static_cast<std::ptrdiff_t>(end),
            whole.get());
  std::size_t at = 0;
  for (QueuePart& part : parts) {
    at = roundUp(at, kAligned);
    part.owner = whole;
    part.bytes = whole.get() + at;
    at += part.size;
  }
  return parts;
}

// Whether the parts were written into the frame, behind the head.
bool writeWithin(QueueFrame& frame, std::size_t begin, const std::vector<QueuePart>& parts) {
  std::size_t end = begin;
  for (const QueuePart& part : parts) {
    end = roundUp(end, kAligned);
    if (end > frame.size() || part.size > frame.size() - end) {
      return false;
    }
    end += part.size;
  }
  std::size_t at = begin;
  for (const QueuePart& part : parts) {
    at = roundUp(at, kAligned);
    std::copy_n(part.bytes, part.size, frame.begin() + static_cast<std::ptrdiff_t>(at));
    at += part.size;
  }
  return true;
}

TensorView viewOf(const QueuePart& part) {
  return TensorView::contiguous(part.bytes, DType::kUInt8, {static_cast<std::int64_t>(part.size)});
}

Status sendBytes(Communicator& link, Rank peer, int tag, const QueuePart& part) {
  return link.send(viewOf(part), peer, tag, {.keepAlive = part.owner}).status();
}

}  // namespace

int tagOfRequest(std::uint64_t request) {
  return static_cast<int>(1 + request % (kTags - 1));
}

Result<QueuePart> newQueuePart(std::size_t size) {
  if (size < kHeapFrom) {
    const std::shared_ptr<std::byte[]> bytes(new std::byte[std::max<std::size_t>(size, 1)]);
    return QueuePart{bytes, bytes.get(), size};
  }
  Result<std::shared_ptr<void>> memory = allocateScratch(size);
  SW_RETURN_IF_ERROR(memory.status());
  return QueuePart{*memory, static_cast<std::byte*>(memory->get()), size};
}

Result<std::size_t> headOutside(const QueueFrame& frame) {
  const Fields fields = fieldsOf(frame);
  if (fields.magic != kMagic || fields.version != kVersion) {
    return wrong("a message of a queue is of another version of shardwire: use one on all ranks");
  }
  return fields.headBytes > kRoom ? std::size_t{fields.headBytes} : std::size_t{0};
}

std::uint64_t requestOf(const QueueFrame& frame) {
  return fieldsOf(frame).request;
}

Result<QueueMessage> decodeMessage(const QueueFrame& frame, std::string rest) {
  SW_RETURN_IF_ERROR(headOutside(frame).status());
  const Fields fields = fieldsOf(frame);
  const std::size_t sizesBytes = std::size_t{8} * fields.numParts;
  const char* const inFrame = reinterpret_cast<const char*>(frame.data()) + sizeof fields;
  const std::string_view head = fields.headBytes <= kRoom ? std::string_view(inFrame, fields.headBytes) : rest;
  if (head.size() != fields.headBytes || sizesBytes > head.size()) {
    return wrong(fmt::format("a message of a queue says {} parts in a head of {} bytes", fields.numParts, head.size()));
  }
  QueueMessage message{fields.op, fields.flags, fields.queue, fields.request, fields.value, {}, {}, {}};
  message.flags = static_cast<std::uint16_t>(fields.flags & ~kPartsWithin);
  message.head = head.substr(sizesBytes);
  message.partSizes.resize(fields.numParts);
  std::copy_n(head.data(), sizesBytes, reinterpret_cast<char*>(message.partSizes.data()));
  if ((fields.flags & kPartsWithin) != 0 || fields.numParts == 0) {
    const std::size_t end = sizeof fields + std::min<std::size_t>(fields.headBytes, kRoom);
    Result<std::vector<QueuePart>> parts = partsWithin(frame, end, message.partSizes);
    SW_RETURN_IF_ERROR(parts.status());
    message.parts = std::move(*parts);
  }
  return message;
}

EncodedMessage encodeMessage(const QueueMessage& message, const std::vector<QueuePart>& parts) {
  std::string head;
  for (const QueuePart& part : parts) {
    const std::uint64_t size = part.size;
    head.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  head += message.head;
  EncodedMessage encoded{std::make_shared<QueueFrame>(), nullptr, false};
  QueueFrame& frame = *encoded.frame;
  const bool fits = head.size() <= kRoom;
  encoded.areWithin = fits && !parts.empty() && writeWithin(frame, sizeof(Fields) + head.size(), parts);
  Fields fields;
  fields.op = message.op;
  fields.flags = static_cast<std::uint16_t>(message.flags | (encoded.areWithin ? kPartsWithin : 0));
  fields.queue = message.queue;
  fields.headBytes = static_cast<std::uint32_t>(head.size());
  fields.request = message.request;
  fields.value = message.value;
  fields.numParts = static_cast<std::uint32_t>(parts.size());
  std::memcpy(frame.data(), &fields, sizeof fields);
  if (fits) {
    std::memcpy(frame.data() + sizeof fields, head.data(), head.size());
  } else {
    encoded.rest = std::make_shared<std::string>(std::move(head));
  }
  return encoded;
}

Status sendMessage(Communicator& link, Rank peer, int tag, const QueueMessage& message,
                   const std::vector<QueuePart>& parts) {
  if (message.head.size() + parts.size() * sizeof(std::uint64_t) > std::numeric_limits<std::uint32_t>::max()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("an entry has {} bytes of text and bytes objects, and a queue takes less than 4 GiB of these: "
                        "put long bytes into a uint8 tensor",
                        message.head.size())};
  }
  const auto [frame, rest, areWithin] = encodeMessage(message, parts);
  const int body = tagOfRequest(message.request);
  SW_RETURN_IF_ERROR(sendBytes(link, peer, tag, {frame, frame->data(), frame->size()}));
  if (rest != nullptr) {
    SW_RETURN_IF_ERROR(sendBytes(link, peer, body, {rest, reinterpret_cast<std::byte*>(rest->data()), rest->size()}));
  }
  for (const QueuePart& part : parts) {
    if (!areWithin && part.size > 0) {
      SW_RETURN_IF_ERROR(sendBytes(link, peer, body, part));
    }
  }
  return Status::ok();
}

Result<WorkPtr> receiveBytes(Communicator& link, Rank peer, int tag, const QueuePart& into,
                             std::function<void(const Status&)> then) {
  Result<WorkPtr> work = link.recv(viewOf(into), peer, tag, {.keepAlive = into.owner});
  if (work.isOk() && then != nullptr) {
    static_cast<Activity&>(**work).onDoneWithoutWait(std::move(then));
  }
  return work;
}

}  // namespace shardwire::internal
