# The test device: a Python module beside the package, built when a test asks for it.
add_library(shardwire_test_device MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/python/device/device.cc
                                                          ${PROJECT_SOURCE_DIR}/tests/python/device/streams.cc)
shardwire_merge(shardwire_test_device)
target_include_directories(shardwire_test_device SYSTEM PRIVATE ${SHARDWIRE_PYTHON_INCLUDE_DIR})
target_compile_definitions(shardwire_test_device PRIVATE ${SHARDWIRE_TORCH_PYBIND11_DEFINES})
target_link_libraries(shardwire_test_device PRIVATE shardwire_c10d shardwire_warnings
                      ${SHARDWIRE_TORCH_LIB_DIR}/libtorch_python.so)
set_target_properties(shardwire_test_device PROPERTIES PREFIX "" SUFFIX "${SHARDWIRE_PYTHON_EXT_SUFFIX}"
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python BUILD_RPATH "$ORIGIN/shardwire")
