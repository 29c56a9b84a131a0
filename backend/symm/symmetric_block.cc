// Waiting: the waiter polls a word in shared memory until the word has the wanted value. The waiter first spins, then
// offers its core, then sleeps on the bell of its own part. A sleep lasts a millisecond at most, since stores by
// ordinary tensor code ring no bell. After the first 0.2 ms the waiter also checks the state of the group now and then:
// the death of a rank ends the wait.
#include "backend/symm/symmetric_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "backend/base/futex.h"
#include "backend/base/interruptible_wait.h"
#include "backend/base/page_size.h"
#include "backend/base/patience.h"
#include "backend/base/relax.h"
#include "backend/bootstrap/summary.h"
#include "backend/exec/exchange_all.h"
#include "backend/symm/deferred_release.h"
#include "backend/symm/heap_pages.h"
#include "backend/symm/make_symmetric.h"
#include "backend/symm/word_ops.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kLine = 64;
constexpr Duration kYieldAfter = std::chrono::microseconds(3);
constexpr Duration kSpin = std::chrono::microseconds(200);
constexpr Duration kLookEvery = std::chrono::milliseconds(2);
constexpr Duration kLongestNap = std::chrono::milliseconds(1);

const char* symbolOf(Comparison comparison) {
  constexpr const char* kSymbols[kNumComparisons] = {"==", "!=", ">", ">=", "<", "<="};
  return kSymbols[static_cast<int>(comparison)];
}

std::vector<Rank> allBut(Rank rank, int worldSize) {
  std::vector<Rank> others;
  for (Rank other = 0; other < worldSize; ++other) {
    if (other != rank) {
      others.push_back(other);
    }
  }
  return others;
}

}  // namespace

Rank commonOwner(const AddressTable& table, Rank rank) {
  std::vector<bool> isFound(table.size());
  std::vector<std::size_t> host = {static_cast<std::size_t>(rank)};
  isFound[host.front()] = true;
  for (std::size_t i = 0; i < host.size(); ++i) {
    for (std::size_t other = 0; other < table.size(); ++other) {
      if (!isFound[other] && (table[host[i]][other] || table[other][host[i]])) {
        isFound[other] = true;
        host.push_back(other);
      }
    }
  }
  for (std::size_t owner = 0; owner < table.size(); ++owner) {
    if (std::ranges::all_of(host, [&](std::size_t each) { return table[each][owner]; })) {
      return static_cast<Rank>(owner);
    }
  }
  return -1;
}

std::size_t SymmetricBlock::partBytes(std::size_t bytes, int worldSize, int numChannels) {
  return wholePages(roundUp(std::max<std::size_t>(bytes, 1), kLine) + BlockWords::sizeFor(worldSize, numChannels));
}

BlockWords SymmetricBlock::wordsOf(std::byte* part, std::size_t bytes, int worldSize) {
  return {part + roundUp(std::max<std::size_t>(bytes, 1), kLine), worldSize};
}

SymmetricBlock::SymmetricBlock(const std::shared_ptr<Engine>& engine, const SymmetricRequest& request,
                               std::uint64_t number, std::vector<BlockPart> parts, const AddressTable& table)
    : engine_(engine),
      rank_(engine->facts().rank),
      worldSize_(engine->facts().worldSize),
      groupLabel_(engine->facts().label),
      bytes_(request.bytes),
      jobRanks_(request.jobRanks),
      number_(number),
      parts_(std::move(parts)),
      attached_(request.attached),
      isAsked_(std::ranges::any_of(parts_, [](const BlockPart& part) { return part.asksMine; })),
      orderOwner_(commonOwner(table, rank_)),
      others_(allBut(rank_, worldSize_)),
      name_(fmt::format("symmetric memory #{}", number)),
      barriers_(static_cast<std::size_t>(request.numChannels)) {
  reachesAll_ = std::ranges::all_of(
      table, [](const std::vector<bool>& row) { return std::ranges::find(row, false) == row.end(); });
}

SymmetricBlock::~SymmetricBlock() {
  if (!owner_.isHere()) {
    return;  // in a child of fork() everything belongs to the parent
  }
  const std::shared_ptr<Engine> engine = engine_.lock();
  DeferredBlock mine{partOf(rank()).bytes, words(rank()), attached_, {}};
  if (isAsked_) {
    mine.withdraw = [weak = engine_, number = number_] {
      if (const std::shared_ptr<Engine> live = weak.lock()) {
        live->memory().withdraw(number);
      }
    };
  }
  for (const Rank peer : others_) {
    const BlockPart& part = partOf(peer);
    if (part.attachedHeld != nullptr) {
      part.attachedHeld->release([] {});  // before the owner is notified, below
    }
    if (part.bytes == nullptr && engine != nullptr) {
      engine->memory().drop(peer, number_);
    }
    if (part.held != nullptr) {
      part.held->release([&] { words(peer).dropped(rank()).store(1, std::memory_order_seq_cst); });
    }
    if (part.holdsMine) {
      mine.holders.emplace_back(peer, part.held != nullptr ? part.held : part.watch);
    }
  }
  releaseLater(std::move(mine));
}

void SymmetricBlock::wake(Rank peer) {
  words(peer).wakeSleepers();
}

template <typename IsOver>
void SymmetricBlock::sleep(IsOver isOver, Deadline until) {
  const BlockWords mine = words(rank());
  mine.sleepers().fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t rings = mine.bell().load(std::memory_order_seq_cst);
  if (!isOver()) {
    futexWait(mine.bell(), rings, std::min<Duration>(kLongestNap, until - Clock::now()));
  }
  mine.sleepers().fetch_sub(1, std::memory_order_seq_cst);
}

// Most waits end during the first polls. The description for errors is built only for the other waits.
template <typename IsOver, typename Describe>
Status SymmetricBlock::waitFor(IsOver isOver, const Describe& describe) {
  for (int i = 0; i < 64; ++i) {
    if (isOver()) {
      return Status::ok();
    }
    relax();
  }
  const std::shared_ptr<Engine> engine = engine_.lock();
  return engine == nullptr ? ended() : waitLong(*engine, describe(), isOver);
}

template <typename IsOver>
Status SymmetricBlock::waitLong(Engine& engine, const Wait& wait, IsOver isOver) {
  const auto started = Clock::now();
  const auto [groupTimeout, refusal] = engine.locked(
      [](const GroupState& state) { return std::pair(state.operations.timeout(), state.operations.refusal()); });
  const Duration timeout = wait.timeout.value_or(groupTimeout);
  const Deadline deadline = deadlineAfter(timeout);
  InterruptibleWait slices(deadline);
  Deadline nextLook = started + kSpin;
  bool spins = true;
  while (true) {
    for (int i = 0; i < 16; ++i) {
      if (isOver()) {
        return Status::ok();
      }
      relax();
    }
    if (isAsked_) {
      engine.memory().help();  // this process stores the words that peers of other hosts send
    }
    const auto now = Clock::now();
    if (now >= deadline) {
      return isOver() ? Status::ok() : late(engine, wait, timeout);
    }
    spins = spins && now < started + kSpin && (now < started + kYieldAfter || mayYield(now));
    if (spins) {
      if (now >= started + kYieldAfter) {
        yieldCore(now);  // the awaited rank may be waiting for this core
      }
      continue;
    }
    if (now >= nextLook) {
      const auto neededNow = [&] {
        return wait.stillNeeded != nullptr ? wait.stillNeeded()
                                           : std::vector<Rank>(wait.needed.begin(), wait.needed.end());
      };
      const std::vector<Rank> needed = neededNow();
      const Status seen = engine.memory().lookFor(needed);
      if (!seen.isOk() && isOver()) {
        return Status::ok();
      }
      if (!seen.isOk() && needed == neededNow()) {  // else a rank may have left after doing its part
        return refusal.isOk() ? inVain(engine, wait, seen) : refusal;
      }
      if (wait.whyLeave != nullptr) {
        SW_RETURN_IF_ERROR(wait.whyLeave());
      }
      if (slices.isInterrupted()) {
        return interruptedStatus(fmt::format("{} ({})", wait.what, groupLabel_));
      }
      nextLook = now + kLookEvery;
    }
    sleep(isOver, std::min(deadline, slices.sliceEnd()));
  }
}

// Fails a wait after the group failed or a rank died. After a death the group fails now, and the other ranks learn the
// cause.
Status SymmetricBlock::inVain(Engine& engine, const Wait& wait, const Status& why) {
  Status status(why.code(), fmt::format("{} failed on {}: {}", wait.what, groupLabel_, why.message()));
  if (why.code() == StatusCode::kPeerFailed) {
    engine.abort(why);
  }
  return status;
}

Status SymmetricBlock::late(Engine& engine, const Wait& wait, Duration timeout) {
  Status status(StatusCode::kTimeout,
                fmt::format("{} on {} reached its timeout of {:.3g} s: {}{}", wait.what, groupLabel_,
                            std::chrono::duration<double>(timeout).count(), wait.whoIsMissing(), stateOf(wait.needed)));
  if (wait.isCollective) {
    engine.abort(status);
  }
  return status;
}

std::string SymmetricBlock::stateOf(std::span<const Rank> ranks) const {
  std::string text;
  for (const Rank rank : ranks) {
    const std::string state = partOf(rank).held == nullptr ? "" : partOf(rank).held->ownersState();
    if (!state.empty()) {
      text += fmt::format("; the process of rank {} is {}", rank, state);
    }
  }
  return text;
}

Status SymmetricBlock::ended() const {
  return {StatusCode::kAborted, fmt::format("the group of {} was ended on {}", name_, groupLabel_)};
}

Status SymmetricBlock::usable() const {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel_));
  return isFreed() ? Status{StatusCode::kInvalidArgument, fmt::format("{} of {} was freed", name_, groupLabel_)}
                   : Status::ok();
}

Result<std::uint64_t> SymmetricBlock::waitUntil(std::size_t offset, DType dtype, Comparison comparison,
                                                std::uint64_t value, std::optional<Duration> timeout,
                                                std::span<const Rank> sources) {
  SW_RETURN_IF_ERROR(usable());
  if (!isInteger(dtype) || offset % elementBytes(dtype) != 0 || offset + elementBytes(dtype) > bytes_) {
    return Status{StatusCode::kTypeError,
                  fmt::format("a signal is one integer of symmetric memory, not {} at byte {} of {}", dtypeName(dtype),
                              offset, bytes_)};
  }
  if (sources.empty()) {
    sources = others_;
  }
  for (const Rank source : sources) {
    if (source < 0 || source >= worldSize()) {
      return Status{StatusCode::kInvalidArgument,
                    fmt::format("source {} is out of range: the group has {} ranks, 0 to {}", source, worldSize(),
                                worldSize() - 1)};
    }
  }
  std::byte* const at = partOf(rank()).bytes + offset;
  std::uint64_t seen = 0;
  const auto isOver = [&] {
    seen = loadInteger(at, dtype);
    return compareIntegers(dtype, seen, comparison, value);
  };
  SW_RETURN_IF_ERROR(waitFor(isOver, [&] {
    return Wait{.what = fmt::format("signal_wait({} {}, {} at byte {} of {})", symbolOf(comparison),
                                    integerText(dtype, value), dtypeName(dtype), offset, name_),
                .needed = sources,
                .timeout = timeout,
                .isCollective = false,
                .whoIsMissing = [&] {
                  return fmt::format("the signal is {}, and nothing else came from {}",
                                     integerText(dtype, loadInteger(at, dtype)), rankList(sources));
                }};
  }));
  return seen;
}

Status SymmetricBlock::stepWord(std::string_view what, Rank owner, std::size_t offset, std::uint32_t from,
                                std::uint32_t to, Rank other, std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(usable());
  for (const Rank peer : {owner, other}) {
    if (peer < 0 || peer >= worldSize()) {
      return {StatusCode::kInvalidArgument, fmt::format("{}: rank {} is out of range: the group has {} ranks, 0 to {}",
                                                        what, peer, worldSize(), worldSize() - 1)};
    }
    if (partOf(peer).bytes == nullptr) {
      return {StatusCode::kUnsupported, fmt::format("{}: {}", what, partOf(peer).whyNot)};
    }
  }
  if (offset % sizeof(std::uint32_t) != 0 || offset + sizeof(std::uint32_t) > bytes_) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: there is no word at byte {} of {}", what, offset, bytes_)};
  }
  const std::atomic_ref<std::uint32_t> word(*reinterpret_cast<std::uint32_t*>(partOf(owner).bytes + offset));
  bool isDone = false;  // waitFor() calls step() again after it returned true
  const auto step = [&] {
    std::uint32_t expected = from;
    // seq_cst: the other rank's earlier stores are visible, and the sleeper's count is in one order with this
    // operation, as wake() needs.
    isDone = isDone || word.compare_exchange_strong(expected, to);
    return isDone;
  };
  const std::array<Rank, 1> needed = {other};
  SW_RETURN_IF_ERROR(waitFor(step, [&] {
    return Wait{.what = fmt::format("{} of {}", what, name_),
                .needed = other == rank() ? std::span<const Rank>() : std::span<const Rank>(needed),
                .timeout = timeout,
                .isCollective = false,
                .whoIsMissing = [&] { return fmt::format("rank {} did not take the matching step", other); }};
  }));
  wake(other);
  return Status::ok();
}

Status SymmetricBlock::barrier(int channel, std::optional<Duration> timeout, bool givesWay) {
  SW_RETURN_IF_ERROR(usable());
  if (channel < 0 || channel >= numChannels()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("channel {} is out of range: 0 to {}", channel, numChannels() - 1)};
  }
  if (!reachesAll_) {
    const auto missing = std::ranges::find_if(parts_, [](const BlockPart& part) { return part.bytes == nullptr; });
    return {StatusCode::kUnsupported,
            missing != parts_.end()
                ? missing->whyNot
                : fmt::format("{} on {}: another rank cannot address the part of every rank", name_, groupLabel_)};
  }
  const std::uint32_t number = 1 + barriers_[static_cast<std::size_t>(channel)].fetch_add(1, std::memory_order_relaxed);
  // seq_cst: for wake(). Includes release: the earlier stores of this rank are visible to a rank that reads the number.
  for (const Rank peer : others_) {
    words(peer).arrived(channel, rank()).store(number, std::memory_order_seq_cst);
    wake(peer);
  }
  const BlockWords mine = words(rank());
  // A rank may be one barrier ahead. Numbers wrap. Acquire would do but for sleep().
  const auto hasCome = [&](Rank peer) {
    return static_cast<std::int32_t>(mine.arrived(channel, peer).load(std::memory_order_seq_cst) - number) >= 0;
  };
  const auto waiting = [&] {
    std::vector<Rank> missing;
    std::ranges::copy_if(others_, std::back_inserter(missing), [&](Rank peer) { return !hasCome(peer); });
    return missing;
  };
  std::size_t first = 0;  // the ranks before have come
  const auto isOver = [&] {
    while (first < others_.size() && hasCome(others_[first])) {
      ++first;
    }
    return first == others_.size();
  };
  // A rank that came here and went on may make memory before this rank has seen the others come, so only the missing
  // ranks count. hasCome() is checked after the rank's frame was received: a rank that came had stored its number
  // before.
  const auto whyLeave = [&] {
    const std::shared_ptr<Engine> engine = engine_.lock();
    const std::array making = {exchangeFingerprint(kOffersSymmetric), exchangeFingerprint(kSettlesSymmetric)};
    const Rank elsewhere = engine == nullptr ? -1 : engine->memory().firstAhead(waiting(), making);
    return elsewhere < 0 || hasCome(elsewhere)
               ? Status::ok()
               : Status(StatusCode::kMismatch,
                        fmt::format("rank {} makes symmetric memory, and does not come to channel {} of {}", elsewhere,
                                    channel, name_));
  };
  return waitFor(isOver, [&] {
    return Wait{
        .what = fmt::format("barrier of channel {} of {}", channel, name_),
        .needed = others_,
        .stillNeeded = waiting,  // a rank that came may have finished and exited before this rank sees all others
        .timeout = timeout,
        .isCollective = true,
        .whoIsMissing = [&] { return rankList(waiting()) + " did not arrive"; },
        .whyLeave = givesWay ? std::function<Status()>(whyLeave) : nullptr};
  });
}

// The ranks of a host take turns by the word in one part, whatever the destination ranks are.
Status SymmetricBlock::enterOrder() {
  SW_RETURN_IF_ERROR(usable());
  if (orderOwner_ < 0) {
    return {StatusCode::kUnsupported,
            fmt::format("red of {} on {}: the ranks of this host take turns by a word in a part that all of them can "
                        "address, and there is no such part",
                        name_, groupLabel_)};
  }
  auto& holder = orderWord();
  bool isMine = false;  // waitFor() calls take() again after it returned true
  const auto take = [&] {
    std::uint32_t nobody = 0;
    // Acquire: the stores of the rank before are visible and come first everywhere. seq_cst only for sleep().
    isMine = isMine || holder.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank()) + 1);
    return isMine;
  };
  // The rank inside a section, alive or dead; -1: none. No other rank delays a turn.
  const auto inside = [&] { return static_cast<Rank>(holder.load(std::memory_order_relaxed)) - 1; };
  const auto delaying = [&] {
    const Rank by = inside();
    return by < 0 || by == rank() ? std::vector<Rank>{} : std::vector<Rank>{by};
  };
  return waitFor(take, [&] {
    return Wait{.what = fmt::format("red of {}", name_),
                .needed = others_,
                .stillNeeded = delaying,
                .isCollective = true,
                .whoIsMissing = [&] {
                  const Rank by = inside();
                  return by < 0 ? std::string("other ranks entered first each time")
                                : fmt::format("rank {} is inside its own section", by);
                }};
  });
}

void SymmetricBlock::leaveOrder() {
  // seq_cst: for wake(). Includes release: the stores of this rank are visible to the rank that enters next.
  orderWord().store(0, std::memory_order_seq_cst);
  for (Rank peer = 0; peer < worldSize(); ++peer) {
    if (partOf(peer).bytes != nullptr) {
      wake(peer);  // a waiting rank sleeps on the bell of its own part; another thread of this rank sleeps on this
                   // rank's bell
    }
  }
}

Status SymmetricBlock::free(std::optional<Duration> timeout, const std::string& localError) {
  SW_RETURN_IF_ERROR(owner_.check(groupLabel_));
  const std::shared_ptr<Engine> engine = engine_.lock();
  if (engine == nullptr) {
    return ended();
  }
  ExchangeRequest mine{.what = "symmetric free", .text = name_};
  if (isFreed()) {
    mine.error = Status(StatusCode::kInvalidArgument, fmt::format("{} was freed before", name_));
  } else if (!localError.empty()) {
    mine.error = Status(StatusCode::kInvalidArgument, localError);
  }
  SW_RETURN_IF_ERROR(exchangeAll(*engine, mine, timeout).status());
  isFreed_.store(true, std::memory_order_relaxed);
  releaseUnheld();
  return Status::ok();
}

}  // namespace shardwire::internal
