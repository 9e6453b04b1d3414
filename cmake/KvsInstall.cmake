# What `cmake --install` puts down: the libraries, their headers, the tool, and what find_package
# and pkg-config need to find them. Included last, when all targets exist.
include(CMakePackageConfigHelpers)

set(KVS_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvsieve)

# Library and exported target; `set` is kvsieve, kvsieve-eval or kvsieve-c.
function(kvs_install_library target set)
  install(TARGETS ${target} EXPORT ${set}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${set} NAMESPACE kvsieve:: DESTINATION ${KVS_CONFIG_DIR} FILE ${set}-targets.cmake)
endfunction()

# NAME.pc, with paths relative to the file, so that an installed tree may be moved.
function(kvs_install_pkgconfig name)
  file(RELATIVE_PATH KVS_PC_PREFIX
    ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" KVS_PC_PREFIX "${KVS_PC_PREFIX}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

kvs_install_library(kvsieve kvsieve)
kvs_install_pkgconfig(kvsieve)
install(DIRECTORY include/kvsieve DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN eval EXCLUDE)

kvs_install_library(kvsieve_c kvsieve-c)
kvs_install_pkgconfig(kvsieve-c)

if(TARGET kvsieve_eval)
  set_target_properties(kvsieve_eval PROPERTIES EXPORT_NAME eval)
  kvs_install_library(kvsieve_eval kvsieve-eval)
  kvs_install_pkgconfig(kvsieve-eval)
  install(DIRECTORY include/kvsieve/eval DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvsieve)
endif()
if(TARGET kvsieve_cli)
  install(TARGETS kvsieve_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(cmake/kvsieve-config.cmake.in
  ${PROJECT_BINARY_DIR}/kvsieve-config.cmake INSTALL_DESTINATION ${KVS_CONFIG_DIR})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvsieve-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvsieve-config.cmake
              ${PROJECT_BINARY_DIR}/kvsieve-config-version.cmake DESTINATION ${KVS_CONFIG_DIR})
