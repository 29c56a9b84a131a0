// Each rank serves one part: a counter, and one area of words for each caller. A caller's requests are drawn from the
// seed of the operation, so each rank knows the words that all callers leave in its part. A get must give the words of
// the caller's earlier puts, and none of the later puts. All requests lie between two barriers.
#include "tests/simulate/memory_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "backend/exec/group_memory.h"
#include "backend/exec/one_sided_requests.h"
#include "shardwire/symmetric_memory.h"

namespace shardwire::simulate {

namespace {

using Words = std::vector<std::uint64_t>;

constexpr std::size_t kArea = 200;  // words of a caller in each part
constexpr std::uint64_t kOverwrittenWord = 0x5c5c5c5c5c5c5c5c;

enum class RequestKind : std::uint8_t { kPut, kGet, kAdd, kSilentAdd };

struct Request {
  RequestKind kind = RequestKind::kPut;
  Rank peer = 0;
  std::size_t first = 0;  // word of the area
  std::size_t count = 0;
  std::uint64_t value = 0;  // of the first word
};

std::vector<Request> requestsOf(const Operation& operation, Rank caller, int numRanks) {
  Random random(testing::mix64(operation.seed + static_cast<std::uint64_t>(caller)));
  std::vector<Request> requests(static_cast<std::size_t>(random.between(0, random.chance(20) ? 90 : 12)));
  const Rank favourite = static_cast<Rank>(random.between(1, numRanks - 1));
  for (Request& each : requests) {
    each.kind = static_cast<RequestKind>(random.between(0, 3));
    const Rank distance = random.chance(50) ? favourite : static_cast<Rank>(random.between(1, numRanks - 1));
    each.peer = (caller + distance) % numRanks;
    each.first = static_cast<std::size_t>(random.between(0, kArea - 1));
    each.count = static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(kArea - each.first)));
    each.value = static_cast<std::uint64_t>(random.between(1, 1 << 30));
  }
  return requests;
}

void write(const Request& put, Words& area) {
  for (std::size_t i = 0; i < put.count; ++i) {
    area[put.first + i] = put.value + i;
  }
}

class Part final : public internal::ServedPart {
 public:
  explicit Part(int numRanks) : words(1 + kArea * static_cast<std::size_t>(numRanks)) {}
  Status put(const internal::PartBox& box, internal::Payload elements) override {
    std::memcpy(bytes() + box.offset, elements.data(), elements.size());
    return Status::ok();
  }
  Status get(const internal::PartBox& box, std::byte* elements) override {
    std::memcpy(elements, bytes() + box.offset, static_cast<std::size_t>(numElements(box.shape)) * box.elemBytes);
    return Status::ok();
  }
  Result<std::uint64_t> apply(const internal::WordFrame& word) override {
    return std::exchange(words[0], words[0] + word.operand);
  }
  void dropped(Rank) override {}

  Words words;  // the counter, and the areas by caller

 private:
  std::byte* bytes() { return reinterpret_cast<std::byte*>(words.data()); }
};

class RequestsCall final : public Call {
 public:
  RequestsCall(const Operation& drawn, Rank rank, int numRanks)
      : Call(drawn),
        rank_(rank),
        numRanks_(numRanks),
        random_(testing::mix64(drawn.seed * 32 + static_cast<std::uint64_t>(rank))),
        part_(std::make_shared<Part>(numRanks)) {}

  Status start(Communicator& group, internal::Engine& engine) override {
    engine_ = &engine;
    const Status status = run(group, engine);
    engine_ = nullptr;
    return status;
  }
  // A rank serves requests also while its program computes.
  bool needsFrames() const override {
    return engine_ != nullptr &&
           engine_->locked([](const internal::GroupState& state) { return state.oneSided.isServing(); });
  }

  std::string check() override {
    for (std::size_t i = 0; i < gets_.size(); ++i) {
      if (gets_[i] != expected_[i]) {
        return "a get gave other words than the caller's earlier puts";
      }
    }
    Words expected(part_->words.size());
    for (Rank caller = 0; caller < numRanks_; ++caller) {
      Words area(kArea);
      for (const Request& each : requestsOf(operation, caller, numRanks_)) {
        if (each.peer == rank_ && each.kind == RequestKind::kPut) {
          write(each, area);
        }
        expected[0] += each.peer == rank_ && each.kind >= RequestKind::kAdd ? each.value : 0;
      }
      std::ranges::copy(area, expected.begin() + static_cast<std::ptrdiff_t>(firstOf(caller)));
    }
    return part_->words == expected ? "" : "the words of a part are not what the requests left there";
  }

  void overwrite() override {
    for (auto* const all : {&gets_, &puts_}) {
      std::ranges::for_each(*all, [](Words& each) { std::ranges::fill(each, kOverwrittenWord); });
    }
    std::ranges::fill(part_->words, kOverwrittenWord);
  }
  bool isUntouched() const override {
    const auto isWhole = [](const Words& words) {
      return std::ranges::all_of(words, [](std::uint64_t each) { return each == kOverwrittenWord; });
    };
    return std::ranges::all_of(gets_, isWhole) && std::ranges::all_of(puts_, isWhole) && isWhole(part_->words);
  }

 private:
  Status run(Communicator& group, internal::Engine& engine) {
    const auto block = static_cast<std::uint64_t>(operation.number) + 1;
    std::vector<Rank> others;
    for (Rank peer = 0; peer < numRanks_; ++peer) {
      if (peer != rank_) {
        others.push_back(peer);
      }
    }
    engine.memory().serve(block, part_);
    engine.memory().expectRequests(block, others);
    SW_RETURN_IF_ERROR(meet(group));
    compute();
    SW_RETURN_IF_ERROR(request(engine, block));
    for (const auto& each : started_) {
      SW_RETURN_IF_ERROR(each->wait(kNoDeadline));
    }
    SW_RETURN_IF_ERROR(engine.memory().quiet(std::nullopt));
    compute();
    SW_RETURN_IF_ERROR(meet(group));
    engine.memory().withdraw(block);
    return Status::ok();
  }

  void compute() { std::this_thread::sleep_for(std::chrono::microseconds(random_.between(0, 2000))); }
  static std::size_t firstOf(Rank caller) { return 1 + kArea * static_cast<std::size_t>(caller); }
  static Status meet(Communicator& group) {
    const Result<WorkPtr> barrier = group.barrier();
    SW_RETURN_IF_ERROR(barrier.status());
    return (*barrier)->wait();
  }

  Status request(internal::Engine& engine, std::uint64_t block) {
    std::vector<Words> areas(static_cast<std::size_t>(numRanks_), Words(kArea));  // of this rank, by peer
    for (const Request& each : requestsOf(operation, rank_, numRanks_)) {
      Words& area = areas[static_cast<std::size_t>(each.peer)];
      if (each.kind == RequestKind::kPut) {
        write(each, area);
      }
      const auto first = area.begin() + static_cast<std::ptrdiff_t>(each.first);
      const auto request = make(each, block, {first, first + static_cast<std::ptrdiff_t>(each.count)});
      request->description = std::make_shared<const std::string>("a request for words");
      started_.push_back(request);
      SW_RETURN_IF_ERROR(engine.memory().request(request, std::span(&each.peer, 1)));
    }
    return Status::ok();
  }

  // `words`: what the area holds there, behind a put.
  std::shared_ptr<internal::OneSidedRequest> make(const Request& each, std::uint64_t block, Words words) {
    if (each.kind >= RequestKind::kAdd) {
      const internal::WordFrame word{.block = block,
                                     .operand = each.value,
                                     .op = static_cast<std::uint32_t>(WordOp::kAdd),
                                     .dtype = static_cast<std::uint32_t>(DType::kUInt64)};
      return std::make_shared<internal::WordRequest>(each.peer, word, each.kind == RequestKind::kSilentAdd);
    }
    const Dims shape{static_cast<std::int64_t>(each.count)};
    const Dims strides{sizeof(std::uint64_t)};
    const internal::PartBox box{block, (firstOf(rank_) + each.first) * sizeof(std::uint64_t), sizeof(std::uint64_t),
                                shape, strides};
    if (each.kind == RequestKind::kPut) {
      Words& from = puts_.emplace_back(std::move(words));
      return std::make_shared<internal::PutRequest>(
          each.peer, box, internal::StridedBox{reinterpret_cast<std::byte*>(from.data()), strides});
    }
    Words& to = gets_.emplace_back(each.count);
    expected_.push_back(std::move(words));
    return std::make_shared<internal::GetRequest>(
        each.peer, box, internal::StridedBox{reinterpret_cast<std::byte*>(to.data()), strides});
  }

  const Rank rank_;
  const int numRanks_;
  Random random_;
  internal::Engine* engine_ = nullptr;  // in start()
  const std::shared_ptr<Part> part_;
  std::deque<Words> puts_;
  std::deque<Words> gets_;
  std::vector<Words> expected_;  // of gets_
  std::vector<std::shared_ptr<internal::OneSidedRequest>> started_;
};

class ExchangeCall final : public Call {
 public:
  ExchangeCall(const Operation& drawn, Rank rank, int numRanks) : Call(drawn), rank_(rank), numRanks_(numRanks) {}

  Status start(Communicator& group, internal::Engine&) override {
    Result<std::vector<std::string>> all = group.exchange({.what = "exchange", .blob = blobOf(rank_)}, std::nullopt);
    SW_RETURN_IF_ERROR(all.status());
    all_ = std::move(*all);
    return Status::ok();
  }
  std::string check() override {
    for (Rank rank = 0; rank < numRanks_; ++rank) {
      if (all_.size() != static_cast<std::size_t>(numRanks_) || all_[static_cast<std::size_t>(rank)] != blobOf(rank)) {
        return fmt::format("the exchanged bytes of rank {} are wrong", rank);
      }
    }
    return "";
  }
  void overwrite() override {}
  bool isUntouched() const override { return true; }

 private:
  std::string blobOf(Rank rank) const {
    Random random(testing::mix64(operation.seed * 32 + static_cast<std::uint64_t>(rank)));
    std::string blob(static_cast<std::size_t>(random.between(0, random.chance(30) ? 6000 : 100)), ' ');
    std::ranges::generate(blob, [&] { return static_cast<char>(random.between('a', 'z')); });
    return blob;
  }

  const Rank rank_;
  const int numRanks_;
  std::vector<std::string> all_;
};

}  // namespace

std::unique_ptr<Call> makeRequestsCall(const Operation& operation, Rank rank, int numRanks) {
  return std::make_unique<RequestsCall>(operation, rank, numRanks);
}

std::unique_ptr<Call> makeExchangeCall(const Operation& operation, Rank rank, int numRanks) {
  return std::make_unique<ExchangeCall>(operation, rank, numRanks);
}

}  // namespace shardwire::simulate
