# Sources that are compiled together. Most of what a file of ours costs is its headers (torch's take 10 s, ours and the
# library's 1 s), so a few units, each of the files of one folder, cost half as much as the files alone. CMake writes a
# unit as a list of #include (UNITY_BUILD); ccache shares them between build folders. A file must still compile alone:
# the part `alone` of the tests builds with -DSHARDWIRE_MERGE=OFF, where a missing #include shows. See docs/building.md.
option(SHARDWIRE_MERGE "Compile the sources of a folder together: less work in all, more after a change of one file" ON)

# shardwire_merge(TARGET [AT_MOST N]): one unit for each folder that has sources of TARGET, or several of at most N
# files, of equal length. A source with options or definitions of its own stays alone: CMake sees to it.
function(shardwire_merge target)
  if(NOT SHARDWIRE_MERGE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 merge "" AT_MOST "")
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(APPEND folders ${folder})
    list(APPEND sources_${folder} ${source})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH sources_${folder} count)
    set(units 1)
    if(merge_AT_MOST)
      math(EXPR units "(${count} + ${merge_AT_MOST} - 1) / ${merge_AT_MOST}")
    endif()
    set(number 0)
    foreach(source IN LISTS sources_${folder})
      math(EXPR unit "${number} * ${units} / ${count} + 1")
      math(EXPR number "${number} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${unit})
    endforeach()
  endforeach()
  # GCC inlines less in a unit that it takes for large: then a 4-byte all_reduce takes 7 % longer than with the files
  # alone (docs/benchmarks.md).
  target_compile_options(${target} PRIVATE
                         "$<$<CXX_COMPILER_ID:GNU>:--param=large-unit-insns=1000000;--param=inline-unit-growth=100>")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A unit names its files by their whole paths, which __FILE__ would bring into the text that ccache compares: another
  # copy of the tree would share nothing.
  target_compile_options(${target} PRIVATE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
endfunction()
