#include "tests/fuzz/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace shardwire::fuzz {

std::vector<std::string> splitParts(std::string_view input, std::size_t most) {
  std::vector<std::string> parts;
  while (input.size() >= 2 && parts.size() < most) {
    const auto low = static_cast<unsigned char>(input[0]);
    const auto high = static_cast<unsigned char>(input[1]);
    const std::size_t size = std::min<std::size_t>(low | high << 8, input.size() - 2);
    parts.emplace_back(input.substr(2, size));
    input.remove_prefix(2 + size);
  }
  return parts;
}

std::string joinParts(const std::vector<std::string>& parts) {
  std::string bytes;
  for (const std::string& part : parts) {
    bytes += static_cast<char>(part.size());
    bytes += static_cast<char>(part.size() >> 8);
    bytes += part;
  }
  return bytes;
}

void require(bool promise) {
  if (!promise) {
    std::abort();
  }
}

}  // namespace shardwire::fuzz

// The last argument --seeds=FOLDER writes the seeds into the folder, in place of a search.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string_view last = (*argv)[*argc - 1];
  if (!last.starts_with("--seeds=")) {
    return 0;
  }
  std::size_t number = 0;
  for (const std::string& seed : shardwire::fuzz::seeds()) {
    if (seed.size() > shardwire::fuzz::kLongestInput) {
      fmt::print(stderr, "seed {} has {} bytes, and an input at most {}\n", number, seed.size(),
                 shardwire::fuzz::kLongestInput);
      std::exit(1);
    }
    std::ofstream file(fmt::format("{}/seed-{:03}", last.substr(8), number++), std::ios::binary);
    file.write(seed.data(), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) {
      std::perror("writing a seed");
      std::exit(1);
    }
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  shardwire::fuzz::parse({reinterpret_cast<const char*>(bytes), size});
  return 0;
}
