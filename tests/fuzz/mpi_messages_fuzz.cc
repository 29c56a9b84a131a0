// A message of an MPI peer: its head, and a request for runs of exposed memory.
#include "backend/transport/mpi/mpi_message.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {

using namespace internal;

void parse(std::string_view input) {
  const std::span<const std::byte> message = std::as_bytes(std::span(input.data(), input.size()));
  const auto head = decodeHead(message);
  if (!head.has_value()) {
    return;
  }
  std::array<std::byte, kMpiHeadBytes> again{};
  encodeHead(*head, again.data());
  require(std::equal(again.begin(), again.end(), message.begin()));
  const auto request = decodeRequest(input.substr(kMpiHeadBytes));
  if (!request.has_value()) {
    return;
  }
  static const std::vector<std::byte> exposed(1 << 20);
  const auto first = reinterpret_cast<std::uint64_t>(exposed.data());
  std::vector<MpiRun> runs;
  for (const RemoteRun& run : request->runs) {
    // Addresses count from the exposed memory, so that an input means the same in each run.
    if (!Exposure{1, first, exposed.size()}.check({first + run.address, run.bytes}).isOk()) {
      return;
    }
    runs.push_back({const_cast<std::byte*>(exposed.data()) + run.address, run.bytes});  // NOLINT
  }
  std::vector<MpiRun> scratch;
  std::uint64_t bytes = 0;
  require(forEachMessage(runs, kMpiLongestMessage, &scratch, [&](std::span<const MpiRun> each) {
            for (const MpiRun& run : each) {
              require(run.size > 0 && run.bytes + run.size <= exposed.data() + exposed.size());
              bytes += run.size;
            }
            return Status::ok();
          }).isOk());
  require(std::ranges::all_of(runs, [](const MpiRun& run) { return run.size > 0; }) == (bytes > 0));
}

std::vector<std::string> seeds() {
  std::string head(kMpiHeadBytes, '\0');
  encodeHead({.released = {8, 16, 24}, .kind = MpiKind::kRequest, .confirmed = 3},
             reinterpret_cast<std::byte*>(head.data()));
  std::vector<MemoryRun> runs = {{nullptr, 0, 16}, {nullptr, 64, 100000}, {nullptr, 32, 8}};
  std::string listed = head;
  encodeRequest(1, runs, &listed);
  runs.clear();
  for (std::uint64_t i = 0; i < 20; ++i) {
    runs.push_back({nullptr, i * 64, 16});
  }
  std::string regular = head;
  encodeRequest(1, runs, &regular);
  return {head, listed, regular};
}

}  // namespace shardwire::fuzz
