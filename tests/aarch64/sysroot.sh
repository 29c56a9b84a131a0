#!/usr/bin/env bash
# Unpacks the arm64 packages that the core needs into a folder: sysroot.sh FOLDER. apt works with lists and a status
# file in that folder, so that nothing of the machine changes: no foreign architecture, no package.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
packages='libfmt-dev libssl-dev libgtest-dev libgmock-dev libibverbs-dev libc6 libc6-dev linux-libc-dev libstdc++6
          libgcc-s1'
[ "$(cat "$folder/.unpacked" 2>/dev/null)" != "$packages" ] || exit 0
apt=$folder/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial"
: >"$apt/status"
options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists"
         -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives" \
         -o Acquire::Languages=none
         -o APT::Sandbox::User=)
apt-get "${options[@]}" update
# The shared libraries have other names in each release of Debian.
libraries=$(apt-cache "${options[@]}" depends libfmt-dev libssl-dev \
            | sed -nE 's/^ *Depends: (libfmt[0-9]+|libssl[0-9][a-z0-9]*)$/\1/p')
cd "$apt/archives"
# shellcheck disable=SC2086
apt-get "${options[@]}" download $packages $libraries
for package in *.deb; do dpkg-deb -x "$package" "$folder"; done
rm -rf "$apt"
printf '%s\n' "$packages" >"$folder/.unpacked"
