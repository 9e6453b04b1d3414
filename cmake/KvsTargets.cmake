# Flags and small helpers shared by all folders.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy>=1.0.3)
# Header only: nothing of it is linked or installed. XXH3 is what it is since 0.8.0.
pkg_check_modules(XXHASH REQUIRED libxxhash>=0.8.0)

# What every target of ours compiles with. No -m flags: kernels choose their instruction set at run
# time. -ffp-contract=off keeps encoded bytes identical on every target.
add_library(kvsieve_flags INTERFACE)
target_compile_features(kvsieve_flags INTERFACE cxx_std_20)
target_compile_options(kvsieve_flags INTERFACE
  -ffp-contract=off -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-psabi
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
# Every unit has the same SIMD targets (kvsieve/targets.h). SSSE3 and SSE4 are left out: CPUs that
# have no more are rare, the baseline serves them, and each target compiles every kernel once more.
target_compile_definitions(kvsieve_flags INTERFACE "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4)")
target_include_directories(kvsieve_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})

# kvs_part(name source...): a part of the core as an object library.
function(kvs_part name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC kvsieve_flags)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden
                                           VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# kvs_timeout(test seconds)
set(KVS_TIMEOUT_FACTOR 1 CACHE STRING "How many times longer tests may take, for slow builds")
function(kvs_timeout test seconds)
  math(EXPR seconds "${seconds} * ${KVS_TIMEOUT_FACTOR}")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
endfunction()

# kvs_test(name SOURCES a.cc... LIBS lib... [TIMEOUT s]): one GoogleTest binary, one ctest entry.
function(kvs_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE kvsieve_flags ${ARG_LIBS} GTest::gtest GTest::gtest_main
                                        Threads::Threads)
  target_compile_definitions(${name} PRIVATE
    KVS_DATA_DIR="${PROJECT_SOURCE_DIR}/data" KVS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  kvs_timeout(${name} ${ARG_TIMEOUT})
endfunction()

# kvs_bench(name SOURCES a.cc... LIBS lib...): one Google Benchmark binary.
function(kvs_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE kvsieve_flags ${ARG_LIBS} benchmark::benchmark
                                        Threads::Threads)
endfunction()
