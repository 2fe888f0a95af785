"""Small, slow and dying disks: ext4 on a loop device. Where the machine does not allow that, `Skipped` says why."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from . import cache


class Skipped(Exception):
    """The machine cannot do what the test needs."""


def _run(*command):
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    except OSError as error:
        raise Skipped(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise Skipped(f"{' '.join(str(part) for part in command)}: {done.stderr.strip()}")
    return done.stdout


class Disk:
    """A mounted file system: `path` to put data in, `device` for throttling, `image` behind it."""

    def __init__(self, path, image, size_mib):
        self.path, self.image = path, image
        with open(image, "wb") as file:
            file.truncate(size_mib << 20)
        _run("mkfs.ext4", "-q", "-F", image)
        path.mkdir()
        self.mount()

    def mount(self):
        _run("mount", "-o", "loop", self.image, self.path)
        self.device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(self.path))

    def unmount(self):
        # A broker that was just killed may hold it for a moment: a lazy unmount goes through as soon as it is gone.
        subprocess.run(["umount", "-l", str(self.path)], check=False)

    def fail_writes(self, fail):
        """Every write to the device fails with EIO: its image is immutable for as long. Reads go on."""
        _run("chattr", "+i" if fail else "-i", self.image)


@contextmanager
def disk(size_mib):
    """ext4 of `size_mib` on a loop device."""
    folder = Path(tempfile.mkdtemp(prefix="disk-", dir=cache.test_dir()))
    made = None
    try:
        made = Disk(folder / "mount", folder / "image", size_mib)
        yield made
    finally:
        if made is not None:
            made.unmount()
            subprocess.run(["chattr", "-i", str(made.image)], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def slow_writes(made, bytes_per_s):
    """A control group whose members write to the disk at most so fast; gives the file that takes process ids."""
    root = Path("/sys/fs/cgroup/blkio")
    if not root.is_dir():
        raise Skipped("no cgroup v1 `blkio` to throttle writes with")
    group = root / f"corelane-{os.getpid()}"
    try:
        group.mkdir()
        number = os.stat(made.device).st_rdev
        (group / "blkio.throttle.write_bps_device").write_text(f"{os.major(number)}:{os.minor(number)} {bytes_per_s}")
    except OSError as error:
        raise Skipped(f"cannot throttle writes: {error}") from None
    try:
        yield group / "cgroup.procs"
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(pid)
        group.rmdir()
