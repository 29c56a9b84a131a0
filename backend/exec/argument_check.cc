#include "backend/exec/argument_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "ops/plan/hash.h"

namespace shardwire::internal {

namespace {

// On the wire each text is a line. Names given by users could hold line ends.
void addLine(std::string& bytes, std::string_view text) {
  const std::size_t first = bytes.size();
  bytes += text;
  std::replace(bytes.begin() + static_cast<std::ptrdiff_t>(first), bytes.end(), '\n', ' ');
  bytes += '\n';
}

std::string encode(const CallArguments& arguments) {
  std::string bytes;
  addLine(bytes, arguments.call);
  for (const auto* list : {&arguments.sends, &arguments.receives}) {
    for (const std::string& text : *list) {
      addLine(bytes, text);
    }
  }
  return bytes;
}

std::vector<std::string_view> linesOf(std::string_view bytes) {
  std::vector<std::string_view> lines;
  for (std::size_t end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
    lines.push_back(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

ArgumentCheck::ArgumentCheck(const CallArguments& mine, int worldSize, Rank rank)
    : Exchange(encode(mine), worldSize, rank) {
  Hasher hash;
  hash.add(std::string_view("argument check"));
  fingerprint = hash.value();
  description = std::make_shared<const std::string>(mine.call + ", compared first (SHARDWIRE_CHECK=full)");
}

bool ArgumentCheck::step(std::vector<bool>& blockedBulk) {
  RunContext& context = this->context();
  bool moved = Exchange::step(blockedBulk);
  if (!compared_ && Exchange::finished()) {
    compared_ = moved = true;
    if (Status status = compare(); !status.isOk()) {
      context.fail(std::move(status));
    }
  }
  for (Rank peer = 0; !compared_ && peer < context.worldSize; ++peer) {
    if (context.connections[static_cast<std::size_t>(peer)] != nullptr) {
      noticeUnchecked(context, peer);
    }
  }
  return moved;
}

// Staged bytes with this number: the peer compares nothing, and the peer's operation may be over there already.
void ArgumentCheck::noticeUnchecked(RunContext& context, Rank peer) const {
  const auto staged = readFrame<StagedFrame>(context.connection(peer).peek(Lane::kBulk));
  if (staged.has_value() && staged->operation.seq == seq) {
    context.desync(peer, seq);
  }
}

// Every rank sees all texts, and finds the same difference first.
Status ArgumentCheck::compare() const {
  const std::size_t n = blobs().size();
  std::vector<std::vector<std::string_view>> lines;
  for (std::size_t r = 0; r < n; ++r) {
    lines.push_back(linesOf(blobs()[r]));
    if (lines[r].size() != 1 && lines[r].size() != 1 + 2 * n) {
      return {StatusCode::kInternal,
              fmt::format("rank {} sent arguments of a call that cannot be read ({} lines)", r, lines[r].size())};
    }
  }
  const auto differs = [&](std::size_t r) { return lines[r][0] != lines[0][0] || lines[r].size() != lines[0].size(); };
  for (std::size_t r = 1; r < n; ++r) {
    if (differs(r)) {
      std::size_t more = 0;
      for (std::size_t other = r + 1; other < n; ++other) {
        more += differs(other) ? 1 : 0;
      }
      const std::string others = more == 0 ? "" : fmt::format(" ({} more differ from rank 0)", more);
      return {StatusCode::kMismatch,
              fmt::format("the ranks disagree about operation #{}: rank 0 called {}, but rank {} called {}{}. All "
                          "ranks of a group must call "
                          "the same operations in the same order with the same shapes and dtypes",
                          call, lines[0][0], r, lines[r][0], others)};
    }
  }
  for (std::size_t a = 0; a < n && lines[0].size() > 1; ++a) {
    for (std::size_t b = 0; b < n; ++b) {
      const std::string_view sent = lines[a][1 + b];
      const std::string_view expected = lines[b][1 + n + a];
      if (sent != expected) {
        return {StatusCode::kMismatch,
                fmt::format("the ranks disagree about operation #{}, {}: rank {} sends {} to rank {}, which expects {}",
                            call, lines[0][0], a, sent, b, expected)};
      }
    }
  }
  return Status::ok();
}

}  // namespace shardwire::internal
