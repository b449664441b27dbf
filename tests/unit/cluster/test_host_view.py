"""View of the machine from containers of the test node, and its configuration in the node's runtime."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mamba_kernels.cpu.build import cache_root
from testcluster import container_runtime, host_view, kubelet, runc
from testcluster.cluster_dns import corefile, objects
from testcluster.container_runtime import Layout
from testcluster.errors import ToolMissing
from testcluster.host_view import Host, Mount
from testcluster.network import Subnet
from testcluster.node import TREE
from testcluster.pki import Certificate

MERGED = Host(
    tree="/home/user/project",
    environment="/home/user/project/.venv",
    pythons=("/root/.pyenv/versions/3.11.7",),
    top_level={"bin": "usr/bin", "lib": "usr/lib"},
    optional=frozenset({"etc/ssl"}),
    machine="x86_64",
    caches="/home/user/.cache",
)
DEFAULT_SPEC: dict[str, Any] = {
    "process": {"cwd": "/", "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]},
    "mounts": [{"destination": "/proc", "type": "proc"}],
}


def by_destination(host: Host) -> dict[str, str]:
    return {mount.destination: mount.source for mount in host_view.mounts(host)}


def test_the_checkout_and_its_environment_have_fixed_places() -> None:
    found = by_destination(MERGED)

    assert found["/opt/mambaserve"] == "/home/user/project"
    assert found["/opt/venv"] == "/home/user/project/.venv"


def test_the_interpreter_stays_where_the_environment_looks_for_it() -> None:
    assert by_destination(MERGED)["/root/.pyenv/versions/3.11.7"] == "/root/.pyenv/versions/3.11.7"


def test_the_interpreter_of_the_distribution_needs_no_mount_of_its_own() -> None:
    host = Host(**{**vars(MERGED), "pythons": ("/usr",)})

    assert list(by_destination(host)).count("/usr") == 1
    assert "/usr" in by_destination(host)


def test_compiled_kernels_are_found_where_they_were_put() -> None:
    folder = host_view.image(MERGED).environment["XDG_CACHE_HOME"]

    there = cache_root({"XDG_CACHE_HOME": folder})

    assert by_destination(MERGED)[str(there)] == str(cache_root({"XDG_CACHE_HOME": "/home/user/.cache"}))


def test_linked_folders_are_links_in_the_image_and_others_are_mounted() -> None:
    host = Host(**{**vars(MERGED), "top_level": {"bin": "usr/bin", "lib": ""}})

    image = host_view.image(host)

    assert dict(image.links) == {"bin": "usr/bin"}
    assert "lib" in image.directories
    assert by_destination(host)["/lib"] == "/lib"
    assert "/bin" not in by_destination(host)


def test_every_mount_is_read_only() -> None:
    for mount in host_view.mounts(MERGED):
        spec = mount.as_runtime_spec()
        assert spec["options"] == ["rbind", "ro", "nosuid"]
        assert spec["type"] == "bind"


def test_everybody_may_write_to_the_temporary_folder() -> None:
    assert host_view.image(MERGED).directories["tmp"] == 0o1777


def test_the_image_starts_the_command_line_of_the_checkout() -> None:
    image = host_view.image(MERGED)

    [launcher] = image.entrypoint
    file = image.files[launcher.removeprefix("/")]
    assert file.mode == 0o755
    assert file.data.startswith(b"#!/opt/venv/bin/python\n")
    script = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["scripts"]["mambaserve"]
    module, _, function = script.partition(":")
    assert f"from {module} import {function}\n\n{function}()".encode() in file.data


def test_the_packages_of_the_checkout_can_be_imported() -> None:
    path = host_view.image(MERGED).environment["PYTHONPATH"].split(":")

    roots = [Path(root).relative_to("/opt/mambaserve") for root in path]
    assert [root for root in roots if not (TREE / root).is_dir()] == []


def test_a_variable_given_to_an_image_is_added_to_the_others() -> None:
    plain = host_view.image(MERGED)

    image = host_view.with_environment(plain, {"LOG_LEVEL": "debug"})

    assert dict(image.environment) == {**plain.environment, "LOG_LEVEL": "debug"}


def test_this_machine_can_be_looked_at() -> None:
    host = host_view.look(TREE)

    assert (Path(host.tree) / "pyproject.toml").exists()
    assert all(Path(mount.source).exists() for mount in host_view.mounts(host))


def test_containers_have_the_machines_limits() -> None:
    spec = container_runtime.runtime_spec(DEFAULT_SPEC)

    assert "rlimits" not in spec["process"]
    assert "rlimits" in DEFAULT_SPEC["process"]


def test_only_images_of_the_hosts_view_see_the_machine_and_a_pods_volumes_lie_above_it() -> None:
    volume = {"destination": "/opt/mambaserve", "type": "bind"}
    plain = {"process": {"env": ["PATH=/bin"]}, "mounts": [*DEFAULT_SPEC["mounts"], volume]}
    names = host_view.image(MERGED).environment.items()
    view = {**plain, "process": {"env": [f"{name}={value}" for name, value in names]}}
    mounts = [Mount("/home/user/project", "/opt/mambaserve").as_runtime_spec()]

    assert runc.with_mounts(plain, mounts) == plain
    assert runc.with_mounts(view, mounts)["mounts"] == [*DEFAULT_SPEC["mounts"], *mounts, volume]


def test_containerd_keeps_all_it_has_in_the_nodes_folder() -> None:
    layout = Layout(Path("/tmp/node"))

    config = tomllib.loads(container_runtime.config_text(layout, Path("/usr/lib/cni"), "native"))

    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    kept = [config["root"], config["state"], config["grpc"]["address"], cri["cni"]["conf_dir"]]
    assert all(Path(path).is_relative_to("/tmp/node") for path in kept)
    assert cri["cni"]["bin_dir"] == "/usr/lib/cni"
    assert cri["containerd"]["runtimes"]["runc"]["base_runtime_spec"] == str(layout.runtime_spec)
    assert cri["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == str(layout.runtime)
    assert cri["restrict_oom_score_adj"] is True


def test_the_pod_network_hands_out_addresses_of_one_range() -> None:
    layout = Layout(Path("/tmp/node"))

    [bridge] = container_runtime.network_config(layout, Subnet(0))["plugins"]

    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.88.0.0/16"}]]
    assert Path(bridge["ipam"]["dataDir"]).is_relative_to("/tmp/node")


def test_missing_programs_are_told_by_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(container_runtime, "PLUGIN_FOLDERS", (str(tmp_path),))

    missing = container_runtime.missing_packages()

    assert {"containerd", "runc", "iptables", "containernetworking-plugins"} <= set(missing)
    with pytest.raises(ToolMissing, match="containernetworking-plugins"):
        container_runtime.plugin_folder()


def test_a_machine_with_all_programs_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in (*container_runtime.PACKAGES, "bridge"):
        (tmp_path / program).write_text("")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(container_runtime, "PLUGIN_FOLDERS", ("/nowhere", str(tmp_path)))

    assert container_runtime.missing_packages() == []
    assert container_runtime.plugin_folder() == tmp_path


def test_the_kubelet_keeps_its_pods_under_the_group_of_its_node() -> None:
    pair = Certificate(Path("/c"), Path("/k"))

    config = kubelet.kubelet_config(
        Path("/tmp/node"),
        address="10.89.0.1",
        authority=Path("/ca"),
        serving=pair,
        socket=Path("/s"),
        group="mine",
    )

    assert config["cgroupRoot"] == "/mine"
    assert config["containerRuntimeEndpoint"] == "unix:///s"
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert Path(config["podLogsDir"]).is_relative_to("/tmp/node")
    assert json.dumps(config)


@pytest.mark.parametrize(("bridged", "masquerade"), [(True, False), (False, True)])
def test_services_work_whether_or_not_bridged_packets_pass_the_rules(bridged: bool, masquerade: bool) -> None:
    arguments = kubelet.proxy_arguments(Path("/kubeconfig"), "node-2", bridged_rules=bridged)

    assert ("--masquerade-all" in arguments) is masquerade


def test_pods_ask_the_address_that_the_dns_service_has() -> None:
    service, slice_ = objects()

    assert service["spec"]["clusterIP"] == kubelet.DNS_ADDRESS
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert [port["name"] for port in slice_["ports"]] == [port["name"] for port in service["spec"]["ports"]]
    assert slice_["endpoints"][0]["addresses"][0] in corefile(Path("/kubeconfig"))


def test_dns_reads_the_cluster_through_the_given_kubeconfig() -> None:
    assert "kubeconfig /somewhere/admin.kubeconfig test" in corefile(Path("/somewhere/admin.kubeconfig"))
