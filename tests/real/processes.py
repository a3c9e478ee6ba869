"""Child processes that end with this one, and the ports that they listen on."""
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request


class Failed(Exception):
    """Something that the run can't go on without; the message says what to do."""


def free_ports(count):
    """So many free TCP ports of the loopback interface."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Process:
    """A program in a process group of its own, with its output in a file."""

    def __init__(self, name, command, log, environment=None, cwd=None):
        self.name = name
        self.log = pathlib.Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as out:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=dict(os.environ, **(environment or {})), cwd=cwd, start_new_session=True)

    def stop(self):
        """Ends it and all that it started."""
        group = self.child.pid
        for what, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            try:
                os.killpg(group, what)
            except ProcessLookupError:
                break
            end = time.monotonic() + seconds
            while time.monotonic() < end and self.child.poll() is None:
                time.sleep(0.1)
        self.child.wait()

    def tail(self):
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def wait_for(self, url, seconds):
        """Waits until `url` answers with 200."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise Failed(f"{self.name} ended with {self.child.returncode}; {self.log} ends:\n{self.tail()}")
            if get(url) is not None:
                return
            time.sleep(0.3)
        raise Failed(f"{self.name} is not up after {seconds} s; {self.log} ends:\n{self.tail()}")


def get(url, timeout=5):
    """The body of a 200, else none."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None
