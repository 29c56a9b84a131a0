// A cable between two network namespaces, which treats packets badly on demand.
//
// Usage: cable NAMESPACE NAMESPACE NAMESPACE
// In each namespace the program makes a tun device of the name "cable", and carries IP packets between the devices of
// the first two namespaces. The caller gives the devices their addresses. Each line on standard input replaces the
// treatment:
//
//   loss=0.05 delay=20 jitter=10 reorder=0.25 duplicate=0.1 corrupt=0.01 repair=1 shortest=1000 longest=600
//   rate=4 cut=both|ab|ba rebooted=1
//
// A line begins from the clean cable. Probabilities hold for each packet. Times are milliseconds. A reordered packet
// waits for 2 ms, and later packets pass the packet. A corrupted packet has one flipped bit in the TCP payload or, in a
// packet without payload, in the last byte. With repair=1 only packets with a payload are corrupted, and the TCP
// checksum is made right again: broken memory of a router or of a network card does the same. Packets shorter than
// `shortest` bytes are not corrupted. Packets longer than `longest` bytes are swallowed. `rate` is in Mbit/s for each
// direction (0: no limit): packets wait in a queue of at most 100 ms, and packets that find the queue full are lost.
// With rebooted=1 the third namespace takes the place of the second one: the kernel of the second host has lost all of
// its connections. Packets of the namespace without a cable are swallowed.
// The answer to each line is a line with the number of packets carried, lost, and corrupted so far. The end of standard
// input ends the program.
//
// netem would do most of this, but several kernels are built without it.

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <queue>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Packet = std::vector<uint8_t>;

struct Treatment {
  double loss = 0, delay = 0, jitter = 0, reorder = 0, duplicate = 0, corrupt = 0, rate = 0;
  bool repair = false, rebooted = false;
  size_t shortest = 0, longest = 65536;
  bool cut[2] = {false, false};
};

struct Due {
  Clock::time_point when;
  uint64_t number;  // packets of one time keep their order
  int to;
  Packet packet;
  bool operator<(const Due& other) const { return when != other.when ? when > other.when : number > other.number; }
};

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "cable: " << what << ": " << std::strerror(errno) << "\n";
  std::exit(1);
}

int openDevice(const std::string& space) {
  const int net = open(("/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
  if (net < 0 || setns(net, CLONE_NEWNET) != 0)
    fail("entering the namespace " + space);
  close(net);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0)
    fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, "cable", IFNAMSIZ - 1);
  if (ioctl(fd, TUNSETIFF, &request) != 0)
    fail("making a tun device");
  return fd;
}

std::optional<Treatment> parse(const std::string& line) {
  Treatment made;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos)
      return std::nullopt;
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    const double number = std::atof(value.c_str());
    if (name == "loss")
      made.loss = number;
    else if (name == "delay")
      made.delay = number;
    else if (name == "jitter")
      made.jitter = number;
    else if (name == "reorder")
      made.reorder = number;
    else if (name == "duplicate")
      made.duplicate = number;
    else if (name == "corrupt")
      made.corrupt = number;
    else if (name == "repair")
      made.repair = number != 0;
    else if (name == "shortest")
      made.shortest = static_cast<size_t>(number);
    else if (name == "longest")
      made.longest = static_cast<size_t>(number);
    else if (name == "rate")
      made.rate = number;
    else if (name == "rebooted")
      made.rebooted = number != 0;
    else if (name == "cut") {
      made.cut[0] = value != "ba";
      made.cut[1] = value != "ab";
    } else
      return std::nullopt;
  }
  return made;
}

// The Internet checksum of a TCP segment over IPv4, with its pseudo header.
uint16_t tcpChecksum(const Packet& packet, size_t head) {
  uint32_t sum = 6 + static_cast<uint32_t>(packet.size() - head);
  auto add = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      sum += (i - begin) % 2 == 0 ? uint32_t{packet[i]} << 8 : packet[i];
  };
  add(12, 20);
  add(head, packet.size());
  while (sum >> 16)
    sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

class Cable {
 public:
  Cable(int a, int b, int rebooted) : devices_{a, b, rebooted} {}

  void run() {
    std::string typed;
    for (;;) {
      pollfd sets[4] = {
          {devices_[0], POLLIN, 0}, {devices_[1], POLLIN, 0}, {devices_[2], POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      const timespec wait = untilNext();
      if (ppoll(sets, 4, waiting_.empty() ? nullptr : &wait, nullptr) < 0 && errno != EINTR)
        fail("ppoll");
      if (sets[3].revents != 0) {
        char bytes[4096];
        const ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
        if (got <= 0)
          return;
        typed.append(bytes, static_cast<size_t>(got));
        for (size_t end; (end = typed.find('\n')) != std::string::npos; typed.erase(0, end + 1))
          obey(typed.substr(0, end));
      }
      for (int device : {0, 1, 2})
        if (sets[device].revents & POLLIN)
          take(device);
      deliver();
    }
  }

 private:
  timespec untilNext() const {
    if (waiting_.empty())
      return {};
    const auto rest = std::max(Clock::duration::zero(), waiting_.top().when - Clock::now());
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(rest).count();
    return {ns / 1000000000, ns % 1000000000};
  }

  void obey(const std::string& line) {
    const auto made = parse(line);
    if (!made) {
      std::cerr << "cable: cannot read the line " << line << "\n";
      std::exit(1);
    }
    treatment_ = *made;
    std::cout << carried_ << " " << lost_ << " " << corrupted_ << std::endl;
  }

  bool happens(double probability) { return probability > 0 && chance_(random_) < probability; }

  void take(int device) {
    const int from = device == 0 ? 0 : 1;
    for (int i = 0; i < 64; ++i) {
      Packet packet(65536);
      const ssize_t got = read(devices_[device], packet.data(), packet.size());
      if (got <= 0)
        return;
      packet.resize(static_cast<size_t>(got));
      if (device == deviceOf(from))
        treat(from, std::move(packet));
    }
  }

  // The device of the first or of the second host.
  int deviceOf(int host) const { return host == 1 && treatment_.rebooted ? 2 : host; }

  void treat(int from, Packet packet) {
    if (treatment_.cut[from] || packet.size() > treatment_.longest || happens(treatment_.loss)) {
      ++lost_;
      return;
    }
    const auto now = Clock::now();
    const auto leaves = queued(from, now, packet.size());
    if (!leaves) {
      ++lost_;
      return;
    }
    if (packet.size() >= treatment_.shortest && happens(treatment_.corrupt))
      corrupt(packet);
    double after = treatment_.delay + treatment_.jitter * (2 * chance_(random_) - 1);
    if (happens(treatment_.reorder))
      after += 2;
    const auto when = *leaves + std::chrono::microseconds(static_cast<int64_t>(1000 * std::max(0.0, after)));
    if (happens(treatment_.duplicate))
      waiting_.push({when, number_++, 1 - from, packet});
    waiting_.push({when, number_++, 1 - from, std::move(packet)});
  }

  // When the last bit of the packet leaves a device of the treatment's rate; nothing if the queue is full.
  std::optional<Clock::time_point> queued(int from, Clock::time_point now, size_t bytes) {
    if (treatment_.rate <= 0)
      return now;
    Clock::time_point& isFree = isFree_[from];
    if (isFree - now > std::chrono::milliseconds(100))
      return std::nullopt;
    const double us = 8 * static_cast<double>(bytes) / treatment_.rate;
    isFree = std::max(isFree, now) + std::chrono::nanoseconds(static_cast<int64_t>(1000 * us));
    return isFree;
  }

  void corrupt(Packet& packet) {
    const size_t head = 4 * (packet[0] & 15u);
    if (packet[0] >> 4 != 4 || packet.size() < head + 20 || packet[9] != IPPROTO_TCP)
      return;
    const size_t payload = head + 4 * (packet[head + 12] >> 4u);
    if (payload >= packet.size() && treatment_.repair)
      return;
    const size_t first = std::min(payload, packet.size() - 1);
    const size_t place = std::uniform_int_distribution<size_t>(first, packet.size() - 1)(random_);
    packet[place] ^= static_cast<uint8_t>(1u << std::uniform_int_distribution<unsigned>(0, 7)(random_));
    if (treatment_.repair) {
      packet[head + 16] = packet[head + 17] = 0;
      const uint16_t sum = tcpChecksum(packet, head);
      packet[head + 16] = static_cast<uint8_t>(sum >> 8);
      packet[head + 17] = static_cast<uint8_t>(sum);
    }
    ++corrupted_;
  }

  // Packets on the way are lost if the cable was cut meanwhile.
  void deliver() {
    for (const auto now = Clock::now(); !waiting_.empty() && waiting_.top().when <= now; waiting_.pop()) {
      const Due& due = waiting_.top();
      const bool arrives =
          !treatment_.cut[1 - due.to] && write(devices_[deviceOf(due.to)], due.packet.data(), due.packet.size()) >= 0;
      ++(arrives ? carried_ : lost_);
    }
  }

  int devices_[3];  // of the two hosts, and of the second host after its reboot
  Treatment treatment_;
  Clock::time_point isFree_[2];  // when each direction has sent all packets of its queue
  std::priority_queue<Due> waiting_;
  uint64_t number_ = 0, carried_ = 0, lost_ = 0, corrupted_ = 0;
  std::mt19937_64 random_{1};
  std::uniform_real_distribution<double> chance_{0, 1};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: cable NAMESPACE NAMESPACE NAMESPACE\n";
    return 2;
  }
  const int a = openDevice(argv[1]), b = openDevice(argv[2]);
  Cable cable(a, b, openDevice(argv[3]));
  std::cout << "ready" << std::endl;
  cable.run();
}
