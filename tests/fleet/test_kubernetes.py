"""The manifests for Kubernetes: they follow its schemas, and start commands that there are, with the probes of their monitor."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedgraph_flwr.cli.app import _parse
from fedgraph_flwr.cli.node import monitor_address

FOLDER = Path(__file__).parents[2] / "docs" / "fleet" / "kubernetes"
NAMES = ("server", "node")
VERSIONS = ("1.31", "1.33")


def manifests(name):
    """The objects of a part."""
    return list(yaml.safe_load_all((FOLDER / name / f"{name}.yaml").read_text()))


def by_kind(objects, kind):
    """The one object of a kind."""
    (manifest,) = [one for one in objects if one["kind"] == kind]
    return manifest


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_follow_the_schemas_of_kubernetes(name, version):
    validate = pytest.importorskip("kubernetes_validate")
    for one in manifests(name):
        validate.validate(one, version, strict=True)
    pod = by_kind(manifests(name), "StatefulSet")
    pod["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(validate.ValidationError, match="livenessProb"):
        validate.validate(pod, version, strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_kustomize_builds_the_manifests(name):
    done = subprocess.run(["kubectl", "kustomize", FOLDER / name], capture_output=True, text=True, check=True)
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(manifests(name))
    assert {one["metadata"]["namespace"] for one in built} == {"fedgraph"}
    pod = by_kind(built, "StatefulSet")["spec"]["template"]["spec"]
    images = {one["image"] for one in (*pod["containers"], *pod["initContainers"])}
    assert [
        re.fullmatch(r"registry\.example\.org/fedgraph-flwr:\d+\.\d+\.\d+", image) is not None for image in images
    ] == [True]


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_runs_a_command_that_there_is_without_rights_and_answers_its_probes(name):
    objects = manifests(name)
    pod = by_kind(objects, "StatefulSet")["spec"]["template"]
    spec, labels = pod["spec"], pod["metadata"]["labels"]
    (container,) = spec["containers"]
    args = _parse(container["args"])
    host, port = monitor_address(args.monitor)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert host == "0.0.0.0"
    assert ports["monitor"] == port
    paths = {key: container[key]["httpGet"]["path"] for key in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert (paths["livenessProbe"], paths["readinessProbe"]) == ("/live", "/ready")  # pages of server and node
    assert {container[key]["httpGet"]["port"] for key in paths} == {"monitor"}
    assert args.log_format == "json"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert not spec["automountServiceAccountToken"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for one in (container, *spec["initContainers"]):
        locked = one["securityContext"]
        assert (locked["readOnlyRootFilesystem"], locked["capabilities"]) == (True, {"drop": ["ALL"]})
        assert one["resources"]["limits"].keys() == {"cpu", "memory"}
    for word in container["args"]:
        assert not word.startswith("/") or any(word.startswith(f"{place}/") for place in mounts), word
    volumes = {volume["name"] for volume in spec["volumes"]}
    claims = by_kind(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes | {
        one["metadata"]["name"] for one in claims
    }
    policy = by_kind(objects, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    listened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert listened == set(ports)
    for service in (one for one in objects if one["kind"] == "Service"):
        assert service["spec"]["selector"] == labels
        assert all(one["targetPort"] in ports for one in service["spec"]["ports"])


def test_prometheus_finds_both_under_the_jobs_of_the_rules():
    monitor = yaml.safe_load((FOLDER / "monitor.yaml").read_text())["spec"]
    jobs = set()
    for name in NAMES:
        for service in (one for one in manifests(name) if one["kind"] == "Service"):
            labels = service["metadata"]["labels"]
            if monitor["selector"]["matchLabels"].items() <= labels.items():
                jobs.add(labels[monitor["jobLabel"]])
                assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert jobs == {"fedgraph-server", "fedgraph-node"}
    rules = (FOLDER.parent / "alerts.yaml").read_text()
    assert all(re.fullmatch(pattern, job) for pattern in re.findall(r'job=~"([^"]*)"', rules) for job in jobs)
