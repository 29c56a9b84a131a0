# Install rules. Components: core (library and headers), c10d (the torch library and headers), python (the package,
# complete in itself). A C++ program says find_package(shardwire REQUIRED COMPONENTS c10d) and links shardwire::c10d.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(SHARDWIRE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/shardwire)

set_target_properties(shardwire_core PROPERTIES INSTALL_RPATH "$ORIGIN" EXPORT_NAME core)
install(TARGETS shardwire_core EXPORT shardwireCoreTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT core)
if(TARGET shardwire_mpi)
  # a module has none, and Debian's policy wants one
  target_link_options(shardwire_mpi PRIVATE -Wl,-soname,libshardwire_mpi.so)
  install(TARGETS shardwire_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT core)
endif()
install(EXPORT shardwireCoreTargets NAMESPACE shardwire:: DESTINATION ${SHARDWIRE_CMAKE_DIR} COMPONENT core)
# Those of the c10d library, which need a torch; all others are the core's.
set(SHARDWIRE_TORCH_HEADERS c10d.h stream_gate.h tensor_fft.h tensor_op.h torch_backend.h)
list(JOIN SHARDWIRE_TORCH_HEADERS "|" torch_headers)
install(DIRECTORY include/shardwire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core
        FILES_MATCHING PATTERN "*.h" REGEX "/(${torch_headers})$" EXCLUDE)

if(TARGET shardwire_c10d)
  set_target_properties(shardwire_c10d PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/.." EXPORT_NAME c10d)
  install(TARGETS shardwire_c10d EXPORT shardwireC10dTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c10d)
  install(EXPORT shardwireC10dTargets NAMESPACE shardwire:: DESTINATION ${SHARDWIRE_CMAKE_DIR} COMPONENT c10d)
  list(TRANSFORM SHARDWIRE_TORCH_HEADERS PREPEND include/shardwire/)
  install(FILES ${SHARDWIRE_TORCH_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardwire COMPONENT c10d)
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/backend/c10d/shardwireConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/shardwireConfig.cmake
                              INSTALL_DESTINATION ${SHARDWIRE_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardwireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardwireConfig.cmake ${PROJECT_BINARY_DIR}/shardwireConfigVersion.cmake
        DESTINATION ${SHARDWIRE_CMAKE_DIR} COMPONENT core)

if(TARGET shardwire_python)
  set(SHARDWIRE_PYTHON_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/python${SHARDWIRE_PYTHON_VERSION}/site-packages
      CACHE STRING "Where the Python package is installed, under the prefix or absolute")
  # A wheel holds no links, so each library has one name here: its SONAME.
  install(TARGETS shardwire_core shardwire_c10d shardwire_python
          LIBRARY DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR}/shardwire COMPONENT python NAMELINK_SKIP)
  if(TARGET shardwire_mpi)
    install(TARGETS shardwire_mpi LIBRARY DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR}/shardwire COMPONENT python)
  endif()
  install(DIRECTORY python/shardwire DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR} COMPONENT python
          FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
  install(FILES python/shardwire_autoload.py DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR} COMPONENT python)
  install(FILES ${SHARDWIRE_PACKAGE_DIR}/_build_info.py DESTINATION ${SHARDWIRE_PYTHON_INSTALL_DIR}/shardwire COMPONENT
          python)
endif()

# Debian packages of the C++ side, for `cpack -G DEB`: the core, and what is linked to the torch of this build. Python's
# package is a wheel (./run wheel).
set(CPACK_PACKAGE_NAME shardwire)
set(CPACK_PACKAGE_VENDOR shardwire)
set(CPACK_PACKAGE_CONTACT "The shardwire authors <maintainers@users.noreply.a-seed-5624b944.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "torch.distributed backend and compiler of data movement between ranks")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL core)
set(debian_packages libshardwire-dev)
if(TARGET shardwire_c10d)
  list(APPEND CPACK_COMPONENTS_ALL c10d)
  list(APPEND debian_packages libshardwire-torch-dev)
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_CORE_PACKAGE_NAME libshardwire-dev)
set(CPACK_DEBIAN_CORE_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CORE_DESCRIPTION "The library and headers for C++ programs without torch.")
set(CPACK_DEBIAN_C10D_PACKAGE_NAME libshardwire-torch-dev)
# dpkg-shlibdeps would search for a package with the core's library, which is not installed when it runs.
set(CPACK_DEBIAN_C10D_PACKAGE_DEPENDS "libshardwire-dev (= ${PROJECT_VERSION}), libc6, libstdc++6")
# Policy wants these two files of each package; the changes themselves are in CHANGELOG.md.
string(TIMESTAMP debian_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${PROJECT_BINARY_DIR}/debian/changelog "shardwire (${PROJECT_VERSION}) unstable; urgency=medium

  * See CHANGELOG.md in the sources.

 -- ${CPACK_PACKAGE_CONTACT}  ${debian_date}
")
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_CORE_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_C10D_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers)
file(ARCHIVE_CREATE OUTPUT ${PROJECT_BINARY_DIR}/debian/changelog.gz PATHS ${PROJECT_BINARY_DIR}/debian/changelog
     FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
foreach(component package IN ZIP_LISTS CPACK_COMPONENTS_ALL debian_packages)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package} RENAME copyright COMPONENT ${component})
  install(FILES ${PROJECT_BINARY_DIR}/debian/changelog.gz DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package}
          COMPONENT ${component})
endforeach()
# One torch: its headers and its C++ ABI change with each minor version.
string(REGEX REPLACE "^([0-9]+)\\.([0-9]+).*" "\\1;\\2" torch_parts "${SHARDWIRE_TORCH_FULL_VERSION}")
list(LENGTH torch_parts num_parts)
# Debian's; another is no package that could be named
if(num_parts EQUAL 2 AND SHARDWIRE_TORCH_LIB_DIR MATCHES "^/usr/lib/")
  list(GET torch_parts 0 torch_major)
  list(GET torch_parts 1 torch_minor)
  math(EXPR torch_next "${torch_minor} + 1")
  string(APPEND CPACK_DEBIAN_C10D_PACKAGE_DEPENDS
         ", libtorch-dev (>= ${torch_major}.${torch_minor}), libtorch-dev (<< ${torch_major}.${torch_next})")
endif()
string(JOIN "\n" CPACK_DEBIAN_C10D_DESCRIPTION
       "The library for libtorch, built for torch ${SHARDWIRE_TORCH_FULL_VERSION}"
       "in ${SHARDWIRE_TORCH_LIB_DIR}.")
include(CPack)
