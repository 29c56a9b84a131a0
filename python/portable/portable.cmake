# SHARDWIRE_PORTABLE: the libraries load on glibc 2.28 and with libstdc++ of GCC 8 (manylinux_2_28). Only links differ:
# the objects are the same as without the option. docs/building.md ("Packages") explains the parts.
if(NOT SHARDWIRE_PORTABLE)
  set(SHARDWIRE_FMT fmt::fmt)
  function(shardwire_portable target)
  endfunction()
  return()
endif()
if(NOT (CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64))
  message(FATAL_ERROR "SHARDWIRE_PORTABLE needs g++ for x86-64")
endif()

find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(SHARDWIRE_STUBS ${PROJECT_BINARY_DIR}/stubs)
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/make_stubs.py ${SHARDWIRE_STUBS}
                        --cxx ${CMAKE_CXX_COMPILER} COMMAND_ERROR_IS_FATAL ANY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/make_stubs.py)

add_library(shardwire_newer STATIC EXCLUDE_FROM_ALL python/portable/newer_glibc.cc python/portable/newer_libstdcxx.cc)
target_link_libraries(shardwire_newer PRIVATE shardwire_warnings)

# The compiler gets the options of the shared libfmt, and the linker gets fmt's functions from an archive.
add_library(shardwire_fmt_functions STATIC EXCLUDE_FROM_ALL python/portable/fmt.cc)
add_library(shardwire_fmt INTERFACE)
foreach(property INTERFACE_COMPILE_DEFINITIONS INTERFACE_COMPILE_FEATURES INTERFACE_INCLUDE_DIRECTORIES)
  get_target_property(value fmt::fmt ${property})
  if(value)
    set_property(TARGET shardwire_fmt PROPERTY ${property} ${value})
  endif()
endforeach()
target_link_libraries(shardwire_fmt_functions PRIVATE shardwire_fmt)
target_link_libraries(shardwire_fmt INTERFACE $<BUILD_INTERFACE:$<LINK_ONLY:shardwire_fmt_functions>>)
set(SHARDWIRE_FMT $<BUILD_INTERFACE:shardwire_fmt>)

# In place of -lstdc++: what the old libstdc++ has; then our shims; then libstdc++.a for the rest.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a OUTPUT_VARIABLE libstdcxx_archive
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(GENERATE OUTPUT ${SHARDWIRE_STUBS}/libstdc++.so
     CONTENT "GROUP ( ${SHARDWIRE_STUBS}/libstdc++.so.6 $<TARGET_FILE:shardwire_newer> ${libstdcxx_archive} )\n")

# Called before the target gets its other libraries: torch's libraries export some of the shims' names, from a
# libstdc++.a of their own, and another torch need not. What comes from archives stays hidden in the library. The map
# names the archive members and the reason for each.
function(shardwire_portable target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:shardwire_newer>)
  target_link_options(${target} PRIVATE -L${SHARDWIRE_STUBS} -Wl,--exclude-libs,ALL
                                        -Wl,-Map=${PROJECT_BINARY_DIR}/${target}.map)
endfunction()
