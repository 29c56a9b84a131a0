// fmt's functions without template parameters. Debian's libfmt-dev has no static library, but the headers contain the
// source of libfmt.so. The explicit templates are needed by shardwire_core, shardwire_mpi and the functions here.

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
