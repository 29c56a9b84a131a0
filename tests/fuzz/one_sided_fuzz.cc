// Requests to this rank's part of a symmetric block, and answers to requests of this rank.
#include "backend/exec/one_sided_requests.h"
#include "backend/symm/served_block.h"
#include "tests/fuzz/fuzzed_group.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

constexpr std::uint64_t kBlock = 5;
constexpr std::size_t kPartBytes = 256;

// This rank asks the peer for everything, once.
void ask(FuzzedGroup& group, Rank peer, std::byte* memory) {
  const StridedBox here{memory, {8}};
  const PartBox there{.block = kBlock, .offset = 16, .elemBytes = 8, .shape = {4}, .byteStrides = {16}};
  const WordFrame word{.block = kBlock, .offset = 8, .operand = 3, .op = 1, .dtype = 4};
  const std::shared_ptr<OneSidedRequest> requests[] = {
      std::make_shared<GetRequest>(peer, there, here), std::make_shared<PutRequest>(peer, there, here),
      std::make_shared<WordRequest>(peer, word, false), std::make_shared<WordRequest>(peer, word, true),
      std::make_shared<QuietRequest>(std::vector<Rank>{peer})};
  for (const auto& request : requests) {
    request->description = std::make_shared<const std::string>("a request");
    group.state().take(request);
    group.state().oneSided.start(request, std::span(&peer, 1));
  }
}

// A rank that serves a block to its peer, and asks for the peer's.
struct Owner {
  explicit Owner(Rank rank)
      : part(std::make_unique<std::byte[]>(kPartBytes)),
        words(BlockWords::sizeFor(2, 1) / 64 + 1),
        answers(32),
        group(rank, 2) {
    auto* const at = reinterpret_cast<std::byte*>(words.data());
    group.state().oneSided.serve(kBlock, std::make_shared<ServedBlock>(part.get(), kPartBytes, BlockWords(at, 2)));
    group.state().oneSided.expectRequests(kBlock, {1 - rank});
    ask(group, 1 - rank, answers.data());
  }

  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  std::unique_ptr<std::byte[]> part;
  std::vector<Line> words;
  std::vector<std::byte> answers;
  FuzzedGroup group;
};

}  // namespace

void parse(std::string_view input) {
  Owner rank0(0);
  for (const std::string& frame : splitParts(input, 40)) {
    rank0.group.take(frame);
  }
}

std::vector<std::string> seeds() {
  Owner rank0(0);
  Owner rank1(1);
  std::vector<std::string> frames;  // first requests, then replies
  for (int round = 0; round < 4; ++round) {
    for (const std::string& frame : rank1.group.sent(0)) {
      frames.push_back(frame);
      rank0.group.take(frame);
    }
    for (const std::string& frame : rank0.group.sent(1)) {
      rank1.group.take(frame);
    }
  }
  std::vector<std::string> inputs = {joinParts(frames)};
  for (const std::string& frame : frames) {
    inputs.push_back(joinParts({frame}));
  }
  return inputs;
}

}  // namespace shardwire::fuzz
