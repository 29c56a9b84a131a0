#!/usr/bin/env bash
# A bare Debian 13 in a folder, and README's commands in it as a newcomer would give them: g++ 14, Python 3.13, torch
# 2.6, Open MPI 5, where CI's own machine is Debian 12.
#   .ci/trixie.sh [COMMAND]     a shell's command line, run in a copy of this working tree
# Each run begins with nothing installed but git, so that a package which ./run forgets is noticed. Kept for the next
# run, beside $SHARDWIRE_TRIXIE (/var/tmp/shardwire-trixie): the bare system, the packages' files and ccache's objects.
# Mounts live in a namespace of their own and end with it. Status 3, and a line why: such a system cannot be had here
# (no root, no debootstrap, no mirror, no mounts).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
# The default compiles what users get, moves a model, and runs the tests of the backend. .ci/weekly runs the whole
# suite, which takes an hour.
tests='test_backend or test_collectives or test_compile_op'
command=${*:-./run demo && ./run test --only python --pytest=-k --pytest="'$tests'"}
bare=${SHARDWIRE_TRIXIE:-/var/tmp/shardwire-trixie}
work=$bare.run

not_here() { echo "no Debian 13 here: $*"; exit 3; }

make_bare() {
  local mirror
  command -v debootstrap >/dev/null \
    || DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends debootstrap >"$bare.log" 2>&1 \
    || { apt-get update && \
         DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends debootstrap; } >>"$bare.log" 2>&1 \
    || not_here "debootstrap cannot be installed ($bare.log)"
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null \
           | grep -m 1 -E '/debian/?$' || true)
  rm -rf --one-file-system "$bare"
  debootstrap --variant=minbase --include=ca-certificates,git trixie "$bare" "${mirror:-http://deb.debian.org/debian}" \
    >>"$bare.log" 2>&1 \
    || not_here "debootstrap failed: $(tail -n 1 "$bare.log")"
  # A proxy of this machine may have certificates of its own.
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$bare/etc/ssl/certs/"
  echo force-unsafe-io >"$bare/etc/dpkg/dpkg.cfg.d/unsafe-io"  # nobody mourns this system when the power fails
  touch "$bare/.ready"
}

copy_tree() {  # what git knows or would take, as it lies here
  mkdir -p "$work/root/project"
  git ls-files -z --cached --others --exclude-standard \
    | while IFS= read -r -d '' name; do [ ! -e "$name" ] || printf '%s\0' "$name"; done \
    | tar --null --files-from=- -c | tar -x -C "$work/root/project"
}

# In namespaces of its own: no mount and no process is left behind, however this ends.
inside() {
  mount -t proc proc "$work/proc"
  for folder in sys dev; do mount --rbind "/$folder" "$work/$folder"; done
  mkdir -p "$work/root/.cache/ccache"
  mount --bind "$bare.ccache" "$work/root/.cache/ccache"
  mount --bind "$bare.archives" "$work/var/cache/apt/archives"
  local kept
  mapfile -t kept < <(env | grep -iE '^(https?_proxy|no_proxy|PIP_[A-Z_]*|SHARDWIRE_JOBS)=')
  exec chroot "$work" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    TERM=dumb ${kept[@]+"${kept[@]}"} \
    bash -c "$1"
}

if [ "${1:-}" = _inside ]; then
  inside "$2"
fi
[ "$(id -u)" = 0 ] || not_here "only root can make and enter it"
mkdir -p "$(dirname "$bare")"
exec 8>"$bare.lock"
flock -n 8 || not_here "another run uses $bare"
[ -e "$bare/.ready" ] || make_bare
rm -rf --one-file-system "$work"
cp -a --reflink=auto "$bare" "$work"
trap 'rm -rf --one-file-system "$work"' EXIT
cp /etc/resolv.conf /etc/hosts "$work/etc/" 2>/dev/null || true
mkdir -p "$bare.ccache" "$bare.archives/partial"
enter=(unshare --mount --propagation private --pid --fork --kill-child bash "$PWD/.ci/trixie.sh" _inside)
# A mirror that gives nothing is no failure of ours. What is fetched here is there for the run.
why=$("${enter[@]}" 'apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends \
                     --download-only install g++ libtorch-dev python3-torch' 2>&1) \
  || not_here "it cannot be entered, or gets no packages: $(tail -n 1 <<<"$why")"
copy_tree
"${enter[@]}" "cd /root/project && { $command; }"
