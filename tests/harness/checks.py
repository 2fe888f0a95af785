"""Counting: one line a check, and a closing line that says how many passed."""

import sys
import time
import traceback


class Failed(AssertionError):
    """A check's expectation did not hold."""


def expect(condition, message):
    if not condition:
        raise Failed(message)


def expect_equal(what, got, wanted):
    if got != wanted:
        raise Failed(f"{what}: got {got!r}, wanted {wanted!r}")


class Checks:
    def __init__(self, title):
        self.title = title
        self.passed = 0
        self.failed = 0
        self.names_failed = []

    def run(self, name, function, *args):
        """Runs one check; a failure is reported and the next one goes on. Gives what the function gave, None if it failed."""
        start = time.monotonic()
        try:
            result = function(*args)
        except Exception as error:  # noqa: BLE001 a check may fail in any way
            self.failed += 1
            self.names_failed.append(name)
            print(f"FAIL {name} ({time.monotonic() - start:.1f} s): {error}", flush=True)
            if not isinstance(error, Failed):
                traceback.print_exc(file=sys.stdout)
            return None
        self.passed += 1
        print(f"ok   {name} ({time.monotonic() - start:.1f} s)", flush=True)
        return True if result is None else result

    def close(self):
        """Prints the closing line; the exit code of the script."""
        for name in self.names_failed:
            print(f"failed: {name}")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 1 if self.failed or not self.passed else 0
