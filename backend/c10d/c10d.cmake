# The c10d library: the core behind torch's interfaces. The Python that was chosen says where its torch lies;
# find_package(Torch) is not used, because Debian's needs packages that nothing here needs.
set(SHARDWIRE_PYTHON_EXECUTABLE /usr/bin/python3 CACHE FILEPATH
    "The Python whose torch the c10d library and the extension are built for")

execute_process(
  COMMAND ${SHARDWIRE_PYTHON_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/query_torch.py
  OUTPUT_VARIABLE query_output ERROR_VARIABLE query_error RESULT_VARIABLE query_result OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT query_result EQUAL 0)
  message(FATAL_ERROR
          "${SHARDWIRE_PYTHON_EXECUTABLE} cannot import torch. Choose another with -DSHARDWIRE_PYTHON_EXECUTABLE=..., "
                      "or build without torch: -DSHARDWIRE_C10D=OFF.\n${query_error}")
endif()
string(REPLACE ";" "\\;" query_output "${query_output}")
string(REPLACE "\n" ";" query_lines "${query_output}")
foreach(line IN LISTS query_lines)
  if(line MATCHES "^([A-Z0-9_]+)=(.*)$")
    set(SHARDWIRE_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
  endif()
endforeach()
if(NOT SHARDWIRE_TORCH_CXX11_ABI)
  message(FATAL_ERROR
          "torch ${SHARDWIRE_TORCH_FULL_VERSION} was built with the old C++ string ABI; shardwire needs "
          "a torch with the new ABI: PyPI's from 2.7 on, or Debian's")
endif()
message(STATUS
        "shardwire: torch ${SHARDWIRE_TORCH_FULL_VERSION} of ${SHARDWIRE_PYTHON_EXECUTABLE} "
        "(Python ${SHARDWIRE_PYTHON_VERSION})")

add_library(shardwire_torch INTERFACE)
target_include_directories(shardwire_torch SYSTEM INTERFACE ${SHARDWIRE_TORCH_INCLUDE_DIRS})
target_link_libraries(shardwire_torch INTERFACE ${SHARDWIRE_TORCH_LIB_DIR}/libtorch_cpu.so
                      ${SHARDWIRE_TORCH_LIB_DIR}/libc10.so)
# GCC warns where a class that the extension links has private members of hidden types.
target_compile_options(shardwire_torch INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-attributes>)

file(GLOB C10D_SOURCES CONFIGURE_DEPENDS backend/c10d/*.cc)
add_library(shardwire_c10d SHARED ${C10D_SOURCES})
shardwire_merge(shardwire_c10d AT_MOST 13)
target_include_directories(shardwire_c10d PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
shardwire_portable(shardwire_c10d)
# Header-only: torch wheels bring a newer fmt of their own, whose headers come first and do not fit the system's
# library.
target_link_libraries(shardwire_c10d PUBLIC shardwire_core PRIVATE fmt::fmt-header-only PUBLIC
                      $<BUILD_INTERFACE:shardwire_torch>
                                     PRIVATE $<BUILD_INTERFACE:shardwire_warnings>)
set_target_properties(shardwire_c10d PROPERTIES SOVERSION ${SHARDWIRE_SOVERSION})
