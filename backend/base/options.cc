// Helpers come first: numbers of bytes, durations, choices by name, and the first set variable of several names. Each
// helper keeps the default if its variable is absent or empty, and refuses a bad value with the variable's name and the
// legal values. fromEnvironment() then reads one variable after the other and returns the first error. toString()
// prints all options in one line.
#include "shardwire/options.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace shardwire {
namespace {

constexpr std::size_t kMinRingBytes = std::size_t{16} << 10;
constexpr std::size_t kMaxRingBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxInlineBytes = std::size_t{256} << 10;
constexpr std::size_t kMinHeapBytes = std::size_t{2} << 20;
constexpr std::size_t kMinStagingBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxHeapBytes = std::size_t{1} << 46;  // half of x86-64's address space for users

Status invalid(const char* name, std::string_view text, std::string_view wanted) {
  return {StatusCode::kInvalidArgument, fmt::format("{}={} is not {}", name, text, wanted)};
}

// The value of a variable; an empty value counts as absent.
std::optional<std::string_view> variable(const char* name) {
  const char* text = ::getenv(name);
  if (text == nullptr || *text == '\0') {
    return std::nullopt;
  }
  return text;
}

// "1048576", "1024K", "1M", "2G"
std::optional<std::uint64_t> parseBytes(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) {
    return std::nullopt;
  }
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  int shift = 0;
  if (suffix == "K" || suffix == "k") {
    shift = 10;
  } else if (suffix == "M" || suffix == "m") {
    shift = 20;
  } else if (suffix == "G" || suffix == "g") {
    shift = 30;
  } else if (!suffix.empty()) {
    return std::nullopt;
  }
  if (value > (std::numeric_limits<std::uint64_t>::max() >> shift)) {
    return std::nullopt;
  }
  return value << shift;
}

Status readBytes(const char* name, std::size_t least, std::size_t most, bool zeroIsLegal, std::size_t* bytes) {
  const auto text = variable(name);
  if (!text) {
    return Status::ok();
  }
  const auto value = parseBytes(*text);
  if (!value || ((*value < least || *value > most) && !(zeroIsLegal && *value == 0))) {
    return invalid(name, *text,
                   fmt::format("a number of bytes between {} and {}{} (suffixes K, M, G)", least, most,
                               zeroIsLegal ? " or 0" : ""));
  }
  *bytes = *value;
  return Status::ok();
}

// A number of `unit`s, fractions allowed. Negative values only with `negativeIsLegal`.
Status readDuration(const char* name, Duration unit, bool negativeIsLegal, Duration* duration) {
  const auto text = variable(name);
  if (!text) {
    return Status::ok();
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  const double nanoseconds = value * static_cast<double>(unit.count());
  const bool isNumber = error == std::errc() && end == text->data() + text->size() && std::isfinite(nanoseconds);
  if (!isNumber || std::abs(nanoseconds) > 9e18 || (value < 0 && !negativeIsLegal) ||
      (value == 0 && !negativeIsLegal)) {
    return invalid(name, *text, negativeIsLegal ? "a number" : "a number above 0");
  }
  *duration = value < 0 ? Duration(-1) : Duration(static_cast<Duration::rep>(nanoseconds));
  return Status::ok();
}

// A setting with named values; the first is the default.
template <typename T, std::size_t N>
using Choices = std::array<std::pair<std::string_view, T>, N>;

constexpr Choices<OrdinaryPath, 3> kOrdinaryPaths = {
    {{"auto", OrdinaryPath::kAuto}, {"cross_memory", OrdinaryPath::kCrossMemory}, {"staged", OrdinaryPath::kStaged}}};
constexpr Choices<LinksWhen, 3> kLinks = {
    {{"auto", LinksWhen::kAuto}, {"eager", LinksWhen::kEager}, {"lazy", LinksWhen::kLazy}}};
constexpr Choices<TcpTls, 3> kTls = {{{"auto", TcpTls::kAuto}, {"on", TcpTls::kOn}, {"off", TcpTls::kOff}}};
constexpr Choices<bool, 2> kChecks = {{{"default", false}, {"full", true}}};
constexpr Choices<bool, 2> kSwitch = {{{"0", false}, {"1", true}}};

template <typename T, std::size_t N>
Status readChoice(const char* name, const Choices<T, N>& choices, T* value) {
  const auto text = variable(name);
  std::string names;
  for (const auto& [choice, meaning] : choices) {
    if (text.value_or(choices[0].first) == choice) {
      *value = meaning;
      return Status::ok();
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", choice);
  }
  return invalid(name, *text, "one of " + names);
}

template <typename T, std::size_t N>
std::string_view choiceName(const Choices<T, N>& choices, T value) {
  for (const auto& [choice, meaning] : choices) {
    if (meaning == value) {
      return choice;
    }
  }
  return "?";
}

// The first of these variables that is set: our own name, then the names from NCCL and gloo.
std::string firstOf(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto text = variable(name)) {
      return std::string(*text);
    }
  }
  return {};
}

constexpr int kMaxRecordedOps = 1 << 20;

// The first of these variables that is set.
Status readNumber(std::initializer_list<const char*> names, int least, int most, std::string_view wanted, int* number) {
  for (const char* const name : names) {
    const auto text = variable(name);
    if (!text) {
      continue;
    }
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
    const bool isNumber = error == std::errc() && end == text->data() + text->size();
    return isNumber && *number >= least && *number <= most ? Status::ok() : invalid(name, *text, wanted);
  }
  return Status::ok();
}

}  // namespace

Result<Options> Options::fromEnvironment() {
  Options options;
  SW_RETURN_IF_ERROR(readDuration("SHARDWIRE_TIMEOUT_S", std::chrono::seconds(1), false, &options.timeout));
  SW_RETURN_IF_ERROR(readDuration("SHARDWIRE_WARN_S", std::chrono::seconds(1), true, &options.warnAfter));
  SW_RETURN_IF_ERROR(readDuration("SHARDWIRE_GRACE_S", std::chrono::seconds(1), true, &options.grace));
  SW_RETURN_IF_ERROR(readDuration("SHARDWIRE_SPIN_US", std::chrono::microseconds(1), true, &options.spin));
  SW_RETURN_IF_ERROR(readBytes("SHARDWIRE_RING_BYTES", kMinRingBytes, kMaxRingBytes, false, &options.ringBytes));
  SW_RETURN_IF_ERROR(readBytes("SHARDWIRE_INLINE_BYTES", 0, kMaxInlineBytes, true, &options.inlineBytes));
  SW_RETURN_IF_ERROR(readChoice("SHARDWIRE_ORDINARY_PATH", kOrdinaryPaths, &options.ordinaryPath));
  options.transports = firstOf({"SHARDWIRE_TRANSPORTS"});
  SW_RETURN_IF_ERROR(readChoice("SHARDWIRE_LINKS", kLinks, &options.links));
  options.hostId = firstOf({"SHARDWIRE_HOST_ID", "NCCL_HOSTID"});
  options.socketIfname = firstOf({"SHARDWIRE_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"});
  SW_RETURN_IF_ERROR(readChoice("SHARDWIRE_TCP_CRC", kSwitch, &options.tcpCrc));
  SW_RETURN_IF_ERROR(readChoice("SHARDWIRE_TCP_TLS", kTls, &options.tcpTls));
  options.jobToken = firstOf({"SHARDWIRE_JOB_TOKEN"});
  options.rdmaDevices = firstOf({"SHARDWIRE_RDMA_DEVICES", "NCCL_IB_HCA"});
  SW_RETURN_IF_ERROR(readNumber({"SHARDWIRE_RDMA_GID_INDEX", "NCCL_IB_GID_INDEX"}, -1, 255,
                                "an index between 0 and 255, or -1", &options.rdmaGidIndex));
  SW_RETURN_IF_ERROR(readChoice("SHARDWIRE_CHECK", kChecks, &options.checkAll));
  options.algorithms = variable("SHARDWIRE_ALGORITHMS").value_or("");
  SW_RETURN_IF_ERROR(readNumber({"SHARDWIRE_RECORDED_OPS", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 0,
                                kMaxRecordedOps, fmt::format("a number between 0 and {}", kMaxRecordedOps),
                                &options.recordedOps));
  options.recordFile = firstOf({"SHARDWIRE_RECORD_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"});
  SW_RETURN_IF_ERROR(readChoice("SHARDWIRE_STATUS", kSwitch, &options.serveStatus));
  SW_RETURN_IF_ERROR(readBytes("SHARDWIRE_HEAP_BYTES", kMinHeapBytes, kMaxHeapBytes, true, &options.heapBytes));
  SW_RETURN_IF_ERROR(
      readBytes("SHARDWIRE_STAGING_BYTES", kMinStagingBytes, kMaxHeapBytes, false, &options.stagingBytes));
  return options;
}

std::string toString(const Options& options) {
  const auto orAuto = [](const std::string& text) {
    return text.empty() ? std::string_view("auto") : std::string_view(text);
  };
  const std::chrono::duration<double> timeout = options.timeout;
  const std::string spin = options.spin < Duration::zero()
                               ? "auto"
                               : fmt::format("{}", std::chrono::duration<double, std::micro>(options.spin).count());
  const std::string heap = options.heapBytes == 0 ? "auto" : fmt::format("{}", options.heapBytes);
  return fmt::format(
      "timeout_s={} warn_s={} grace_s={} spin_us={} ring_bytes={} inline_bytes={} ordinary_path={} heap_bytes={} "
      "transports={} links={} host_id={} socket_ifname={} tcp_crc={} tcp_tls={} rdma_devices={} rdma_gid_index={} "
      "job_token={} algorithms={} check={} staging_bytes={} recorded_ops={} record_file={} status={}",
      timeout.count(), std::chrono::duration<double>(options.warnAfter).count(),
      std::chrono::duration<double>(options.grace).count(), spin, options.ringBytes, options.inlineBytes,
      choiceName(kOrdinaryPaths, options.ordinaryPath), heap, orAuto(options.transports),
      choiceName(kLinks, options.links), orAuto(options.hostId), orAuto(options.socketIfname),
      choiceName(kSwitch, options.tcpCrc), choiceName(kTls, options.tcpTls), orAuto(options.rdmaDevices),
      options.rdmaGidIndex, options.jobToken.empty() ? "none" : "set", orAuto(options.algorithms),
      choiceName(kChecks, options.checkAll), options.stagingBytes,
      options.recordedOps < 0 ? "auto" : fmt::format("{}", options.recordedOps),
      options.recordFile.empty() ? "none" : options.recordFile, choiceName(kSwitch, options.serveStatus));
}

}  // namespace shardwire
