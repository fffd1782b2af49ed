"""`./crumb test` installs Chromium for the tests of the page. The tools here only record their calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.test_launcher import Clone

NOTE = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\n'


class Machine(Clone):
    """A new clone on a Debian system without Chromium."""

    def has(self, tool: str, script: str = "") -> None:
        (self.bin / tool).write_text(NOTE + script)
        (self.bin / tool).chmod(0o755)

    def installs(self) -> list[str]:
        return [call for call in self.calls.read_text().splitlines() if call.startswith(("apt-get", "sudo"))]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.has("grep")  # finds Debian in /etc/os-release
    machine.has("id", "echo 0")
    machine.has("apt-get")
    (machine.bin / "env").symlink_to("/usr/bin/env")
    return machine


def test_root_installs_chromium(machine: Machine) -> None:
    ended = machine.run("test")
    assert ended.returncode == 0, ended.stderr
    assert machine.installs() == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends chromium",
    ]
    assert "installing Chromium" in ended.stderr


def test_a_user_with_passwordless_sudo_installs_chromium(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("sudo", 'shift; exec "$@"')
    (machine.bin / "true").symlink_to("/bin/true")
    assert machine.run("test").returncode == 0
    assert "apt-get install -y -qq --no-install-recommends chromium" in machine.installs()


def test_other_users_get_instructions_and_the_other_tests_run(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("sudo", "exit 1")
    ended = machine.run("test")
    assert ended.returncode == 0
    assert "sudo apt-get install chromium" in ended.stderr
    assert "tests.support.check_command" in ended.stdout
    assert machine.installs() == ["sudo -n true"]


def test_nothing_is_installed_on_another_system(machine: Machine) -> None:
    machine.has("grep", "exit 1")
    ended = machine.run("test")
    assert ended.returncode == 0
    assert "install it, or Chrome" in ended.stderr
    assert machine.installs() == []


@pytest.mark.parametrize("browser", ["chromium", "google-chrome"])
def test_an_existing_browser_is_enough(machine: Machine, browser: str) -> None:
    machine.has(browser)
    ended = machine.run("test")
    assert ended.returncode == 0
    assert machine.installs() == []
    assert "Chrom" not in ended.stderr


def test_a_failed_installation_is_reported_and_the_other_tests_run(machine: Machine) -> None:
    machine.has("apt-get", "exit 100")
    ended = machine.run("test")
    assert ended.returncode == 0
    assert "Chromium could not be installed" in ended.stderr
    assert "tests.support.check_command" in ended.stdout


def test_the_quick_checks_need_no_browser(machine: Machine) -> None:
    ended = machine.run("test", "--quick")
    assert ended.returncode == 0
    assert "--quick" in ended.stdout.splitlines()
    assert machine.installs() == []


def test_running_needs_no_browser(machine: Machine) -> None:
    ended = machine.run("up")
    assert ended.returncode == 0
    assert machine.installs() == []
