// Arithmetic on boxes. Pure. All slices given to one call have the same number of dimensions; 0 dimensions is a box of
// one element.
#pragma once

#include <string>

#include "shardwire/export.h"
#include "shardwire/op_spec.h"

namespace shardwire::internal {

bool isEmpty(const Slice& slice);
// Whether the boxes share an element.
bool doOverlap(const Slice& a, const Slice& b);
// "[0:2, 4:8]"
SHARDWIRE_EXPORT std::string toString(const Slice& slice);

}  // namespace shardwire::internal
