# The extension module, and <build>/python: a complete importable package (the .py files are links into the source
# tree).
set(SHARDWIRE_PACKAGE_DIR ${PROJECT_BINARY_DIR}/python/shardwire)

file(GLOB BINDING_SOURCES CONFIGURE_DEPENDS python/csrc/*.cc)
add_library(shardwire_python MODULE ${BINDING_SOURCES})
shardwire_merge(shardwire_python)
target_include_directories(shardwire_python SYSTEM PRIVATE ${SHARDWIRE_PYTHON_INCLUDE_DIR})
target_compile_definitions(shardwire_python PRIVATE TORCH_EXTENSION_NAME=_C ${SHARDWIRE_TORCH_PYBIND11_DEFINES})
shardwire_portable(shardwire_python)
# fmt header-only, as the c10d library, which hides its copy.
target_link_libraries(shardwire_python PRIVATE shardwire_c10d fmt::fmt-header-only shardwire_warnings
                      ${SHARDWIRE_TORCH_LIB_DIR}/libtorch_python.so)
# torch is imported before the extension and is found by name then; only our own libraries are looked for, beside it.
set_target_properties(shardwire_python PROPERTIES PREFIX "" OUTPUT_NAME _C SUFFIX "${SHARDWIRE_PYTHON_EXT_SUFFIX}"
                      LIBRARY_OUTPUT_DIRECTORY ${SHARDWIRE_PACKAGE_DIR} BUILD_RPATH "$ORIGIN"
                      INSTALL_RPATH "$ORIGIN;$ORIGIN/..")  # the core lies above in a wheel for several torches

# What this build can speak, in the order of preference: the module says it, and the doctor compares it with the
# machine.
set(built_transports shm)
if(VERBS_INCLUDE_DIR)
  string(APPEND built_transports " rdma")
endif()
if(TARGET shardwire_mpi)
  string(APPEND built_transports " mpi")
endif()
target_compile_definitions(shardwire_python PRIVATE SHARDWIRE_TRANSPORTS="${built_transports} tcp")

# What the package checks before it loads the extension.
file(WRITE ${PROJECT_BINARY_DIR}/_build_info.py.in
     "\"\"\"What the native part of this package was built for. Written by the build.\"\"\"\n\n"
     "VERSION = \"${PROJECT_VERSION}\"\nTORCH = \"${SHARDWIRE_TORCH_VERSION}\"\n"
     "PYTHON = \"${SHARDWIRE_PYTHON_VERSION}\"\n")
configure_file(${PROJECT_BINARY_DIR}/_build_info.py.in ${SHARDWIRE_PACKAGE_DIR}/_build_info.py COPYONLY)

file(GLOB_RECURSE PACKAGE_FILES CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/python
     python/shardwire/*.py python/shardwire/*.pyi python/shardwire/py.typed)
foreach(name IN LISTS PACKAGE_FILES ITEMS shardwire_autoload.py)
  get_filename_component(folder ${PROJECT_BINARY_DIR}/python/${name} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/${name} ${PROJECT_BINARY_DIR}/python/${name} SYMBOLIC)
endforeach()
# Links to files that are gone.
file(GLOB_RECURSE linked ${PROJECT_BINARY_DIR}/python/*)
foreach(link IN LISTS linked)
  if(IS_SYMLINK ${link} AND NOT EXISTS ${link})
    file(REMOVE ${link})
  endif()
endforeach()
if(TARGET shardwire_mpi)
  add_dependencies(shardwire_python shardwire_mpi)  # loaded by name, beside shardwire_core
  set(SHARDWIRE_MPI_LIBRARY shardwire_mpi)
endif()
foreach(library shardwire_core shardwire_c10d ${SHARDWIRE_MPI_LIBRARY})
  add_custom_command(TARGET shardwire_python POST_BUILD
                     COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE:${library}>
                             ${SHARDWIRE_PACKAGE_DIR}/$<TARGET_FILE_NAME:${library}>)
endforeach()

if(EXISTS ${PROJECT_SOURCE_DIR}/tests/python/device/device.cmake)
  include(tests/python/device/device.cmake)
endif()
