#include "tests/simulate/join_wires.h"

#include <poll.h>

#include <utility>

#include "backend/fabric/net_socket.h"

namespace shardwire::simulate {

using namespace internal;

namespace {

// Rings in place of the bells of a rank's inbox and of the fabric.
class WireBell final : public RankBell, public ProgressBell {
 public:
  WireBell(Process& process, std::size_t group) : process_(process), group_(group) {}
  BellWords& words() override { return words_; }
  std::uint32_t ticket() const override { return 0; }
  void sleep(std::uint32_t, Deadline) override {}
  void ring() override { process_.ringForNews(group_); }

 private:
  Process& process_;
  const std::size_t group_;
  BellWords words_{};
};

// A foreign process looks this often, and gives up after so many looks.
constexpr Time kStep = 2 * kMillisecond;
constexpr int kMostSteps = 1000;

}  // namespace

std::vector<NetAddress> openWires(RankLinks& links, Sockets& sockets, Process& process, std::size_t bell,
                                  const RandomId& token, int worldSize, std::shared_ptr<Fabric> fabric) {
  const auto wireBell = std::make_shared<WireBell>(process, bell);
  const auto listener = sockets.listenerOf(process);
  auto opened = links.openAt(*listener, {}, token, worldSize, std::move(fabric), wireBell, *wireBell);
  SW_CHECK(opened.isOk());
  return {Sockets::addressOf(process.rank())};
}

WireEndpoint::WireEndpoint(const Self& self, std::function<bool()> fails) : fails_(std::move(fails)) {
  auto tcp = makeTcpEndpoint(self);
  SW_CHECK(tcp.isOk());
  tcp_ = std::move(*tcp);
}

std::unique_ptr<Joining> WireEndpoint::begin(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                             const std::string& who) {
  auto joining = tcp_->begin(std::move(link), peer, isDialer, peerAddress, who);
  if (fails_()) {
    joining->giveUp({StatusCode::kSystem, "no room for the simulated link"});
  }
  return joining;
}

ForeignProcess::ForeignProcess(World& world, Rank dialed, const LinkKey& key, const LinkHello& hello)
    : world_(world), key_(key), hello_(hello) {
  const NetAddress to = Sockets::addressOf(dialed);
  const auto address = makeSocketAddress(to.ip, to.scope, to.port);
  auto socket = startTcp(*address, nullptr);
  SW_CHECK(socket.isOk());
  socket_ = std::move(*socket);
  step();
}

void ForeignProcess::say(LinkMessageType type) {
  LinkMessage message;
  message.type = type;
  message.hello = hello_;
  if (type == LinkMessageType::kProof) {
    message.proof = proveLink(key_, LinkRole::kDialer, hello_, Challenge{}, challenge_);
  }
  static_cast<void>(sendAtOnce(socket_, encodeLinkMessage(message)));
}

bool ForeignProcess::goOn() {
  pollfd entry{socket_.get(), POLLOUT, 0};
  if (!hasGreeted_) {
    hasGreeted_ = ::poll(&entry, 1, 0) > 0;
    if (hasGreeted_) {
      say(LinkMessageType::kHello);
    }
    return true;
  }
  const auto whole = reader_.readOn(socket_);
  if (!whole.isOk() || !*whole) {
    return whole.isOk();
  }
  const auto answer = decodeLinkMessage(reader_.take());
  isAccepted_ = answer.isOk() && answer->type == LinkMessageType::kWelcome;
  if (!answer.isOk() || answer->type != LinkMessageType::kChallenge) {
    return false;
  }
  challenge_ = answer->challenge;
  say(LinkMessageType::kProof);
  return true;
}

void ForeignProcess::step() {
  Time time = world_.now();
  const std::function<void(Time)> sleep = [&](Time duration) { time += duration; };
  const SimulatedTime mine(&time, &sleep);
  if (goOn() && ++numSteps_ < kMostSteps) {
    world_.at(world_.now() + kStep, [this] { step(); });
  }
}

}  // namespace shardwire::simulate
