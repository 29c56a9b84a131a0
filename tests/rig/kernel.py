"""A Debian kernel with soft-RoCE, the kernel's modules and an initrd for the rig's machines: fetched once and kept in a
cache.

Needs no root if the packages are installed: kernels are downloaded and unpacked, not installed.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("SHARDWIRE_RIG_CACHE") or pathlib.Path.home() / ".cache" / "shardwire-rig")
# Packages that the host must have; the guests run in the host's userland and see the packages, too. Also listed in
# .ci/machine.sh.
PACKAGES = ("qemu-system-x86 kmod cpio xz-utils zstd iproute2 libibverbs1 ibverbs-providers ibverbs-utils "
            "perftest".split())
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "modprobe": "kmod", "cpio": "cpio", "xz": "xz-utils",
            "zstd": "zstd", "rdma": "iproute2", "ibv_devinfo": "ibverbs-utils"}
MODULES = ["virtio_pci", "virtio_net", "9p", "9pnet_virtio", "overlay", "crc32_generic", "rdma_rxe", "ib_uverbs",
           "ib_umad", "rdma_ucm", "tls", "gcm", "ghash_generic"]  # the last three: TLS by the kernel
OPTIONAL_MODULES = {"crc32_generic", "tls", "gcm", "ghash_generic"}  # crc32: needed by rxe up to about Linux 6.12
# trixie's kernel also on Debian 12, so that both hosts run the same rxe; the host's own suite where trixie cannot be
# had.
SUITES = [name for name in os.environ.get("SHARDWIRE_RIG_SUITE", "trixie host").split() if name]


class Unavailable(Exception):
    """Why no machine can be had here."""


def say(*words):
    print("rig:", *words, file=sys.stderr, flush=True)


def call(command, tries=1, **more):
    """Output of a command; on failure Unavailable with the end of the output."""
    for rest in reversed(range(tries)):
        done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, timeout=600,
                              check=False, **more)
        if done.returncode == 0:
            return done.stdout
        if rest:
            time.sleep(10)  # another apt may hold the lists
    end = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
    raise Unavailable(f"'{' '.join(map(str, command[:4]))} ...' ended with status {done.returncode}: {' | '.join(end)}")


def missing_packages():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    return sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})


def prepare():
    """The path of an initrd, beside which lie vmlinux, version and root/lib/modules. Unavailable says why there is
    none.
    """
    if os.uname().machine != "x86_64":
        raise Unavailable(f"the machines are x86_64 ones, this host is {os.uname().machine}")
    if missing_packages():
        raise Unavailable(f"needs the Debian packages {' '.join(missing_packages())}: apt-get install "
                          f"--no-install-recommends {' '.join(PACKAGES)}")
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        reasons = []
        with open(CACHE / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for suite in SUITES:
                try:
                    return initrd_of(kernel_of(suite))
                except (Unavailable, subprocess.SubprocessError) as reason:  # call() may also take too long
                    reasons.append(f"suite {suite}: {reason}")
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"cannot prepare a kernel in {CACHE}: {error}") from error
    raise Unavailable("no kernel could be had: " + "; ".join(reasons))


def apt_options(suite):
    """For a suite other than the host's: separate lists, which leave the host's alone."""
    options = ["-q", "-o", "APT::Sandbox::User=root"]
    if suite == "host":
        return options
    folder = CACHE / f"apt-{suite}"
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    targets = call(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages",
                    "Label: Debian"]).decode().split()
    if not targets:
        raise Unavailable("apt knows no Debian archive here (apt-get update was never run, or it has no network)")
    source = f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {targets[0]} {suite} main\n"
    (folder / "sources.list").write_text(source)
    own = {"Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
           "Dir::State::lists": folder / "lists", "Dir::Cache": folder}
    for name, value in own.items():
        options += ["-o", f"{name}={value}"]
    call(["apt-get", *options, "update"], tries=3)
    return options


def kernel_of(suite):
    """The folder of a suite's kernel: vmlinux, version, root/."""
    folder = CACHE / suite
    if (folder / "version").exists():
        return folder
    fresh = CACHE / f"{suite}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "root").mkdir(parents=True)
    options = apt_options(suite)

    def depends(package, kinds):
        said = call(["apt-cache", *options, "depends", package]).decode()
        return re.findall(rf"^ *Depends: (linux-(?:{kinds})-[0-9]\S*)", said, flags=re.M)

    image = depends("linux-image-amd64", "image")
    if not image:
        raise Unavailable("its archive has no linux-image-amd64")
    say("fetching", image[0])
    # The host's busybox: the suite's may be of another libc, and static programs run anywhere.
    call(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "busybox-static"], tries=3, cwd=fresh)
    call(["apt-get", *options, "download", image[0], *depends(image[0], "binary|modules|base")], tries=3, cwd=fresh)
    for package in fresh.glob("*.deb"):
        call(["dpkg-deb", "-x", package, fresh / "root"])
        package.unlink()
    if not (fresh / "root/lib").exists():
        (fresh / "root/lib").symlink_to("usr/lib")
    version = next((fresh / "root/lib/modules").iterdir()).name
    call(["depmod", "-b", fresh / "root", version])
    (fresh / "vmlinux").write_bytes(unpacked_kernel(next(fresh.glob("root/boot/vmlinuz*")).read_bytes()))
    (fresh / "version").write_text(version)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return folder


def unpacked_kernel(image):
    """The ELF image inside a bzImage: an emulated guest without decompression starts seconds sooner."""
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = ((image[0x1F1] or 4) + 1) * 512 + offset
    tools = {b"\xfd7zX": "xz", b"(\xb5/\xfd": "zstd", b"\x1f\x8b\x08\x00": "gzip"}
    tool = tools.get(image[start : start + 4])
    if tool is None:
        raise Unavailable("the kernel is compressed in a way unknown here")
    return subprocess.run([tool, "-dcq"], input=image[start: start + length - 4], stdout=subprocess.PIPE,
                          check=True).stdout


def initrd_of(folder):
    recipe = hashlib.sha256((HERE / "guest/init").read_bytes() + " ".join(MODULES).encode()).hexdigest()[:12]
    initrd = folder / f"initrd-{recipe}"  # another checkout may have another recipe
    if initrd.exists():
        return initrd
    version = (folder / "version").read_text()
    tree = folder / "initrd.tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "mod"):
        (tree / name).mkdir(parents=True)
    shutil.copy(HERE / "guest/init", tree / "init")
    (tree / "init").chmod(0o755)
    shutil.copy(next(folder.glob("root/**/bin/busybox")), tree / "bin/busybox")
    (tree / "modlist").write_text(
        "".join(f"{name}\n" for name in unpack_modules(folder / "root", version, tree / "mod")))
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    archive = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], input=names.encode(), stdout=subprocess.PIPE,
                             cwd=tree, check=True).stdout
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(tree)
    (folder / "initrd.new").write_bytes(archive)
    (folder / "initrd.new").rename(initrd)
    return initrd


def unpack_modules(root, version, to):
    """Unpacks the modules and their dependencies; returns the file names in the order of loading."""
    order = []
    for module in MODULES:
        try:
            said = call(["modprobe", "-d", root, "-S", version, "--show-depends", module]).decode()
        except Unavailable:
            if module in OPTIONAL_MODULES:
                continue
            raise
        for path in re.findall(r"^insmod (\S+)", said, flags=re.M):
            name = re.sub(r"\.ko.*", ".ko", os.path.basename(path))
            if name not in order:
                order.append(name)
                tool = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-qdc"]}.get(os.path.splitext(path)[1], ["cat"])
                (to / name).write_bytes(call([*tool, path]))
    return order


if __name__ == "__main__":
    try:
        print(prepare())
    except Unavailable as reason:
        sys.exit(f"rig: {reason}")
