// The answers of a peer in agreements of all ranks: exchangeAll(), and both exchanges of makeSymmetric(). The parts of
// an input are the peer's blobs; engine_frames has the frames that carry blobs. The first byte of an input chooses the
// call. In place of an empty or missing part the peer sends the blob of this rank, as a peer in the same call does.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "backend/exec/engine.h"
#include "backend/exec/exchange_all.h"
#include "backend/symm/make_symmetric.h"
#include "backend/symm/symmetric_block.h"
#include "tests/backend/exec/fake_group.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

constexpr std::size_t kBlockBytes = 64;
constexpr std::size_t kFrameBytes = 1000;

class QuietBell final : public ProgressBell {
 public:
  std::uint32_t ticket() const override { return rings_.load(); }
  void sleep(std::uint32_t ticket, Deadline until) override {
    if (rings_.load() == ticket) {
      std::this_thread::sleep_until(std::min(until, Clock::now() + std::chrono::milliseconds(1)));
    }
  }
  void ring() override { ++rings_; }

 private:
  std::atomic<std::uint32_t> rings_{0};
};

class QuietDoorbell final : public Doorbell {
 public:
  std::uint32_t arm(Wakes) override { return rings_.load(); }
  void disarm() override {}
  std::uint32_t ticket() const override { return rings_.load(); }
  void sleep(std::uint32_t, Deadline) override { std::this_thread::yield(); }
  void ringSelf() override { ++rings_; }
  std::shared_ptr<ProgressBell> progressBell() override { return bell_; }
  void leave() override {}

 private:
  std::atomic<std::uint32_t> rings_{0};
  const std::shared_ptr<QuietBell> bell_ = std::make_shared<QuietBell>();
};

// The peer's part of a block, as if it was mapped.
class PeersPart final : public HeldMemory {
 public:
  std::byte* bytes() const override { return reinterpret_cast<std::byte*>(const_cast<Page*>(pages_.data())); }
  void release(const std::function<void()>& notify) override { notify(); }
  bool isOwnerGone() const override { return true; }
  std::string ownersState() const override { return ""; }

 private:
  struct alignas(4096) Page {
    std::array<std::byte, 4096> bytes{};
  };
  std::vector<Page> pages_{SymmetricBlock::partBytes(kBlockBytes, 2, 8) / sizeof(Page) + 1};
};

// A wire that is polled before the connections, under the lock of the group.
class Answering final : public Wire {
 public:
  explicit Answering(std::function<void()> answer) : answer_(std::move(answer)) {}
  bool poll() override {
    answer_();
    return false;
  }
  int readinessFd() const override { return -1; }

 private:
  const std::function<void()> answer_;
};

// Rank 0 of two. Rank 1 answers each blob with the next part of the input.
class Pair {
 public:
  Pair() {
    Peers peers;
    peers.connections.resize(2);
    auto link = std::make_unique<FakeConnection>(1);
    to_ = link.get();
    to_->other = &from_;
    from_.other = to_;
    peers.connections[1] = std::move(link);
    peers.hosts = {0, 0};
    peers.whyNotFaster.resize(2);
    peers.wires.push_back(std::make_unique<Answering>([this] { answer(); }));
    peers.doorbell = std::make_unique<QuietDoorbell>();
    Options options;
    options.ringBytes = 512;
    options.timeout = std::chrono::seconds(20);
    engine_ = Engine::create(std::move(peers), 0, 2, options, "g").value();
  }
  ~Pair() { engine_->shutdown(); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  const std::shared_ptr<Engine>& engine() const { return engine_; }
  void begin(std::vector<std::string> blobs, bool sharesMemory) {
    engine_->locked([&](const GroupState&) {
      blobs_ = std::move(blobs);
      next_ = 0;
      given_.clear();
      to_->held = sharesMemory ? std::make_shared<PeersPart>() : nullptr;
    });
  }
  // This rank's blobs since begin().
  std::vector<std::string> given() {
    return engine_->locked([&](const GroupState&) { return given_; });
  }
  bool hasFailed() {
    return engine_->locked([](const GroupState& state) { return !state.operations.failure().isOk(); });
  }

 private:
  void answer() {
    for (auto& frames = to_->sent(Lane::kControl); !frames.empty(); frames.pop_front()) {
      const auto blob = readFrame<BlobFrame>(frames.front());
      if (!blob.has_value()) {
        continue;
      }
      if (blob->offset == 0) {
        given_.emplace_back();
      }
      given_.back() += textOf(blob->payload);
      if (given_.back().size() == blob->totalBytes) {
        const bool isGiven = next_ < blobs_.size() && !blobs_[next_].empty();
        send(blob->operation, isGiven ? blobs_[next_] : given_.back());
        ++next_;
      }
    }
  }
  void send(const OperationTag& operation, const std::string& blob) {
    for (std::size_t at = 0; at == 0 || at < blob.size(); at += kFrameBytes) {
      const BlobFrame frame{.operation = operation, .offset = at, .totalBytes = blob.size()};
      from_.sent(Lane::kControl).push_back(frameOf(frame, bytesOf(std::string_view(blob).substr(at, kFrameBytes))));
    }
  }

  FakeConnection from_{0};  // rank 1's end
  FakeConnection* to_ = nullptr;
  std::vector<std::string> blobs_;
  std::size_t next_ = 0;
  std::vector<std::string> given_;
  std::shared_ptr<Engine> engine_;
};

enum class Call : unsigned char { kExchange, kFails, kSymmetric, kNeedsAll };

void call(Pair& pair, Call call) {
  if (call == Call::kExchange || call == Call::kFails) {
    const Status error = call == Call::kFails ? Status(StatusCode::kInvalidArgument, "no such thing") : Status::ok();
    const auto blobs = exchangeAll(
        *pair.engine(), {.what = "a call", .text = "its arguments", .blob = "a blob", .error = error}, std::nullopt);
    require(!blobs.isOk() || blobs->size() == 2);
    return;
  }
  const auto made =
      makeSymmetric(pair.engine(), {.bytes = kBlockBytes, .text = "float32[16]", .needsAll = call == Call::kNeedsAll},
                    std::nullopt, [] { return Status::ok(); });
  if (made.isOk()) {
    require((*made)->bytes() == kBlockBytes);
    std::memset((*made)->address(0), 1, kBlockBytes);
  }
}

}  // namespace

void parse(std::string_view input) {
  const auto head = static_cast<unsigned char>(input.empty() ? 0 : input[0]);
  Pair pair;
  pair.begin(splitParts(input.substr(std::min<std::size_t>(input.size(), 1)), 2), (head & 4) != 0);
  call(pair, static_cast<Call>(head & 3));
  require(!pair.hasFailed());
}

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (unsigned char head = 0; head < 8; ++head) {
    Pair pair;
    pair.begin({}, (head & 4) != 0);
    call(pair, static_cast<Call>(head & 3));
    inputs.push_back(static_cast<char>(head) + joinParts(pair.given()));
  }
  return inputs;
}

}  // namespace shardwire::fuzz
