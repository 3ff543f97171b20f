"""What `deploy/` holds: each file is checked by the program that reads it, where there is one, and by our own names."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from proxy.config import ConfigError, load_settings
from proxy.config.reference import name_keys
from proxy.model.events import AnswerRead, ExchangeRecorded, RungFailedEvent
from proxy.model.log import ArchiveHealth
from proxy.telemetry.metric_names import METRICS
from proxy.telemetry.metrics import Metrics
from tests.support.scripted import LIMIT

ROOT = Path(__file__).parents[1]
DEPLOY, PAGE = ROOT / "deploy", (ROOT / "docs" / "operations.md").read_text()
# Of prometheus_client's process collector, and of Prometheus itself.
_OTHERS = {"up", *(f"process_{name}" for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds"))}
_OTHERS |= {"process_start_time_seconds"}
LABELS = {"job", "instance", "le"}


def list_series() -> dict[str, set[str]]:
    """The series that the server emits, with their labels."""
    found: dict[str, set[str]] = {}
    for kind, name, _, labels in METRICS:
        endings = {"counter": ("_total",), "gauge": ("",), "seconds": ("_bucket", "_sum", "_count")}[kind]
        found |= {f"{name}{ending}": {*labels} for ending in endings}
    return found


def render_metrics() -> str:
    """The table of metrics as its page has to hold it."""
    names = {"counter": ("{}_total", "counter"), "gauge": ("{}", "gauge"), "seconds": ("{}", "histogram")}
    rows = [
        f"| `{names[kind][0].format(name)}` | {names[kind][1]} | {' '.join(map('`{}`'.format, labels))} | {text} |"
        for kind, name, text, labels in METRICS
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def read_rules() -> list[dict[str, Any]]:
    """The alert rules."""
    return [rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def read_panels() -> list[dict[str, Any]]:
    """The panels of the dashboard."""
    panels: list[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]
    return panels


def list_expressions() -> Iterator[tuple[str, str]]:
    """All expressions of the dashboard and the rules, by where they stand."""
    for rule in read_rules():
        yield rule["alert"], rule["expr"]
    for panel in read_panels():
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


def find_unknown(expression: str) -> set[str]:
    """The metrics of an expression that the server does not emit, and labels that they do not have."""
    series = list_series()
    unknown = set()
    for name, selector in re.findall(r"\b((?:palimpsest|process)_\w+|up\b)(?:\{([^}]*)\})?", expression):
        if name not in series and name not in _OTHERS:
            unknown.add(name)
        used = set(re.findall(r"(\w+)\s*(?:=~?|!=|!~)", selector or ""))
        unknown |= {f"{name}.{label}" for label in used - series.get(name, set()) - LABELS}
    return unknown


def test_every_metric_is_told() -> None:
    table = re.search(r"(?s)<!-- metrics:.*?-->\n(.*?)\n?<!-- end of metrics -->", PAGE)
    assert table
    assert table[1] == render_metrics()


def test_the_dashboard_and_the_rules_name_metrics_that_exist() -> None:
    expressions = list(list_expressions())
    assert len(expressions) > 40
    assert {place: unknown for place, text in expressions if (unknown := find_unknown(text))} == {}
    assert find_unknown("rate(palimpsest_epochs[5m])") == {"palimpsest_epochs"}
    assert find_unknown('palimpsest_log_bytes{part="x"}') == {"palimpsest_log_bytes.part"}


def test_every_document_of_ours_names_metrics_that_exist() -> None:
    texts = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    known = {*list_series(), *(name for _, name, _, _ in METRICS)}
    assert {
        (name, found)
        for name, text in texts.items()
        for found in re.findall(r"`(palimpsest_\w+)[`{]", text)
        if found not in known
    } == set()


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    sections = re.findall(r"(?m)^### (\w+)\n(.+)", PAGE)
    assert [name for name, _ in sections] == [rule["alert"] for rule in read_rules()]
    for rule in read_rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["runbook"] == f"docs/operations.md, {rule['alert']}"


def test_the_panels_of_the_dashboard_are_explained_and_do_not_overlap() -> None:
    places: set[tuple[int, int]] = set()
    for panel in read_panels():
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & places, panel["title"]
        assert place["x"] + place["w"] <= 24
        places |= cells
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
    ids = [panel["id"] for panel in read_panels()]
    assert len(ids) == len(set(ids))


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian's package prometheus)")
def test_prometheus_accepts_its_files(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text((DEPLOY / "alerts.yaml").read_text())
    settings = (DEPLOY / "prometheus.yaml").read_text().replace("/etc/prometheus/", f"{tmp_path}/")
    (tmp_path / "prometheus.yaml").write_text(settings.replace("/run/secrets/", f"{tmp_path}/"))
    (tmp_path / "metrics_token").write_text("token")
    # Of the dashboard: each expression as a rule that records it.
    rules = [
        {"record": f"panel:{i}", "expr": re.sub(r"\$__(?:rate_)?(?:interval|range)", "5m", text)}
        for i, (_, text) in enumerate(list_expressions())
    ]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for command in (("config", "prometheus.yaml"), ("rules", "panels.yaml")):
        checked = subprocess.run(
            ["promtool", "check", command[0], str(tmp_path / command[1])],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian's package prometheus)")
def test_prometheus_has_no_complaint_about_the_metrics() -> None:
    metrics = Metrics(lambda: ArchiveHealth("", 0, 0, 0, 0), lambda: 0, circuits=lambda: {"openai": False})
    recorded = ExchangeRecorded("e", "s", "managed", "chat", "openai", 200, "complete", 1, 1, 0.1, 0.1, overhead_s=0.1)
    failed = RungFailedEvent(exchange="e", session="s", rung="plan", error="why")
    for event in (recorded, failed, AnswerRead("e", 0, round=recorded, cause="epoch", missed=1, missed_cost=1.0)):
        metrics.count(event)
    command = ["promtool", "check", "metrics"]
    checked = subprocess.run(command, input=metrics.render(), capture_output=True, timeout=LIMIT, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_compose_file_names_files_settings_and_options_that_exist() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "images are pinned"
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
    names = {f"PALIMPSEST_{key.replace('.', '__').upper()}" for key in name_keys()}
    assert set(services["palimpsest"]["environment"]) <= names
    token = services["palimpsest"]["environment"]["PALIMPSEST_SERVER__METRICS_TOKEN_FILE"]
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"][0]
    assert scraped["authorization"] == {"credentials_file": token}
    assert scraped["static_configs"] == [{"targets": ["palimpsest:8484"]}]
    assert scraped["job_name"] == "palimpsest", "the rule PalimpsestDown names it"
    helped = subprocess.run(
        [sys.executable, "-m", "proxy", *services["palimpsest"]["command"], "--help"],
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert helped.returncode == 0


def read_unit() -> dict[str, list[str]]:
    """The directives of the unit."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"(?m)^(\w+)=(.*)$", (DEPLOY / "palimpsest.service").read_text()):
        found.setdefault(name, []).append(value)
    return found


def test_the_unit_starts_the_server_and_lets_it_end() -> None:
    unit = read_unit()
    (command,) = unit["ExecStart"]
    program, *arguments = command.split()
    assert program.endswith("/.venv/bin/palimpsest")
    assert arguments[0] == "serve"
    assert int(unit["TimeoutStopSec"][0]) > load_settings(None, {}).server.drain_seconds + 3
    # The worker process limits itself: what forbids that would kill it.
    assert not any("@resources" in value for value in unit["SystemCallFilter"] if value.startswith("~"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "palimpsest.service").read_text()
    copy = tmp_path / "palimpsest.service"
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    told = [line for line in checked.stderr.splitlines() if "palimpsest.service" in line]
    assert (checked.returncode, told) == (0, [])


def test_kubernetes_accepts_the_sidecar() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.29", strict=True)
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    settings, _, deployment = documents
    pod = deployment["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always", "else the agent would wait for its end"
    assert {mount["name"] for mount in sidecar["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert sidecar["args"][:1] == ["serve"]
    assert pod["terminationGracePeriodSeconds"] > load_settings(None, {}).server.drain_seconds
    assert {each["kind"] for each in documents} == {"ConfigMap", "PersistentVolumeClaim", "Deployment"}, "no secret"
    assert (pod["securityContext"]["runAsUser"], deployment["spec"]["replicas"]) == (10001, 1)
    broken = {**deployment, "spec": {**deployment["spec"], "replicas": "one"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.29", strict=True)
    assert settings["data"].keys() == {"config.yaml"}


def test_the_settings_of_the_sidecar_are_settings(tmp_path: Path) -> None:
    settings, *_ = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (tmp_path / "admin-token").write_text("token")
    text = settings["data"]["config.yaml"].replace("/run/palimpsest/", f"{tmp_path}/")
    (tmp_path / "config.yaml").write_text(text)
    loaded = load_settings(tmp_path / "config.yaml", {})
    assert (loaded.log.format, loaded.server_policy().admin_token) == ("json", "token")
    loaded.check_network("0.0.0.0")
    (tmp_path / "admin-token").write_text("change-me")
    with pytest.raises(ConfigError, match="admin_token is the placeholder of an example"):
        load_settings(tmp_path / "config.yaml", {})
