// Functions of libstdc++ that GCC 12's headers call and GCC 8's libstdc++ lacks, by means of older functions
// (portable.cmake). Other new functions come from libstdc++.a.

#include <exception>
#include <new>
#include <sstream>
#include <string>

#define SW_SHIM __attribute__((visibility("hidden")))

namespace std {

void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}

}  // namespace std

// GCC 12 has exception_ptr's copy and destructor inline; both call _M_addref or _M_release. GCC 8 exports the copy and
// the destructor as functions.
extern "C" {
void copyOf(void* copy, const void* original) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroy(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
SW_SHIM void addReference(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
SW_SHIM void release(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
}

static_assert(sizeof(std::exception_ptr) == sizeof(void*));

// The copy is not destroyed: the reference of the copy stays.
void addReference(void* pointer) {
  void* copy = nullptr;
  copyOf(&copy, pointer);
}

void release(void* pointer) {
  destroy(pointer);
}

// Members of the string streams that are newer than the streams. All other members stay in libstdc++.so.
template std::istringstream::basic_istringstream();
template std::ostringstream::basic_ostringstream();
template std::stringstream::basic_stringstream();
template std::string std::stringbuf::str() const&;
template std::string std::stringbuf::str() &&;
