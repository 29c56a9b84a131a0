# Sourced by ../run: what the machine has and lacks. Debian packages, the interpreter, its torch.
# Sets $python (absolute path), $tag (names a Python and torch), $build (the build folder of that tag).
say() { printf 'shardwire: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
logs=$root/build/log

# After a second says that something runs; on a terminal shows its newest line, elsewhere says it each minute. Killed by
# quietly(), or ends after the shell. Its sleeps must not keep the caller's input open.
# shellcheck disable=SC2217
watch_log() {  # watch_log LOG TITLE
  local start=$SECONDS shown=$SECONDS width=150 line
  sleep 1 </dev/null >/dev/null 2>&1
  if [ -t 2 ]; then width=$((${COLUMNS:-100} > 60 ? ${COLUMNS:-100} - 45 : 30)); else say "$2 (log: ${1#"$PWD"/})"; fi
  while kill -0 $$ 2>/dev/null; do
    if [ -t 2 ] || [ $((SECONDS - shown)) -ge "${say_every:-60}" ]; then
      shown=$SECONDS
      line=$(tail -c 300 "$1" 2>/dev/null | tr '\r' '\n' | grep -v '^ *$' | tail -n 1 | cut -c "1-$width") || line=
      if [ -t 2 ]; then
        printf '\r\033[Kshardwire: %s %ds  %s' "$2" $((SECONDS - start)) "$line" >&2
      else
        say "$2: $((SECONDS - start)) s so far  $line"
      fi
    fi
    sleep 1 </dev/null >/dev/null 2>&1
  done
}

# Runs a command with its output in a log; a failure shows the end of the log.
quietly() {  # quietly LOGNAME TITLE COMMAND...
  local log=$logs/$1.log title=$2 start=$SECONDS rc=0 watcher
  shift 2
  mkdir -p "$logs" 2>/dev/null && : >"$log" 2>/dev/null \
    || die "cannot write $log: is this folder yours? (a build made by root is removed by root: ./run clean)"
  watch_log "$log" "$title" 8>&- 9>&- &
  watcher=$!
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ $rc -ne 0 ]; then
    grep -nE '(^FAILED|error:|Error |^E: |ERROR)' "$log" | head -n 20 >&2 || true
    printf -- '--- the end of %s\n' "$log" >&2
    tail -n 40 "$log" >&2
    say "$title: failed with status $rc after $((SECONDS - start)) s; the whole log is $log"
    return $rc
  fi
  [ $((SECONDS - start)) -lt 2 ] || say "$title: done in $((SECONDS - start)) s"
}

# The interpreter and its torch, for environments that are made with them: the path of .venv-torch's interpreter names
# neither.
interpreter() {
  echo "$python $tag $("$python" -c 'import sys; print(sys.base_prefix, sys.version.replace("\n", " "))')"
}

debian_torch() { [ "$torch_choice" = debian ] && [ "$python" = /usr/bin/python3 ]; }

# Package names by what needs them. clang and its tools only for the checks. MPI's headers are for everybody, or the mpi
# transport is missing from the build: they bring openmpi-bin and gfortran's library and take the demo's packages from
# 365 to 388 MB of downloads, from 1.55 to 1.65 GB installed (Debian 12).
packages_of() {  # packages_of GROUP
  case "$1" in
    core) echo g++ cmake ninja-build ccache libfmt-dev libssl-dev libibverbs-dev libopenmpi-dev ;;
    demo)
      packages_of core
      echo nlohmann-json3-dev
      [ "$python" != /usr/bin/python3 ] || echo python3 python3-dev python3-numpy
      if debian_torch && ! torch_beside_debian; then echo python3-torch libtorch-dev; fi
      ! debian_torch || echo pybind11-dev
      [ "$torch_choice" != pip ] || [ "$python" != /usr/bin/python3 ] || echo python3-venv python3-pip ;;
    cpp) packages_of bench; echo python3 libgtest-dev libbenchmark-dev iproute2 ;;  # the benches run among the tests
    aarch64) packages_of cpp; echo g++-aarch64-linux-gnu qemu-user ;;
    checks)
      packages_of cpp
      echo clang python3-pytest mypy shellcheck codespell
      # The layout of the sources is clang-format 14's; Debian 13 has no such version.
      if apt-cache show clang-format-14 >/dev/null 2>&1; then echo clang-format-14; fi ;;
    fuzz)
      packages_of demo
      # libFuzzer has a package of its own beside the compiler: of clang 14 in Debian 12, of clang 19 in Debian 13.
      echo clang libgtest-dev \
        "$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p')" ;;
    mpi) packages_of cpp; [ "$python" != /usr/bin/python3 ] || echo python3-mpi4py ;;
    # The machines' kernel is unpacked, not installed: tests/rig/kernel.py.
    rdma)
      packages_of cpp
      echo libibverbs1 ibverbs-providers ibverbs-utils perftest qemu-system-x86 kmod cpio xz-utils zstd iproute2 ;;
    # The names are as clang-tidy 14 reads them: Debian 12 has this version.
    tidy)
      packages_of cpp; echo clang-tidy
      if apt-cache show clang-tidy-14 >/dev/null 2>&1; then echo clang-tidy-14; fi ;;
    python)
      packages_of demo; echo iproute2; [ "${CI:-}" != true ] || echo slurmctld slurmd slurm-client
      debian_torch && echo python3-pytest python3-pytest-xdist python3-rich python3-setuptools || true ;;
    conda) packages_of demo; echo patchelf python3-torch libtorch-dev python3-pip python3-setuptools python3-wheel ;;
    cuda-torch)
      packages_of core; echo nlohmann-json3-dev iproute2
      [ "$python" != /usr/bin/python3 ] || echo python3-dev python3-venv python3-pip ;;
    docs) packages_of demo; [ "$python" != /usr/bin/python3 ] || echo python3-sphinx python3-myst-parser furo ;;
    torch-suite) packages_of demo; [ "$python" != /usr/bin/python3 ] || echo python3-setuptools ;;
    example) packages_of demo; echo dpkg-dev file ;;  # for the Debian packages, by cpack
    pip-install)
      packages_of demo
      [ "$python" != /usr/bin/python3 ] || echo python3-venv python3-pip python3-setuptools python3-wheel ;;
    wheel) echo binutils python3-wheel; [ "$python" != /usr/bin/python3 ] || echo python3-venv python3-pip ;;
    test) for part in cpp checks mpi rdma python docs torch-suite example pip-install; do packages_of $part; done ;;
    bench) packages_of core; echo libcli11-dev openmpi-bin nlohmann-json3-dev ;;
    *) die "no package group '$1'" ;;
  esac
}

# Whether /usr/bin/python3 already finds a torch that is not Debian's own (pip's, in /usr/local or the home folder).
torch_beside_debian() {
  [ -x /usr/bin/python3 ] || return 1
  local where
  where=$(/usr/bin/python3 -c 'import importlib.util as u; s = u.find_spec("torch")
print(s.origin if s and s.origin else "")' 2>/dev/null) || return 1
  [ -n "$where" ] && [ "${where#/usr/lib/python3/}" = "$where" ]
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 install \
    --no-install-recommends "$@"
}

install_or_refresh() {  # the lists may be missing or too old to name files that still exist
  compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null && apt_install "$@" && return
  apt-get update && apt_install "$@"
}

need_packages() {  # need_packages GROUP...
  [ "${SHARDWIRE_APT:-yes}" != no ] || return 0
  command -v dpkg-query >/dev/null \
    || { say "not a Debian system: trusting that compiler, cmake, ninja, fmt and the rest are here"; return 0; }
  local group wanted missing
  if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null && [ "$(id -u)" = 0 ] && [ ! -x /usr/bin/g++ ]; then
    quietly apt-update "reading Debian's package lists" apt-get update
  fi
  wanted=$(for group in "$@"; do packages_of "$group"; done | tr ' ' '\n' | sort -u)
  # shellcheck disable=SC2086
  missing=$(comm -23 <(printf '%s\n' $wanted) \
                     <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $wanted 2>/dev/null \
                       | sed -n 's/ installed$//p' | sort -u))
  [ -n "$missing" ] || return 0
  missing=${missing//$'\n'/ }
  if [ "$(id -u)" != 0 ]; then
    say "these Debian packages are missing. As root, run:"
    say "  apt-get install --no-install-recommends $missing"
    die "then call ./run again. (SHARDWIRE_APT=no skips this check.)"
  fi
  say "installing from Debian: $missing"
  # shellcheck disable=SC2086
  quietly apt "installing $(echo $missing | wc -w) Debian packages and what they need" install_or_refresh $missing
}

select_python() {  # select_python [quiet]
  python=${PYTHON:-/usr/bin/python3}
  [ "$python" = /usr/bin/python3 ] && return
  python=$(command -v "$python" || true)
  [ -n "$python" ] || die "PYTHON=$PYTHON: no such program"
  python=$("$python" -c 'import sys; print(sys.executable)') || die "PYTHON=$PYTHON does not run"
}

# Reads version and tag without importing torch, which would take seconds. Fails where there is none.
read_torch() {
  tag=$("$python" - <<'PY'
import importlib.util, pathlib, re, sys
spec = importlib.util.find_spec("torch")
if spec is None or not spec.origin:
    sys.exit(3)
text = (pathlib.Path(spec.origin).parent / "version.py").read_text()
version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text).group(1)
print("cp%d%d-torch%s" % (*sys.version_info[:2], version.replace("+", "-")))
PY
  ) || { tag='' build=''; return 1; }
  build=$root/build/$tag
}

# Exit status 3: pip has no such torch for this interpreter.
select_torch() {
  [ "$torch_choice" != pip ] || pip_torch
  read_torch \
    || die "$python has no torch. Install one into it ($python -m pip install torch), or choose another:" \
           "PYTHON=/path/to/python, or ./run --torch pip"
}

pip_torch() {
  local venv=$root/.venv-torch version=${SHARDWIRE_PIP_TORCH:-2.13.0} wanted
  wanted="$version $python $("$python" -c 'import sys; print(sys.version)' | tr -d '\n')"
  mkdir -p "$logs" 2>/dev/null && [ -w "$root/build" ] \
    || die "cannot write $root/build: is this folder yours? (a build made by root is removed by root: ./run clean)"
  exec 8>"$root/build/.venv-torch.lock"  # two at once would remove each other's
  flock 8
  if [ "$(cat "$venv/.shardwire" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv" \
      || die "$python cannot make a virtual environment (on Debian: apt-get install python3-venv)"
    if ! quietly pip "installing pip's torch $version into .venv-torch (may be large)" \
      "$venv/bin/python" -m pip install --disable-pip-version-check "torch==$version" numpy pytest pytest-xdist \
        setuptools wheel; then
      rm -rf "$venv"
      if grep -qE \
        'No matching distribution found for torch|Could not find a version that satisfies the requirement torch' \
        "$logs/pip.log"; then
        say "pip has no torch $version for this machine"
        exit 3
      fi
      exit 1
    fi
    printf '%s\n' "$wanted" >"$venv/.shardwire"
  fi
  exec 8>&-
  python=$venv/bin/python
}
