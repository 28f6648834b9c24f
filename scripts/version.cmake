# Writes OUTPUT, a header with the version that git gives SOURCE, where it differs from what is there: cmake -D SOURCE=. -D OUTPUT=h -D VERSION=0.1.0 -P version.cmake
# Without git, or outside of a repository (a release archive, a bundle), the version alone.
set(revision "")
find_program(GIT git)
if(GIT AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty=-modified --abbrev=9 --match "" OUTPUT_VARIABLE revision
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(text "#define TRIREME_VERSION \"${VERSION}\"\n#define TRIREME_REVISION \"${revision}\"\n")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" old)
else()
  set(old "")
endif()
if(NOT text STREQUAL old)
  file(WRITE "${OUTPUT}" "${text}")
endif()
