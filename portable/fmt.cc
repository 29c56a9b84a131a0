// fmt's functions that are not templates. Debian's libfmt-dev has no static library, and its headers contain the text of
// libfmt.so. Includes what shardwire_core and shardwire_mpi need, and what these functions need.

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
