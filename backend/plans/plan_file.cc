// Layout, version 1: u32 magic "SWPF", u8 version, the key's 64 digits, the row (ops/plan/plan_row), 32 bytes of
// SHA-256 over all bytes before. The name of a file is its key. A file is accepted only if the file also contains this
// key, and if the row is for the boxes of this rank.
#include "backend/plans/plan_file.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "backend/base/kept_file.h"
#include "ops/reduce/isa_kernels.h"
#include "ops/wire/byte_codec.h"
#include "shardwire/version.h"

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kFileMagic = 0x46505753;  // "SWPF"
constexpr std::uint8_t kFileVersion = 1;
constexpr std::string_view kEnding = ".swpf";

std::string headOf(const std::string& key) {
  ByteWriter out;
  out.fixed(kFileMagic);
  out.fixed(kFileVersion);
  return out.take() + key;
}

Digest digestOfFile(std::string_view bytes) {
  return digestOf(std::span(&bytes, 1));
}

// The machine, and the instruction set of its reduction kernels.
std::string machineText() {
  utsname about{};
  ::uname(&about);
  const KernelTable* used = &kernels();
  int isa = 0;
  while (isa + 1 < kNumIsas && kernelsOf(static_cast<Isa>(isa)) != used) {
    ++isa;
  }
  return fmt::format("{} {}", about.machine, isa);
}

std::string keyOf(const PlanPlace& place) {
  ByteWriter hosts;
  for (Rank rank = 0; rank < place.worldSize; ++rank) {
    hosts.fixed(place.hosts.empty() ? 0 : place.hosts[static_cast<std::size_t>(rank)]);
  }
  ByteWriter members;
  for (const std::int64_t member : place.members) {
    members.fixed(member);
  }
  const std::array<std::string, 8> parts = {fmt::format("shardwire plan file {}", kFileVersion),
                                            std::string(kVersion),
                                            place.mode,
                                            fmt::format("rank {} of {}", place.rank, place.worldSize),
                                            hosts.take() + members.take(),
                                            place.transports,
                                            machineText(),
                                            std::string(asText(place.specs))};
  return hexOf(digestOf(std::span<const std::string>(parts)));
}

}  // namespace

PlanFile::PlanFile(const std::string& buildDir, const PlanPlace& place)
    : folder_(fmt::format("{}/{}", buildDir, place.mode)),
      key_(keyOf(place)),
      rank_(place.rank),
      worldSize_(place.worldSize),
      hostsHash_(hashOf(place.hosts, static_cast<std::size_t>(place.worldSize))) {}

std::string PlanFile::path() const {
  return fmt::format("{}/{}{}", folder_, key_, kEnding);
}

bool PlanFile::isThere() const {
  return ::access(path().c_str(), F_OK) == 0;
}

std::optional<PlanRow> PlanFile::read(const LocalSpec& asked) const {
  const std::optional<std::string> bytes = readKept(path());
  const std::string head = headOf(key_);
  const std::size_t least = head.size() + sizeof(Digest);
  if (!bytes.has_value() || bytes->size() < least || !bytes->starts_with(head)) {
    return std::nullopt;
  }
  const std::string_view body = std::string_view(*bytes).substr(0, bytes->size() - sizeof(Digest));
  if (asText(digestOfFile(body)) != std::string_view(*bytes).substr(body.size())) {
    return std::nullopt;
  }
  Result<PlanRow> row = decodeRow(body.substr(head.size()));
  if (!row.isOk() || row->hosts != hostsHash_ || !checkRow(*row, rank_, worldSize_, asked).isOk()) {
    return std::nullopt;
  }
  return std::move(*row);
}

Status PlanFile::write(const PlanRow& row) const {
  const std::string body = headOf(key_) + encodeRow(row);
  return writeKept(folder_, key_ + std::string(kEnding), body + std::string(asText(digestOfFile(body))));
}

}  // namespace shardwire::internal
