// One rank's side of the set-up of a tcp connection. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/fabric/link.h"
#include "backend/fabric/link_message.h"
#include "backend/fabric/net_socket.h"
#include "backend/fabric/rejections.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/tcp/tcp_connection.h"

namespace shardwire::internal {

inline constexpr std::uint8_t kTcpVersion = 3;

// Reports to the dialer that this rank rejects the set-up.
void refuseByTcp(Link link, const Status& why);

class TcpJoining final : public Joining {
 public:
  // `joint` still lacks its sockets and the remote address.
  TcpJoining(Link link, bool isDialer, TcpJoint joint);

  std::optional<Outcome> step() override;
  void appendSockets(std::vector<pollfd>* entries) const override;
  std::string awaited() const override;
  void giveUp(const Status& why) override;

 private:
  enum class Stage : unsigned char {
    kSetup,
    kConnecting,
    kSuspecting,
    kProving,
    kAccepting,
    kVerdict,
    kSecuring,
    kOver
  };
  struct Caller {
    Fd socket;
    MessageReader reader;
  };

  Status begin();
  Status listen(std::uint16_t* port);
  // advance() calls the function of the current stage, which stays there, enters the next stage, or fails.
  Status advance();
  Status takeSetup();
  Status suspect(Status why);
  Status receiveReason();
  Status connected();
  Status takeProof();
  Status acceptSecond();
  Status takeVerdict();
  Status beginTls();
  Status secure();
  void finish();
  void judge(const Status& mine);
  void end(const Status& why);

  Link link_;
  const bool isDialer_;
  TcpJoint joint_;
  Stage stage_ = Stage::kSetup;
  MessageReader fromLink_;
  MessageReader fromSecond_;
  Fd second_;
  std::string secondName_;
  Status suspicion_;  // why there is no second socket, as seen from this end
  Deadline suspectUntil_{};
  std::string setups_;         // of the dialer and of the listener, one after the other: part of the key for TLS
  bool hasTls_ = false;        // both ends agreed
  bool isFramesSafe_ = false;  // the TLS handshake of the stream is done
  bool isFetchesSafe_ = false;
  Fd listener_;  // for the second socket, on the side that does not dial
  std::vector<Caller> callers_;
  Rejections rejections_;
  std::optional<Outcome> outcome_;
};

}  // namespace shardwire::internal
