"""Real processes: a supervisor, the child it runs, and what that child starts.

Every scenario runs `supervise` in a process of its own, because it takes over signals and adopts
every orphan below it.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SUPERVISE = """
import sys
from workers.supervisor import supervise
sys.exit(supervise([sys.executable, "-c", sys.argv[1]], name="child", grace_s=float(sys.argv[2]),
                   first_delay_s=0.05, healthy_after_s=float(sys.argv[3]), max_quick_failures=3,
                   ready_option="--ready-fd"))
"""

# Notes its pid, then goes on as told.
NOTE = """
import os, signal, subprocess, sys, time
from pathlib import Path
notes = Path({notes!r})
def note(what, pid=None):
    (notes / f"{{what}}-{{pid or os.getpid()}}").touch()
def noted(what):
    return len(list(notes.glob(f"{{what}}-*")))
"""

# Two processes below the child, one in a session of its own, as an engine's helpers may be.
HELPERS = """
sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); "
         "print('up', flush=True); time.sleep(600)"]
for new_session in (False, True):
    helper = subprocess.Popen(sleep, start_new_session=new_session, stdout=subprocess.PIPE)
    helper.stdout.readline()
    note("helper", helper.pid)
"""


class Scenario:
    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.supervisor: subprocess.Popen[str] | None = None

    def start(self, child: str, *, grace_s: float = 20, healthy_after_s: float = 60) -> None:
        script = NOTE.format(notes=str(self.notes)) + textwrap.dedent(child)
        command = [sys.executable, "-c", SUPERVISE, script, str(grace_s), str(healthy_after_s)]
        self.supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def pids(self, what: str) -> list[int]:
        return sorted(int(note.name.split("-")[1]) for note in self.notes.glob(f"{what}-*"))

    def wait_for(self, what: str, count: int = 1) -> list[int]:
        wait_until(lambda: len(self.pids(what)) >= count)
        return self.pids(what)

    def finish(self) -> tuple[int, str]:
        assert self.supervisor is not None
        output, _ = self.supervisor.communicate(timeout=30)
        return self.supervisor.returncode, output

    def kill_leftovers(self) -> None:
        pids = [int(note.name.split("-")[1]) for note in self.notes.iterdir()]
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.communicate()


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    scenario = Scenario(tmp_path)
    yield scenario
    scenario.kill_leftovers()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("status", [0, 2])
def test_a_good_end_or_a_usage_error_is_final(scenario: Scenario, status: int) -> None:
    scenario.start(f"note('child'); sys.exit({status})")
    assert scenario.finish()[0] == status
    assert len(scenario.pids("child")) == 1


@pytest.mark.parametrize("death", ["sys.exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_child_that_fails_is_started_again(scenario: Scenario, death: str) -> None:
    scenario.start(f"note('child')\nif noted('child') < 3: {death}")
    assert scenario.finish()[0] == 0
    assert len(scenario.pids("child")) == 3


def test_a_crash_loop_ends_with_the_last_status_and_says_so(scenario: Scenario) -> None:
    scenario.start("note('child'); os.kill(os.getpid(), signal.SIGKILL)")
    status, output = scenario.finish()
    assert status == 128 + signal.SIGKILL
    assert len(scenario.pids("child")) == 3
    assert "supervisor.gave_up" in output
    assert "keeps failing soon after its start" in output


def test_failures_after_a_healthy_life_do_not_add_up(scenario: Scenario) -> None:
    scenario.start("note('child'); sys.exit(noted('child') < 6)", healthy_after_s=0)
    assert scenario.finish()[0] == 0
    assert len(scenario.pids("child")) == 6


@pytest.mark.parametrize("death", ["sys.exit(70)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_child_that_has_served_is_never_given_up(scenario: Scenario, death: str) -> None:
    """However short each life: it came so far, so it will again."""
    scenario.start(f"""
        from workers.supervisor import tell_ready
        assert sys.argv[1] == "--ready-fd"
        note("child")
        if noted("child") == 8:
            sys.exit(0)
        tell_ready(int(sys.argv[2]))
        {death}
    """)
    assert scenario.finish()[0] == 0
    assert len(scenario.pids("child")) == 8


def test_having_served_does_not_excuse_what_follows(scenario: Scenario) -> None:
    scenario.start("""
        from workers.supervisor import tell_ready
        note("child")
        if noted("child") == 1:
            tell_ready(int(sys.argv[2]))
        sys.exit(9)
    """)
    status, output = scenario.finish()
    assert status == 9
    assert len(scenario.pids("child")) == 4
    assert "supervisor.gave_up" in output


def test_nothing_below_a_killed_child_survives_it(scenario: Scenario) -> None:
    scenario.start(
        "note('child')\nif noted('child') > 1: note('second'); sys.exit(0)\n"
        + HELPERS
        + "os.kill(os.getpid(), signal.SIGKILL)"
    )
    scenario.wait_for("second")
    # already gone when the next child starts: they may hold the memory it needs
    helpers = scenario.pids("helper")
    assert len(helpers) == 2
    assert [pid for pid in helpers if alive(pid)] == []
    assert scenario.finish()[0] == 0


def test_orphans_are_collected_while_the_child_runs(scenario: Scenario) -> None:
    # The middle process ends at once, so its own child is handed to the supervisor.
    middle = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0).pid, flush=True)"
    )
    scenario.start(f"""
        middle = subprocess.Popen([sys.executable, "-c", {middle!r}],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        orphan = int(middle.stdout.readline())
        note("orphan", orphan)
        middle.wait()
        middle.stdin.close()
        while Path(f"/proc/{{orphan}}").exists():
            time.sleep(0.02)
        note("collected")
    """)
    scenario.wait_for("collected")
    assert scenario.finish()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_childs_status_returned(
    scenario: Scenario, number: signal.Signals
) -> None:
    scenario.start(f"""
        signal.signal({int(number)}, lambda *_: (note("told"), sys.exit(5)))
        note("child")
        time.sleep(600)
    """)
    scenario.wait_for("child")
    assert scenario.supervisor is not None
    scenario.supervisor.send_signal(number)
    assert scenario.finish()[0] == 5
    assert len(scenario.pids("told")) == 1
    assert len(scenario.pids("child")) == 1


def test_a_child_that_will_not_stop_is_killed_with_all_it_started(scenario: Scenario) -> None:
    scenario.start(
        "signal.signal(signal.SIGTERM, lambda *_: note('told'))\n"
        + HELPERS
        + "note('child')\nwhile True: time.sleep(1)",
        grace_s=0.5,
    )
    pids = scenario.wait_for("child") + scenario.pids("helper")
    assert scenario.supervisor is not None
    scenario.supervisor.terminate()
    assert scenario.finish()[0] == 128 + signal.SIGKILL
    assert len(scenario.pids("told")) == 1
    assert len(pids) == 3
    assert [pid for pid in pids if alive(pid)] == []


def test_a_stop_between_two_children_is_heeded(scenario: Scenario) -> None:
    scenario.start("note('child'); sys.exit(9)", healthy_after_s=0)  # never gives up
    scenario.wait_for("child", count=2)
    assert scenario.supervisor is not None
    scenario.supervisor.terminate()
    assert scenario.finish()[0] in (9, 128 + signal.SIGTERM)


def test_the_child_dies_with_the_supervisor(scenario: Scenario) -> None:
    scenario.start("note('child'); time.sleep(600)")
    (child,) = scenario.wait_for("child")
    assert scenario.supervisor is not None
    scenario.supervisor.kill()
    wait_until(lambda: not alive(child))
