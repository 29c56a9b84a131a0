// SHARDWIRE_EXPORT marks the names that another library or program links. The libraries hide all other names. A marked
// name of shardwire::internal is for shardwire's own libraries.
#pragma once

#define SHARDWIRE_EXPORT [[gnu::visibility("default")]]
