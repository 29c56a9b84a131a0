#include "backend/exec/blob_parts.h"

#include <fmt/format.h>

namespace shardwire::internal {

bool BlobParts::sendParts(Out& out, std::uint64_t totalBytes) {
  RunContext& context = this->context();
  const std::size_t room = context.connection(out.peer).maxFrameBytes(Lane::kControl) - kHeadBytes<BlobFrame>;
  bool moved = false;
  while (!out.isSent && (out.numSent < out.bytes->size() || totalBytes == 0)) {
    const std::string_view part = std::string_view(*out.bytes).substr(out.numSent, room);
    const BlobFrame frame{.operation = tag(), .offset = out.numSent, .totalBytes = totalBytes};
    if (!context.sendControl(out.peer, frame, bytesOf(part))) {
      break;
    }
    moved = true;
    out.numSent += part.size();
    out.isSent = out.numSent == totalBytes;
  }
  return moved;
}

Status BlobParts::takePart(Rank from, const Received<BlobFrame>& frame, In* in) const {
  if (in == nullptr || in->isWhole || frame.offset != in->bytes->size() ||
      (in->hasBegun && frame.totalBytes != in->totalBytes) || (frame.payload.empty() && frame.totalBytes > 0)) {
    return {StatusCode::kInternal,
            fmt::format("rank {} sent a part of a message that does not fit {} (offset {} of {}, expected {})", from,
                        description.text(), frame.offset, frame.totalBytes, in == nullptr ? 0 : in->bytes->size())};
  }
  in->hasBegun = true;
  in->totalBytes = frame.totalBytes;
  in->bytes->append(textOf(frame.payload));
  in->isWhole = in->bytes->size() >= in->totalBytes;
  return Status::ok();
}

}  // namespace shardwire::internal
