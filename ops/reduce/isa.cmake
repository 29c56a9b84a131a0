# The kernels are compiled once per instruction set, from the same source, into namespaces of their own; isa_kernels.cc
# picks one at run time. The baseline is the copy that the glob already found.
#
# -O3: the loops are plain code that the compiler vectorises. -ffp-contract=off: a fused multiply-add would give other
# bits on other CPUs;
# -fno-tree-slp-vectorize: GCC 12 makes such from unrolled complex products all the same.
# With a sanitizer -O1, as everywhere else: the checks leave nothing to vectorise, and -O3 takes twice as long to
# compile.
set(SW_KERNEL_OPTIONS -O3 -ffp-contract=off -fno-tree-slp-vectorize -fno-math-errno -fno-trapping-math)
if(SHARDWIRE_SANITIZE)
  list(TRANSFORM SW_KERNEL_OPTIONS REPLACE "^-O3$" "-O1")
endif()
set(SW_KERNEL_SOURCE ${PROJECT_SOURCE_DIR}/ops/reduce/kernels.cc)
set_source_files_properties(${SW_KERNEL_SOURCE} PROPERTIES COMPILE_OPTIONS "${SW_KERNEL_OPTIONS}")

function(shardwire_kernels isa)
  set(target shardwire_kernels_${isa})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/kernels_${isa}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"ops/reduce/kernels.cc\"\n")
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${SW_KERNEL_OPTIONS};${ARGN}")
  add_library(${target} OBJECT ${source})
  target_compile_definitions(${target} PRIVATE SW_KERNEL_ISA=${isa})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE shardwire_warnings)
  foreach(library shardwire_core shardwire_rooms)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${target}>)
  endforeach()
endfunction()

# No parser is in a kernel: the fuzz targets have the baseline alone, or its copies would take a third of the build.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT SHARDWIRE_FUZZ)
  shardwire_kernels(avx2 -mavx2 -mf16c)
  shardwire_kernels(avx512 -mavx2 -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/ops/reduce/isa_kernels.cc PROPERTIES COMPILE_DEFINITIONS
                              SW_KERNELS_X86=1)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND NOT SHARDWIRE_FUZZ)
  shardwire_kernels(neon -DSW_KERNEL_NEON=1)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/ops/reduce/isa_kernels.cc PROPERTIES COMPILE_DEFINITIONS
                              SW_KERNELS_NEON=1)
endif()
