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

    def __init__(self, path, image, device):
        self.path, self.image, self.device = path, image, device


@contextmanager
def _folder():
    folder = Path(tempfile.mkdtemp(prefix="disk-", dir=cache.test_dir()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _mounted(target, *arguments):
    target.mkdir()
    _run("mount", *arguments, target)
    try:
        yield
    finally:
        # A broker that was just killed may hold it for a moment: a lazy unmount goes through as soon as it is gone.
        subprocess.run(["umount", "-l", str(target)], check=False)


@contextmanager
def disk(size_mib, memory_mib=None):
    """ext4 of `size_mib` on a loop device. With `memory_mib` its image lies, sparse, on a tmpfs of that size: once the tmpfs is
    full, every write to a block that was never written fails with EIO; see `more_memory`."""
    with _folder() as folder:
        image, mount = folder / "image", folder / "mount"
        if memory_mib is not None:
            with _mounted(folder / "memory", "-t", "tmpfs", "-o", f"size={memory_mib}m", "none"):
                with _ext4(folder / "memory" / "image", mount, size_mib) as made:
                    yield made
        else:
            with _ext4(image, mount, size_mib) as made:
                yield made


@contextmanager
def _ext4(image, mount, size_mib):
    with open(image, "wb") as file:
        file.truncate(size_mib << 20)
    _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", image)
    with _mounted(mount, "-o", "loop", image):
        device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(mount))
        yield Disk(mount, image, device)


def more_memory(made, memory_mib):
    """The tmpfs below a dying disk grows: writes succeed again."""
    _run("mount", "-o", f"remount,size={memory_mib}m", made.image.parent)


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
