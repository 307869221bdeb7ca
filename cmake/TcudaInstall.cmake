# Install rules. Components: runtime (the shared library), devel (all that a compiler and its user need). Nothing absolute is written, so that
# the tree may be moved and DESTDIR works.

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tcuda")

install(FILES "${tcuda_lib_dir}/${tcuda_file}" TYPE LIB COMPONENT runtime
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
install(FILES "${tcuda_lib_dir}/${tcuda_soname}" TYPE LIB COMPONENT runtime)
install(FILES "${tcuda_lib_dir}/libtcuda.so" "${tcuda_lib_dir}/libtcuda.a" TYPE LIB COMPONENT devel)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" TYPE INCLUDE COMPONENT devel FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN "*.cuh")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE-MIT" "${PROJECT_SOURCE_DIR}/LICENSE-APACHE" TYPE DOC COMPONENT runtime)
# Headers name pages as docs/NAME.md, and the pages each other and the changes.
install(FILES "${PROJECT_SOURCE_DIR}/CHANGELOG.md" TYPE DOC COMPONENT devel)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" TYPE DOC COMPONENT devel)

configure_package_config_file(cmake/tcuda-config.cmake.in tcuda-config.cmake INSTALL_DESTINATION "${package_dir}"
                              PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(tcuda-config-version.cmake COMPATIBILITY ${tcuda_compatibility})
install(FILES "${PROJECT_BINARY_DIR}/tcuda-config.cmake" "${PROJECT_BINARY_DIR}/tcuda-config-version.cmake"
        DESTINATION "${package_dir}" COMPONENT devel)

# tcuda.pc finds its prefix from where it lies itself.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
  set(pc_libdir "${CMAKE_INSTALL_FULL_LIBDIR}")
  set(pc_includedir "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
else()
  file(RELATIVE_PATH pc_up "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
  string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
  set(pc_prefix "\${pcfiledir}/${pc_up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
list(TRANSFORM TCUDA_SYSTEM_LIBS PREPEND "-l" OUTPUT_VARIABLE pc_private)
list(JOIN pc_private " " pc_private)
configure_file(cmake/tcuda.pc.in tcuda.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tcuda.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT devel)
