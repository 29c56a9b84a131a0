# Install rules. Components: core (library and headers), c10d (the torch library and headers), python (the package, complete in itself).
# A C++ program says find_package(shardwire REQUIRED COMPONENTS c10d) and links shardwire::c10d.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(SHARDWIRE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/shardwire)

set_target_properties(shardwire_core PROPERTIES INSTALL_RPATH "$ORIGIN" EXPORT_NAME core)
install(TARGETS shardwire_core EXPORT shardwireCoreTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT core)
if(TARGET shardwire_mpi)
  install(TARGETS shardwire_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT core)
endif()
install(EXPORT shardwireCoreTargets NAMESPACE shardwire:: DESTINATION ${SHARDWIRE_CMAKE_DIR} COMPONENT core)
install(DIRECTORY include/shardwire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core FILES_MATCHING PATTERN "*.h" PATTERN "c10d.h" EXCLUDE)

if(TARGET shardwire_c10d)
  set_target_properties(shardwire_c10d PROPERTIES INSTALL_RPATH "$ORIGIN" EXPORT_NAME c10d)
  # c10d.h shows the group's class, so the headers that this one includes come along, under a folder of their own.
  set(SHARDWIRE_IMPL_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR}/shardwire/impl)
  target_include_directories(shardwire_c10d INTERFACE $<INSTALL_INTERFACE:${SHARDWIRE_IMPL_INCLUDE_DIR}>)
  install(TARGETS shardwire_c10d EXPORT shardwireC10dTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c10d)
  install(EXPORT shardwireC10dTargets NAMESPACE shardwire:: DESTINATION ${SHARDWIRE_CMAKE_DIR} COMPONENT c10d)
  install(FILES include/shardwire/c10d.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwire COMPONENT c10d)
  install(FILES backend/c10d/process_group_shardwire.h backend/c10d/observer.h backend/c10d/status_error.h backend/c10d/tensor_adapter.h backend/c10d/tensor_op.h
                backend/c10d/staged_work.h backend/c10d/stream_gate.h backend/c10d/torch_compat.h backend/c10d/work_adapter.h
          DESTINATION ${SHARDWIRE_IMPL_INCLUDE_DIR}/backend/c10d COMPONENT c10d)
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/backend/c10d/shardwireConfig.cmake.in ${PROJECT_BINARY_DIR}/shardwireConfig.cmake
                              INSTALL_DESTINATION ${SHARDWIRE_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardwireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardwireConfig.cmake ${PROJECT_BINARY_DIR}/shardwireConfigVersion.cmake
        DESTINATION ${SHARDWIRE_CMAKE_DIR} COMPONENT core)

if(TARGET shardwire_python)
  set(SHARDWIRE_PYTHON_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/python${SHARDWIRE_PYTHON_VERSION}/site-packages
      CACHE STRING "Where the Python package is installed, under the prefix or absolute")
  install(TARGETS shardwire_core shardwire_c10d shardwire_python LIBRARY DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR}/shardwire COMPONENT python)
  if(TARGET shardwire_mpi)
    install(TARGETS shardwire_mpi LIBRARY DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR}/shardwire COMPONENT python)
  endif()
  install(DIRECTORY python/shardwire DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR} COMPONENT python
          FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
  install(FILES python/shardwire_autoload.py DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR} COMPONENT python)
  install(FILES ${SHARDWIRE_PACKAGE_DIR}/_build_info.py DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR}/shardwire COMPONENT python)
endif()
