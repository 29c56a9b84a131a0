// The constant parts of the page (page.h).
#pragma once

namespace shardwire::simulate {

extern const char* const kPageHead;    // styles and controls
extern const char* const kPageScript;  // draws `data`

}  // namespace shardwire::simulate
