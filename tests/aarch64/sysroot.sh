#!/usr/bin/env bash
# Unpacks the arm64 packages that the core needs into a folder: sysroot.sh FOLDER. apt works with lists and a status file
# in that folder, so that nothing of the machine changes: no foreign architecture, no package.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
packages='libfmt-dev libfmt9 libssl-dev libssl3 libgtest-dev libgmock-dev libibverbs-dev libc6 libc6-dev linux-libc-dev libstdc++6 libgcc-s1'
[ "$(cat "$folder/.unpacked" 2>/dev/null)" != "$packages" ] || exit 0
apt=$folder/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial"
: >"$apt/status"
options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists"
         -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives" -o Acquire::Languages=none
         -o APT::Sandbox::User=)
apt-get "${options[@]}" update
cd "$apt/archives"
# shellcheck disable=SC2086
apt-get "${options[@]}" download $packages
for package in *.deb; do dpkg-deb -x "$package" "$folder"; done
rm -rf "$apt"
printf '%s\n' "$packages" >"$folder/.unpacked"
