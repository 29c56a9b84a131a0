// Joins ranks that are processes of one MPI job. whyNot() compares the addresses: same job, different processes.
// connect() then exchanges the joint over the link (agree()): lane lengths, tags, and a failure of either side. Only
// when both sides agree, both make the communicator of the pair (MpiProcess::pairWith()), which may wait inside of MPI.
// See MpiProcess for the communicators, MpiConnection for the messages.
#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <string_view>

#include "backend/base/wire.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/lanes.h"
#include "backend/transport/mpi/mpi_connection.h"

namespace shardwire::internal {
namespace {

constexpr std::uint8_t kAddressVersion = 1;
constexpr std::uint8_t kJointVersion = 2;
constexpr std::size_t kMaxJobBytes = 1024;
// Below these limits a fetch costs more than staging. An edge costs a round trip. The owner's runs are packed by the
// owner either way. Runs to be written are scattered by an MPI datatype at 1.5 GB/s here, and our unpacking is faster.
// With SHARDWIRE_INLINE_BYTES=0, which permits no payload inside of frames, everything is fetched.
constexpr std::size_t kEdgeOverInline = 16;
constexpr std::size_t kInlineOverRun = 8;
constexpr std::size_t kLocalRunOverInline = 8;

ReadLimits limitsOf(const Options& options) {
  ReadLimits limits =
      wireReadLimits(options.ordinaryPath, options.inlineBytes * kEdgeOverInline, options.inlineBytes / kInlineOverRun);
  if (limits.minLocalRunBytes > 0) {  // unless the options force fetches
    limits.minLocalRunBytes = options.inlineBytes * kLocalRunOverInline;
  }
  return limits;
}

// The version in one byte, then the fields.
template <typename Message, typename Fields>
std::string encode(std::uint8_t version, const Message& message, Fields fields) {
  ByteWriter writer;
  writer.u8(version);
  fields(writer, message);
  return writer.take();
}
template <typename Message, typename Fields>
bool decode(std::string_view bytes, std::uint8_t version, Message* message, Fields fields) {
  ByteReader reader(bytes);
  if (reader.u8() != version) {
    return false;
  }
  fields(reader, *message);
  return reader.isDone();
}

struct MpiAddress {
  std::string job;
  std::uint32_t rank = 0;  // in the MPI world
  std::uint32_t size = 0;
};

constexpr auto kAddressFields = [](auto& codec, auto& address) {
  codec.field(address.job, kMaxJobBytes);
  codec.field(address.rank);
  codec.field(address.size);
};

std::string encodeAddress(const MpiAddress& address) {
  return encode(kAddressVersion, address, kAddressFields);
}

bool decodeAddress(std::string_view bytes, MpiAddress* address) {
  return decode(bytes, kAddressVersion, address, kAddressFields) && address->rank < address->size;
}

// The message of each side over the link: the lane lengths and, from the lower rank of the MPI world, the tags.
struct Joint {
  std::uint32_t firstTag = 0;
  std::array<std::uint64_t, kNumLanes> laneBytes{};
  std::string failure;  // why this side cannot join; empty: no failure
};

constexpr auto kJointFields = [](auto& codec, auto& joint) {
  codec.field(joint.firstTag);
  for (auto& bytes : joint.laneBytes) {
    codec.field(bytes);
  }
  codec.field(joint.failure, Link::kMaxMessageBytes);
};

class MpiEndpoint final : public Endpoint {
 public:
  MpiEndpoint(const Self& self, MpiProcess* process)
      : self_(self), process_(process), wire_(std::make_unique<MpiWire>(process)) {
    const MpiState state = process->state();
    mine_ = {process->job().substr(0, kMaxJobBytes), static_cast<std::uint32_t>(state.rank),
             static_cast<std::uint32_t>(state.size)};
  }

  std::string address() const override { return encodeAddress(mine_); }
  std::string whyNot(std::string_view peerAddress) const override;
  Result<std::unique_ptr<Connection>> connect(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                              const std::string& who, const WaitLimit& limit) override;
  std::unique_ptr<Wire> takeWire() override { return std::move(wire_); }

 private:
  Joint propose(int worldRank);
  Status agree(Link& link, int worldRank, const std::string& who, const WaitLimit& limit, int* firstTag);

  const Self self_;
  MpiProcess* const process_;
  std::unique_ptr<MpiWire> wire_;
  MpiAddress mine_;
};

std::string MpiEndpoint::whyNot(std::string_view peerAddress) const {
  MpiAddress theirs;
  if (!decodeAddress(peerAddress, &theirs)) {
    return "one of the two runs another version of shardwire";
  }
  if (theirs.job != mine_.job || theirs.size != mine_.size) {
    return "they belong to different MPI jobs: start them by one mpirun";
  }
  if (theirs.rank == mine_.rank) {
    return fmt::format("both are rank {} of the MPI job: threads of one process", mine_.rank);
  }
  return {};
}

Joint MpiEndpoint::propose(int worldRank) {
  Joint joint{0, laneCapacities(*self_.options), {}};
  if (static_cast<int>(mine_.rank) < worldRank) {
    const auto tags = process_->takeTags(worldRank);
    if (tags.isOk()) {
      joint.firstTag = static_cast<std::uint32_t>(*tags);
    } else {
      joint.failure = tags.status().message();
    }
  }
  return joint;
}

// Makes sure that both sides are present, willing, and configured alike, before either side waits inside of MPI.
Status MpiEndpoint::agree(Link& link, int worldRank, const std::string& who, const WaitLimit& limit, int* firstTag) {
  const Joint mine = propose(worldRank);
  SW_RETURN_IF_ERROR(link.send(encode(kJointVersion, mine, kJointFields), limit));
  const auto answer = link.receive(limit);
  SW_RETURN_IF_ERROR(answer.status());
  Joint theirs;
  if (!decode(*answer, kJointVersion, &theirs, kJointFields)) {
    return {StatusCode::kMismatch, fmt::format("{} speaks another version of the mpi transport", who)};
  }
  if (!mine.failure.empty() || !theirs.failure.empty()) {
    return {StatusCode::kUnsupported, mine.failure.empty() ? fmt::format("{}: {}", who, theirs.failure) : mine.failure};
  }
  if (theirs.laneBytes != mine.laneBytes) {
    return {StatusCode::kMismatch, fmt::format("this rank and {} have different SHARDWIRE_RING_BYTES or "
                                               "SHARDWIRE_INLINE_BYTES; set them equally on all ranks",
                                               who)};
  }
  *firstTag = static_cast<int>(static_cast<int>(mine_.rank) < worldRank ? mine.firstTag : theirs.firstTag);
  return Status::ok();
}

Result<std::unique_ptr<Connection>> MpiEndpoint::connect(Link link, Rank peer, bool, std::string_view peerAddress,
                                                         const std::string& who, const WaitLimit& limit) {
  MpiAddress theirs;
  if (!decodeAddress(peerAddress, &theirs)) {
    return Status{StatusCode::kMismatch, fmt::format("the address of {} cannot be read", who)};
  }
  const int worldRank = static_cast<int>(theirs.rank);
  int firstTag = 0;
  SW_RETURN_IF_ERROR(agree(link, worldRank, who, limit, &firstTag));
  Status ended;
  const auto isConnected = [&] {
    ended = limit.look();
    if (!ended.isOk()) {
      return false;
    }
    char byte = 0;
    const ssize_t size = ::recv(link.socket().get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
  };
  const auto pair = process_->pairWith(worldRank, isConnected, limit.deadline());
  SW_RETURN_IF_ERROR(ended);
  if (!pair.isOk()) {
    return Status{pair.status().code(), fmt::format("no MPI communicator with {}: {}", who, pair.status().message())};
  }
  return MpiConnection::create(
      {peer, who, worldRank, link.takeSocket(), *pair, firstTag, laneCapacities(*self_.options),
       limitsOf(*self_.options), self_.options->ordinaryPath == OrdinaryPath::kStaged},
      wire_.get());
}

}  // namespace

Result<std::unique_ptr<Endpoint>> makeMpiEndpoint(const Self& self) {
  const auto process = MpiProcess::instance();
  SW_RETURN_IF_ERROR(process.status());
  const std::string& transports = self.options->transports;
  const bool isAskedFor = !transports.empty() && transports[0] != '^' && transports.find("mpi") != std::string::npos;
  SW_RETURN_IF_ERROR((*process)->prepare(self.worldSize, isAskedFor, deadlineAfter(self.options->timeout)));
  if ((*process)->state().size < 2) {
    return Status{StatusCode::kUnsupported,
                  fmt::format("the MPI job has this process only; start the ranks by one mpirun (of {})",
                              (*process)->api().library())};
  }
  return std::unique_ptr<Endpoint>(std::make_unique<MpiEndpoint>(self, *process));
}

}  // namespace shardwire::internal
