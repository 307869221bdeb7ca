# How cargo is called, and where what it builds is put.

# Finds cargo and refuses one that is older than Cargo.toml's rust-version.
function(tcuda_find_cargo least)
  find_program(TCUDA_CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" DOC "cargo, to build tcuda")
  if(NOT TCUDA_CARGO)
    message(FATAL_ERROR "tcuda needs a Rust toolchain (${least} or newer) and found no cargo. See https://rustup.rs, or set TCUDA_CARGO.")
  endif()
  execute_process(COMMAND "${TCUDA_CARGO}" --version WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE answer RESULT_VARIABLE failed)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" found "${answer}")
  if(failed OR NOT found OR found VERSION_LESS least)
    message(FATAL_ERROR "tcuda needs Rust ${least} or newer; ${TCUDA_CARGO} is '${found}'.")
  endif()
endfunction()

# A target that builds one artefact and puts it at <folder>/<name>, with links named <links>. It always runs: cargo decides.
# One crate type a call: with several at once cargo drops link-time optimisation.
function(tcuda_add_artefact target crate_type profile folder built name)
  set(out "${TCUDA_CARGO_TARGET_DIR}")
  # Where cargo puts things follows from what is said here alone.
  set(command "${CMAKE_COMMAND}" -E env --unset=CARGO_BUILD_TARGET "${TCUDA_CARGO}" rustc --locked --lib --crate-type "${crate_type}" --target-dir "${TCUDA_CARGO_TARGET_DIR}")
  if(TCUDA_CARGO_TARGET)
    list(APPEND command --target "${TCUDA_CARGO_TARGET}")
    string(APPEND out "/${TCUDA_CARGO_TARGET}")
  endif()
  # What is installed has to be built, linked or not.
  set(all "")
  if(PROJECT_IS_TOP_LEVEL OR TCUDA_INSTALL)
    set(all ALL)
  endif()
  add_custom_target(${target} ${all}
    COMMAND ${command} --profile "$<IF:$<CONFIG:Debug>,dev,${profile}>"
    COMMAND "${CMAKE_COMMAND}" "-DFROM=${out}/$<IF:$<CONFIG:Debug>,debug,${profile}>/${built}" "-DTO=${folder}/${name}"
            "-DLINKS=${ARGN}" "-DSTRIP=$<$<CONFIG:Release,MinSizeRel>:${CMAKE_STRIP}>" -P "${PROJECT_SOURCE_DIR}/cmake/place.cmake"
    BYPRODUCTS "${folder}/${name}"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    COMMENT "cargo builds ${name}"
    USES_TERMINAL VERBATIM)
endfunction()

# Tells an imported target where its file lies, for every configuration.
function(tcuda_place_target target folder name)
  if(CMAKE_CONFIGURATION_TYPES)
    foreach(config IN LISTS CMAKE_CONFIGURATION_TYPES)
      string(TOUPPER "${config}" upper)
      set_property(TARGET ${target} APPEND PROPERTY IMPORTED_CONFIGURATIONS "${upper}")
      set_property(TARGET ${target} PROPERTY "IMPORTED_LOCATION_${upper}" "${folder}/${config}/${name}")
    endforeach()
  else()
    set_property(TARGET ${target} PROPERTY IMPORTED_LOCATION "${folder}/${name}")
  endif()
endfunction()
