"""Memory as /proc and /sys tell it, of machines and containers of every kind, and disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from objbuf_dagster.ranges.gate import disk_space, memory_level, memory_use

GIB = 1 << 30
HUGE = 9_223_372_036_854_771_712
"""What version 1 says where there is no limit."""


class Machine:
    """A root with the files that a kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Machine:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def memory(self, total: int, available: int) -> Machine:
        kib = [f"MemTotal:       {total >> 10} kB", "MemFree:  123 kB", f"MemAvailable:   {available >> 10} kB"]
        return self.write("proc/meminfo", "\n".join([*kib, "HugePages_Total:       0", ""]))

    def in_groups(self, *lines: str) -> Machine:
        return self.write("proc/self/cgroup", "".join(f"{line}\n" for line in lines))

    def v2(self, group: str, current: int, limit: int | str, cache: int = 0, high: int | str = "max") -> Machine:
        folder = f"sys/fs/cgroup/{group}".rstrip("/")
        self.write(f"{folder}/memory.current", f"{current}\n").write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.high", f"{high}\n")
        return self.write(f"{folder}/memory.stat", f"anon {current - cache}\nfile 5\ninactive_file {cache}\n")

    def v1(self, group: str, current: int, limit: int, cache: int = 0) -> Machine:
        folder = f"sys/fs/cgroup/memory/{group}".rstrip("/")
        self.write(f"{folder}/memory.usage_in_bytes", f"{current}\n")
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        return self.write(f"{folder}/memory.stat", f"cache 9\ninactive_file 1\ntotal_inactive_file {cache}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path).memory(16 * GIB, 12 * GIB)


def test_bytes_are_those_of_every_limit(machine: Machine) -> None:
    assert memory_use(machine.root) == [(4 * GIB, 16 * GIB)]
    machine.in_groups("0::/").v2("", 3 * GIB, 4 * GIB)
    assert memory_use(machine.root) == [(4 * GIB, 16 * GIB), (3 * GIB, 4 * GIB)]


def memory_in_use(root: Path = Path("/")) -> float | None:
    return memory_level(memory_use(root))


def test_a_machine_uses_what_is_not_available(machine: Machine) -> None:
    assert memory_in_use(machine.root) == pytest.approx(0.25)


def test_a_container_of_version_2_is_measured_by_its_own_limit(machine: Machine) -> None:
    machine.in_groups("0::/").v2("", 3 * GIB, 4 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.75)


def test_pages_that_nobody_uses_are_no_pressure(machine: Machine) -> None:
    machine.in_groups("0::/").v2("", 4 * GIB, 4 * GIB, cache=2 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.5)


def test_pages_of_files_that_are_in_use_are_no_pressure_either(machine: Machine) -> None:
    """A container that reads and writes much is full of them, and no process in it needs them to stay."""
    machine.in_groups("0::/").v2("", 4 * GIB, 4 * GIB)
    stat = f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file {2 * GIB}\nslab_reclaimable {GIB // 2}\nslab {GIB}\n"
    machine.write("sys/fs/cgroup/memory.stat", stat)
    assert memory_in_use(machine.root) == pytest.approx(0.25)


def test_the_same_holds_for_version_1(machine: Machine) -> None:
    machine.in_groups("4:memory:/a").v1("a", 4 * GIB, 4 * GIB)
    stat = f"active_file 1\ntotal_inactive_file {GIB}\ntotal_active_file {2 * GIB}\n"
    machine.write("sys/fs/cgroup/memory/a/memory.stat", stat)
    assert memory_in_use(machine.root) == pytest.approx(0.25)


def test_the_tightest_of_nested_groups_counts(machine: Machine) -> None:
    machine.in_groups("0::/pods/pod/container")
    machine.v2("", 9 * GIB, "max").v2("pods/pod", 3 * GIB, 4 * GIB).v2("pods/pod/container", GIB, 10 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.75)


def test_where_the_kernel_throttles_counts_as_the_limit(machine: Machine) -> None:
    machine.in_groups("0::/").v2("", 2 * GIB, 4 * GIB, high=2 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(1.0)


def test_the_machine_counts_where_it_is_worse_than_the_container(machine: Machine) -> None:
    machine.memory(16 * GIB, GIB).in_groups("0::/").v2("", GIB, 8 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(15 / 16)


@pytest.mark.parametrize("path", ["/docker/0123", "/../../outside", "/.."])
def test_a_path_that_only_the_host_knows_leads_to_the_root_of_the_container(machine: Machine, path: str) -> None:
    machine.in_groups(f"0::{path}").v2("", 3 * GIB, 4 * GIB)
    for outside in ("..", "../../outside"):
        machine.v2(outside, 4 * GIB, 4 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.75), "and to nothing outside of it"


@pytest.mark.parametrize("controllers", ["memory", "cpu,memory"])
def test_a_container_of_version_1_is_measured_by_its_own_limit(machine: Machine, controllers: str) -> None:
    machine.in_groups("9:name=systemd:/x", f"4:{controllers}:/docker/abc", "0::/")
    machine.v1("", 15 * GIB, HUGE).v1("docker/abc", 4 * GIB, 5 * GIB, cache=GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.6)


def test_a_limit_above_the_machine_is_none(machine: Machine) -> None:
    machine.in_groups("4:memory:/a", "0::/").v1("a", 15 * GIB, HUGE).v1("", 15 * GIB, 17 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.25)


def test_version_2_beside_version_1_is_found(machine: Machine) -> None:
    machine.in_groups("4:cpu:/", "0::/a").v2("unified/a", 3 * GIB, 6 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.5)


def test_a_machine_that_tells_nothing_is_not_known(tmp_path: Path) -> None:
    assert memory_in_use(tmp_path) is None


def test_a_container_is_known_where_the_machine_is_not(tmp_path: Path) -> None:
    machine = Machine(tmp_path).in_groups("0::/").v2("", GIB, 4 * GIB)
    assert memory_in_use(machine.root) == pytest.approx(0.25)


@pytest.mark.parametrize("text", ["", "\0", "MemTotal: x kB\nMemAvailable: 5 kB", "MemTotal: 0 kB\nMemAvailable: 0 kB"])
def test_damaged_files_are_not_believed(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path).write("proc/meminfo", text).in_groups("", "no line", "0::", "::::", "x:memory:/\0")
    machine.write("sys/fs/cgroup/memory.max", "much").write("sys/fs/cgroup/memory.current", "-1")
    assert memory_in_use(machine.root) is None


def test_limits_of_zero_divide_nothing(machine: Machine) -> None:
    machine.in_groups("0::/", "4:memory:/").v2("", GIB, 0).v1("", GIB, 0)
    assert memory_in_use(machine.root) == pytest.approx(0.25)


def test_this_machine_is_read_without_an_error() -> None:
    found = memory_in_use()
    assert found is None or 0 <= found < 2


def test_a_directory_that_is_not_there_yet_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    found = disk_space(tmp_path / "lake" / "entries")
    there = disk_space(tmp_path)
    assert found is not None
    assert there is not None
    assert found[1] == there[1] > 0
    assert 0 <= found[0] <= found[1]


def test_a_path_below_a_file_has_a_disk_or_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = disk_space(tmp_path / "file" / "lake")
    assert found is None or found[1] > 0
