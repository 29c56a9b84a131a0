// The two sides of a fetch over a simulated wire. serve() checks the request of the peer. The answer then leaves in
// parts, which sendPart() reads from the owner's memory one after the other, as tcp sends from tensors. takeAnswers()
// takes the parts that have arrived, in pieces where writes are short. A fetch is over behind its last part.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/simulate/connection.h"

namespace shardwire::simulate {

using namespace internal;

void SimulatedConnection::serve(Direction::Fetch fetch) {
  for (const MemoryRun& run : fetch.runs) {
    const auto begin = reinterpret_cast<const std::byte*>(run.remote);
    const bool isExposed = std::any_of(out_.exposures.begin(), out_.exposures.end(), [&](const auto& each) {
      return each.space == fetch.space && begin >= each.bytes && begin + run.bytes <= each.bytes + each.size;
    });
    if (!isExposed) {
      out_.broken = fmt::format("rank {} (simulated) refused a fetch: memory {} is not exposed", self_, fetch.space);
      network_.note(self_, "refuses a fetch of rank {}", peer_);
      return;
    }
  }
  fetch.arrives = now();
  fetch.number = ++out_.lastAnswer;
  out_.serving.push_back(std::move(fetch));
}

// Parts of the oldest answer, or of any answer where answers overtake.
bool SimulatedConnection::sendAnswers() {
  bool moved = false;
  for (std::size_t i = 0; i < out_.serving.size();) {
    Direction::Fetch& each = out_.serving[i];
    const bool leaves = each.arrives <= now();
    if (leaves) {
      sendPart(each);
      moved = true;
    }
    if (each.first == each.size()) {
      out_.serving.erase(out_.serving.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (!leaves && network_.options_.fetches.overtakes) {
      ++i;
    } else if (!leaves) {
      break;
    }
  }
  return moved;
}

// The bytes are read from the owner's memory now.
void SimulatedConnection::sendPart(Direction::Fetch& serving) {
  const FetchOptions& fetches = network_.options_.fetches;
  Random& random = network_.world_.random();
  const std::size_t size = serving.size();
  std::size_t end = size;
  if (fetches.mostParts > 1) {
    const std::size_t least = size / static_cast<std::size_t>(fetches.mostParts) + 1;
    end = std::min(size, serving.first + static_cast<std::size_t>(random.between(
                                             static_cast<std::int64_t>(least), static_cast<std::int64_t>(2 * least))));
  }
  Direction::Fetch part = serving;
  std::size_t begin = 0;
  for (const MemoryRun& run : serving.runs) {
    const std::size_t from = std::max(serving.first, begin);
    const std::size_t to = std::min(end, begin + run.bytes);
    if (from < to) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(run.remote);
      part.bytes.insert(part.bytes.end(), bytes + (from - begin), bytes + (to - begin));
    }
    begin += run.bytes;
  }
  const bool isBehind = !fetches.overtakes && !out_.answers.empty();
  part.arrives =
      std::max({arrivalOf(0), out_.heldUntil, serving.lastArrival, isBehind ? out_.answers.back().arrives : 0});
  part.arrives = out_.isCut || process().isDead() ? kNever : part.arrives;
  part.isLast = end == size;
  serving.lastArrival = part.arrives;
  network_.note(self_, "sends {} fetched bytes to rank {}", part.bytes.size(), peer_);
  network_.recordFrame(self_, peer_, part.arrives, fmt::format("{} fetched bytes", part.bytes.size()));
  network_.ringAt(part.arrives, peer_);
  serving.first = end;
  if (end < size) {
    serving.arrives = now() + random.between(0, fetches.longestPause);
    network_.ringAt(serving.arrives, self_);
  }
  out_.answers.push_back(std::move(part));
  if (fetches.isDrawn) {
    network_.countFrame(self_);
  }
}

bool SimulatedConnection::takeAnswers() {
  bool moved = false;
  for (std::size_t i = 0; i < in_.answers.size() && !out_.hasStopped;) {
    Direction::Fetch& each = in_.answers[i];
    if (each.arrives <= now()) {
      take(each);
      moved = true;
      if (each.done == each.bytes.size()) {
        const Direction::Fetch taken = std::move(each);
        in_.answers.erase(in_.answers.begin() + static_cast<std::ptrdiff_t>(i));
        endPart(taken);
      }
    } else if (network_.options_.fetches.overtakes) {
      ++i;
    } else {
      break;
    }
  }
  return moved;
}

// A part that is taken in pieces may be over after the last part.
void SimulatedConnection::endPart(const Direction::Fetch& part) {
  const auto rest = std::ranges::find(in_.answers, part.number, &Direction::Fetch::number);
  if (part.isLast && rest != in_.answers.end()) {
    rest->isLast = true;
  } else if (part.isLast) {
    --part.count->pending;
  }
}

void SimulatedConnection::take(Direction::Fetch& fetch) {
  const std::size_t piece = network_.options_.shortWriteBytes;
  const std::size_t end =
      piece == 0 ? fetch.bytes.size() : std::min(fetch.bytes.size(), std::max(fetch.done + piece, fetch.done + 1));
  std::size_t runBegin = 0;
  for (const MemoryRun& run : fetch.runs) {
    const std::size_t from = std::max(fetch.first + fetch.done, runBegin);
    const std::size_t to = std::min(fetch.first + end, runBegin + run.bytes);
    if (from < to) {
      std::memcpy(run.local + (from - runBegin), fetch.bytes.data() + (from - fetch.first), to - from);
    }
    runBegin += run.bytes;
  }
  fetch.done = end;
  if (end < fetch.bytes.size()) {
    fetch.arrives = now() + network_.world_.random().between(kMicrosecond, 50 * kMicrosecond);
    network_.ringAt(fetch.arrives, self_);
  }
}

}  // namespace shardwire::simulate
