// Random calls of a Communicator that fit together, several at once: the calls of every rank of a group, and the
// results, by the definitions alone. The same seed and options make the same batch on every rank, so the ranks need no
// messages to agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/checked_storage.h"

namespace shardwire::testing {

enum class CallKind : std::uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kMessages,  // sends and receives between several ranks
  kRefused,   // a wrong call, which every rank is to refuse
};
inline constexpr int kNumCallKinds = 11;

enum class WrongCall : std::uint8_t { kReduction, kRoot, kListLength, kListDType, kListElems, kPeer };
inline constexpr int kNumWrongCalls = 6;

struct Message {
  Rank from = 0;
  Rank to = 0;
  int tag = 0;
  Dims shape;
  // The receiver does not name the sender. Then all messages of this tag to this rank are of this kind, and alike.
  bool isFromAny = false;
};

// How a list of tensors lies in memory.
enum class ListLayout : std::uint8_t { kSeparate, kJoined, kInterleaved };

// A choice of one rank that other ranks must know, since the choice decides the contents of the rank's inputs.
struct RankChoice {
  bool isInPlace = false;   // the input is the rank's own part of the outputs (or the other way round)
  bool isExpanded = false;  // inputs have dimensions of stride 0
  ListLayout list = ListLayout::kSeparate;
};

struct RandomCall {
  std::uint64_t seed = 0;  // of the values, and of each rank's choices
  std::size_t group = 0;
  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp reduction = ReduceOp::kSum;
  WrongCall wrong = WrongCall::kReduction;
  Dims shape;  // of each tensor; all-to-all and messages have further shapes
  Rank root = 0;
  std::vector<Dims> pairShapes;  // all-to-all: [from * ranks + to]
  std::vector<Message> messages;
  std::vector<RankChoice> choices;  // by rank
};

struct CallOptionsForTest {
  // Sizes around these are drawn more often.
  std::size_t inlineBytes = std::size_t{8} << 10;
  std::size_t ringBytes = std::size_t{1} << 20;
  // Of one thousand tensors so many have several MiB.
  int numHuge = 1;
};

// One to four calls in flight at once. `groupSizes`: the groups to choose from.
std::vector<RandomCall> makeRandomBatch(std::uint64_t seed, const std::vector<int>& groupSizes,
                                        const CallOptionsForTest& options);

// Whether a reduction is defined, by docs and types.h.
bool isDefined(DType dtype, ReduceOp op);

// Dimensions of stride 0 in input `index` of `rank`: a bit each.
unsigned expandedDims(const RandomCall& call, Rank rank, std::size_t index);
// The elements of input `index` of `rank`. (Of messages: the elements of message `index`, from the message's sender.)
Elements inputElements(const RandomCall& call, Rank rank, std::size_t index);
// inputElements(rank, index) of all ranks, reduced in rank order.
Elements reducedElements(const RandomCall& call, int numRanks, std::size_t index);

// For failure messages.
std::string describe(const RandomCall& call);

}  // namespace shardwire::testing
