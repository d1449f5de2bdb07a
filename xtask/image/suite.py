"""Builds the image of docs/deploy/Dockerfile with buildah, runs it with podman as the manifests do (no root user, no
capabilities, a read-only root file system), and measures its size and the time from the command to the first response.

Everything is kept in one directory on this machine. The image stays there as an archive that can be pushed to a
registry.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

DEPLOY = pathlib.Path(__file__).parents[2] / "docs/deploy"
STARTS = 5
# Ways to run containers: the usual way first, then ways for machines where limits cannot be raised and cgroups cannot
# be created (in another container).
WAYS = [
    ([], []),
    (["--runtime=crun"], ["--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"]),
    (["--runtime=runc", "--cgroup-manager=cgroupfs"], ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"]),
]
SAFE = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host"]


def done(command, **more):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)


def must(command, **more):
    result = done(command, **more)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def libraries_of(program, foreign):
    """Returns the shared libraries that a program needs, including its loader, as pairs of the path here and the path in
    the image."""
    if not foreign:
        return [(library, library) for library in re.findall(r"(/\S+) \(0x", must(["ldd", program]))]
    # `ldd` runs the program's loader, which needs the program's architecture.
    folder = pathlib.Path("/usr/aarch64-linux-gnu/lib")
    loader = re.search(r"program interpreter: (\S+)\]", must(["readelf", "--program-headers", program])).group(1)
    found = {pathlib.Path(loader).name: loader}
    left = [program]
    while left:
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", must(["readelf", "--dynamic", left.pop()])):
            if name not in found:
                found[name] = f"/lib/aarch64-linux-gnu/{name}"
                left.append(folder / name)
    return [(folder / name, place) for name, place in found.items()]


def root_of(program, folder, foreign):
    """Returns the files of the image."""
    for source, target in [(program, "/usr/bin/oip-server"), *libraries_of(program, foreign)]:
        copy = folder / str(target).lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(source), copy)
    (folder / "etc").mkdir()
    (folder / "etc/passwd").write_text("nonroot:x:65532:65532::/:/none\n")
    (folder / "models").mkdir()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answered(port, request, patience=60):
    """Waits until a model responds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}/v2/models/digits/infer"
            with urllib.request.urlopen(urllib.request.Request(url, data=request), timeout=5) as answer:
                if "outputs" in json.load(answer):
                    return
        time.sleep(0.002)
    sys.exit("no response")


def seconds(start):
    """Measures several starts; `start` returns a running process and a function that ends it."""
    times = []
    for _ in range(STARTS):
        port, began = free_port(), time.monotonic()
        request, process, end = start(port)
        try:
            answered(port, request)
            times.append(time.monotonic() - began)
        finally:
            end()
            code = process.wait(60)
        if code != 0:
            sys.exit(f"it ended with {code} after SIGTERM")
    return f"{statistics.median(times):.2f} s (of {STARTS}: {min(times):.2f} to {max(times):.2f})"


def keep_only(archive):
    """Removes everything except the archive, and prints its path."""
    for entry in archive.parent.iterdir():
        if entry != archive:
            shutil.rmtree(entry, ignore_errors=True)
    print(f"archive: {archive}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--arch", choices=["amd64", "arm64"], required=True)
    parser.add_argument("--tag", required=True, help="the image's name and tag")
    parser.add_argument("--emulator", help="what runs programs of that processor here, where it is not this machine's")
    options = parser.parse_args()
    for tool in ("buildah", "podman"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed (Debian: apt-get install --no-install-recommends buildah podman runc)")
    folder = options.folder
    shutil.rmtree(folder, ignore_errors=True)
    context = folder / "context"
    root = context / "rootfs"
    root_of(options.program, root, options.emulator)
    stored = [f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}", "--storage-driver=vfs"]
    file = DEPLOY / "Dockerfile"
    must(["buildah", *stored, "build", "--isolation=chroot", f"--arch={options.arch}", "--tag", options.tag, "--file", file, context])
    described = json.loads(must(["buildah", *stored, "inspect", "--type=image", options.tag]))
    user, arch = described["OCIv1"]["config"]["User"], described["OCIv1"]["architecture"]
    if arch != options.arch:
        sys.exit(f"the image is for {arch}, not for {options.arch}")
    archive = folder / f"oip-server-{options.arch}.tar"
    must(["buildah", *stored, "push", "--compression-format=gzip", options.tag, f"oci-archive:{archive}:{options.tag}"])
    files = sorted(path for path in root.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    print(f"image for {arch}: {size / 1e6:.1f} MB in {len(files)} files, {archive.stat().st_size / 1e6:.1f} MB compressed, user {user}")
    for path in files:
        print(f"  /{path.relative_to(root)} {path.stat().st_size}")

    models = folder / "models"
    # For another architecture, an emulator runs the program with the image's loader and libraries.
    program = [options.program]
    if options.emulator:
        if not shutil.which(options.emulator):
            sys.exit(f"the image was built and not run: {options.emulator} is not installed (Debian: qemu-user-static)")
        program = [options.emulator, "-L", root, root / "usr/bin/oip-server"]
    must([*program, "init", models])
    request = (models / "one_digit.json").read_bytes()

    def alone(port):
        process = subprocess.Popen(
            [*program, f"--address=127.0.0.1:{port}", models],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        return request, process, process.terminate

    print(f"the program alone, from command to first response: {seconds(alone)}")
    for way, limits in WAYS:
        base = ["podman", *stored, *way, "run", "--rm", *SAFE, *limits]
        tried = done([*base, options.tag, "--version"])
        if tried.returncode == 0 and tried.stdout.startswith("oip-server "):
            break
        print(f"podman {' '.join(way)}: {tried.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    else:
        if not options.emulator:
            sys.exit("podman runs no container here: the image was built and not run")
        print(f"podman runs no container for {arch} here (binfmt_misc has no {options.emulator}): the image's files ran without it")
        keep_only(archive)
        return

    inside = {}

    def container(port):
        name = f"--name=suite{port}"
        process = subprocess.Popen(
            [str(part) for part in [*base, name, f"--volume={models}:/models:ro", options.tag,
                                    f"--address=127.0.0.1:{port}", "--shutdown-delay=0", "/models"]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

        def end():
            pid = must(["podman", *stored, "inspect", "--format={{.State.Pid}}", f"suite{port}"]).strip()
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            inside["uid"] = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE).group(1)
            inside["capabilities"] = int(re.search(r"^CapEff:\s+(\w+)", status, re.MULTILINE).group(1), 16)
            mounts = pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
            inside["root"] = next(line.split()[5] for line in mounts if line.split()[4] == "/").split(",")[0]
            os.kill(int(pid), signal.SIGTERM)

        return request, process, end

    print(f"in a container, from podman's command to first response: {seconds(container)}")
    expected = {"uid": "65532", "capabilities": 0, "root": "ro"}
    if inside != expected:
        sys.exit(f"the process in the container: expected {expected}, found {inside}")
    # Without a mount at /models the repository is empty, which is allowed. A path that does not exist is an error.
    missing = done([*base, options.tag, "/nowhere"])
    if missing.returncode != 1 or "does not exist" not in missing.stderr:
        sys.exit(f"expected that /nowhere is said not to exist, found {missing.returncode}: {missing.stderr}")
    keep_only(archive)
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
