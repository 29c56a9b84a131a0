# Sourced by ../run: configure and build one folder. Also lists which packages the parts of ./run test need.

# As many compilers as there are cores, but not more than memory holds: a file that includes torch takes up to 1.5 GB.
compile_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo "${SHARDWIRE_JOBS:-$((memory < cores ? memory : cores))}"
}

# ccache shares objects between the folders: the core is the same in each of them. Its own folder must be writable, or
# it fails every compilation.
use_ccache() {
  export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$root
  [ -z "${CCACHE_DIR:-}" ] || return 0
  local home=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}
  mkdir -p "$home/ccache" 2>/dev/null && [ -w "$home/ccache" ] || export CCACHE_DIR=$root/build/ccache
}

# What configuring looks for on the machine besides the options: compilers, and what is built only where it is found. A
# build made before one of them came, went or was upgraded is configured again. By packages where there is dpkg, else by
# the files and programs that cmake would find.
found_parts() {
  local compiler=${CXX:-c++} name path
  for name in CXX CXXFLAGS LDFLAGS CMAKE_PREFIX_PATH MPI_HOME CPATH; do
    [ -z "${!name:-}" ] || printf '%s=%s\n' "$name" "${!name}"
  done
  # shellcheck disable=SC2086
  printf 'compiler %s\n' "$($compiler --version 2>/dev/null | head -n 1)"
  for name in ccache mpicxx mpic++; do
    path=$(command -v "$name" || true)
    printf '%s %s\n' "$name" "${path:+$(readlink -f "$path")}"
  done
  for path in {,/usr,/usr/local}/include/infiniband/verbs.h; do
    [ ! -e "$path" ] || printf '%s\n' "$path"
  done
  # It fails when it knows one of them not at all.
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' \
    libopenmpi-dev libmpich-dev libibverbs-dev libfmt-dev libgtest-dev libbenchmark-dev libcli11-dev \
    nlohmann-json3-dev 2>/dev/null | sed -n 's/ installed$//p' | sort || true
}

# Whether python/portable/portable.cmake knows this machine: what newer compilers and libraries need beyond glibc 2.28
# is not known to it.
portable_links() {
  [ "$(uname -m)" = x86_64 ] && [ "$(. /etc/os-release 2>/dev/null; echo "${ID:-}${VERSION_ID:-}")" = debian12 ] \
    || return 1
  local compiler=${CXX:-c++}
  # shellcheck disable=SC2086
  case "$($compiler --version 2>/dev/null)" in
    *"Free Software Foundation"*) [ "$($compiler -dumpversion)" = 12 ] ;;
    *) return 1 ;;
  esac
}

# Configures when the options or the machine changed, then builds: nothing out of date costs a fraction of a second. One
# build of a folder at a time.
build_dir() {  # build_dir DIR TARGET TITLE CMAKE_OPTIONS...
  local dir=$1 target=$2 title=$3 name wanted
  shift 3
  name=$(basename "$dir")
  mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ] \
    || die "cannot write $dir: is this folder yours? (a build made by root is removed by root: ./run clean)"
  exec 9>"$dir/.lock"
  flock 9
  # CI and developers set it. The same in every folder, so that ccache shares the objects.
  set -- "$@" "-DSHARDWIRE_WERROR=${SHARDWIRE_WERROR:-OFF}"
  wanted="$root $*
$(found_parts)"
  if [ ! -e "$dir/build.ninja" ] || [ "$(cat "$dir/.configured" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$dir/.configured"
    quietly "$name-configure" "configuring build/$name" cmake --fresh -S "$root" -B "$dir" -G Ninja "$@"
    printf '%s\n' "$wanted" >"$dir/.configured"
    # What cmake left out, each with the package that brings it.
    sed -n 's/^-- \(without the .*\)/\1/p' "$logs/$name-configure.log" \
      | while read -r line; do say "build/$name: $line"; done
  fi
  use_ccache
  quietly "$name-build" "$title" ninja -C "$dir" -j "$(compile_jobs)" "$target"
  exec 9>&-
}

# Which package groups the parts named by --only need, and whether they need torch. Sets $suite_groups, $suite_torch.
suite_needs() {  # suite_needs ARGS OF ./run test
  local only='' quick=no part previous=''
  for word in "$@"; do
    case "$previous" in --only) only=$word ;; esac
    case "$word" in --only=*) only=${word#--only=} ;; --quick) quick=yes ;; esac
    previous=$word
  done
  if [ -z "$only" ]; then
    only=checks,cpp,python
    [ "$quick" = yes ] || only=$only,docs,asan,tsan,mpi,rdma,torch-suite,example,pip-install
  fi
  suite_groups='' suite_torch=no
  for part in ${only//,/ }; do
    case "$part" in
      checks|cpp|aarch64|mpi|rdma|tidy|conda|cuda-torch) suite_groups+=" $part" ;;
      alone|asan|tsan) suite_groups+=" cpp" ;;
      rdma-whole) suite_groups+=" rdma python"; suite_torch=yes ;;
      network) suite_groups+=" python"; suite_torch=yes ;;
      fuzz|python|docs|torch-suite|example|pip-install) suite_groups+=" $part"; suite_torch=yes ;;
      *) die "./run test --only $part: the parts are checks, cpp, asan, tsan, mpi, rdma, python, docs, torch-suite," \
             "example, pip-install, alone, aarch64, rdma-whole, network, fuzz, tidy, conda, cuda-torch" ;;
    esac
  done
}
