# Sourced by ../run: configure and build one folder. Also tells which packages the parts of ./run test need.

# As many compilers as there are cores, but not more than memory holds: a file that includes torch takes up to 1.5 GB.
compile_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo "${SHARDWIRE_JOBS:-$((memory < cores ? memory : cores))}"
}

# ccache shares objects between the folders: the core is the same in each of them. Its own folder must be writable, or it fails every compilation.
use_ccache() {
  export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$root
  [ -z "${CCACHE_DIR:-}" ] || return 0
  local home=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}
  mkdir -p "$home/ccache" 2>/dev/null && [ -w "$home/ccache" ] || export CCACHE_DIR=$root/build/ccache
}

# Configures when the options changed, then builds: nothing out of date costs a fraction of a second. One build of a folder at a time.
build_dir() {  # build_dir DIR TARGET TITLE CMAKE_OPTIONS...
  local dir=$1 target=$2 title=$3 name wanted
  shift 3
  name=$(basename "$dir")
  mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ] || die "cannot write $dir: is this folder yours? (a build made by root is removed by root: ./run clean)"
  exec 9>"$dir/.lock"
  flock 9
  wanted="$root $*"
  if [ ! -e "$dir/build.ninja" ] || [ "$(cat "$dir/.configured" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$dir/.configured"
    quietly "$name-configure" "configuring build/$name" cmake --fresh -S "$root" -B "$dir" -G Ninja "$@"
    printf '%s\n' "$wanted" >"$dir/.configured"
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
    [ "$quick" = yes ] || only=$only,mpi,rdma,torch-suite,example,pip-install
  fi
  suite_groups='' suite_torch=no
  for part in ${only//,/ }; do
    case "$part" in
      checks|cpp|mpi|rdma|tidy) suite_groups+=" $part" ;;
      asan|tsan) suite_groups+=" cpp" ;;
      python|torch-suite|example|pip-install) suite_groups+=" $part"; suite_torch=yes ;;
      *) die "./run test --only $part: the parts are checks, cpp, asan, tsan, mpi, rdma, python, torch-suite, example, pip-install, tidy" ;;
    esac
  done
}
