// One fuzz target: a file NAME_fuzz.cc defines both functions of this header, and target.cc adds libFuzzer's entry
// points. ./run fuzz builds and runs the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwire::fuzz {

// Gives bytes of a foreign process to a parser. A defect ends the process: a finding of a sanitizer, or require().
void parse(std::string_view input);
// Inputs made by the real encoders, so that the search begins behind magic numbers and lengths. libFuzzer cuts inputs
// of more than kLongestInput bytes, so a longer seed ends the process.
constexpr std::size_t kLongestInput = 16384;
std::vector<std::string> seeds();

// Several messages in one input: each has its length in two bytes before it. A length beyond the end is cut.
std::vector<std::string> splitParts(std::string_view input, std::size_t most);
std::string joinParts(const std::vector<std::string>& parts);

// Ends the process if a parser broke its promise.
void require(bool promise);

}  // namespace shardwire::fuzz
