"""The overlays of deploy/kubernetes, built by kustomize and checked by their schemas."""

import json
import os
import re
import subprocess
import tomllib

import pytest
import yaml
from conftest import DEPLOY, HERE, PYTHON_BIN, ROOT, load, peer, rules, run


@pytest.fixture(scope="module", params=["development", "production"])
def objects(request, kubectl, tmp_path_factory):
    """The objects of an overlay, by kind, and the file with them."""
    path = tmp_path_factory.mktemp("kubernetes") / f"{request.param}.yaml"
    text = run(kubectl, "kustomize", DEPLOY / "kubernetes/overlays" / request.param)
    # Deprecations are reported as comments.
    assert "Warning" not in text, text
    path.write_text(text)
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


def test_the_pods_have_probes_selectors_and_files(objects):
    name, _, found = objects
    stateful = found["StatefulSet"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name == "development":
            assert container[probe]["grpc"]["port"] == ports["grpc"]
        else:
            # The kubelet's gRPC probes do not support TLS.
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
    directory = settings["store"]["dir"]
    assert directory.startswith(f"{data}/")
    variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    key = variables.get("UNSTUCK__STORE__KEY_FILE", settings["store"]["key_file"])
    (holder,) = [mount["name"] for mount in container["volumeMounts"] if key.startswith(f"{mount['mountPath']}/")]
    assert not key.startswith(f"{directory}/") and holder == ("data" if name == "development" else "key")
    secrets = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    assert name == "development" or secrets["key"]["defaultMode"] == 0o400
    (config,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
    assert config["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]


def test_the_configuration_of_the_pods_is_valid(objects, tmp_path):
    _, _, found = objects
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    variables = create_secret_files(variables, tmp_path)
    insecure = [arg for arg in container["args"] if arg == "--insecure"]
    for name, text in found["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text)
        check = [peer.BINARY, "config", "check", "--config", tmp_path / name, *insecure]
        run(*check, cwd=tmp_path, env=os.environ | variables)


def create_secret_files(variables, folder):
    """Creates the files that a pod gets from secrets, and returns the variables with their paths."""
    ours = {variable: str(folder / os.path.basename(path)) for variable, path in variables.items()}
    if ours:
        cert, key = ours["UNSTUCK__TLS__CERT"], ours["UNSTUCK__TLS__KEY"]
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", "/CN=unstuck", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert)
        line = f'"ci" = {{ role = "broker", hash = "blake3:{"0" * 64}" }}\n'
        (folder / os.path.basename(ours["UNSTUCK__AUTH__TOKENS"])).write_text(line)
    return ours


def is_allowed_to_listen(args, variables):
    """Listening for other machines needs tokens and TLS, or `--insecure`."""
    secured = {"UNSTUCK__AUTH__TOKENS", "UNSTUCK__TLS__CERT", "UNSTUCK__TLS__KEY"} <= set(variables)
    return secured != ("--insecure" in args)


def test_listening_for_other_machines_needs_tokens_and_tls_or_insecure(objects):
    name, _, found = objects
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"] for variable in container.get("env", [])}
    assert is_allowed_to_listen(container["args"], variables)
    assert ("--insecure" in container["args"]) == (name == "development")
    service = load("compose.yaml")["services"]["unstuck"]
    assert is_allowed_to_listen(service["command"], service["environment"])


def operator_errors(*objects):
    """The errors by the schemas of the operator's definitions; empty if valid."""
    command = ["node", "operator.mjs"]
    checked = subprocess.run(command, cwd=HERE, input=json.dumps(objects), capture_output=True, text=True)
    return re.search(r"data/.*|$", checked.stderr)[0] or checked.stderr


def test_the_operator_accepts_the_rules_and_selects_the_service(objects):
    name, _, found = objects
    if name == "development":
        assert "PrometheusRule" not in found
        return
    assert operator_errors(found["PrometheusRule"], found["ServiceMonitor"]) == ""
    wrong = found["ServiceMonitor"] | {"spec": {"selector": {}, "endpoints": [{"port": 50552}]}}
    assert operator_errors(wrong) == "data/spec/endpoints/0/port must be string"
    by_name = lambda rule: rule.get("record") or rule["alert"]
    of_operator = [rule for group in found["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
    assert sorted(of_operator, key=by_name) == sorted(rules(), key=by_name)
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in found["Service"]["spec"]["ports"]}
    selected = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= found["Service"]["metadata"]["labels"].items()
