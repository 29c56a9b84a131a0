# The benches. Each is built where its packages are found; what is missing is said, not an error: `./run bench` prints
# what it could run.
find_package(CLI11 QUIET)
find_package(nlohmann_json QUIET)
find_package(benchmark QUIET)
find_package(MPI QUIET COMPONENTS CXX)

add_library(shardwire_bench_ranks STATIC bench/bench_ranks.cc)
target_include_directories(shardwire_bench_ranks PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(shardwire_bench_ranks PRIVATE shardwire_warnings fmt::fmt Threads::Threads)

function(shardwire_bench name)
  add_executable(${name} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE shardwire_bench_ranks shardwire_rooms shardwire_warnings fmt::fmt
                        Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()

shardwire_bench(rdma_bench bench/rdma_bench.cc)

shardwire_bench(symm_bench bench/symm_bench.cc)

if(benchmark_FOUND)
  shardwire_bench(kernels_bench bench/kernels_bench.cc)
  target_link_libraries(kernels_bench PRIVATE benchmark::benchmark benchmark::benchmark_main)
  shardwire_bench(plan_bench bench/plan_bench.cc)
  target_link_libraries(plan_bench PRIVATE benchmark::benchmark benchmark::benchmark_main)
else()
  message(STATUS "benches: kernels_bench and plan_bench are left out, there is no libbenchmark-dev")
endif()

shardwire_bench(bootstrap_bench bench/bootstrap_bench.cc)

if(CLI11_FOUND AND nlohmann_json_FOUND)
  # What the benches between ranks share: the one option parser, the report.
  add_library(shardwire_bench_support STATIC bench/bench_options.cc bench/report.cc)
  target_include_directories(shardwire_bench_support PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(shardwire_bench_support PUBLIC nlohmann_json::nlohmann_json fmt::fmt PRIVATE shardwire_warnings
                        CLI11::CLI11)

  shardwire_bench(reshape_bench bench/reshape_bench.cc bench/reshape_cases.cc bench/latency_cases.cc
                  bench/count_allocations.cc)
  target_link_libraries(reshape_bench PRIVATE shardwire_bench_support)

  shardwire_bench(kernels_copy_bench bench/kernels_copy_bench.cc)
  target_link_libraries(kernels_copy_bench PRIVATE CLI11::CLI11)

  shardwire_bench(hierarchy_bench bench/hierarchy_bench.cc)
  target_link_libraries(hierarchy_bench PRIVATE shardwire_bench_support)

  shardwire_bench(tcp_bench bench/tcp_bench.cc)
  target_link_libraries(tcp_bench PRIVATE shardwire_bench_support)

  # One loop for all peers of bench/compare.py. Without MPI and torch: compare.py links this library to a program of
  # each MPI.
  add_library(peer_loop SHARED bench/peers/loop.cc)
  target_include_directories(peer_loop PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(peer_loop PRIVATE shardwire_warnings nlohmann_json::nlohmann_json)
  set_target_properties(peer_loop PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  shardwire_bench(shardwire_peer bench/peers/shardwire_peer.cc)
  target_link_libraries(shardwire_peer PRIVATE peer_loop)

  if(MPI_CXX_FOUND)
    shardwire_bench(alltoallw_bench bench/alltoallw_bench.cc)
    target_link_libraries(alltoallw_bench PRIVATE shardwire_bench_support MPI::MPI_CXX)

    shardwire_bench(collectives_bench bench/collectives_bench.cc bench/collective_cases.cc)
    target_link_libraries(collectives_bench PRIVATE shardwire_bench_support MPI::MPI_CXX)
  else()
    message(STATUS "benches: alltoallw_bench and collectives_bench are left out, there is no MPI")
  endif()
else()
  message(STATUS
          "benches: kernels_copy_bench, reshape_bench, tcp_bench, alltoallw_bench and collectives_bench are left out, "
          "there is no libcli11-dev or nlohmann-json3-dev")
endif()

# That they still run, with little to do; their figures mean nothing here. Not rdma_bench, which wants a device, nor
# alltoallw_bench, whose ranks mpirun starts.
if(SHARDWIRE_TESTS)
  function(shardwire_bench_test name)
    if(TARGET ${name})
      add_test(NAME bench_${name} COMMAND ${name} ${ARGN})
    endif()
  endfunction()
  set(little --rows 256 --columns 256 --iterations 2 --warmup 1 --latency-iterations 20)
  shardwire_bench_test(symm_bench 100)
  shardwire_bench_test(kernels_bench --benchmark_filter=^memcpyPerRow/4096 --benchmark_min_time=0.001)
  shardwire_bench_test(kernels_copy_bench --brief)
  shardwire_bench_test(plan_bench --benchmark_filter=/8/16$ --benchmark_min_time=0.001)
  shardwire_bench_test(bootstrap_bench 4)
  shardwire_bench_test(reshape_bench ${little})
  shardwire_bench_test(hierarchy_bench ${little})
  shardwire_bench_test(tcp_bench ${little})
  shardwire_bench_test(collectives_bench ${little} --max-bytes 65536)
  if(TARGET collectives_bench)
    foreach(part collectives reshape)
      add_test(NAME bench_compare_${part}
               COMMAND python3 -B ${PROJECT_SOURCE_DIR}/bench/compare.py ${part} --compare openmpi
                       --build ${PROJECT_BINARY_DIR} --peers ${PROJECT_BINARY_DIR}/peers -n 2,3 -i 2 -w 1 --rounds 1
                       --min-bytes 1024 --max-bytes 65536)
    endforeach()
  endif()
endif()
