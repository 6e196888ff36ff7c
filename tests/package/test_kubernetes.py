"""deploy/kubernetes and the Helm chart: all that they render fits the schemas and itself; a pod runs as a kubelet runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kustomize import TARGET as KUSTOMIZE

from hangup import __version__
from hangup.cli.main import main
from hangup.config import LimitSettings
from support.processes import HANGUP, Gateway, StandIn
from support.raw import Client
from support.waiting import PATIENCE_S, wait_until

if os.environ.get("PACKAGE_TESTS") != "required":
    pytest.skip("run `make test-package`", allow_module_level=True)
if not KUSTOMIZE.exists() and shutil.which("kubectl") is None:
    pytest.skip("neither Kustomize nor kubectl is here", allow_module_level=True)

import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ["base", "overlays/vllm", "overlays/production"]
CHART = ROOT / "deploy" / "helm" / "hangup"
HELM = Path(sys.executable).with_name("helm")  # from requirements/package.txt, where there is a wheel for this machine
RELEASES = ["helm", "helm with everything"]
OF_HELM = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}
SCHEMAS = ["1.30", "1.37"]  # the oldest that has preStop.sleep on, and the newest that is published
OPERATOR = {"ServiceMonitor", "PrometheusRule"}  # the Prometheus operator's own kinds
EXIT_S = LimitSettings().exit_s


def rendered(overlay: str) -> list[dict[str, Any]]:
    command = [KUSTOMIZE, "build"] if KUSTOMIZE.exists() else ["kubectl", "kustomize"]
    done = subprocess.run([*command, FOLDER / overlay], capture_output=True, text=True, check=False, timeout=120)
    if "unknown field" in done.stderr and "components" in done.stderr and not KUSTOMIZE.exists():
        pytest.skip("this kubectl's Kustomize is older than version 4")
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def by_helm(*options: str, release: str = "hangup") -> list[dict[str, Any]]:
    if not HELM.exists():
        pytest.skip("no wheel of Helm for this machine")
    command: list[str | Path] = [HELM, "template", release, CHART, "--kube-version", "1.30.0", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def with_everything() -> list[str]:
    """Return the options that make of the chart what overlays/production is."""
    spread = only(rendered("overlays/production"), "Deployment")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    return [
        *("--namespace", "hangup", "--set", "autoscaling.enabled=true,prometheusOperator.enabled=true"),
        *("--set-json", f"topologySpreadConstraints={json.dumps(spread)}"),
        *("--set-file", f"config={FOLDER / 'overlays/production/hangup.toml'}"),
    ]


@pytest.fixture(params=[*OVERLAYS, *RELEASES])
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if request.param in RELEASES:
        return by_helm(*(with_everything() if request.param == "helm with everything" else []))
    return rendered(request.param)


def only(objects: list[dict[str, Any]], kind: str, name: str = "hangup") -> dict[str, Any]:
    (found,) = (entry for entry in objects if entry["kind"] == kind and entry["metadata"]["name"] == name)
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def settings(objects: list[dict[str, Any]]) -> str:
    return str(only(objects, "ConfigMap")["data"]["hangup.toml"])


@pytest.mark.parametrize("version", SCHEMAS)
def test_the_schemas(version: str, objects: list[dict[str, Any]]) -> None:
    checked = [entry for entry in objects if entry["kind"] not in OPERATOR]
    assert len(checked) >= 7
    for entry in checked:
        kubernetes_validate.validate(entry, version, strict=True)
    wrong = {**only(objects, "Deployment"), "spec": {"replicas": "two"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def plain(value: Any) -> Any:
    """Leave out what only Helm adds: its labels, and defaults that the chart spells out."""
    if isinstance(value, dict):
        added = {*OF_HELM, *(name for name in ("namespace", "imagePullPolicy") if name in value)}
        added |= {"type"} if value.get("type") == "ClusterIP" else set()
        return {name: plain(each) for name, each in value.items() if name not in added}
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("release", RELEASES)
def test_helm_and_kustomize_say_the_same(release: str) -> None:
    ours, options = ("base", []) if release == "helm" else ("overlays/production", with_everything())
    by_name = {(entry["kind"], entry["metadata"]["name"]): plain(entry) for entry in rendered(ours)}
    assert {(entry["kind"], entry["metadata"]["name"]): plain(entry) for entry in by_helm(*options)} == by_name


def test_two_releases_do_not_meet() -> None:
    """Another release in the same namespace: no name is the same, and no selector meets the other's pods."""
    one, two = (
        by_helm("--set", "prometheusOperator.enabled=true"),
        by_helm("--set", "prometheusOperator.enabled=true", release="b"),
    )
    assert not {(e["kind"], e["metadata"]["name"]) for e in one} & {(e["kind"], e["metadata"]["name"]) for e in two}
    pods = only(one, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert not only(two, "Service", "b-hangup")["spec"]["selector"].items() <= pods.items()
    assert 'admin_names = "b-hangup-admin"' in only(two, "ConfigMap", "b-hangup")["data"]["hangup.toml"]


@pytest.mark.parametrize("wrong", ["replica=3", "service.port=http", "networkPolicy.egressPorts={0}", "existingSecret="])
def test_values_that_make_no_sense_are_refused(wrong: str) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema"):
        by_helm("--set", wrong)


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
    lint = subprocess.run([HELM, "lint", "--strict", CHART], capture_output=True, text=True, check=False, timeout=120)
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_selectors_meet_the_pods(objects: list[dict[str, Any]]) -> None:
    """An empty selector would mean every pod of the namespace."""
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in container(objects)["ports"]}
    selectors = [
        only(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(only(objects, "Service", name)["spec"]["selector"] for name in ("hangup", "hangup-admin")),
    ]
    for selector in selectors:
        assert selector and selector.items() <= labels.items()
    for name in ("hangup", "hangup-admin"):
        assert {port["targetPort"] for port in only(objects, "Service", name)["spec"]["ports"]} <= ports
    rules = only(objects, "NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} <= ports
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert container(objects)[probe]["httpGet"]["port"] in ports


def test_pods_that_share_their_state_reach_each_other(objects: list[dict[str, Any]]) -> None:
    """Else a pod that dies is noticed after gateway_silence_s instead of a second."""
    policy = only(objects, "NetworkPolicy")["spec"]
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        (rule,) = (rule for rule in policy[direction] if {"port": "peers"} in rule["ports"])
        (peer,) = rule[peers]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items() and list(peer) == ["podSelector"]
    (port,) = (port["containerPort"] for port in container(objects)["ports"] if port["name"] == "peers")
    assert f"`peer_port = {port}`" in (ROOT / "docs/kubernetes.md").read_text()


def test_the_grace_period_is_longer_than_the_drain(objects: list[dict[str, Any]]) -> None:
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    drain_s = tomllib.loads(settings(objects))["limits"]["drain_s"]
    sleep_s = container(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= sleep_s + drain_s + EXIT_S


def test_the_configuration_is_valid(objects: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hangup.toml"
    path.write_text(settings(objects))
    assert main(["config", "check", str(path), "--file-only"]) == 0, capsys.readouterr()


def test_prometheus_finds_the_admin_port_and_knows_the_metrics() -> None:
    objects = rendered("overlays/production")
    monitor, service = only(objects, "ServiceMonitor"), only(objects, "Service", "hangup-admin")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    secret = container(objects)["envFrom"][0]["secretRef"]["name"]
    token = tomllib.loads(settings(objects))["admin_token_env"]
    assert endpoint["authorization"]["credentials"] == {"name": secret, "key": token}
    known = re.findall(r"^\| `(hangup_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.M)
    metrics = only(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]
    (pods,) = (metric["pods"]["metric"]["name"] for metric in metrics if metric["type"] == "Pods")
    assert pods in known and pods in (FOLDER / "components/autoscaling/adapter-rules.yaml").read_text()
    assert "replicas" not in only(objects, "Deployment")["spec"]  # the HPA's to decide
    groups = only(objects, "PrometheusRule")["spec"]["groups"]
    assert groups == yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]


SERVICE_LINKS = {  # as the kubelet sets them for the Services hangup and hangup-admin, if enableServiceLinks is left on
    "HANGUP_SERVICE_HOST": "10.96.7.7",
    "HANGUP_SERVICE_PORT": "80",
    "HANGUP_SERVICE_PORT_HTTP": "80",
    "HANGUP_PORT": "tcp://10.96.7.7:80",
    "HANGUP_PORT_80_TCP": "tcp://10.96.7.7:80",
    "HANGUP_PORT_80_TCP_PROTO": "tcp",
    "HANGUP_PORT_80_TCP_PORT": "80",
    "HANGUP_PORT_80_TCP_ADDR": "10.96.7.7",
    "HANGUP_ADMIN_SERVICE_HOST": "10.96.7.8",
    "HANGUP_ADMIN_SERVICE_PORT": "8081",
    "HANGUP_ADMIN_PORT": "tcp://10.96.7.8:8081",
    "HANGUP_ADMIN_PORT_8081_TCP": "tcp://10.96.7.8:8081",
}
# A read-only root, a fresh /tmp, and the configuration in it; then the pod's user, without capabilities.
ENTER = """
mount --make-rprivate / && mount --bind / / && mount -o remount,ro,bind / && mount -t tmpfs tmpfs /tmp || exit 99
mkdir /tmp/hangup && printf %s "$TOML" > /tmp/hangup/hangup.toml && chmod -R a+rX /tmp/hangup && cd /
exec setpriv --reuid "$POD_USER" --regid "$POD_USER" --clear-groups --no-new-privs --bounding-set -all "$@"
"""


def readable_by_anyone() -> bool:
    """Return whether the pod's user can run this Python, which is not in /tmp, and whether we may change users and mounts."""
    probe = ["unshare", "--mount", "sh", "-c", ENTER, "sh", sys.executable, "-c", "import hangup"]
    env = {**os.environ, "TOML": "", "POD_USER": "65534"}
    return subprocess.run(probe, capture_output=True, check=False, env=env, timeout=300).returncode == 0


@pytest.fixture
def pod() -> Iterator[tuple[Gateway, StandIn, dict[str, Any]]]:
    """Run the rendered pod: its arguments, configuration, user and read-only root, with service links."""
    objects = rendered("base")
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert container(objects)["securityContext"]["readOnlyRootFilesystem"] is True
    restricted = readable_by_anyone()

    class Pod(Gateway):
        program = ["unshare", "--mount", "sh", "-c", ENTER, "sh", *HANGUP] if restricted else HANGUP

    with StandIn(token_s=0.02) as engine:
        text = settings(objects).replace("dns+http://engine:8000", engine.url)
        env = {
            **SERVICE_LINKS,
            "HANGUP_ADMIN_TOKEN": "secret",
            "TOML": text,
            "POD_USER": str(spec["securityContext"]["runAsUser"]),
        }
        env["HANGUP_CONFIG"] = "/tmp/hangup/hangup.toml"
        with Pod(env=env, **({} if restricted else {"config": text})) as gateway:
            wait_until(lambda: ask_probe(gateway, container(objects)["readinessProbe"]) == 200, what="readiness")
            yield gateway, engine, container(objects)


def ask_probe(gateway: Gateway, probe: dict[str, Any]) -> int:
    """Ask as the kubelet does: by address, without a token."""
    port = gateway.port if probe["httpGet"]["port"] == "http" else gateway.admin_url.rpartition(":")[2]
    try:
        return int(urllib.request.urlopen(f"http://127.0.0.1:{port}{probe['httpGet']['path']}", timeout=PATIENCE_S).status)
    except urllib.error.HTTPError as error:
        return int(error.code)


def test_the_pod_starts_answers_probes_and_drains(pod: tuple[Gateway, StandIn, dict[str, Any]]) -> None:
    gateway, engine, spec = pod
    assert not [line for line in gateway.stderr_lines if "warning" in line], gateway.stderr_lines  # about the service links
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert ask_probe(gateway, spec[probe]) == 200, probe
    with Client(("127.0.0.1", gateway.port)) as client:
        client.chat(stream=True, max_tokens=100)
        client.read_until(b"data: ")
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: ask_probe(gateway, spec["readinessProbe"]) == 503, what="not ready while it drains")
        assert ask_probe(gateway, spec["livenessProbe"]) == 200  # the kubelet must not restart it
        while client.read_some():  # the live call finishes
            pass
        assert b"[DONE]" in client.buffer
    assert gateway.wait() == 0
    assert engine.stats()["aborted"] == 0


def test_the_pod_stays_alive_without_engines(pod: tuple[Gateway, StandIn, dict[str, Any]]) -> None:
    gateway, engine, spec = pod
    engine.close()
    wait_until(lambda: ask_probe(gateway, spec["readinessProbe"]) == 503, what="not ready")
    assert ask_probe(gateway, spec["livenessProbe"]) == 200
