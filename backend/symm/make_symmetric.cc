// Two exchanges. In the first each rank gives its request and the address of its own part; the requests must be equal.
// Then each rank makes the parts of its peers addressable. In the second exchange each rank reports the result. So
// either all ranks have the block or none, and each rank knows the holders of its part. Only a rank that fails in
// the second exchange does not know what the others have: see releaseOfferedLater().
#include "backend/symm/make_symmetric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "backend/exec/exchange_all.h"
#include "backend/memory/shared_heap.h"
#include "backend/symm/deferred_release.h"
#include "backend/symm/served_block.h"
#include "ops/wire/byte_codec.h"

namespace shardwire::internal {
namespace {

constexpr const char* kWhat = "symmetric memory";

struct FreeInHeap {
  void operator()(std::byte* bytes) const { SharedHeap::freeBlock(bytes); }
};
using OwnPart = std::unique_ptr<std::byte, FreeInHeap>;

struct Offer {
  bool isAllJoined = false;
  HeapPlace place;
  HeapPlace attached;  // unused when the request attaches nothing
};

constexpr auto kPlaceFields = [](auto& codec, auto& place) {
  codec.field(place.isInHeap);
  codec.field(place.address);
  codec.field(place.offset);
};

constexpr auto kOfferFields = [](auto& codec, auto& offer) {
  codec.field(offer.isAllJoined);
  kPlaceFields(codec, offer.place);
  kPlaceFields(codec, offer.attached);
};

std::string encodeOffer(const Offer& offer) {
  ByteWriter writer;
  kOfferFields(writer, offer);
  return writer.take();
}

Result<std::vector<Offer>> decodeOffers(const std::vector<std::string>& blobs) {
  std::vector<Offer> offers;
  for (const std::string& blob : blobs) {
    ByteReader reader(blob);
    Offer offer;
    kOfferFields(reader, offer);
    if (!reader.isDone()) {
      return Status{StatusCode::kInternal,
                    fmt::format("{}: the message of rank {} cannot be read", kWhat, offers.size())};
    }
    offers.push_back(std::move(offer));
  }
  return offers;
}

// How a rank reaches another's part.
enum class Holding : std::uint8_t { kNot = 0, kMapped = 1, kByRequests = 2 };

// The outcome of one rank: the list of peers whose parts the rank holds.
std::string encodeOutcome(const std::vector<BlockPart>& parts) {
  ByteWriter writer;
  for (const BlockPart& part : parts) {
    writer.u8(static_cast<std::uint8_t>(part.held != nullptr   ? Holding::kMapped
                                        : !part.whyNot.empty() ? Holding::kByRequests
                                                               : Holding::kNot));
  }
  return writer.take();
}

// askers: the ranks that reach this rank's part only by requests.
Result<AddressTable> readOutcomes(const std::vector<std::string>& blobs, Rank self, std::vector<BlockPart>* parts,
                                  std::vector<Rank>* askers) {
  AddressTable table(blobs.size());
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    ByteReader reader(blobs[rank]);
    for (std::size_t owner = 0; owner < blobs.size(); ++owner) {
      const auto how = static_cast<Holding>(reader.u8());
      table[rank].push_back(rank == owner || how == Holding::kMapped);
      if (owner == static_cast<std::size_t>(self)) {
        (*parts)[rank].holdsMine = how != Holding::kNot;
        (*parts)[rank].asksMine = how == Holding::kByRequests;
        if (how == Holding::kByRequests) {
          askers->push_back(static_cast<Rank>(rank));
        }
      }
    }
    if (!reader.isDone()) {
      return Status{StatusCode::kInternal, fmt::format("{}: the message of rank {} cannot be read", kWhat, rank)};
    }
  }
  return table;
}

HeapPlace placeOf(const SharedHeap& heap, const void* bytes, std::size_t size) {
  const auto offset = heap.offsetOf(bytes, size);
  return {reinterpret_cast<std::uint64_t>(bytes), offset.value_or(0), offset.has_value()};
}

Result<OwnPart> makeOwnPart(const SymmetricRequest& request, std::size_t size, HeapPlace* place) {
  if (request.bytes > (std::size_t{1} << 60)) {
    return Status{StatusCode::kInvalidArgument, fmt::format("{} bytes are more than any memory", request.bytes)};
  }
  if (request.numChannels < 1) {
    return Status{StatusCode::kInvalidArgument,
                  fmt::format("{} channels; at least one is needed", request.numChannels)};
  }
  const auto heap = SharedHeap::instance();
  SW_RETURN_IF_ERROR(heap.status());
  auto memory = (*heap)->allocate(size);
  SW_RETURN_IF_ERROR(memory.status());
  OwnPart part(static_cast<std::byte*>(*memory));
  std::memset(part.get() + (request.isZeroed ? 0 : request.bytes), 0, (request.isZeroed ? size : size - request.bytes));
  *place = placeOf(**heap, part.get(), size);
  return part;
}

// kUnsupported is a failure only with needsAll: otherwise the peer is on another host, for example, and is reached by
// requests.
Status holdAll(Engine& engine, const SymmetricRequest& request, const std::vector<Offer>& offers, std::size_t size,
               std::byte* own, std::vector<BlockPart>* parts) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    BlockPart& part = (*parts)[rank];
    if (static_cast<Rank>(rank) == engine.facts().rank) {
      part.bytes = own;
      part.attached = static_cast<std::byte*>(request.attached.get());
      continue;
    }
    auto held = engine.memory().hold(static_cast<Rank>(rank), offers[rank].place, size);
    if (held.isOk()) {
      part.held = std::move(*held);
      part.bytes = part.held->bytes();
    } else if (held.status().code() == StatusCode::kUnsupported && !request.needsAll) {
      part.whyNot = held.status().message();
      continue;
    } else {
      return held.status();
    }
    if (request.attached != nullptr) {
      auto attached = engine.memory().hold(static_cast<Rank>(rank), offers[rank].attached, request.attachedBytes);
      SW_RETURN_IF_ERROR(attached.status());
      part.attachedHeld = std::move(*attached);
      part.attached = part.attachedHeld->bytes();
    }
  }
  return Status::ok();
}

// Serves requests from before any rank has the block. Ends when the block is not made after all, or when no rank sends
// requests.
class Serving {
 public:
  Serving(const std::shared_ptr<Engine>& engine, std::uint64_t number) : engine_(*engine), number_(number) {}
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() { end(); }
  void begin(std::shared_ptr<ServedPart> part) {
    engine_.memory().serve(number_, std::move(part));
    isOpen_ = true;
  }
  void end() {
    if (std::exchange(isOpen_, false)) {
      engine_.memory().withdraw(number_);
    }
  }
  void keep(std::vector<Rank> askers) {
    if (!askers.empty()) {
      engine_.memory().expectRequests(number_, std::move(askers));
      isOpen_ = false;
    }
  }

 private:
  Engine& engine_;
  const std::uint64_t number_;
  bool isOpen_ = false;
};

// This rank may have reported success without receiving the success of all ranks. A peer that received all successes
// has the block and writes to this part. Any other peer may have reused the part by now, so nothing is written
// there, not even the word for the release. So parts stay until the peers that mapped a part have released the block,
// are dead, or have no groups any more.
void releaseOfferedLater(OwnPart own, const SymmetricRequest& request, const std::vector<BlockPart>& parts) {
  DeferredBlock mine{own.get(),
                     SymmetricBlock::wordsOf(own.get(), request.bytes, static_cast<int>(parts.size())),
                     request.attached,
                     {}};
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const BlockPart& part = parts[rank];
    if (part.attachedHeld != nullptr) {
      part.attachedHeld->release([] {});
    }
    if (part.held != nullptr) {
      part.held->release([] {});
      mine.holders.emplace_back(static_cast<Rank>(rank), part.held);
    }
  }
  own.release();  // owned by the list of deferred releases now
  releaseLater(std::move(mine));
}

}  // namespace

Result<std::shared_ptr<SymmetricMemory>> makeSymmetric(const std::shared_ptr<Engine>& engine,
                                                       const SymmetricRequest& request, std::optional<Duration> timeout,
                                                       const std::function<Status()>& joinAll) {
  releaseUnheld();
  const int worldSize = engine->facts().worldSize;
  const std::size_t size = SymmetricBlock::partBytes(request.bytes, worldSize, request.numChannels);
  ExchangeRequest asks{.what = kWhat, .text = request.text};
  Offer mine{.isAllJoined = engine->memory().areAllJoined()};
  OwnPart own;
  auto made = request.localError.empty() ? makeOwnPart(request, size, &mine.place)
                                         : Result<OwnPart>(Status(StatusCode::kInvalidArgument, request.localError));
  if (made.isOk()) {
    own = std::move(*made);
    if (request.attached != nullptr) {
      mine.attached = placeOf(**SharedHeap::instance(), request.attached.get(), request.attachedBytes);
    }
    asks.blob = encodeOffer(mine);
  } else {
    asks.error = Status(StatusCode::kInvalidArgument, made.status().message());
  }
  CallPart part;
  const auto blobs = exchangeAll(*engine, asks, timeout, &part, kOffersSymmetric);
  SW_RETURN_IF_ERROR(blobs.status());
  const std::uint64_t number = part.seq;
  const auto offers = decodeOffers(*blobs);
  SW_RETURN_IF_ERROR(offers.status());
  if (!std::ranges::all_of(*offers, &Offer::isAllJoined)) {
    SW_RETURN_IF_ERROR(joinAll());
  }
  std::vector<BlockPart> parts(static_cast<std::size_t>(worldSize));
  const Status held = holdAll(*engine, request, *offers, size, own.get(), &parts);
  // Serving begins before any rank has the block, since a rank with the block may send requests at once.
  Serving serving(engine, number);
  if (held.isOk()) {
    serving.begin(std::make_shared<ServedBlock>(own.get(), request.bytes,
                                                SymmetricBlock::wordsOf(own.get(), request.bytes, worldSize)));
  }
  const auto outcomes = exchangeAll(*engine, {.what = kWhat, .blob = encodeOutcome(parts), .error = held}, timeout,
                                    &part, kSettlesSymmetric);
  if (part.seq == number && held.isOk()) {  // the ranks did not meet: their outcomes are unknown
    serving.end();
    releaseOfferedLater(std::move(own), request, parts);
  }
  SW_RETURN_IF_ERROR(outcomes.status());
  std::vector<Rank> askers;
  const auto table = readOutcomes(*outcomes, engine->facts().rank, &parts, &askers);
  SW_RETURN_IF_ERROR(table.status());
  // A rank with a mapping marks the release, unless the process ends before. The engine notices the end of the askers.
  for (Rank rank = 0; rank < worldSize; ++rank) {
    BlockPart& each = parts[static_cast<std::size_t>(rank)];
    if (each.holdsMine && !each.asksMine && each.held == nullptr) {
      auto watch = engine->memory().hold(rank, {}, 0);
      each.watch = watch.isOk() ? std::move(*watch) : nullptr;
    }
  }
  own.release();  // owned by the block now
  serving.keep(std::move(askers));
  return std::shared_ptr<SymmetricMemory>(
      std::make_shared<SymmetricBlock>(engine, request, number, std::move(parts), *table));
}

}  // namespace shardwire::internal
