// One RC queue pair. create() makes the queue pair with the largest inline size that the device accepts, and brings it
// to INIT. connect() moves the queue pair to RTR with the peer's address, posts the receives, and moves it to RTS.
// write() posts one RDMA write, and requests a completion for some of the writes only. postReceives() posts receives in
// chains.
#include "backend/transport/rdma/queue_pair.h"

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/base/random_id.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

// A request whose packets are not acknowledged fails after (kRetries + 1) * 4.096 us * 2^kTimeout = 0.47 s (some
// devices take a multiple of this time). kRetries must not be 7, which some devices interpret as "for ever".
constexpr std::uint8_t kTimeout = 14;
constexpr std::uint8_t kRetries = 6;
// A peer always has a posted receive (see FrameLanes); 7 means to wait for a receive for ever in any case.
constexpr std::uint8_t kReceiverNotReadyRetries = 7;
constexpr std::uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
constexpr std::uint8_t kHopLimit = 255;
// One of this many requests asks for a completion, which covers all requests before.
constexpr std::uint32_t kSignalEvery = 16;
constexpr std::uint32_t kWantedInline[] = {256, 64, 0};

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::create(RdmaFabric& fabric, const Rail& rail, QueuePairDepth depth,
                                                     const WorkId& id) {
  const RdmaDevice& device = fabric.device(rail.device);
  const auto most = static_cast<std::uint32_t>(std::max(device.attributes().max_qp_wr, 1));
  depth = {std::min(depth.sends, most), std::min(depth.receives, most)};
  std::unique_ptr<QueuePair> made(new QueuePair(fabric.api(), rail, depth, id));
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = fabric.completionQueue(rail.device);
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 0;
  int error = 0;
  for (const std::uint32_t wanted : kWantedInline) {
    attributes.cap = {.max_send_wr = depth.sends,
                      .max_recv_wr = depth.receives,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_data = wanted};
    errno = 0;
    made->qp_ = fabric.api().createQp(device.pd(), &attributes);
    if (made->qp_ != nullptr) {
      break;
    }
    error = errno;
  }
  if (made->qp_ == nullptr) {
    const char* advice =
        error == ENOMEM ? " (the memlock limit is too low, or the device is out of queue pairs: ulimit -l unlimited)"
                        : "";
    return systemError(fmt::format("{}: ibv_create_qp{}", toString(rail.address), advice), error);
  }
  made->maxInline_ = attributes.cap.max_inline_data;
  const auto random = makeRandomId();
  SW_RETURN_IF_ERROR(random.status());
  made->firstPacket_ = static_cast<std::uint32_t>(random->words[0]) & 0xffffff;
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = rail.address.port;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  SW_RETURN_IF_ERROR(made->modify(&init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));
  return made;
}

QueuePair::~QueuePair() {
  if (qp_ != nullptr) {
    api_.destroyQp(qp_);  // after this the device neither reads nor writes memory for this queue pair
  }
}

Status QueuePair::modify(ibv_qp_attr* attributes, int mask, const char* to) {
  const int error = api_.modifyQp(qp_, attributes, mask);
  return error == 0 ? Status::ok()
                    : systemError(fmt::format("{}: ibv_modify_qp to {}", toString(rail_.address), to), error);
}

Status QueuePair::connect(const RailAddress& peer, const QueuePairAddress& peerQueue) {
  ibv_qp_attr ready{};
  ready.qp_state = IBV_QPS_RTR;
  ready.path_mtu = static_cast<ibv_mtu>(std::min(rail_.address.mtu, peer.mtu));
  ready.dest_qp_num = peerQueue.number;
  ready.rq_psn = peerQueue.firstPacket;
  ready.max_dest_rd_atomic = 1;
  ready.min_rnr_timer = kReceiverNotReadyTimer;
  ready.ah_attr.port_num = rail_.address.port;
  ready.ah_attr.dlid = peer.lid;
  // InfiniBand: the subnet prefix is the first half of the GID; in one subnet the LID is enough.
  const bool isOtherSubnet = std::memcmp(peer.gid.data(), rail_.address.gid.data(), 8) != 0 && peer.gid != Gid{};
  if (rail_.address.isEthernet || isOtherSubnet) {
    ready.ah_attr.is_global = 1;
    ready.ah_attr.grh.hop_limit = kHopLimit;
    ready.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(rail_.gidIndex);
    std::memcpy(ready.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  }
  SW_RETURN_IF_ERROR(modify(&ready,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                            "RTR (is the peer's address reachable from this port?)"));
  if (!postReceives(depth_.receives)) {
    return systemError(fmt::format("{}: ibv_post_recv", toString(rail_.address)), error_);
  }
  ibv_qp_attr sending{};
  sending.qp_state = IBV_QPS_RTS;
  sending.timeout = kTimeout;
  sending.retry_cnt = kRetries;
  sending.rnr_retry = kReceiverNotReadyRetries;
  sending.sq_psn = firstPacket_;
  sending.max_rd_atomic = 1;
  return modify(
      &sending,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      "RTS");
}

bool QueuePair::write(const RdmaWrite& write) {
  if (!hasRoom()) {
    return false;
  }
  ibv_sge piece{};
  piece.addr = reinterpret_cast<std::uintptr_t>(write.local);
  piece.length = static_cast<std::uint32_t>(write.bytes);
  piece.lkey = write.localKey;
  ibv_send_wr request{};
  WorkId id = id_;
  id.sequence = posted_ + 1;
  request.wr_id = id.encode();
  request.sg_list = &piece;
  request.num_sge = write.bytes > 0 ? 1 : 0;
  request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htobe32(write.immediate.value_or(0));
  request.wr.rdma.remote_addr = write.remote;
  request.wr.rdma.rkey = write.remoteKey;
  const bool isInline = write.bytes > 0 && write.bytes <= maxInline_;
  // A request in the last free place always asks for a completion; otherwise the queue would stay full.
  const bool isLast = posted_ + 1 - completed_ >= depth_.sends;
  const bool isSignalled = write.isSignalled || isLast || posted_ + 1 - lastSignalled_ >= kSignalEvery;
  const unsigned signalled = isSignalled ? IBV_SEND_SIGNALED : 0;
  const unsigned inlined = isInline ? IBV_SEND_INLINE : 0;
  request.send_flags = signalled | inlined;
  ibv_send_wr* bad = nullptr;
  if (const int error = api_.postSend(qp_, &request, &bad); error != 0) {
    error_ = error;
    return false;
  }
  ++posted_;
  lastSignalled_ = isSignalled ? posted_ : lastSignalled_;
  return true;
}

bool QueuePair::postReceives(std::uint32_t number) {
  constexpr std::uint32_t kChain = 32;
  WorkId id = id_;
  id.isReceive = true;
  std::array<ibv_recv_wr, kChain> requests{};
  while (number > 0 && error_ == 0) {
    const std::uint32_t chained = std::min(number, kChain);
    for (std::uint32_t i = 0; i < chained; ++i) {
      requests[i] = {};
      requests[i].wr_id = id.encode();
      requests[i].next = i + 1 < chained ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    error_ = api_.postRecv(qp_, requests.data(), &bad);
    number -= chained;
  }
  return error_ == 0;
}

}  // namespace shardwire::internal
