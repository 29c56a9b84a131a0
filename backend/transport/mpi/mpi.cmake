# libshardwire_mpi.so: the only part that is linked to MPI. The module lies beside shardwire_core, which loads the
# module in a process of an MPI job. Without MPI the module is not built, and the mpi transport reports this.
find_package(MPI QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND)
  file(GLOB MPI_MODULE_SOURCES CONFIGURE_DEPENDS backend/transport/mpi/module/*.cc)
  add_library(shardwire_mpi MODULE ${MPI_MODULE_SOURCES})
  shardwire_merge(shardwire_mpi)
  target_include_directories(shardwire_mpi PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  # Not the deprecated C++ interface of Open MPI.
  target_compile_definitions(shardwire_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  shardwire_portable(shardwire_mpi)
  target_link_libraries(shardwire_mpi PRIVATE shardwire_warnings ${SHARDWIRE_FMT} MPI::MPI_CXX)
  # shardwire_core looks for this name in its own folder, independent of the platform's suffix for modules.
  set_target_properties(shardwire_mpi PROPERTIES OUTPUT_NAME shardwire_mpi SUFFIX ".so" LIBRARY_OUTPUT_DIRECTORY
                        ${PROJECT_BINARY_DIR})
  # Tests and benches contain the objects of the core, and look in their own folders.
  foreach(folder tests bench)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/${folder})
    file(CREATE_LINK ${PROJECT_BINARY_DIR}/libshardwire_mpi.so ${PROJECT_BINARY_DIR}/${folder}/libshardwire_mpi.so
         SYMBOLIC)
  endforeach()
else()
  message(STATUS "without the mpi transport: no MPI was found (Debian: libopenmpi-dev)")
  # Removes the module of an earlier configuration, which would still be loaded.
  file(REMOVE ${PROJECT_BINARY_DIR}/libshardwire_mpi.so ${PROJECT_BINARY_DIR}/python/shardwire/libshardwire_mpi.so)
endif()
