# Sources that are compiled sixteen at once, unoptimised (build.py): all of a target that match INSIDE, but for those
# that match OUTSIDE, which take part of the time of a token or a text, or cannot be read with others.
if(NOT PROJECT_NAME STREQUAL "llama.cpp")
    return()
endif()
function(together target inside outside)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    get_target_property(sources ${target} SOURCES)
    get_target_property(place ${target} SOURCE_DIR)
    list(FILTER sources INCLUDE REGEX "^[a-z].*cpp$")
    foreach(source ${sources})
        set(alone ON)
        if(source MATCHES "${inside}" AND NOT source MATCHES "${outside}")
            set(alone OFF)
        endif()
        set_source_files_properties(${place}/${source} TARGET_DIRECTORY ${target} PROPERTIES
            SKIP_UNITY_BUILD_INCLUSION ${alone})
    endforeach()
endfunction()
# once the targets are known
cmake_language(DEFER CALL together llama "." "^llama-(batch|context|graph|kv-cache[.]|vocab)|^unicode")
cmake_language(DEFER CALL together llama-common "." "^json[.]cpp")
cmake_language(DEFER CALL together mtmd "^models/|^clip|^mtmd[.]cpp" "^$")
